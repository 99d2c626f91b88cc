"""vrf beside the reference plugin, on a kernel that has VRFs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.differential.harness import ABSENT, Difference, World
from tests.differential.wiring import wire

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("vrf")]
Twins = Callable[..., None]

ROUTES = Difference(
    "vrf-routes",
    "* / one / routes / unicast default dev eth* table *",
    "routes move into the VRF's table, as with the reference from 1.2 on: without them it leads nowhere",
    go=ABSENT,
    ours="boot",
)
REFUSED = Difference(
    "vrf-failed-add",
    "* / one / * / red*",
    "an ADD that is refused makes no VRF",
    ours=ABSENT,
)
TABLE = Difference(
    "vrf-other-table",
    "* ADD vrf one eth0 / *",
    "a VRF that has another table than the configuration wants is refused, not taken as it is",
)
THEIRS = Difference(
    "vrf-of-others",
    "* DEL vrf one eth0 / state / one / * / blue*",
    "DEL leaves a VRF that was there before and is not ours",
    go=ABSENT,
)
ADDRESSES = Difference(
    "vrf-addresses",
    "* DEL vrf one eth0 / state / one / * / *fd00:1::*",
    "the interface keeps its IPv6 addresses also when it leaves the VRF",
    go=ABSENT,
)
DIFFERENCES = (ROUTES, REFUSED, TABLE, THEIRS, ADDRESSES)
NET = {"type": "vrf", "vrfname": "blue"}


def test_one_interface(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24", "fd00:1::5/64")
        net = {**NET, "table": 10}
        world.add(net, "one", prev_result=result)
        world.check(net, "one")
        world.delete(net, "one")
        world.delete(net, "one")

    twins(scenario, ROUTES, ADDRESSES)


def test_two_interfaces_and_a_free_table(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.pod("one")
        world.sh("ip", "link", "add", "name", "vrf1", "type", "vrf", "table", "1", pod="one")
        for number in (1, 2):
            ifname = f"eth{number}"
            result = wire(world, "one", f"10.{number}.0.5/24", ifname=ifname, number=number)
            world.add(NET, "one", prev_result=result, ifname=ifname)
        world.delete(NET, "one", ifname="eth1")
        world.delete(NET, "one", ifname="eth2")

    twins(scenario, ROUTES)


def test_what_is_refused(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(NET, "one")
        world.add(NET, "one", prev_result=result)
        world.add({**NET, "vrfname": "red"}, "one", prev_result=result)

    twins(scenario, ROUTES, REFUSED)


def test_a_vrf_that_is_there_before(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.sh("ip", "link", "add", "name", "blue", "type", "vrf", "table", "7", pod="one")
        world.add({**NET, "table": 9}, "one", prev_result=result)
        world.delete(NET, "one")

    twins(scenario, TABLE, THEIRS)
