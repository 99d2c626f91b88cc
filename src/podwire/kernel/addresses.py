"""IP addresses of links (linux/if_addr.h): requests that give and take them, and the list of them."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface
from typing import Any

import msgspec

from podwire.kernel import message as nl
from podwire.kernel.attributes import IP, STRING, U32, IPAddress, Table
from podwire.kernel.errors import InvalidValue, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

NEWADDR = 20
DELADDR = 21
GETADDR = 22

NODAD = 0x02
DADFAILED = 0x08
DEPRECATED = 0x20
TENTATIVE = 0x40
PERMANENT = 0x80
NOPREFIXROUTE = 0x200

SCOPE_GLOBAL = 0
SCOPE_LINK = 253
SCOPE_HOST = 254

_FAMILY = {4: 2, 6: 10}
_HEADER = struct.Struct("=BBBBi")
_ADDRESS = Table(
    "address",
    peer=(1, IP),
    local=(2, IP),
    label=(3, STRING),
    broadcast=(4, IP),
    flags=(8, U32),
    metric=(9, U32),
)


class Address(msgspec.Struct, frozen=True):
    """One address: ``address`` with its prefix length on link ``index``; ``peer`` of a point-to-point one."""

    index: int
    address: IPv4Interface | IPv6Interface
    scope: int = SCOPE_GLOBAL
    flags: int = 0
    label: str = ""
    broadcast: IPAddress | None = None
    peer: IPAddress | None = None

    @property
    def tentative(self) -> bool:
        """Whether duplicate address detection has not ended yet."""
        return bool(self.flags & TENTATIVE)

    @property
    def duplicate(self) -> bool:
        """Whether duplicate address detection found another owner."""
        return bool(self.flags & DADFAILED)


def add(
    index: int,
    address: IPv4Interface | IPv6Interface,
    *,
    nodad: bool = True,
    replace: bool = False,
    scope: int | None = None,
    broadcast: IPv4Address | None = None,
    prefix_route: bool = True,
    label: str | None = None,
    peer: IPAddress | None = None,
    metric: int | None = None,
) -> Message:
    """Give ``address`` to link ``index``; with ``replace`` it may be there already.

    ``nodad`` leaves out IPv6 duplicate address detection; even so the kernel adds the address's local route
    from a work queue, some time after the answer. ``scope`` None means host for loopback addresses
    and global for others; ``prefix_route`` False makes no route to the prefix.
    """
    if scope is None:
        scope = SCOPE_HOST if address.is_loopback and address.version == 4 else SCOPE_GLOBAL
    flags = (NODAD if nodad and address.version == 6 else 0) | (0 if prefix_route else NOPREFIXROUTE)
    local = address.ip
    values = {
        "local": local,
        "peer": local if peer is None else peer,
        "label": label,
        "broadcast": broadcast,
        "flags": flags or None,
        "metric": metric,
    }
    return _message(
        NEWADDR, nl.PUT if replace else nl.MAKE, index, address, values, operation="add address", scope=scope
    )


def delete(index: int, address: IPv4Interface | IPv6Interface) -> Message:
    """Take ``address`` from link ``index``; EADDRNOTAVAIL if it is not there."""
    return _message(DELADDR, 0, index, address, {"local": address.ip}, operation="delete address")


def list_addresses(sock: RouteSocket, index: int | None = None) -> list[Address]:
    """The addresses of the namespace, or of one link (none if there is no such link)."""
    body = _HEADER.pack(0, 0, 0, 0, 0)
    entries = sock.dump(
        Message(GETADDR, 0, body, "list addresses", "all" if index is None else f"index {index}")
    )
    addresses = [parse(entry) for kind, entry in entries if kind == NEWADDR]
    return [address for address in addresses if index is None or address.index == index]


def parse(body: bytes) -> Address:
    """Read the body of an RTM_NEWADDR. Raises :class:`MalformedReply`."""
    if len(body) < _HEADER.size:
        raise MalformedReply("address", f"{len(body)} bytes")
    _, length, flags, scope, index = _HEADER.unpack_from(body)
    values = _ADDRESS.decode(body, _HEADER.size)
    peer = values.get("peer")
    ip = values.get("local", peer)
    if ip is None or length > ip.max_prefixlen:
        raise MalformedReply("address", f"{ip} with a prefix of {length} bits")
    return Address(
        index=index,
        address=IPv4Interface((ip, length)) if ip.version == 4 else IPv6Interface((ip, length)),
        scope=scope,
        flags=values.get("flags", flags),
        label=values.get("label", ""),
        broadcast=values.get("broadcast"),
        peer=peer if peer != ip else None,
    )


def _message(
    kind: int,
    flags: int,
    index: int,
    address: IPv4Interface | IPv6Interface,
    values: dict[str, Any],
    *,
    operation: str,
    scope: int = SCOPE_GLOBAL,
) -> Message:
    if not 0 < index < 1 << 31:
        raise InvalidValue(f"link index {index}", "an index is positive and has 31 bits")
    header = _HEADER.pack(_FAMILY[address.version], address.network.prefixlen, 0, scope, index)
    return Message(kind, flags, header + _ADDRESS.encode(values), operation, f"{address} index {index}")
