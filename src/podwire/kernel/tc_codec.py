"""The attributes of queueing disciplines, classes and filters, and how they are read.

Sources: linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h, and of net/sched tbf, htb and u32.
Rates are bytes a second, sizes are bytes, and times are ticks of 64 ns, the kernel's PSCHED_SHIFT.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.kernel.attributes import BINARY, NESTED_BYTES, STRING, U32, U64, Table
from podwire.kernel.errors import MalformedReply

TICK_NS = 64

HEADER = struct.Struct("=B3xiIII")
TBF_PARMS = struct.Struct("=BBHhHIBBHhHIIII")
HTB_INIT = struct.Struct("=IIIII")
HTB_PARMS = struct.Struct("=BBHhHIBBHhHIIIIII")
U32_SELECTOR = struct.Struct(">BBBxHHhhI")
U32_KEY = struct.Struct("=4s4sii")
MIRRED_PARMS = struct.Struct("=IIiiiiI")

OBJECT = Table("traffic control", kind=(1, STRING), options=(2, NESTED_BYTES))
TBF = Table("tbf", parms=(1, BINARY), rate64=(4, U64), burst=(6, U32))
HTB = Table("htb", parms=(1, BINARY), init=(2, BINARY), rate64=(6, U64), ceil64=(7, U64))
U32_FILTER = Table("u32", classid=(1, U32), selector=(5, BINARY), actions=(7, NESTED_BYTES))
MIRRED = Table("mirred", parms=(2, BINARY))
_ACTION = Table("action", kind=(1, STRING), options=(2, NESTED_BYTES))
ACTIONS = Table("actions", first=(1, _ACTION))


class Tbf(msgspec.Struct, frozen=True):
    """A token bucket: ``rate`` in bytes a second, ``buffer`` in ticks, ``limit`` in bytes."""

    rate: int
    buffer: int
    limit: int


class Qdisc(msgspec.Struct, frozen=True):
    """A queueing discipline of the link ``index``; ``tbf`` and ``default_class`` (of an htb) by its kind."""

    index: int
    kind: str
    handle: int
    parent: int
    tbf: Tbf | None = None
    default_class: int | None = None


class HtbClass(msgspec.Struct, frozen=True):
    """A class of an htb: ``rate`` and ``ceil`` in bytes a second, ``buffer`` in ticks."""

    index: int
    classid: int
    rate: int
    ceil: int
    buffer: int


class Key(msgspec.Struct, frozen=True):
    """A u32 match: 32 bits ``offset`` bytes into the network header are ``value`` under ``mask``."""

    mask: int
    value: int
    offset: int


class Filter(msgspec.Struct, frozen=True):
    """A filter: what it matches, and the class or the link (``redirect``, an index) that it sends that to.

    ``redirect`` is None for a filter without one, 0 once the link is gone. The tables of a u32 filter are
    entries too, without ``keys``.
    """

    index: int
    kind: str
    handle: int
    parent: int
    priority: int
    protocol: int
    keys: tuple[Key, ...] = ()
    classid: int = 0
    redirect: int | None = None


def parse_qdisc(body: bytes) -> Qdisc:
    """Read the body of an RTM_NEWQDISC. Raises :class:`MalformedReply`."""
    index, handle, parent, _, values = _read(body)
    kind = values.get("kind", "")
    options = values.get("options", b"")
    tbf = default = None
    if kind == "tbf":
        tbf = _tbf(options)
    elif kind == "htb" and "init" in (found := HTB.decode(options)):
        default = _unpack(HTB_INIT, found["init"], "htb")[2]
    return Qdisc(index, kind, handle, parent, tbf, default)


def parse_class(body: bytes) -> HtbClass | None:
    """Read the body of an RTM_NEWTCLASS; None for no htb's class. Raises :class:`MalformedReply`."""
    index, handle, _, _, values = _read(body)
    if values.get("kind") != "htb":
        return None
    found = HTB.decode(values.get("options", b""))
    parms = _unpack(HTB_PARMS, found.get("parms", b""), "htb class")
    return HtbClass(index, handle, found.get("rate64", parms[5]), found.get("ceil64", parms[11]), parms[12])


def parse_filter(body: bytes) -> Filter:
    """Read the body of an RTM_NEWTFILTER; of its actions the first one. Raises :class:`MalformedReply`."""
    index, handle, parent, info, values = _read(body)
    kind = values.get("kind", "")
    protocol = int.from_bytes(struct.pack("=H", info & 0xFFFF), "big")
    keys: tuple[Key, ...] = ()
    classid = 0
    redirect = None
    if kind == "u32":
        found = U32_FILTER.decode(values.get("options", b""))
        classid = found.get("classid", 0)
        keys = _keys(found.get("selector", b""))
        redirect = _redirect(ACTIONS.decode(found.get("actions", b"")).get("first", {}))
    return Filter(index, kind, handle, parent, info >> 16, protocol, keys, classid, redirect)


def _read(body: bytes) -> tuple[int, int, int, int, dict[str, Any]]:
    if len(body) < HEADER.size:
        raise MalformedReply("traffic control", f"{len(body)} bytes")
    _, index, handle, parent, info = HEADER.unpack_from(body)
    return index, handle, parent, info, OBJECT.decode(body, HEADER.size)


def _unpack(layout: struct.Struct, data: bytes, what: str) -> tuple[int, ...]:
    if len(data) < layout.size:
        raise MalformedReply(what, f"{len(data)} bytes of {layout.size}")
    return layout.unpack_from(data)


def _tbf(options: bytes) -> Tbf:
    found = TBF.decode(options)
    parms = _unpack(TBF_PARMS, found.get("parms", b""), "tbf")
    return Tbf(found.get("rate64", parms[5]), parms[13], parms[12])


def _keys(selector: bytes) -> tuple[Key, ...]:
    if not selector:
        return ()
    count = _unpack(U32_SELECTOR, selector, "u32 selector")[2]
    if len(selector) < U32_SELECTOR.size + count * U32_KEY.size:
        raise MalformedReply("u32 selector", f"{len(selector)} bytes with {count} keys")
    keys = []
    for number in range(count):
        mask, value, offset, _ = U32_KEY.unpack_from(selector, U32_SELECTOR.size + number * U32_KEY.size)
        keys.append(Key(int.from_bytes(mask, "big"), int.from_bytes(value, "big"), offset))
    return tuple(keys)


def _redirect(action: Mapping[str, Any]) -> int | None:
    if action.get("kind") != "mirred":
        return None
    found = MIRRED.decode(action.get("options", b""))
    return _unpack(MIRRED_PARMS, found.get("parms", b""), "mirred")[6]
