"""macvlan beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import DATA, Difference, World
from tests.differential.test_host_local import FILE_MODE

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

DIFFERENCES: tuple[Difference, ...] = ()


def uplink(world: World) -> None:
    """A cable from m0, the master, to a router with an address of each family."""
    world.sh("ip", "netns", "add", "router")
    world.sh(
        "ip",
        "link",
        "add",
        "m0",
        "mtu",
        "1400",
        "address",
        "02:00:00:00:00:01",
        "type",
        "veth",
        "peer",
        "name",
        "r0",
        "mtu",
        "1400",
        "netns",
        "router",
    )
    world.sh("ip", "link", "set", "m0", "up")
    for command in (
        "link set r0 up",
        "address add 10.1.0.1/24 dev r0",
        "address add fd00:1::1/64 dev r0 nodad",
    ):
        world.sh("ip", "-n", "router", *command.split())


def config(*subnets: str, **options: Any) -> dict[str, Any]:
    ipam = {
        "type": "host-local",
        "dataDir": DATA,
        "ranges": [[{"subnet": each}] for each in subnets],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"type": "macvlan", "master": "m0", **({"ipam": ipam} if subnets else {}), **options}


def test_ipv4(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        net = config("10.1.0.0/24")
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("gateway", world.reaches("one", "10.1.0.1"))
        world.add(net, world.pod("two"))
        world.note("pod to pod", world.reaches("one", "10.1.0.3"))
        world.delete(net, "one")
        world.delete(net, "one")
        world.delete(net, "two", netns="")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, *DIFFERENCES, FILE_MODE)


@pytest.mark.parametrize("mode", ["bridge", "private", "vepa", "passthru"])
def test_dual_stack(twins: Twins, mode: str) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        net = config("10.1.0.0/24", "fd00:1::/64", mtu=1300, mode=mode)
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("gateway", world.reaches("one", "10.1.0.1"))
        world.note("gateway", world.reaches("one", "fd00:1::1"))
        world.delete(net, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, *DIFFERENCES, FILE_MODE)
