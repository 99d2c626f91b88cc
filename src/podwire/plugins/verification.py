"""CHECK of an attachment: what the result of the ADD says against what the kernel has."""

from __future__ import annotations

from collections.abc import Sequence

from podwire.cni.errors import CNIError
from podwire.cni.plugin import Interface, Result
from podwire.kernel.addresses import list_addresses
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link, get
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.kernel.routes import TABLE_LOCAL, TABLE_MAIN, list_routes
from podwire.plugins import parsed
from podwire.plugins.addressing import effective_routes
from podwire.plugins.failures import KERNEL
from podwire.plugins.parsed import IPAddress, IPInterface, IPNetwork


def _fail(text: str) -> CNIError:
    return CNIError(text, code=KERNEL)


def bridge_interface(bridge: Link, result: Result, *, own: str) -> None:
    """Verify the bridge against its entry in the result, and that it is up."""
    if not bridge.up:
        raise _fail(f"bridge {bridge.name}: is down")
    entry = _host_entry(result, bridge.name)
    if entry is None:
        raise _fail(f"prevResult.interfaces: bridge {bridge.name} of {own} is missing")
    _same_mac(entry, bridge)


def host_end(link: Link | None, bridge: Link, result: Result, *, hairpin: bool, isolated: bool) -> None:
    """Verify the host's end: there, up, the one of the result, a port of the bridge with the right flags."""
    if link is None:
        raise _fail("the host's end of the pair is missing")
    entry = _host_entry(result, link.name)
    if entry is None:
        raise _fail(f"prevResult.interfaces: host end {link.name} is missing")
    _same_mac(entry, link)
    if link.master != bridge.index:
        raise _fail(f"host end {link.name}: is no port of bridge {bridge.name}")
    if not link.up:
        raise _fail(f"host end {link.name}: is down")
    for flag, wanted in (("hairpin", hairpin), ("isolated", isolated)):
        if bool(link.port.get(flag)) != wanted:
            raise _fail(f"host end {link.name}: its port has {flag} {'off' if wanted else 'on'}")


def container_end(
    container: Netns, ifname: str, result: Result, *, up: bool = True, kind: str | None = "veth"
) -> Link:
    """Verify the container's end: there, its kind and MAC, up or down, every address and every route.

    Of a ``kind`` None it may be of any.
    """
    index = result.interface_index(ifname)
    if index is None:
        raise _fail(f"prevResult.interfaces: {ifname} is missing")
    with RouteSocket.open(container) as inside:
        link = get(inside, ifname)
        if link is None:
            raise _fail(f"interface {ifname}: is missing in the container")
        if kind is not None and link.kind != kind:
            raise _fail(f"interface {ifname}: is a {link.kind or 'device'} and no {kind}")
        _same_mac(result.interfaces[index], link)
        if link.up != up:
            raise _fail(f"interface {ifname}: is {'up' if link.up else 'down'}")
        held = {one.address for one in list_addresses(inside, link.index)}
        ips = result.ips_of(ifname)
        for ip in ips:
            if parsed.interface(ip.address) not in held:
                raise _fail(f"interface {ifname}: the address {ip.address} is missing")
        routes(inside, link, result)
    return link


def routes(inside: RouteSocket, link: Link, result: Result) -> None:
    """Verify the routes of a result; a VRF that has taken the link has those of the main table in its own."""
    ips = result.ips_of(link.name)
    families = {ip.family for ip in ips}
    master = get(inside, link.master) if link.master else None
    vrf = master if master is not None and master.kind == "vrf" else None
    present: set[tuple[IPNetwork, IPAddress | None, int | None]] = {
        (one.destination, way.gateway, one.table)
        for family in families
        for one in list_routes(inside, family)
        for way in one.nexthops or (one,)
        if way.device == link.index
    }
    # A later plugin of the chain (sbr) may have moved those of no certain table.
    present |= {(destination, by, None) for destination, by, table in present if table != TABLE_LOCAL}
    for route in effective_routes(result.routes, ips):
        if route.family not in families:
            continue
        table = vrf.data["table"] if vrf is not None and route.table in {None, TABLE_MAIN} else route.table
        key = (parsed.network(route.dst), parsed.address(route.gw) if route.gw else None, table)
        if key not in present:
            via = f" by {route.gw}" if route.gw else ""
            raise _fail(f"interface {link.name}: the route to {route.dst}{via} is missing")


def gateway(kernel: Kernel, bridge: Link, needed: Sequence[IPInterface]) -> None:
    """Verify that the bridge has the gateway's addresses."""
    held = {one.address for one in list_addresses(kernel.route(), bridge.index)}
    for one in needed:
        if one not in held:
            raise _fail(f"bridge {bridge.name}: the gateway's address {one} is missing")


def _host_entry(result: Result, name: str) -> Interface | None:
    return next((one for one in result.interfaces if one.name == name and not one.sandbox), None)


def _same_mac(entry: Interface, link: Link) -> None:
    if entry.mac and entry.mac.lower() != link.mac:
        raise _fail(f"interface {entry.name}: has the MAC {link.mac}, not {entry.mac}")
