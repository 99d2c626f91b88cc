"""sbr beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.differential.harness import ABSENT, Difference, World
from tests.differential.wiring import wire

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

MARK_GO = Difference(
    "sbr-rule-protocol",
    "* / one / rules / * protocol unspec src *",
    "our rules are recognisable by their protocol, 80: DEL needs no record of them",
    ours=ABSENT,
)
MARK = Difference("sbr-rule-protocol", "* / one / rules / * protocol 80 src *", "as above", go=ABSENT)
BACK_GO = Difference(
    "sbr-routes-back",
    "* DEL sbr * / one / routes / * table 10*",
    "DEL puts the routes back where they were, where the interface stays",
    ours=ABSENT,
)
BACK = Difference("sbr-routes-back", "* DEL sbr * / one / routes / * table main", "as above", go=ABSENT)
FAMILY = Difference(
    "sbr-own-family",
    "* ADD sbr * / one / routes / unicast fd00:1::/64 dev eth0 * table 10*",
    "an IPv4 address's table gets no IPv6 routes, which nothing leads to",
    ours=ABSENT,
)
LINK_LOCAL = Difference(
    "sbr-link-local",
    "* ADD sbr * / one / routes / unicast fe80::/64 dev eth0 *",
    "link-local routes stay in the main table too: traffic with a link-local source has no rule",
)
FOUND = Difference(
    "sbr-check",
    "* CHECK sbr * / reply / *",
    "CHECK finds missing rules and routes; the reference looks at nothing",
)
NO_NETNS = Difference(
    "sbr-del-without-netns", "* DEL sbr * / reply / status", "DEL without a namespace succeeds", go=1, ours=0
)
DIFFERENCES = (MARK_GO, MARK, BACK_GO, BACK, FAMILY, LINK_LOCAL, FOUND, NO_NETNS)
MARKS = (MARK_GO, MARK)
NET = {"type": "sbr"}


def test_one_interface(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.sh(
            "ip", "route", "add", "192.0.2.0/24", "via", "10.1.0.1", "dev", "eth0", "metric", "7", pod="one"
        )
        world.add(NET, "one", prev_result=result)
        world.check(NET, "one")
        world.note("the gateway answers", world.reaches("one", "10.1.0.1"))
        world.delete(NET, "one")

    twins(scenario, *MARKS, BACK_GO, BACK)


def test_dual_stack_and_two_addresses(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24", "10.2.0.5/24", "fd00:1::5/64")
        world.add(NET, "one", prev_result=result)
        world.note("the gateways answer", [world.reaches("one", f"10.{n}.0.1") for n in (1, 2)])
        world.delete(NET, "one")

    twins(scenario, *MARKS, BACK_GO, BACK, FAMILY)


def test_two_interfaces_with_one_subnet(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.pod("one")
        wire(world, "one", "10.1.0.5/24")
        result = wire(world, "one", "10.1.0.6/24", ifname="net1", number=2)
        world.add(NET, "one", ifname="net1", prev_result=result)
        world.delete(NET, "one", ifname="net1")

    twins(scenario, *MARKS, BACK_GO, BACK)


def test_a_missing_interface_and_no_addresses(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(NET, "one", prev_result={**result, "ips": []})
        world.add(NET, "one")
        world.add(NET, "one", ifname="net1", prev_result=result)

    twins(scenario)


def test_link_local_routes(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "fd00:1::5/64")
        world.sh("ip", "address", "add", "fe80::5/64", "dev", "eth0", "nodad", pod="one")
        world.add(NET, "one", prev_result=result)

    twins(scenario, *MARKS, LINK_LOCAL)


def test_what_is_missing_is_found(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(NET, "one", prev_result=result)
        world.sh("ip", "rule", "delete", "from", "10.1.0.5", pod="one")
        world.check(NET, "one")

    twins(scenario, *MARKS, FOUND)


def test_del_without_a_namespace(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(NET, "one", prev_result=result)
        world.delete(NET, "one", netns="")

    twins(scenario, *MARKS, NO_NETNS)
