"""A veth pair that routes: the host has a route to each of the container's addresses, and is its gateway.

The container's own subnet is reached through the gateway as well, since nobody of it is on the wire. So its
addresses come without the route to their prefix that the kernel would add (and would add again when the link
goes down and up).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from ipaddress import ip_interface, ip_network

import msgspec

from podwire.cni.errors import CNIError, InvalidConfig
from podwire.cni.plugin import IPConfig, Route
from podwire.kernel import addresses, links, routes, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import addressing, attachment, parsed
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL
from podwire.plugins.parsed import IPInterface, IPNetwork

MTU = 1500
"""What the kernel gives a pair for which no MTU is asked (ETH_DATA_LEN in linux/if_ether.h)."""


class Pair(msgspec.Struct, frozen=True):
    """What the pair of an attachment is to be; ``mtu`` 0 leaves it to the kernel."""

    identity: Identity
    mac: str
    mtu: int
    ips: tuple[IPConfig, ...]
    routes: tuple[Route, ...] = ()


def make(kernel: Kernel, container: Netns, pair: Pair) -> None:
    """Make the pair, all of it or nothing. Raises :class:`KernelError`."""
    with attachment.pair(kernel, container, pair.identity, mac=pair.mac, mtu=pair.mtu, ips=pair.ips) as (
        inside,
        index,
    ):
        inside.send(
            *addressing.requests(
                index,
                pair.mac,
                pair.ips,
                pair.routes,
                announce=bool(pair.ips),
                prefix_routes=False,
                before_routes=_gateway_routes(index, pair.ips),
            )
        )
        outer = dress(kernel, pair.identity, pair.ips, new=True)
        addressing.wait_until_up(inside, pair.identity.ifname)
        addressing.wait_until_up(kernel.route(), pair.identity.host_end)
        addressing.wait_until_local(inside, index, pair.ips)
        gateways = [IPConfig(str(one)) for one in gateway_interfaces(pair.ips)]
        addressing.wait_until_local(kernel.route(), outer, gateways)


def dress(kernel: Kernel, identity: Identity, ips: Sequence[IPConfig], *, new: bool = False) -> int:
    """Give the host's end its alias, the gateways' addresses and the routes to ``ips``, and set it up.

    What one that is not ``new`` has already stays: this repairs it as well. Returns its index. Raises
    :class:`KernelError`.
    """
    host, name = kernel.route(), identity.host_end
    _refuse_advertisements(kernel, name, ipv6=any(ip.family == 6 for ip in ips))
    host.send(
        links.configure(name, addr_gen_mode=AddrGenMode.NONE), links.configure(name, alias=identity.alias)
    )
    link = links.get(host, name, details=False)
    if link is None:
        raise KernelError(errno.ENODEV, "look up link", name, "it is gone again")
    messages: list[Message] = []
    if any(ip.family == 6 for ip in ips):
        local = addressing.link_local(link.mac)
        messages.append(addresses.add(link.index, local, replace=True, scope=addresses.SCOPE_LINK))
    messages += [addresses.add(link.index, one, replace=True) for one in gateway_interfaces(ips)]
    messages.append(links.configure(link.index, up=True))
    held = set() if new else _present(host, link.index, ips)
    messages += [
        _host_route(link.index, destination)
        for destination in destinations(ips)
        if (destination, None) not in held
    ]
    host.send(*messages)
    return link.index


def _refuse_advertisements(kernel: Kernel, name: str, *, ipv6: bool) -> None:
    """A container must not become the host's router (CVE-2020-10749)."""
    conf = f"net/ipv6/conf/{name}"
    values = {f"{conf}/accept_ra": 0, f"{conf}/autoconf": 0}
    if ipv6:
        values[f"{conf}/disable_ipv6"] = 0
    try:
        sysctl.write_all(values, kernel.netns)
    except KernelError as error:
        if ipv6 or error.errno != errno.ENOENT:  # a kernel without IPv6
            raise


