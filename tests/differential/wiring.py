"""What scenarios stand on: pods wired by hand for chained plugins, addresses, a cable to a router."""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

from tests.differential.harness import DATA, World


def wire(world: World, pod: str, *owned: str, ifname: str = "eth0", number: int = 1) -> dict[str, Any]:
    """Give the pod an interface with addresses, each with the first one of its network as gateway.

    Returns what a main plugin would have answered. The other end is ``host<number>``, with the gateways.
    """
    host, macs = f"host{number}", [f"02:00:00:00:0{number}:0{end}" for end in (1, 2)]
    pair = ("type", "veth", "peer", "name", ifname, "netns", pod, "address", macs[1])
    world.sh("ip", "link", "add", host, "address", macs[0], *pair)
    world.sh("ip", "link", "set", host, "up")
    world.sh("ip", "link", "set", ifname, "addrgenmode", "none", pod=pod)
    world.sh("ip", "link", "set", ifname, "up", pod=pod)
    ips, routes = [], []
    for text in owned:
        own = ip_interface(text)
        gateway = own.network[1]
        world.sh("ip", "address", "add", f"{gateway}/{own.network.prefixlen}", "dev", host, "nodad")
        world.sh("ip", "address", "add", text, "dev", ifname, "nodad", pod=pod)
        family, default = ("-4", "0.0.0.0/0") if own.version == 4 else ("-6", "::/0")
        world.sh("ip", family, "route", "append", default, "via", str(gateway), "dev", ifname, pod=pod)
        ips.append({"interface": 1, "address": text, "gateway": str(gateway)})
        routes.append({"dst": default, "gw": str(gateway)})
    interfaces = [
        {"name": host, "mac": macs[0]},
        {"name": ifname, "mac": macs[1], "sandbox": f"/run/netns/{pod}"},
    ]
    return {"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips, "routes": routes}


def host_local(*subnets: str, **options: Any) -> dict[str, Any]:
    """Addresses from the subnets, one of each, and an IPv4 default route."""
    return {
        "type": "host-local",
        "dataDir": DATA,
        "ranges": [[{"subnet": each}] for each in subnets],
        "routes": [{"dst": "0.0.0.0/0"}],
        **options,
    }


def uplink(world: World, name: str = "m0", *, mac: str = "02:00:00:00:00:01", mtu: int = 1400) -> None:
    """A cable from a link of the host to a router with an address of each family; it is not yet up here."""
    world.sh("ip", "netns", "add", "router")
    for line in (
        f"link add {name} mtu {mtu} address {mac} type veth peer name r0 mtu {mtu} netns router",
        "-n router link set r0 up",
        "-n router address add 10.1.0.1/24 dev r0",
        "-n router address add fd00:1::1/64 dev r0 nodad",
    ):
        world.sh("ip", *line.split())


def two_pods(world: World, net: dict[str, Any]) -> None:
    """Two pods of a network of 10.1.0.0/24 come, reach the gateway and one another, and go."""
    world.add(net, world.pod("one"))
    world.check(net, "one")
    world.note("gateway", world.reaches("one", "10.1.0.1"))
    world.add(net, world.pod("two"))
    world.note("pod to pod", world.reaches("one", "10.1.0.3"))
    world.delete(net, "one")
    world.delete(net, "one")
    world.delete(net, "two", netns="")
