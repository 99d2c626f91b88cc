"""macvlan beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential import wiring
from tests.differential.harness import Difference, World
from tests.differential.test_host_local import FILE_MODE
from tests.differential.wiring import host_local, two_pods

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

BROKEN_DEL = Difference(
    "macvlan-del-broken-configuration",
    "*. DEL macvlan one eth0 / reply / status",
    "a DEL removes what is there, whatever the configuration, the master or the default route has become",
    go=1,
    ours=0,
)
ARGS_MAC = Difference(
    "macvlan-args-mac",
    "* / links / eth0 / address",
    "args.cni.mac is honoured, as by later versions",
    go="<random MAC>",
    ours="02:00:00:00:00:43",
)
ARGS_MAC_RESULT = Difference(
    "macvlan-args-mac", "* / reply / result / interfaces / 0 / mac", "as above", ours="02:00:00:00:00:43"
)
LOOKED_FOR = Difference(
    "macvlan-del-without-netns",
    "*. DEL macvlan two eth0 / state / *",
    "without the namespace's path the interface is looked for: its addresses are free from then on",
)
DIFFERENCES = (LOOKED_FOR, BROKEN_DEL, ARGS_MAC, ARGS_MAC_RESULT)


def uplink(world: World) -> None:
    """m0, the master, with its cable to a router."""
    wiring.uplink(world)
    world.sh("ip", "link", "set", "m0", "up")


def config(*subnets: str, **options: Any) -> dict[str, Any]:
    addressed = {"ipam": host_local(*subnets)} if subnets else {}
    return {"type": "macvlan", "master": "m0", **addressed, **options}


def test_ipv4(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        net = config("10.1.0.0/24")
        two_pods(world, net)
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, LOOKED_FOR, FILE_MODE)


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

    twins(scenario, FILE_MODE)


OPTIONS: dict[str, dict[str, Any]] = {
    "layer 2": {"subnets": ()},
    "runtime mac": {"runtimeConfig": {"mac": "02:00:00:00:00:42"}, "capabilities": {"mac": True}},
    "args mac": {"args": {"cni": {"mac": "02:00:00:00:00:43"}}},
    "dns": {"dns": {"nameservers": ["192.0.2.53"]}},
    "default master": {"master": ""},
    "own mtu": {"mtu": 1400},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(twins: Twins, name: str) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        world.sh("ip", "address", "add", "10.1.0.200/24", "dev", "m0")
        world.sh("ip", "route", "add", "default", "via", "10.1.0.1")
        options = dict(OPTIONS[name])
        net = config(*options.pop("subnets", ("10.1.0.0/24",)), **options)
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.delete(net, "one")
        world.sh("ip", "netns", "delete", "router")

    declared = {"layer 2": (), "args mac": (ARGS_MAC, ARGS_MAC_RESULT, FILE_MODE)}
    twins(scenario, *declared.get(name, (FILE_MODE,)))


def test_a_mac_by_the_variables(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        world.add(config(), world.pod("one"), args="MAC=02:00:00:00:00:44")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario)


def test_what_cannot_be(twins: Twins) -> None:
    def scenario(world: World) -> None:
        uplink(world)
        world.pod("one")
        for broken in (
            {"master": "nosuch0"},
            {"mode": "nonsense"},
            {"mtu": 1401},
            {"mtu": -1},
            {"master": ""},
            {"runtimeConfig": {"mac": "nonsense"}},
        ):
            net = config("10.1.0.0/24", **broken)
            world.add(net, "one")
            world.delete(net, "one")
        world.sh("ip", "netns", "delete", "router")

    twins(scenario, BROKEN_DEL, part="reply")
