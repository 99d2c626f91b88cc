"""Whether the kernel has what a result says: interfaces with MAC and MTU, addresses, routes."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_interface, ip_network

from podwire.cni.types import Interface, Result
from podwire.kernel import addresses, links, netns, routes
from podwire.kernel.errors import NetnsError
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket


def faults(result: Result, ifname: str, sandbox: str) -> Iterator[str]:
    """Tell where the result of an ADD for ``ifname`` in ``sandbox`` differs from what the kernel has.

    Host interfaces are looked up in the calling thread's namespace.
    """
    index = result.interface_index(ifname)
    if index is None:
        yield f"interfaces: none is named {ifname}"
    elif not result.interfaces[index].sandbox:
        yield f"interfaces[{index}].sandbox: {ifname} has none; want {sandbox}"
    for place, interface in enumerate(result.interfaces):
        where = f"interfaces[{place}] {interface.name}"
        if not interface.sandbox:
            with RouteSocket.open() as sock:
                yield from _link(links.get(sock, interface.name), interface, f"{where} (host)")
            continue
        try:
            inside = netns.open(interface.sandbox)
        except NetnsError as error:
            yield f"{where}: sandbox is no network namespace: {error}"
            continue
        with inside, RouteSocket.open(inside) as sock:
            link = links.get(sock, interface.name)
            yield from _link(link, interface, where)
            if link is not None:
                yield from _addresses(sock, result, place, link)
                if place == index:
                    yield from _routes(sock, result)


def _link(link: Link | None, interface: Interface, where: str) -> Iterator[str]:
    if link is None:
        yield f"{where}: there is no such link"
        return
    if interface.mac and interface.mac.lower() != link.mac.lower():
        yield f"{where}: mac {interface.mac}, the link has {link.mac}"
    if interface.mtu and interface.mtu != link.mtu:
        yield f"{where}: mtu {interface.mtu}, the link has {link.mtu}"


def _addresses(sock: RouteSocket, result: Result, place: int, link: Link) -> Iterator[str]:
    held = {one.address for one in addresses.list_addresses(sock, link.index)}
    for ip in result.ips:
        if ip.interface == place and ip_interface(ip.address) not in held:
            yield f"ips: {link.name} does not have {ip.address}"


def _routes(sock: RouteSocket, result: Result) -> Iterator[str]:
    # Also other tables: a later plugin may have moved them (sbr).
    there = [one for one in routes.list_routes(sock) if one.table != routes.TABLE_LOCAL]
    for route in result.routes:
        to = [one for one in there if one.destination == ip_network(route.dst, strict=False)]
        gateway = ip_address(route.gw) if route.gw else None
        if not to:
            yield f"routes: there is none to {route.dst}"
        elif gateway is not None and all(one.gateway != gateway for one in to):
            yield f"routes: the one to {route.dst} has the gateway {to[0].gateway}, not {route.gw}"
