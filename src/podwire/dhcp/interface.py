"""A container's interface as a lease needs it: found again, up or down, with the address or without."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import NamedTuple

import msgspec

from podwire.dhcp.errors import ContainerGone, InterfaceGone
from podwire.dhcp.lease import Lease, LeaseRoute
from podwire.kernel import addresses, links, netns, routes
from podwire.kernel.errors import KernelError, NetnsError
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns

_SHARES_MAC = frozenset({"ipvlan"})


class Identity(msgspec.Struct, frozen=True):
    """What tells an interface from a later one of the same name: its namespace (device, inode) and MAC.

    ``shares_mac`` is whether other containers' interfaces have the same MAC.
    """

    netns_id: tuple[int, int]
    mac: bytes
    shares_mac: bool = False


class Place(NamedTuple):
    """Where a container's namespace is: its path, as seen from the directory ``root`` (None: our own)."""

    path: str
    root: int | None = None

    def __str__(self) -> str:
        return self.path


def open_netns(place: Place) -> Netns:
    """Open the container's namespace. Raises :class:`ContainerGone`."""
    try:
        with netns.seen_from(place.root):
            return netns.open(place.path)
    except NetnsError as error:
        raise ContainerGone(str(error)) from error


def identify(place: Place, ifname: str) -> Identity:
    """Return what the interface is now. Raises :class:`ContainerGone`, KernelError."""
    with open_netns(place) as container, RouteSocket.open(container) as sock:
        link = links.get(sock, ifname)
        if link is None:
            raise InterfaceGone(f"interface {ifname} is not in {place}")
        mac = bytes.fromhex(link.mac.replace(":", ""))
        if len(mac) != 6:
            raise InterfaceGone(f"interface {ifname} in {place} has no Ethernet address")
        return Identity(container.identity, mac, link.kind in _SHARES_MAC)


def bring_up(place: Place, ifname: str) -> None:
    """Set the interface up, if it is not, and have the kernel notice its carrier."""
    with open_netns(place) as container, RouteSocket.open(container) as sock:
        link = links.get(sock, ifname, details=False)
        if link is None:
            raise InterfaceGone(f"interface {ifname} is not in {place}")
        if not link.up:
            sock.send(links.configure(link.index, up=True))
        links.state(sock, ifname)


def take_down(place: Place, ifname: str) -> None:
    """Set the interface down."""
    with open_netns(place) as container, RouteSocket.open(container) as sock:
        sock.send(links.configure(ifname, up=False))


def strip(place: Place, ifname: str, lease: Lease) -> list[routes.Route]:
    """Take a lost lease's address off, set the interface down, and return the routes that went with it."""
    with open_netns(place) as container, RouteSocket.open(container) as sock:
        link = links.get(sock, ifname, details=False)
        if link is None:
            raise InterfaceGone(f"interface {ifname} is not in {place}")
        gone = [
            route
            for route in routes.list_routes(sock, 4)
            if route.device == link.index
            and route.protocol != routes.PROTOCOL_KERNEL
            and route.table != routes.TABLE_LOCAL
        ]
        try:
            sock.send(addresses.delete(link.index, IPv4Interface(lease.address)))
        except KernelError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        sock.send(links.configure(link.index, up=False))
        return gone


def dress(
    place: Place,
    ifname: str,
    lease: Lease,
    *,
    earlier: Sequence[routes.Route],
    given: Sequence[LeaseRoute],
    metric: int,
) -> None:
    """Put a lease's address on the interface, and its routes: the ``earlier`` ones, else those ``given``."""
    own = IPv4Interface(lease.address)
    with open_netns(place) as container, RouteSocket.open(container) as sock:
        link = links.get(sock, ifname, details=False)
        if link is None:
            raise InterfaceGone(f"interface {ifname} is not in {place}")
        broadcast = own.network.broadcast_address if own.network.prefixlen < 31 else None
        sock.send(
            addresses.add(link.index, own, replace=True, broadcast=broadcast),
            links.configure(link.index, up=True),
        )
        messages = [
            routes.add(
                route.destination,
                device=link.index,
                gateway=route.gateway,
                table=route.table,
                scope=route.scope,
                source=route.source,
                metric=route.metric or None,
                mtu=route.mtu or None,
                advmss=route.advmss or None,
                onlink=route.onlink,
                type=route.type,
                protocol=route.protocol,
            )
            for route in earlier
        ] or [
            routes.add(
                IPv4Network(route.destination),
                device=link.index,
                gateway=IPv4Address(route.gateway) if route.gateway else None,
                metric=metric or None,
                onlink=bool(route.gateway) and IPv4Address(route.gateway) not in own.network,
            )
            for route in given
        ]
        for message in messages:
            try:
                sock.send(message)
            except KernelError as error:
                if error.errno != errno.EEXIST:
                    raise
