"""Pods wired by hand for chained plugins: a pair with an address and routes, and the result that tells so."""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

from tests.differential.harness import World


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