def gateway_interfaces(ips: Iterable[IPConfig]) -> list[IPInterface]:
    """Return the addresses that the host's end needs to be the gateway of ``ips``: each stands alone."""
    found = dict.fromkeys(ip_interface(ip.gateway) for ip in ips)
    return list(found)


def destinations(ips: Iterable[IPConfig]) -> list[IPNetwork]:
    """Return what the host has routes to: each address alone."""
    return [ip_network(parsed.interface(ip.address).ip) for ip in ips]


def _host_route(index: int, destination: IPNetwork) -> Message:
    scope = routes.SCOPE_HOST if destination.version == 4 else None
    return routes.add(destination, device=index, scope=scope)


def inner_routes(ips: Sequence[IPConfig]) -> list[tuple[IPNetwork, IPConfig, bool]]:
    """Return the routes by which the container reaches its gateways, and its subnets through these.

    Each is a destination, the address that it is for, and whether it is a subnet.
    """
    found: dict[IPNetwork, tuple[IPNetwork, IPConfig, bool]] = {}
    for ip in ips:
        gateway = ip_network(ip.gateway)
        found.setdefault(gateway, (gateway, ip, False))
    for ip in ips:
        subnet = parsed.interface(ip.address).network
        if subnet.prefixlen < subnet.max_prefixlen:
            found.setdefault(subnet, (subnet, ip, True))
    return list(found.values())


def _gateway_routes(index: int, ips: Sequence[IPConfig]) -> list[Message]:
    return [
        routes.add(
            destination,
            device=index,
            gateway=parsed.address(ip.gateway) if through else None,
            source=parsed.interface(ip.address).ip,
            append=True,  # another interface of the container may be on the network too
        )
        for destination, ip, through in inner_routes(ips)
    ]


def with_gateway(ip: IPConfig) -> IPConfig:
    """Fill in the gateway of an address that has none: the first one of its subnet.

    Raises InvalidConfig (7) if that is the address itself, or the subnet has no other.
    """
    if ip.gateway:
        return ip
    own = parsed.interface(ip.address)
    subnet = own.network
    first = subnet[0 if subnet.num_addresses <= 2 else 1]
    if first == own.ip:
        raise InvalidConfig(
            f"ips: {ip.address} has no gateway, and the first address of its subnet is its own"
        )
    return IPConfig(ip.address, str(first))


def verify_host_end(kernel: Kernel, link: Link, ips: Sequence[IPConfig]) -> None:
    """Verify the host's end: up, the gateways' addresses, the routes. Raises CNIError (100)."""
    host = kernel.route()
    if not link.up:
        raise _fail(f"host end {link.name}: is down")
    held = {one.address for one in addresses.list_addresses(host, link.index)}
    for one in gateway_interfaces(ips):
        if one not in held:
            raise _fail(f"host end {link.name}: the gateway's address {one} is missing")
    outside = _present(host, link.index, ips)
    for destination in destinations(ips):
        if (destination, None) not in outside:
            raise _fail(f"host end {link.name}: the route to {destination} is missing")


def verify_inside(inside: RouteSocket, index: int, ips: Sequence[IPConfig]) -> None:
    """Verify the container's routes to its gateways and, by these, to its subnets. Raises CNIError (100)."""
    present = _present(inside, index, ips)
    for destination, ip, through in inner_routes(ips):
        if (destination, parsed.address(ip.gateway) if through else None) not in present:
            by = f" by {ip.gateway}" if through else ""
            raise _fail(f"the container's route to {destination}{by} is missing")


def _present(sock: RouteSocket, index: int, ips: Sequence[IPConfig]) -> set[tuple[object, object]]:
    return {
        (one.destination, way.gateway)
        for family in {ip.family for ip in ips}
        for one in routes.list_routes(sock, family, routes.TABLE_MAIN)
        for way in one.nexthops or (one,)
        if way.device == index
    }


def _fail(text: str) -> CNIError:
    return CNIError(text, code=KERNEL)
