"""A pod wired by ``ip`` for chained plugins, and the result that a main plugin would have answered."""

from __future__ import annotations

from ipaddress import ip_interface

from podwire.cni.plugin import Interface, IPConfig, Result, Route
from tests.plugins.helpers import Host, run
from tests.waiting import until


def wire(host: Host, pod: str, *owned: str, ifname: str = "eth0", number: int = 1) -> Result:
    """Give ``pod`` (made if it is new) an interface; its other end ``host<number>`` has the gateways."""
    if pod not in host.pods:
        host.pod(pod)
    outer, mac = f"host{number}", f"02:00:00:00:0{number}:02"
    peer = ("peer", "name", ifname, "netns", pod, "address", mac)
    run("ip", "link", "add", outer, "address", f"02:00:00:00:0{number}:01", "type", "veth", *peer)
    run("ip", "link", "set", outer, "up")
    run("ip", "-n", pod, "link", "set", ifname, "addrgenmode", "none")
    run("ip", "-n", pod, "link", "set", ifname, "up")
    ips, routes = [], []
    for text in owned:
        own = ip_interface(text)
        gateway = str(own.network[1])
        default = "0.0.0.0/0" if own.version == 4 else "::/0"
        run("ip", "address", "add", f"{gateway}/{own.network.prefixlen}", "dev", outer, "nodad")
        run("ip", "-n", pod, "address", "add", text, "dev", ifname, "nodad")
        family = "-4" if own.version == 4 else "-6"
        run("ip", "-n", pod, family, "route", "append", default, "via", gateway, "dev", ifname)
        if own.version == 6:
            _wait_for_local_route(pod, str(own.ip))
        ips.append(IPConfig(text, gateway, 1))
        routes.append(Route(default, gateway))
    interfaces = (Interface(outer), Interface(ifname, mac, 1500, f"/run/netns/{pod}"))
    return Result(interfaces, tuple(ips), tuple(routes))


def _wait_for_local_route(pod: str, address: str) -> None:
    """Wait for the route that the kernel adds from a work queue, some time after the address."""
    until(
        lambda: f"local {address} " in run("ip", "-n", pod, "-6", "route", "show", "table", "local"),
        f"{address} has no local route",
    )
