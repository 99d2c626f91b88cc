"""One netlink request as pure data, and the numbers that all families share (linux/netlink.h)."""

from __future__ import annotations

import msgspec

REQUEST = 0x001
MULTI = 0x002
ACK = 0x004
DUMP_INTR = 0x010
# Modifiers of a request that makes something, and of one that lists (the same bits mean different things).
REPLACE = 0x100
EXCL = 0x200
CREATE = 0x400
APPEND = 0x800
DUMP = 0x300

MAKE = CREATE | EXCL
PUT = CREATE | REPLACE


class Message(msgspec.Struct, frozen=True, gc=False):
    """A request without its header: the socket adds REQUEST, ACK or DUMP, and the sequence number.

    ``flags`` are the NLM_F_* modifiers (CREATE, EXCL, REPLACE...), ``body`` is the family header and the
    attributes, padded to 4 bytes. ``operation`` and ``subject`` are for the error of a refusal.
    """

    type: int
    flags: int
    body: bytes
    operation: str
    subject: str
