"""Rules in tables that other programs made: read as bytes, removed by their handles.

Expressions are not taken apart: what a rule says of itself (a comment, the chain that it jumps to) stands in
its bytes as text, also in those of iptables-nft, which libnftables shows only in part.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import NamedTuple

from podwire.kernel.attributes import STRING, PayloadCodec, Table, attribute
from podwire.kernel.errors import KernelError
from podwire.kernel.message import Message
from podwire.kernel.nft import NetfilterSocket

_SUBSYSTEM = 10 << 8
_GET_RULE, _DELETE_RULE, _DELETE_CHAIN = _SUBSYSTEM | 7, _SUBSYSTEM | 8, _SUBSYSTEM | 5
_BEGIN, _END = 16, 17
_HEADER = 4
_FAMILIES = {"inet": 1, "ip": 2, "bridge": 7, "ip6": 10}
_NETFILTER = b"\0\0\0\x0a"
_HANDLE = PayloadCodec(
    lambda number, value: attribute(number, value.to_bytes(8, "big")),
    lambda data: int.from_bytes(data, "big"),
)
_RULE = Table("nftables rule", table=(1, STRING), chain=(2, STRING), handle=(3, _HANDLE))
_CHAIN = Table("nftables chain", table=(1, STRING), name=(3, STRING))


class Chain(NamedTuple):
    """A chain: ``family`` is ip, ip6, inet or bridge. Without a name, all chains of the table."""

    family: str
    table: str
    name: str = ""


class ForeignRule(NamedTuple):
    """A rule: where it is, the number that the kernel knows it by, and its bytes."""

    chain: Chain
    handle: int
    raw: bytes


def rules(sock: NetfilterSocket, where: Chain) -> list[ForeignRule]:
    """The rules of a chain, in order; none if it, or its table, is not there. Raises :class:`KernelError`."""
    wanted = {"table": where.table, **({"chain": where.name} if where.name else {})}
    body = _header(where.family) + _RULE.encode(wanted)
    try:
        entries = sock.dump(Message(_GET_RULE, 0, body, "list the rules of", " ".join(where)))
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    found = []
    for _, entry in entries:
        values = _RULE.decode(entry, _HEADER)
        chain = Chain(where.family, values.get("table", ""), values.get("chain", ""))
        if chain.table == where.table and where.name in {"", chain.name}:
            found.append(ForeignRule(chain, values.get("handle", 0), entry))
    return found


def remove(sock: NetfilterSocket, doomed: Iterable[ForeignRule], chains: Iterable[Chain] = ()) -> None:
    """Remove rules, and then whole chains with theirs, in one transaction. Raises :class:`KernelError`."""
    changes = [
        _change(_DELETE_RULE, one.chain, "delete a rule of", _RULE.encode(_place(one.chain, one.handle)))
        for one in doomed
    ]
    for chain in chains:
        changes += [
            _change(_DELETE_RULE, chain, "flush chain", _RULE.encode(_place(chain))),
            _change(
                _DELETE_CHAIN,
                chain,
                "delete chain",
                _CHAIN.encode({"table": chain.table, "name": chain.name}),
            ),
        ]
    if changes:
        begin = Message(_BEGIN, 0, _NETFILTER, "begin", "nftables transaction")
        sock.send_batch([begin, *changes, Message(_END, 0, _NETFILTER, "end", "nftables transaction")])


def _place(chain: Chain, handle: int | None = None) -> dict[str, object]:
    return {"table": chain.table, "chain": chain.name, "handle": handle}


def _change(kind: int, chain: Chain, operation: str, attributes: bytes) -> Message:
    return Message(kind, 0, _header(chain.family) + attributes, operation, " ".join(chain))


def _header(family: str) -> bytes:
    return bytes((_FAMILIES[family], 0, 0, 0))
