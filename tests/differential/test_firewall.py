"""firewall beside the reference plugin: what passes is compared, not the rules that let it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import DATA, Difference, World
from tests.differential.test_bridge import DAD, PORT_ADVERTISEMENTS
from tests.differential.test_host_local import FILE_MODE
from tests.plugins.sockets import exchanges

pytestmark = pytest.mark.kernel

RULES = Difference(
    "firewall-constant-rules",
    "*. rules in iptables / seen",
    "a packet meets as many rules with one pod as with a thousand: pods are elements of sets in nftables",
)
LATE = Difference(
    "firewall-late-del",
    "*. the new holder gets out / seen",
    "rules belong to an attachment: a DEL of the address's earlier holder does not take them",
    go=False,
    ours=True,
)
UNKNOWN = Difference(
    "firewall-unknown-backend",
    "*. ADD firewall one eth0 / reply / *",
    "a backend that does not exist is refused; Go takes it for none",
)
DIFFERENCES = (RULES, LATE, UNKNOWN)
Twins = Callable[..., None]
BRIDGE = (PORT_ADVERTISEMENTS, DAD, FILE_MODE)
OUTSIDE = "192.0.2.2"


def chain(net: int = 1, **options: Any) -> list[dict[str, Any]]:
    ipam = {
        "type": "host-local",
        "dataDir": DATA,
        "subnet": f"10.{net}.0.0/24",
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": f"cni{net}", "isGateway": True, "ipam": ipam, "name": f"net{net}"}
    return [bridge, {"type": "firewall", "name": f"net{net}", **options}]


def outside(world: World) -> None:
    """A machine beyond the host, and the host's chain FORWARD as container engines set it up."""
    world.pod("outside")
    world.sh("ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", "outside")
    world.sh("ip", "link", "set", "up0", "address", "02:00:00:00:00:01", "addrgenmode", "none", "up")
    world.sh("ip", "address", "add", "192.0.2.1/24", "dev", "up0")
    for words in (
        "link set eth0 address 02:00:00:00:00:02 addrgenmode none up",
        f"address add {OUTSIDE}/24 dev eth0",
        "route add 10.0.0.0/8 via 192.0.2.1",
    ):
        world.sh("ip", *words.split(), pod="outside")
    world.sh("iptables", "-P", "FORWARD", "DROP")


def gets(client: str, server: str, address: str, protocol: str = "tcp") -> bool:
    return exchanges(client, server, address, protocol, seconds=0.25)


def passes(world: World) -> None:
    for protocol in ("tcp", "udp"):
        world.note(f"the pod gets out by {protocol}", gets("one", "outside", OUTSIDE, protocol))
    world.note("others get in", gets("outside", "one", "10.1.0.2"))


@pytest.mark.parametrize("options", [{"backend": "iptables"}, {"ingressPolicy": "open"}])
def test_a_pod_behind_a_chain_that_drops(twins: Twins, options: dict[str, Any]) -> None:
    def scenario(world: World) -> None:
        outside(world)
        net = chain(**options)
        world.add(net, world.pod("one"))
        passes(world)
        world.check(net, "one")
        world.note("rules in iptables", world.sh("iptables", "-S").count("10.1.0.2"))
        world.delete(net[1], "one")
        world.note("after the DEL", gets("one", "outside", OUTSIDE))
        world.delete(net[1], "one")

    twins(scenario, *BRIDGE, RULES)


def test_the_administrators_chain(twins: Twins) -> None:
    def scenario(world: World) -> None:
        outside(world)
        world.add(chain(iptablesAdminChainName="MINE"), world.pod("one"))
        world.sh("iptables", "-A", "MINE", "-p", "udp", "-j", "DROP")
        passes(world)

    twins(scenario, *BRIDGE)


def test_same_bridge(twins: Twins) -> None:
    def scenario(world: World) -> None:
        options: dict[str, Any] = {"backend": "iptables", "ingressPolicy": "same-bridge"}
        for pod, net in (("one", 1), ("away", 2)):
            world.add(chain(net, **options), world.pod(pod))
        world.note("from another bridge", gets("away", "one", "10.1.0.2"))
        world.note("to another bridge", gets("one", "away", "10.2.0.2"))
        world.note("from the host", world.reaches("", "10.1.0.2"))

    twins(scenario, *BRIDGE)


def test_damage_is_found(twins: Twins) -> None:
    def scenario(world: World) -> None:
        outside(world)
        net = chain()[1]
        world.add(chain(), world.pod("one"))
        world.sh("iptables", "-F", "FORWARD")
        world.check(net, "one")

    twins(scenario, *BRIDGE)


def test_a_late_del(twins: Twins) -> None:
    def scenario(world: World) -> None:
        outside(world)
        net = chain()
        reply = world.add(net, world.pod("one"), container_id="old")
        world.add(net[1], "one", container_id="new", prev_result=reply.result)
        world.delete(net[1], "one", container_id="old", prev_result=reply.result)
        world.note("the new holder gets out", gets("one", "outside", OUTSIDE))

    twins(scenario, *BRIDGE, LATE)


@pytest.mark.parametrize("options", [{"backend": 7}, {"ingressPolicy": "closed"}])
def test_what_cannot_be_is_refused(twins: Twins, options: dict[str, Any]) -> None:
    def scenario(world: World) -> None:
        world.add(chain(**options), world.pod("one"))

    twins(scenario, *BRIDGE)


def test_a_backend_that_does_not_exist(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.add(chain(backend="ebtables"), world.pod("one"))

    twins(scenario, *BRIDGE, UNKNOWN)


def test_without_a_result(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.add({"type": "firewall"}, world.pod("one"))
        world.check({"type": "firewall"}, "one")
        world.delete({"type": "firewall"}, "one")

    twins(scenario)
