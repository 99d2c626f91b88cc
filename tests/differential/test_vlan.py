"""vlan beside the reference plugin, on a kernel that has such links."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.differential.harness import Difference, World
from tests.differential.test_host_local import FILE_MODE
from tests.differential.wiring import host_local

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("vlan")]
Twins = Callable[..., None]

LOOKED_FOR = Difference(
    "vlan-del-without-netns",
    "*. DEL vlan two eth0 / state / *",
    "without the namespace's path the interface is looked for: its addresses are free from then on",
)
DIFFERENCES = (LOOKED_FOR,)


def uplink(world: World, mtu: int = 1400) -> None:
    """A cable from m0, the master, to r0 in the namespace ``router``; both with MACs of their own."""
    world.sh("ip", "netns", "add", "router")
    for line in (
        f"link add m0 mtu {mtu} address 02:00:00:00:00:01 type veth peer name r0 mtu {mtu}"
        " address 02:00:00:00:00:02 netns router",
        "link set m0 up",
        "-n router link set r0 up",
    ):
        world.sh("ip", *line.split())


def on_vlan(world: World, vlan: int) -> None:
    """A gateway in a VLAN of the cable."""
    for line in (
        f"link add link r0 name r0.{vlan} type vlan id {vlan}",
        f"address add 10.1.0.1/24 dev r0.{vlan}",
        f"address add fd00:1::1/64 dev r0.{vlan} nodad",
        f"link set r0.{vlan} up",
    ):
        world.sh("ip", "-n", "router", *line.split())


def test_a_container_in_a_vlan(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        on_vlan(world, 5)
        net = {"type": "vlan", "master": "m0", "vlanId": 5, "ipam": host_local("10.1.0.0/24", "fd00:1::/64")}
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("gateway", world.reaches("one", "10.1.0.1"))
        zero = {**net, "vlanId": 0, "mtu": 1300, "name": "zero"}
        world.add(zero, world.pod("two"))
        world.delete(net, "one")
        world.delete(net, "one")
        world.delete(zero, "two", netns="")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, *DIFFERENCES, FILE_MODE)


def test_what_is_refused(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        world.pod("one")
        net = {"type": "vlan", "master": "m0", "vlanId": 5, "ipam": host_local("10.1.0.0/24")}
        for change in ({"master": ""}, {"master": "nosuch0"}, {"vlanId": 4095}, {"mtu": 1401}):
            world.add({**net, **change}, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario)
