"""bridge's VLANs beside the reference plugin, on a kernel that has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import Difference, World
from tests.differential.test_bridge import DAD, PORT_ADVERTISEMENTS
from tests.differential.test_host_local import FILE_MODE
from tests.differential.wiring import host_local

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("bridge-vlan")]
Twins = Callable[..., None]

WAY = Difference(
    "bridge-port-advertisements",
    "* / sysctls / <way to the gateway> / ipv6/accept_ra",
    "a port of a bridge, which it is before it is up, never takes an advertisement",
    go="0",
    ours="1",
)
FILTER = Difference(
    "bridge-vlan-filter",
    "1. ADD bridge one eth0 / *",
    "VLANs on a bridge that does not filter would part nobody; one with ports of others is not changed",
)
DIFFERENCES = (WAY, FILTER)


def vlans(world: World) -> list[list[tuple[int, list[str]]]]:
    """The VLANs of each port and bridge, without names."""
    shown = json.loads(world.sh("bridge", "-j", "vlan", "show"))
    return sorted([(one["vlan"], one.get("flags", [])) for one in port["vlans"]] for port in shown)


@pytest.mark.parametrize(
    "options", [{"vlan": 100}, {"vlan": 100, "isGateway": True}], ids=["access", "gateway"]
)
def test_ports_and_their_vlans(twins: Twins, options: dict[str, Any]) -> None:
    def scenario(world: World) -> None:
        net = {"type": "bridge", "bridge": "cni0", "ipam": host_local("10.1.0.0/24"), **options}
        world.add(net, world.pod("one"))
        world.note("vlans", vlans(world))
        world.check(net, "one")
        world.add(net, world.pod("two"))
        world.note("pod to pod", world.reaches("one", "10.1.0.3"))
        world.note("gateway", world.reaches("one", "10.1.0.1"))
        world.delete(net, "one")
        world.note("vlans", vlans(world))

    gateway = [WAY] if "isGateway" in options else []
    renames = [(r"veth[0-9a-f]{8}|vgw[0-9a-f]{12}", "<way to the gateway>")]
    twins(scenario, DAD, PORT_ADVERTISEMENTS, *gateway, FILE_MODE, renames=renames)


def test_a_bridge_of_others_that_does_not_filter(twins: Twins) -> None:
    def scenario(world: World) -> None:
        for line in (
            "link add cni0 address 02:00:00:00:00:01 type bridge",
            "link add p0 address 02:00:00:00:00:02 type veth peer p1 address 02:00:00:00:00:03",
            "link set p0 master cni0",
            "link set cni0 up",
        ):
            world.sh("ip", *line.split())
        net = {"type": "bridge", "bridge": "cni0", "ipam": host_local("10.1.0.0/24"), "vlan": 100}
        world.add(net, world.pod("one"))

    twins(scenario, FILTER)
