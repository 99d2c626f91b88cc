"""bridge beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import ABSENT, Difference, World
from tests.differential.test_host_local import FILE_MODE
from tests.differential.wiring import host_local, two_pods

pytestmark = pytest.mark.kernel

PORT_ADVERTISEMENTS = Difference(
    "bridge-port-advertisements",
    "* / sysctls / <host end of * *> / ipv6/accept_ra",
    "a port of a bridge, which the host's end is from the start, never takes an advertisement",
    go="0",
    ours="1",
)
DAD = Difference(
    "bridge-dad",
    "* / state / * / sysctls / *e*t* / ipv6/accept_dad",
    "each address is given without detection; what the container adds itself keeps it",
    go="0",
    ours="1",
)
FORGOTTEN = Difference(
    "bridge-del-without-netns",
    "*. DEL bridge two eth0 / state / *",
    "a DEL without the namespace removes the pair and the rules: nobody else would",
    ours=ABSENT,
)
OWN_MAC = Difference(
    "bridge-own-mac",
    "* / links / cni0 / address",
    "a bridge has a MAC of its own from the start: one that takes its lowest port's loses every connection",
    go="00:00:00:00:00:00",
    ours="<random MAC>",
)
LAYER_2_CHECK = Difference(
    "bridge-check-layer-2",
    "*. CHECK bridge one eth0 / reply / status",
    "without an IPAM plugin there is none to be asked",
    go=1,
    ours=0,
)
BROKEN_DEL = Difference(
    "bridge-del-broken-configuration",
    "*. DEL bridge one eth0 / reply / status",
    "a DEL removes what is there, whatever the configuration has become",
    go=1,
    ours=0,
)
DIFFERENCES = (PORT_ADVERTISEMENTS, DAD, FORGOTTEN, OWN_MAC, LAYER_2_CHECK, BROKEN_DEL)
Twins = Callable[..., None]


def config(*subnets: str, **options: Any) -> dict[str, Any]:
    addressed = {"ipam": host_local(*subnets)} if subnets else {}
    return {"type": "bridge", "bridge": "cni0", **addressed, **options}


def test_a_gateway(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config("10.1.0.0/24", isGateway=True)
        two_pods(world, net)

    twins(scenario, PORT_ADVERTISEMENTS, DAD, FORGOTTEN, FILE_MODE)


OPTIONS: dict[str, dict[str, Any]] = {
    "layer 2": {"subnets": ()},
    "no gateway": {},
    "default gateway": {"isDefaultGateway": True},
    "masquerade": {"isGateway": True, "ipMasq": True},
    "hairpin": {"isGateway": True, "hairpinMode": True},
    "promiscuous": {"isGateway": True, "promiscMode": True},
    "mtu": {"isGateway": True, "mtu": 1400},
    "macspoofchk": {"isGateway": True, "macspoofchk": True},
    "runtime mac": {"runtimeConfig": {"mac": "02:00:00:00:00:42"}, "capabilities": {"mac": True}},
    "args mac": {"args": {"cni": {"mac": "02:00:00:00:00:43"}}},
    "dns": {"dns": {"nameservers": ["192.0.2.53"], "search": ["example.org"]}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(twins: Twins, name: str) -> None:
    def scenario(world: World) -> None:
        options = dict(OPTIONS[name])
        net = config(*options.pop("subnets", ("10.1.0.0/24", "fd00:1::/64")), **options)
        if name == "default gateway":
            del net["ipam"]["routes"]
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.add(net, "one", ifname="net1")
        if name != "masquerade":  # iptables 1.8.9 cannot delete the chains of Go's 1.1.1
            world.delete(net, "one", ifname="net1")
            world.delete(net, "one")

    no_gateway = dict.fromkeys(("no gateway", "runtime mac", "args mac", "dns"), (DAD, OWN_MAC, FILE_MODE))
    declared = {"layer 2": (OWN_MAC, LAYER_2_CHECK), **no_gateway}
    twins(scenario, PORT_ADVERTISEMENTS, *declared.get(name, (DAD, FILE_MODE)))


def test_what_cannot_be(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.sh("ip", "link", "add", "other", "address", "02:00:00:00:00:0a", "type", "veth", "peer", "x0")
        world.pod("one")
        for broken in (
            {"hairpinMode": True, "promiscMode": True},
            {"bridge": "other"},
            {"vlan": 4095},
            {"vlan": -1},
            {"runtimeConfig": {"mac": "nonsense"}},
        ):
            net = config("10.1.0.0/24", **broken)
            world.add(net, "one")
            world.delete(net, "one")

    twins(scenario, BROKEN_DEL, part="reply")


@pytest.mark.parametrize("force", [False, True])
def test_a_bridge_with_another_address(twins: Twins, force: bool) -> None:
    def scenario(world: World) -> None:
        world.sh("ip", "link", "add", "cni0", "address", "02:00:00:00:00:0b", "type", "bridge")
        world.sh("ip", "address", "add", "10.9.0.1/24", "dev", "cni0")
        net = config("10.1.0.0/24", isGateway=True, forceAddress=force)
        world.add(net, world.pod("one"))
        world.delete(net, "one")

    if force:
        twins(scenario, PORT_ADVERTISEMENTS, DAD, FILE_MODE)
    else:
        twins(scenario, part="reply")


def test_a_chain_with_portmap(twins: Twins) -> None:
    """The bridge's parts alone: portmap's rules have tests of their own."""

    def scenario(world: World) -> None:
        net = [
            config("10.1.0.0/24", isGateway=True),
            {
                "type": "portmap",
                "capabilities": {"portMappings": True},
                "runtimeConfig": {
                    "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]
                },
            },
        ]
        world.add(net, world.pod("one"))
        world.check(net[0], "one")
        world.delete(net, "one")

    twins(scenario, PORT_ADVERTISEMENTS, DAD, FILE_MODE)
