"""ipvlan beside the reference plugin, on a kernel that has such links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import ABSENT, Difference, World
from tests.differential.test_host_local import FILE_MODE
from tests.differential.test_vlan import uplink
from tests.differential.wiring import host_local

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("ipvlan")]
Twins = Callable[..., None]

LINK_LOCAL_GO = Difference(
    "ipvlan-link-local",
    "* / addresses / fe80::200:0:*:1/64 dev eth0 scope link",
    "the link-local address follows from container and interface; the kernel's from the order of the links",
    ours=ABSENT,
)
LINK_LOCAL = Difference(
    "ipvlan-link-local",
    "* / addresses / <link-local of its MAC>/64 dev eth0 scope link",
    "as above",
    go=ABSENT,
    ours="nodad",
)
CHAINED = Difference(
    "ipvlan-chained-check",
    "* CHECK ipvlan * / reply / *",
    "CHECK works also where the master is the one that ADD has found; Go's looks for a master without a name",
    go=1,
    ours=0,
)
LOOKED_FOR = Difference(
    "ipvlan-del-without-netns",
    "*. DEL ipvlan two eth0 / state / *",
    "without the namespace's path the interface is looked for: its addresses are free from then on",
)
DIFFERENCES = (LINK_LOCAL_GO, LINK_LOCAL, CHAINED, LOOKED_FOR)


def test_containers_of_one_master(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        net = {"type": "ipvlan", "master": "m0", "ipam": host_local("10.1.0.0/24", "fd00:1::/64")}
        world.add(net, world.pod("one"))
        world.add(net, world.pod("two"))
        world.check(net, "one")
        world.note("pod to pod", world.reaches("one", "10.1.0.3"))
        world.delete(net, "one")
        world.delete(net, "one")
        world.delete(net, "two", netns="")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, LINK_LOCAL_GO, LINK_LOCAL, LOOKED_FOR, FILE_MODE)


def test_other_modes(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        net = {"type": "ipvlan", "master": "m0", "mode": "l3", "ipam": host_local("10.1.0.0/24")}
        world.add(net, world.pod("one"))
        world.delete(net, "one")
        world.add({**net, "mode": "l3s"}, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, LINK_LOCAL_GO, FILE_MODE)


def test_the_master_by_the_default_route_and_an_mtu(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        world.sh("ip", "address", "add", "10.1.0.100/24", "dev", "m0")
        world.sh("ip", "route", "add", "default", "via", "10.1.0.1")
        net = {"type": "ipvlan", "mtu": 1300, "ipam": host_local("10.1.0.0/24")}
        world.add(net, world.pod("one"))
        world.delete(net, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, LINK_LOCAL_GO, FILE_MODE)


def test_after_another_plugin(twins: Twins) -> None:
    previous: dict[str, Any] = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "m0"}],
        "ips": [{"address": "10.1.0.7/24", "gateway": "10.1.0.1"}],
        "routes": [{"dst": "192.0.2.0/24"}],
    }

    def scenario(world: World) -> None:
        uplink(world)
        net = {"type": "ipvlan"}
        world.add(net, world.pod("one"), prev_result=previous)
        world.check(net, "one")
        world.delete(net, "one")
        world.add(net, "one", prev_result={**previous, "interfaces": []})
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, LINK_LOCAL_GO, CHAINED)


def test_what_is_refused(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        world.pod("one")
        net = {"type": "ipvlan", "master": "m0", "ipam": host_local("10.1.0.0/24")}
        for change in ({"mode": "l4"}, {"master": "nosuch0"}, {"master": ""}):
            world.add({**net, **change}, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario)
