"""Neighbours: ARP and NDP entries, proxies, and forwarding databases (linux/neighbour.h)."""

from __future__ import annotations

import struct

import msgspec

from podwire.kernel import message as nl
from podwire.kernel.attributes import BE16, IP, MAC, U16, U32, IPAddress, Table
from podwire.kernel.errors import InvalidValue, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

NEWNEIGH = 28
DELNEIGH = 29
GETNEIGH = 30

REACHABLE = 0x02
STALE = 0x04
NOARP = 0x40
PERMANENT = 0x80

_SELF = 0x02
_MASTER = 0x04
_PROXY = 0x08
_AF_BRIDGE = 7
_FAMILY = {4: 2, 6: 10}

_HEADER = struct.Struct("=BxxxiHBB")
_NEIGHBOUR = Table("neighbour", address=(1, IP), mac=(2, MAC))
_FDB = Table(
    "forwarding entry",
    remote=(1, IP),
    mac=(2, MAC),
    vlan=(5, U16),
    port=(6, BE16),
    vni=(7, U32),
    master=(9, U32),
)


class Neighbour(msgspec.Struct, frozen=True):
    """Who answers for ``address`` on link ``index``; ``mac`` "" when unknown. ``state`` holds NUD_* bits."""

    index: int
    address: IPAddress
    mac: str = ""
    state: int = 0
    proxy: bool = False


class ForwardingEntry(msgspec.Struct, frozen=True):
    """Where a bridge or VXLAN device sends frames for ``mac``: link ``index``, and for VXLAN the ``remote``.

    ``master`` is the bridge whose table holds it, 0 for the device's own.
    """

    index: int
    mac: str
    remote: IPAddress | None = None
    vni: int | None = None
    port: int | None = None
    vlan: int = 0
    master: int = 0
    state: int = 0


def add(index: int, address: IPAddress, mac: str, *, state: int = PERMANENT, replace: bool = True) -> Message:
    """Tell link ``index`` that ``address`` is at ``mac``."""
    values = {"address": address, "mac": mac}
    return Message(
        NEWNEIGH,
        nl.PUT if replace else nl.MAKE,
        _header(_FAMILY[address.version], index, state) + _NEIGHBOUR.encode(values),
        "add neighbour",
        f"{address} index {index}",
    )


def delete(index: int, address: IPAddress) -> Message:
    """Forget ``address`` on link ``index``; ENOENT if it is unknown."""
    body = _header(_FAMILY[address.version], index) + _NEIGHBOUR.encode({"address": address})
    return Message(DELNEIGH, 0, body, "delete neighbour", f"{address} index {index}")


def add_proxy(index: int, address: IPAddress) -> Message:
    """Answer on link ``index`` for ``address`` in its owner's stead (IPv6 needs the sysctl proxy_ndp too)."""
    body = _header(_FAMILY[address.version], index, flags=_PROXY) + _NEIGHBOUR.encode({"address": address})
    return Message(NEWNEIGH, nl.PUT, body, "add proxy neighbour", f"{address} index {index}")


def delete_proxy(index: int, address: IPAddress) -> Message:
    """Answer no longer; ENOENT if it was not."""
    body = _header(_FAMILY[address.version], index, flags=_PROXY) + _NEIGHBOUR.encode({"address": address})
    return Message(DELNEIGH, 0, body, "delete proxy neighbour", f"{address} index {index}")


def list_neighbours(sock: RouteSocket, index: int | None = None, *, proxy: bool = False) -> list[Neighbour]:
    """The entries of both families, or the proxies, of all links or one."""
    body = _HEADER.pack(0, 0, 0, _PROXY if proxy else 0, 0)
    entries = sock.dump(Message(GETNEIGH, 0, body, "list neighbours", "proxies" if proxy else "all"))
    found = [parse(entry) for kind, entry in entries if kind == NEWNEIGH]
    return [one for one in found if one is not None and (index is None or one.index == index)]


def add_forwarding(
    index: int,
    mac: str,
    *,
    remote: IPAddress | None = None,
    vni: int | None = None,
    port: int | None = None,
    vlan: int | None = None,
    master: bool = False,
    append: bool = False,
    state: int = PERMANENT | NOARP,
) -> Message:
    """Send frames for ``mac`` out of link ``index``, for VXLAN to ``remote``.

    ``master`` means the table of the bridge that the link is a port of. ``append`` gives one address a
    further remote (00:00:00:00:00:00 is every unknown one); otherwise the entry is replaced.
    """
    values = {"mac": mac, "remote": remote, "vni": vni, "port": port, "vlan": vlan}
    body = _header(_AF_BRIDGE, index, state, _MASTER if master else _SELF) + _FDB.encode(values)
    modifiers = nl.CREATE | nl.APPEND if append else nl.PUT
    return Message(NEWNEIGH, modifiers, body, "add forwarding entry", f"{mac} index {index}")


def delete_forwarding(
    index: int,
    mac: str,
    *,
    remote: IPAddress | None = None,
    vlan: int | None = None,
    master: bool = False,
) -> Message:
    """Forget where ``mac`` is; ENOENT if it is unknown."""
    body = _header(_AF_BRIDGE, index, 0, _MASTER if master else _SELF)
    body += _FDB.encode({"mac": mac, "remote": remote, "vlan": vlan})
    return Message(DELNEIGH, 0, body, "delete forwarding entry", f"{mac} index {index}")


def list_forwarding(sock: RouteSocket, index: int | None = None) -> list[ForwardingEntry]:
    """The forwarding entries of all bridges and VXLAN devices, or of one link."""
    body = _header(_AF_BRIDGE, index or 0)
    subject = "all" if index is None else f"index {index}"
    entries = sock.dump(Message(GETNEIGH, 0, body, "list forwarding entries", subject))
    found = [parse_forwarding(entry) for kind, entry in entries if kind == NEWNEIGH]
    return [one for one in found if index is None or one.index == index]


def parse(body: bytes) -> Neighbour | None:
    """Read the body of an RTM_NEWNEIGH; None for other families than IPv4 and IPv6.

    Raises :class:`MalformedReply`.
    """
    if len(body) < _HEADER.size:
        raise MalformedReply("neighbour", f"{len(body)} bytes")
    family, index, state, flags, _ = _HEADER.unpack_from(body)
    if family not in _FAMILY.values():
        return None
    values = _NEIGHBOUR.decode(body, _HEADER.size)
    if "address" not in values:
        raise MalformedReply("neighbour", "no address")
    return Neighbour(index, values["address"], values.get("mac", ""), state, bool(flags & _PROXY))


def parse_forwarding(body: bytes) -> ForwardingEntry:
    """Read the body of an RTM_NEWNEIGH of the family AF_BRIDGE. Raises :class:`MalformedReply`."""
    if len(body) < _HEADER.size:
        raise MalformedReply("forwarding entry", f"{len(body)} bytes")
    _, index, state, _, _ = _HEADER.unpack_from(body)
    values = _FDB.decode(body, _HEADER.size)
    return ForwardingEntry(
        index=index,
        mac=values.get("mac", ""),
        remote=values.get("remote"),
        vni=values.get("vni"),
        port=values.get("port"),
        vlan=values.get("vlan", 0),
        master=values.get("master", 0),
        state=state,
    )


def _header(family: int, index: int, state: int = 0, flags: int = 0) -> bytes:
    if not 0 <= index < 1 << 31:
        raise InvalidValue(f"link index {index}", "an index is positive and has 31 bits")
    return _HEADER.pack(family, index, state, flags, 0)
