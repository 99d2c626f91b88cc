"""Changes of nftables elements as netlink messages, in one transaction (linux/netfilter/nf_tables.h).

libnftables reads the whole ruleset before each transaction, with all the elements of other tables' interval
sets; these messages cost what they change. A :class:`Change` can be written as text too, for a transaction
that makes tables and chains as well.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from podwire.kernel import message as nl
from podwire.kernel.attributes import NESTED, attribute
from podwire.kernel.message import Message

if TYPE_CHECKING:
    from podwire.kernel.nftset import Element, Fields, NamedSet

_SUBSYSTEM = 10
_NEW_ELEMENT = (_SUBSYSTEM << 8) | 12
_DELETE_ELEMENT = (_SUBSYSTEM << 8) | 14
_BATCH_BEGIN = 16
_BATCH_END = 17
_FAMILIES = {"inet": 1, "ip": 2, "arp": 3, "netdev": 5, "bridge": 7, "ip6": 10}
_GOTO = struct.pack(">i", -4)  # NFT_GOTO of linux/netfilter/nf_tables.h

# Numbers of NFTA_SET_ELEM_LIST_*, NFTA_SET_ELEM_*, NFTA_DATA_* and NFTA_VERDICT_*.
_TABLE, _SET, _ELEMENTS = 1, 2, 3 | NESTED
_ELEMENT = 1 | NESTED
_KEY, _DATA, _USERDATA = 1 | NESTED, 2 | NESTED, 6
_VALUE, _VERDICT = 1, 2 | NESTED
_CODE, _CHAIN = 1, 2
_GENERATION = 1
_LONGEST_LIST = 60_000
_COMMENT = 0


class Change(NamedTuple):
    """Elements of one set that are made (``create``: EEXIST if one is there; ``add``) or deleted."""

    verb: str
    where: NamedSet
    elements: tuple[Element, ...]


Changes: TypeAlias = "tuple[Change, ...]"
"""What one transaction does, in order. Sums of changes are changes."""


def create(where: NamedSet, *elements: Element) -> Changes:
    """Make elements; the transaction fails with EEXIST if one is there, whatever its value."""
    return (Change("create", where, elements),) if elements else ()


def add(where: NamedSet, *elements: Element) -> Changes:
    """Make elements, content with equal ones."""
    return (Change("add", where, elements),) if elements else ()


def delete(where: NamedSet, *keys: Fields) -> Changes:
    """Delete elements; the transaction fails with ENOENT if one is not there."""
    from podwire.kernel.nftset import Element

    return (Change("delete", where, tuple(Element(key) for key in keys)),) if keys else ()


def text(changes: Changes) -> str:
    """The changes as commands of nft(8)."""
    return "".join(
        change.where.delete(*(element.key for element in change.elements))
        if change.verb == "delete"
        else change.where.create(*change.elements)
        if change.verb == "create"
        else change.where.add(*change.elements)
        for change in changes
    )


def batch(changes: Changes, generation: int | None = None) -> list[Message]:
    """The whole transaction; with ``generation`` the kernel refuses it (ERESTART) in any other."""
    start = b"" if generation is None else attribute(_GENERATION, generation.to_bytes(4, "big"))
    messages = [Message(_BATCH_BEGIN, 0, b"\0\0\0\x0a" + start, "begin", "nftables transaction")]
    for change in changes:
        messages += _messages(change)
    messages.append(Message(_BATCH_END, 0, b"\0\0\0\x0a", "end", "nftables transaction"))
    return messages


def _messages(change: Change) -> list[Message]:
    where = change.where
    subject, head = _head(where.family, where.table, where.name)
    kind, flags = (
        (_DELETE_ELEMENT, 0)
        if change.verb == "delete"
        else (_NEW_ELEMENT, nl.MAKE if change.verb == "create" else nl.CREATE)
    )
    operation = f"{change.verb} element of"
    pieces = [_element(where, element) for element in change.elements]
    return [
        Message(kind, flags, head + attribute(_ELEMENTS, part), operation, subject)
        for part in _portions(pieces)
    ]


@lru_cache(maxsize=64)
def _head(family: str, table: str, name: str) -> tuple[str, bytes]:
    """How a set is named in an error, and how a change of its elements begins."""
    start = bytes((_FAMILIES[family], 0, 0, 0))
    place = attribute(_TABLE, table.encode() + b"\0") + attribute(_SET, name.encode() + b"\0")
    return f"{family} {table} {name}", start + place


def _portions(pieces: Sequence[bytes]) -> list[bytes]:
    """A nest has a length of 16 bits: more elements need more messages."""
    if sum(map(len, pieces)) <= _LONGEST_LIST:
        return [b"".join(pieces)]
    portions: list[bytes] = []
    current: list[bytes] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > _LONGEST_LIST:
            portions.append(b"".join(current))
            current, size = [], 0
        current.append(piece)
        size += len(piece)
    return [*portions, b"".join(current)]


def _element(where: NamedSet, element: Element) -> bytes:
    body = attribute(_KEY, attribute(_VALUE, where.pack_key(element.key)))
    if where.verdict and element.value is not None:
        body += _goto(str(element.value))
    elif where.data is not None and isinstance(element.value, tuple):
        body += attribute(_DATA, attribute(_VALUE, where.pack_value(element.value)))
    if element.comment:
        body += _userdata(element.comment)
    return attribute(_ELEMENT, body)


@lru_cache(maxsize=64)
def _goto(chain: str) -> bytes:
    named = attribute(_CHAIN, chain.encode() + b"\0")
    return attribute(_DATA, attribute(_VERDICT, attribute(_CODE, _GOTO) + named))


@lru_cache(maxsize=64)  # all that an attachment has is told as its own
def _userdata(comment: str) -> bytes:
    raw = comment.encode() + b"\0"
    return attribute(_USERDATA, bytes((_COMMENT, len(raw))) + raw)
