"""ptp beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import ABSENT, Difference, World
from tests.differential.test_host_local import FILE_MODE
from tests.differential.wiring import host_local, two_pods

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

ANNOUNCED = Difference(
    "ptp-announcement",
    "* / sysctls / eth0 / ipv4/arp_notify",
    "addresses are announced whenever the interface comes up, not once",
    go="0",
    ours="1",
)
NO_PREFIX_ROUTE = Difference(
    "ptp-no-prefix-route",
    "* / addresses / *.*/24 dev eth0 *",
    "the kernel must not bring the route to the subnet back",
    go="",
    ours="noprefixroute",
)
NO_PREFIX_ROUTE6 = Difference(
    "ptp-no-prefix-route",
    "* / addresses / *:*/64 dev eth0 *",
    "as above",
    go="",
    ours="nodad noprefixroute",
)
FORGOTTEN = Difference(
    "ptp-del-without-netns",
    "*. DEL ptp two eth0 / state / *",
    "a DEL without the namespace removes the pair: nobody else would",
    ours=ABSENT,
)
BROKEN_DEL = Difference(
    "ptp-del-broken-configuration",
    "*. DEL ptp one eth0 / reply / status",
    "a DEL removes what is there, whatever the configuration has become",
    go=1,
    ours=0,
)
DIFFERENCES = (BROKEN_DEL, ANNOUNCED, NO_PREFIX_ROUTE, NO_PREFIX_ROUTE6, FORGOTTEN)


def config(*subnets: str, **options: Any) -> dict[str, Any]:
    return {"type": "ptp", "ipam": host_local(*subnets), **options}


def test_ipv4(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config("10.1.0.0/24")
        two_pods(world, net)

    twins(scenario, ANNOUNCED, NO_PREFIX_ROUTE, FORGOTTEN, FILE_MODE)


def test_dual_stack(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config("10.1.0.0/24", "fd00:1::/64", mtu=1400, ipMasq=True)
        net["ipam"]["routes"] = [
            {"dst": "0.0.0.0/0"},
            {"dst": "::/0"},
            {"dst": "192.0.2.0/24", "gw": "10.1.0.1"},
        ]
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("gateway", world.reaches("one", "10.1.0.1"))
        world.note("gateway", world.reaches("one", "fd00:1::1"))
        world.delete(net, "one")

    twins(scenario, ANNOUNCED, NO_PREFIX_ROUTE, NO_PREFIX_ROUTE6, FILE_MODE)


def test_a_resolver_and_a_second_address(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config(
            "10.1.0.0/24", "10.2.0.0/24", dns={"nameservers": ["192.0.2.53"], "search": ["a.example"]}
        )
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("the second gateway", world.reaches("one", "10.2.0.1"))
        world.delete(net, "one")

    twins(scenario, ANNOUNCED, NO_PREFIX_ROUTE, FILE_MODE)


def test_a_gateway_of_its_own(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config("10.1.0.0/24")
        net["ipam"]["ranges"][0][0]["gateway"] = "10.1.0.254"
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("gateway", world.reaches("one", "10.1.0.254"))
        world.delete(net, "one")

    twins(scenario, ANNOUNCED, NO_PREFIX_ROUTE, FILE_MODE)


def test_the_namespace_is_gone(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config("10.1.0.0/24")
        world.add(net, world.pod("one"))
        world.kill_pod("one")
        world.state("without the pod")
        world.delete(net, "one")

    twins(scenario, ANNOUNCED, NO_PREFIX_ROUTE, FILE_MODE)


def test_what_cannot_be(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.pod("one")
        broken: dict[str, Any]
        for broken in ({"ipam": {}}, {"ipam": {"type": "nosuch"}}, {"mtu": 10}):
            net = {**config("10.1.0.0/24"), **broken}
            world.add(net, "one")
            world.delete(net, "one")

    twins(scenario, BROKEN_DEL, part="reply")
