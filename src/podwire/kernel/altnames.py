"""Alternative names of links (IFLA_ALT_IFNAME, since Linux 5.5): up to 127 bytes, unique in their namespace.

They stay with a device that is renamed, or moved to another namespace. An older kernel refuses to add one
with EOPNOTSUPP or EINVAL.
"""

from __future__ import annotations

import errno
import sys

from podwire.kernel.attributes import NESTED, STRING, attribute
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.link_codec import HEADER, Link, parse
from podwire.kernel.message import APPEND, MAKE, Message
from podwire.kernel.netlink import RouteSocket

_NEWLINK = 16
_GETLINK = 18
_NEWLINKPROP = 108
_DELLINKPROP = 109
_PROP_LIST = 52
_ALT_IFNAME = 53
_TYPE_MASK = 0x3FFF


def add(index: int, name: str) -> Message:
    """Give a link another name; EEXIST if anything in its namespace has it."""
    return _message(_NEWLINKPROP, MAKE | APPEND, index, name, "add alternative name")


def delete(index: int, name: str) -> Message:
    """Take a name away again; EINVAL if the link does not have it."""
    return _message(_DELLINKPROP, 0, index, name, "delete alternative name")


def find(sock: RouteSocket, name: str) -> Link | None:
    """Return the link that has an alternative name, or None."""
    body = HEADER.pack(0, 0, 0, 0, 0) + STRING.pack(_ALT_IFNAME, name)
    try:
        kind, reply = sock.request(Message(_GETLINK, 0, body, "look up link", name))
    except KernelError as error:
        if error.errno in {errno.ENODEV, errno.EINVAL}:  # EINVAL: a kernel that has none
            return None
        raise
    if kind != _NEWLINK:
        raise MalformedReply("link", f"message type {kind} in answer to RTM_GETLINK")
    return parse(reply, details=False)


def beginning(sock: RouteSocket, prefix: str) -> list[tuple[str, Link]]:
    """Return the alternative names that begin with ``prefix``, each with its link."""
    question = Message(_GETLINK, 0, HEADER.pack(0, 0, 0, 0, 0), "list links", "all")
    return [
        (name, parse(body, details=False))
        for kind, body in sock.dump(question)
        if kind == _NEWLINK
        for name in names(body)
        if name.startswith(prefix)
    ]


def names(body: bytes) -> list[str]:
    """Read the alternative names in the body of an RTM_NEWLINK. Raises :class:`MalformedReply`."""
    return [
        STRING.unpack(payload)
        for number, nest in _attributes(body, HEADER.size)
        if number == _PROP_LIST
        for inner, payload in _attributes(nest, 0)
        if inner == _ALT_IFNAME
    ]


def _attributes(data: bytes, offset: int) -> list[tuple[int, bytes]]:
    found = []
    while len(data) - offset >= 4:
        length = int.from_bytes(data[offset : offset + 2], sys.byteorder)
        number = int.from_bytes(data[offset + 2 : offset + 4], sys.byteorder)
        if length < 4 or offset + length > len(data):
            raise MalformedReply("link properties", f"attribute of {length} bytes at {offset}")
        found.append((number & _TYPE_MASK, data[offset + 4 : offset + length]))
        offset += (length + 3) & ~3
    return found


def _message(kind: int, flags: int, index: int, name: str, operation: str) -> Message:
    properties = attribute(_PROP_LIST | NESTED, STRING.pack(_ALT_IFNAME, name))
    body = HEADER.pack(0, 0, index, 0, 0) + properties
    return Message(kind, flags, body, operation, name)
