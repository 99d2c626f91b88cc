"""host-device beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import Difference, World
from tests.differential.test_host_local import FILE_MODE
from tests.differential.wiring import host_local, uplink

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

DEL_AGAIN = Difference(
    "host-device-del-again",
    "*. DEL host-device one eth0 / reply / status",
    "a DEL may be repeated, whatever is left",
    go=1,
    ours=0,
)
NO_DEVICE = Difference(
    "host-device-del-without-netns",
    "*. DEL host-device one eth0 / state / *",
    "without the namespace the device, where it can be found, and the addresses are free again all the same",
)
LEFT_BEHIND = Difference(
    "host-device-failed-add",
    "*. ADD host-device one eth0 / state / *",
    "a failed ADD leaves the device on the host; Go leaves it in the container",
)
DIFFERENCES = (DEL_AGAIN, NO_DEVICE, LEFT_BEHIND)


def device(world: World, name: str = "dev0", mac: str = "02:00:00:00:00:05") -> None:
    """A device of the host, with its cable to a router."""
    uplink(world, name, mac=mac, mtu=1500)


def config(*subnets: str, **options: Any) -> dict[str, Any]:
    addressed = {"ipam": host_local(*subnets)} if subnets else {}
    return {"type": "host-device", **addressed, **options}


@pytest.mark.parametrize(
    "options",
    [{"device": "dev0"}, {"hwaddr": "02:00:00:00:00:05"}],
    ids=["device", "hwaddr"],
)
@pytest.mark.parametrize("subnets", [(), ("10.1.0.0/24",), ("10.1.0.0/24", "fd00:1::/64")])
def test_there_and_back(twins: Twins, subnets: tuple[str, ...], options: dict[str, str]) -> None:
    def scenario(world: World) -> None:
        device(world)
        net = config(*subnets, **options)
        world.add(net, world.pod("one"))
        world.check(net, "one")
        if subnets:
            world.note("gateway", world.reaches("one", "10.1.0.1"))
        world.delete(net, "one")
        world.delete(net, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, DEL_AGAIN, *([FILE_MODE] if subnets else []))


def test_a_del_without_the_namespace(twins: Twins) -> None:
    def scenario(world: World) -> None:
        device(world)
        net = config("10.1.0.0/24", device="dev0")
        world.add(net, world.pod("one"))
        world.delete(net, "one", netns="")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, NO_DEVICE, FILE_MODE)


def test_what_cannot_be(twins: Twins) -> None:
    def scenario(world: World) -> None:
        device(world)
        world.pod("one")
        for broken in (
            {},
            {"device": "nosuch0"},
            {"hwaddr": "02:00:00:00:00:99"},
            {"kernelpath": "/dev/null"},
            {"kernelpath": "/sys/devices/nosuch"},
            {"pciBusID": "0000:ff:1f.7"},
        ):
            world.add(config(**broken), "one")
            world.delete(config(**broken), "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, DEL_AGAIN)


def test_the_container_has_a_link_of_that_name(twins: Twins) -> None:
    def scenario(world: World) -> None:
        device(world)
        world.sh("ip", "link", "add", "eth0", "type", "bridge", pod=world.pod("one"))
        world.add(config(device="dev0"), "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, LEFT_BEHIND)
