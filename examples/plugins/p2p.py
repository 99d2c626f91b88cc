#!/usr/bin/env python3
"""p2p: the container has one end of a veth pair, and the host a route to it through the other end."""

import json
import sys
from typing import Any

import msgspec

from podwire.cni import Interface, Plugin, Request, Result, delegate_ipam, main, verify
from podwire.cni.errors import AlreadyAttached


class Config(msgspec.Struct, forbid_unknown_fields=True):
    mtu: int = 1500


def inside(request: Request[Config], *command: str) -> str:
    return request.run("nsenter", f"--net={request.netns}", "ip", *command)


def add(request: Request[Config], _kernel: None) -> Result:
    host, name, mtu = request.link_name("p2p"), request.ifname, str(request.config.mtu)
    if host in request.run("ip", "link", "show", "type", "veth"):
        raise AlreadyAttached(f"{name} is there already, as {host} on the host")
    leased = request.delegate(request.ipam_type) or Result()
    request.run("ip", "link", "add", host, "up", "type", "veth", "peer", "name", name, "netns", request.netns)
    inside(request, "link", "set", name, "up", "mtu", mtu)
    for ip in leased.ips:
        request.run("ip", "address", "add", ip.gateway, "dev", host, "nodad")
        request.run("ip", "route", "replace", ip.address.partition("/")[0], "dev", host)
        inside(request, "address", "add", ip.address, "dev", name, "nodad")
    for route in leased.routes:
        inside(request, "route", "append", route.dst, "via", leased.gateway_of(route), "dev", name)
    return leased.on((Interface(host), Interface(name, sandbox=request.netns)), 1)


def check(request: Request[Config], _kernel: None) -> None:
    (link,) = json.loads(inside(request, "-j", "address", "show", "dev", request.ifname))
    verify.has_addresses(request, [f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"]])
    routes: list[Any] = [each for ip in "46" for each in json.loads(inside(request, f"-{ip}", "-j", "route"))]
    verify.has_routes(request, [(each["dst"], each.get("gateway", "")) for each in routes])
    delegate_ipam(request)


def delete(request: Request[Config], _kernel: None) -> None:
    if (host := request.link_name("p2p")) in request.run("ip", "link", "show", "type", "veth"):
        request.run("ip", "link", "delete", host)
    delegate_ipam(request)


gc = status = delegate_ipam
PLUGIN = Plugin("p2p", "p2p: a routed veth pair", Config, add, delete, check, gc, status, undo=True)
if __name__ == "__main__":
    sys.exit(main(PLUGIN))
