"""Traffic control: requests that make and delete queueing disciplines, classes and filters, and readers.

Builders are pure and return a :class:`Message`; readers take a socket. Sources: linux/rtnetlink.h,
linux/pkt_sched.h, linux/pkt_cls.h, net/sched. ``index`` is a link's. Rates are bytes a second, sizes bytes;
handles are ``major << 16 | minor``.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network

from podwire.kernel import message as nl
from podwire.kernel.errors import InvalidValue, KernelError
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.tc_codec import (
    ACTIONS,
    HEADER,
    HTB,
    HTB_INIT,
    HTB_PARMS,
    MIRRED,
    MIRRED_PARMS,
    OBJECT,
    TBF,
    TBF_PARMS,
    TICK_NS,
    U32_FILTER,
    U32_KEY,
    U32_SELECTOR,
    Filter,
    HtbClass,
    Key,
    Qdisc,
    Tbf,
    parse_class,
    parse_filter,
    parse_qdisc,
)

__all__ = [
    "CLSACT_EGRESS",
    "CLSACT_INGRESS",
    "INGRESS",
    "INGRESS_HANDLE",
    "PROTOCOL_ALL",
    "PROTOCOL_IPV4",
    "PROTOCOL_IPV6",
    "ROOT",
    "Filter",
    "HtbClass",
    "Key",
    "Qdisc",
    "Tbf",
    "buffer_ticks",
    "clsact",
    "delete_filters",
    "delete_qdisc",
    "destination_keys",
    "get_qdisc",
    "handle",
    "htb",
    "htb_class",
    "ingress",
    "list_classes",
    "list_filters",
    "list_qdiscs",
    "redirect",
    "steer",
    "tbf",
]

NEWQDISC, DELQDISC, GETQDISC = 36, 37, 38
NEWTCLASS, GETTCLASS = 40, 42
NEWTFILTER, DELTFILTER, GETTFILTER = 44, 45, 46

ROOT = 0xFFFFFFFF
INGRESS = 0xFFFFFFF1
INGRESS_HANDLE = 0xFFFF0000
"""The handle of every ingress or clsact discipline; for ingress the parent of its filters."""
CLSACT_INGRESS, CLSACT_EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
"""The parents of the filters of clsact: on what the link receives, and on what it sends."""
PROTOCOL_ALL, PROTOCOL_IPV4, PROTOCOL_IPV6 = 0x0003, 0x0800, 0x86DD

_ECHO = 0x008
"""NLM_F_ECHO: what the kernel tells those who listen comes to the asker too; else it answers nothing."""
_U32_MAX = 0xFFFFFFFF
_TERMINAL = 1
_STOLEN = 4
_EGRESS_REDIRECT = 1
_HTB_VERSION = 3
_DESTINATION = {4: 16, 6: 24}


def handle(major: int, minor: int = 0) -> int:
    """The handle ``major:minor``, both in 16 bits."""
    return major << 16 | minor


def buffer_ticks(rate: int, burst: int) -> int:
    """How long ``burst`` bytes take at ``rate`` bytes a second, in the kernel's ticks of 64 ns (32 bits).

    Whole microseconds, as iproute2 and Go's netlink count them, but never nothing.
    """
    exact = burst * 1_000_000_000 // (rate * TICK_NS)
    return min(burst * 1_000_000 // rate * 1000 // TICK_NS or exact or 1, _U32_MAX)


def tbf(
    index: int,
    *,
    rate: int,
    burst: int,
    limit: int,
    handle: int = 1 << 16,
    parent: int = ROOT,
    replace: bool = False,
) -> Message:
    """Put a token bucket on a link: ``rate`` on average, ``burst`` at once, ``limit`` waiting, else dropped.

    A ``burst`` may take 274 s at most, what is more is cut; a packet longer than it is never sent. Something
    else at ``parent`` is EEXIST without ``replace``.
    """
    if not 0 < rate < 1 << 64:
        raise InvalidValue(f"tbf rate {rate}", "a rate is positive and has 64 bits")
    short = min(rate, _U32_MAX)
    ticks = buffer_ticks(rate, burst)
    parms = TBF_PARMS.pack(0, 0, 0, 0, 0, short, 0, 0, 0, 0, 0, 0, min(limit, _U32_MAX), ticks, 0)
    options = TBF.encode({"parms": parms, "rate64": rate if rate > _U32_MAX else None})
    return _qdisc(index, "tbf", handle, parent, options, replace=replace)


def htb(
    index: int, *, default: int, handle: int = 1 << 16, parent: int = ROOT, replace: bool = False
) -> Message:
    """Put a hierarchy of token buckets on a link; the rest goes to the class of minor ``default``."""
    options = HTB.encode({"init": HTB_INIT.pack(_HTB_VERSION, 10, default, 0, 0)})
    return _qdisc(index, "htb", handle, parent, options, replace=replace)


def htb_class(index: int, classid: int, *, rate: int, ceil: int, buffer: int = 0) -> Message:
    """Make a class of an htb, which must be on the link with the same major; ``buffer`` is in ticks."""
    parms = HTB_PARMS.pack(
        *(0, 0, 0, 0, 0, min(rate, _U32_MAX)),
        *(0, 0, 0, 0, 0, min(ceil, _U32_MAX)),
        *(buffer, buffer, 0, 0, 0),
    )
    options = HTB.encode(
        {
            "parms": parms,
            "rate64": rate if rate > _U32_MAX else None,
            "ceil64": ceil if ceil > _U32_MAX else None,
        }
    )
    body = HEADER.pack(0, index, classid, classid & 0xFFFF0000, 0) + _object("htb", options)
    subject = f"{classid >> 16:x}:{classid & 0xFFFF:x} of index {index}"
    return Message(NEWTCLASS, nl.MAKE, body, "create htb class", subject)


def ingress(index: int) -> Message:
    """Let filters look at what a link receives; EEXIST if it has an ingress or clsact discipline already."""
    return _qdisc(index, "ingress", INGRESS_HANDLE, INGRESS, None)


def clsact(index: int) -> Message:
    """Let filters look at what a link receives and at what it sends."""
    return _qdisc(index, "clsact", INGRESS_HANDLE, INGRESS, None)


def redirect(
    index: int,
    to: int,
    *,
    parent: int = INGRESS_HANDLE,
    priority: int = 1,
    protocol: int = PROTOCOL_ALL,
    classid: int = 1 << 16 | 1,
) -> Message:
    """Send every packet at ``parent`` out by the link ``to`` in place of its way (u32, mirred)."""
    parms = MIRRED_PARMS.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, to)
    action = {"kind": "mirred", "options": MIRRED.encode({"parms": parms})}
    options = U32_FILTER.encode(
        {
            "classid": classid,
            "selector": _selector([Key(0, 0, 0)]),
            "actions": ACTIONS.encode({"first": action}),
        }
    )
    return _filter(index, parent, priority, protocol, options, "create redirect")


def steer(
    index: int,
    network: IPv4Network | IPv6Network,
    classid: int,
    *,
    parent: int = 1 << 16,
    priority: int,
) -> Message:
    """Send packets for ``network`` to the class ``classid``. Of one priority there is one protocol."""
    protocol = PROTOCOL_IPV4 if network.version == 4 else PROTOCOL_IPV6
    options = U32_FILTER.encode({"classid": classid, "selector": _selector(destination_keys(network))})
    return _filter(index, parent, priority, protocol, options, "create filter")


def destination_keys(network: IPv4Network | IPv6Network) -> tuple[Key, ...]:
    """The matches of a destination in ``network``: one for each 32 bits that the prefix reaches into."""
    mask, value = network.netmask.packed, network.network_address.packed
    start = _DESTINATION[network.version]
    keys = [
        Key(int.from_bytes(mask[at : at + 4], "big"), int.from_bytes(value[at : at + 4], "big"), start + at)
        for at in range(0, len(mask), 4)
    ]
    return tuple(key for key in keys if key.mask) or (Key(0, 0, 0),)


def delete_qdisc(index: int, parent: int, handle: int = 0) -> Message:
    """Delete the discipline at ``parent``, with its classes and filters.

    With ``handle``: only if it has that one, else EINVAL; ENOENT where there is none.
    """
    body = HEADER.pack(0, index, handle, parent, 0)
    return Message(DELQDISC, 0, body, "delete qdisc", f"{_place(parent)} of index {index}")


def delete_filters(index: int, parent: int, priority: int, protocol: int = PROTOCOL_ALL) -> Message:
    """Delete the filters of one priority and protocol."""
    body = HEADER.pack(0, index, 0, parent, _info(priority, protocol))
    return Message(DELTFILTER, 0, body, "delete filters", f"{_place(parent)} of index {index}")


def get_qdisc(sock: RouteSocket, index: int, parent: int, handle: int) -> Qdisc | None:
    """Look up the discipline at ``parent`` that has ``handle``; None if none is there, or another one.

    ``handle`` is not 0: of the kernel's own disciplines, which have none, it tells nothing at all.
    """
    if not handle:
        raise InvalidValue("qdisc handle 0", "only disciplines that somebody made can be asked for")
    body = HEADER.pack(0, index, handle, parent, 0)
    subject = f"{_place(parent)} of index {index}"
    try:
        _, reply = sock.request(Message(GETQDISC, _ECHO, body, "look up qdisc", subject))
    except KernelError as error:
        if error.errno in {errno.ENOENT, errno.EINVAL, errno.ENODEV}:
            return None
        raise
    return parse_qdisc(reply)


def list_qdiscs(sock: RouteSocket, index: int = 0) -> list[Qdisc]:
    """All disciplines of a link, or of all links (0), without the ones that the kernel puts there itself."""
    entries = sock.dump(Message(GETQDISC, 0, HEADER.pack(0, index, 0, 0, 0), "list qdiscs", str(index)))
    found = [parse_qdisc(body) for kind, body in entries if kind == NEWQDISC]
    return [each for each in found if each.handle and (not index or each.index == index)]


def list_classes(sock: RouteSocket, index: int) -> list[HtbClass]:
    """The htb classes of a link."""
    message = Message(GETTCLASS, 0, HEADER.pack(0, index, 0, 0, 0), "list classes", f"index {index}")
    found = (parse_class(body) for kind, body in sock.dump(message) if kind == NEWTCLASS)
    return [each for each in found if each is not None and each.index == index]


def list_filters(sock: RouteSocket, index: int, parent: int) -> list[Filter]:
    """The filters at ``parent`` of a link; none if there is no such place."""
    subject = f"{_place(parent)} of index {index}"
    message = Message(GETTFILTER, 0, HEADER.pack(0, index, 0, parent, 0), "list filters", subject)
    try:
        entries = sock.dump(message)
    except KernelError as error:
        if error.errno in {errno.ENOENT, errno.EINVAL, errno.ENODEV}:
            return []
        raise
    return [parse_filter(body) for kind, body in entries if kind == NEWTFILTER]


def _qdisc(
    index: int, kind: str, handle: int, parent: int, options: bytes | None, *, replace: bool = False
) -> Message:
    body = HEADER.pack(0, index, handle, parent, 0) + _object(kind, options)
    flags = nl.PUT if replace else nl.MAKE
    return Message(NEWQDISC, flags, body, f"create {kind}", f"{_place(parent)} of index {index}")


def _filter(  # noqa: PLR0917
    index: int, parent: int, priority: int, protocol: int, options: bytes, operation: str
) -> Message:
    body = HEADER.pack(0, index, 0, parent, _info(priority, protocol)) + _object("u32", options)
    return Message(NEWTFILTER, nl.MAKE, body, operation, f"{_place(parent)} of index {index}")


def _object(kind: str, options: bytes | None) -> bytes:
    return OBJECT.encode({"kind": kind, "options": options})


def _info(priority: int, protocol: int) -> int:
    number: int = struct.unpack("=H", protocol.to_bytes(2, "big"))[0]
    return priority << 16 | number


def _selector(keys: Sequence[Key]) -> bytes:
    packed = b"".join(
        U32_KEY.pack(key.mask.to_bytes(4, "big"), key.value.to_bytes(4, "big"), key.offset, 0) for key in keys
    )
    return U32_SELECTOR.pack(_TERMINAL, 0, len(keys), 0, 0, 0, 0, 0) + packed


def _place(parent: int) -> str:
    names = {ROOT: "root", INGRESS: "ingress", INGRESS_HANDLE: "ingress"}
    return names.get(parent, f"{parent >> 16:x}:{parent & 0xFFFF:x}")
