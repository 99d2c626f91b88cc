"""The VLANs of a bridge and its ports: requests that add and delete them, and the list of them.

A VLAN filter lets a frame pass a port if the port has its VLAN. Sources: linux/if_bridge.h (struct
bridge_vlan_info), net/bridge/br_netlink.c, net/core/rtnetlink.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec

from podwire.kernel.attributes import NESTED, U16, attribute
from podwire.kernel.errors import InvalidValue, MalformedReply
from podwire.kernel.link_codec import BRIDGE, HEADER, LINK
from podwire.kernel.links import DELLINK, GETLINK, NEWLINK, SETLINK
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

LAST_VLAN = 4094

_AF_UNSPEC = 0
_AF_BRIDGE = 7
_BRVLAN_COMPRESSED = 1 << 2
_AF_SPEC = 26
_BRIDGE_FLAGS = 0
_VLAN_INFO = 2
_FLAGS_MASTER = 1
_FLAGS_SELF = 2
_PVID = 1 << 1
_UNTAGGED = 1 << 2
_RANGE_BEGIN = 1 << 3
_RANGE_END = 1 << 4
_INFO = struct.Struct("=HH")


class BridgeVlan(msgspec.Struct, frozen=True, order=True):
    """VLANs ``first`` to ``last`` of a port.

    ``pvid``: untagged frames that come in belong to it; ``untagged``: frames go out without a tag.
    """

    first: int
    last: int
    pvid: bool = False
    untagged: bool = False


def add(
    index: int,
    first: int,
    last: int | None = None,
    *,
    pvid: bool = False,
    untagged: bool = False,
    of_bridge: bool = False,
) -> Message:
    """Give VLAN ``first``, or all up to ``last``, to port ``index``, or to the bridge ``of_bridge`` itself.

    One that is there already gets these flags. A range cannot be the PVID.
    """
    if pvid and last is not None and last != first:
        raise InvalidValue(f"vlans {first}-{last}", "one VLAN is the PVID, not a range")
    flags = (_PVID if pvid else 0) | (_UNTAGGED if untagged else 0)
    return _change(SETLINK, "add vlan", index, (first, last), flags=flags, of_bridge=of_bridge)


def delete(index: int, first: int, last: int | None = None, *, of_bridge: bool = False) -> Message:
    """Take VLAN ``first``, or all up to ``last``, from port ``index`` or a bridge; what is gone is fine."""
    return _change(DELLINK, "delete vlan", index, (first, last), of_bridge=of_bridge)


def list_vlans(sock: RouteSocket) -> dict[int, list[BridgeVlan]]:
    """The VLANs of every port and bridge of the namespace that has any, by its index.

    Neighbouring VLANs with the same flags come as one. The kernel takes no filter here.
    """
    body = HEADER.pack(_AF_BRIDGE, 0, 0, 0, 0) + LINK.encode({"filter": _BRVLAN_COMPRESSED})
    found: dict[int, list[BridgeVlan]] = {}
    for kind, entry in sock.dump(Message(GETLINK, 0, body, "list vlans", "all")):
        if kind == NEWLINK:
            index, vlans = parse(entry)
            if vlans:
                found[index] = vlans
    return found


def parse(body: bytes) -> tuple[int, list[BridgeVlan]]:
    """Read the body of an RTM_NEWLINK of AF_BRIDGE: the port's index and its VLANs.

    Raises :class:`MalformedReply`.
    """
    if len(body) < HEADER.size:
        raise MalformedReply("bridge port", f"{len(body)} bytes")
    _, _, index, _, _ = HEADER.unpack_from(body)
    families = LINK.decode(body, HEADER.size).get("families", b"")
    return index, list(_vlans(families))


def configure(target: int, *, filtering: bool | None = None, default_pvid: int | None = None) -> Message:
    """Switch a bridge's VLAN filter, or say which VLAN its future ports get as PVID (0: none)."""
    data = BRIDGE.encode({"vlan_filtering": filtering, "vlan_default_pvid": default_pvid})
    body = HEADER.pack(_AF_UNSPEC, 0, target, 0, 0) + LINK.encode({"info": {"kind": "bridge", "data": data}})
    return Message(NEWLINK, 0, body, "change bridge", f"index {target}")


def _change(
    kind: int,
    operation: str,
    index: int,
    vlans: tuple[int, int | None],
    *,
    flags: int = 0,
    of_bridge: bool,
) -> Message:
    first, last = vlans
    last = first if last is None else last
    if not 0 < first <= last <= LAST_VLAN:
        raise InvalidValue(f"vlans {first}-{last}", f"are not between 1 and {LAST_VLAN}, in order")
    if not 0 < index < 1 << 31:
        raise InvalidValue(f"link index {index}", "an index is positive and has 31 bits")
    spec = U16.pack(_BRIDGE_FLAGS, _FLAGS_SELF if of_bridge else _FLAGS_MASTER)
    if first == last:
        spec += attribute(_VLAN_INFO, _INFO.pack(flags, first))
        subject = f"{first} of index {index}"
    else:
        spec += attribute(_VLAN_INFO, _INFO.pack(flags | _RANGE_BEGIN, first))
        spec += attribute(_VLAN_INFO, _INFO.pack(flags | _RANGE_END, last))
        subject = f"{first}-{last} of index {index}"
    body = HEADER.pack(_AF_BRIDGE, 0, index, 0, 0) + attribute(_AF_SPEC | NESTED, spec)
    return Message(kind, 0, body, operation, subject)


def _vlans(spec: bytes) -> Iterator[BridgeVlan]:
    begin = 0
    for payload in _payloads(spec):
        if len(payload) < _INFO.size:
            raise MalformedReply("bridge vlan", f"{len(payload)} bytes")
        flags, vid = _INFO.unpack_from(payload)
        if flags & _RANGE_BEGIN:
            begin = vid
            continue
        first = begin if flags & _RANGE_END else vid
        yield BridgeVlan(first, vid, bool(flags & _PVID), bool(flags & _UNTAGGED))


def _payloads(spec: bytes) -> Iterable[bytes]:
    """The VLANs among the attributes of a nest: the one kind that comes many times."""
    offset = 0
    while len(spec) - offset >= 4:
        length, number = _INFO.unpack_from(spec, offset)
        if length < 4 or offset + length > len(spec):
            raise MalformedReply("bridge vlans", f"attribute of {length} bytes at {offset} of {len(spec)}")
        if number & ~NESTED == _VLAN_INFO:
            yield spec[offset + 4 : offset + length]
        offset += (length + 3) & ~3
