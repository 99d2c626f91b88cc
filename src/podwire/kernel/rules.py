"""Policy routing rules (linux/fib_rules.h): requests that add and delete them, and the list of them."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from podwire.kernel import message as nl
from podwire.kernel.attributes import IFNAME, IP, U8, U32, Table
from podwire.kernel.errors import InvalidValue, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.routes import TABLE_MAIN, Network, network_of

NEWRULE = 32
DELRULE = 33
GETRULE = 34

# FR_ACT_*: what becomes of a packet that the rule matches.
ACTIONS = {"table": 1, "goto": 2, "nop": 3, "blackhole": 6, "unreachable": 7, "prohibit": 8}
_ACTION_NAMES = {number: name for name, number in ACTIONS.items()}
_INVERT = 2
_FAMILY = {4: 2, 6: 10}
_VERSION = {2: 4, 10: 6}

_HEADER = struct.Struct("=BBBBBxxBI")
_RULE = Table(
    "rule",
    destination=(1, IP),
    source=(2, IP),
    input=(3, IFNAME),
    goto=(4, U32),
    priority=(6, U32),
    mark=(10, U32),
    suppress_prefix=(14, U32),
    table=(15, U32),
    mask=(16, U32),
    output=(17, IFNAME),
    by_master=(19, U8),
    protocol=(21, U8),
)


class Rule(msgspec.Struct, frozen=True):
    """One rule. ``family`` is 4 or 6; None matches anything; ``mask`` says which bits of ``mark`` count.

    ``suppress_prefix`` -1 is none: routes of at most so many bits do not count as found. ``by_master``: in
    place of ``table`` it is that of the VRF which the packet's link is in (FRA_L3MDEV).
    """

    family: int
    priority: int = 0
    source: Network | None = None
    destination: Network | None = None
    input: str = ""
    output: str = ""
    mark: int = 0
    mask: int = 0
    table: int = TABLE_MAIN
    action: str = "table"
    goto: int = 0
    invert: bool = False
    suppress_prefix: int = -1
    protocol: int = 0
    by_master: bool = False


def add(rule: Rule) -> Message:
    """Add a rule; EEXIST if the same is there."""
    return _message(NEWRULE, nl.MAKE, rule, "add rule")


def delete(rule: Rule) -> Message:
    """Delete the first rule with the same selectors, priority and table; ENOENT if there is none."""
    return _message(DELRULE, 0, rule, "delete rule")


def list_rules(sock: RouteSocket, family: int | None = None) -> list[Rule]:
    """The rules of both families, or of one (4 or 6), in the order in which they are tried."""
    rules = []
    for version in (4, 6) if family is None else (family,):
        if version not in _FAMILY:
            raise InvalidValue(f"rule family {family}", "is neither 4 nor 6")
        body = _HEADER.pack(_FAMILY[version], 0, 0, 0, 0, 0, 0)
        for kind, entry in sock.dump(Message(GETRULE, 0, body, "list rules", f"IPv{version}")):
            if kind == NEWRULE:
                rules.append(parse(entry))
    return rules


def parse(body: bytes) -> Rule:
    """Read the body of an RTM_NEWRULE. Raises :class:`MalformedReply`."""
    if len(body) < _HEADER.size:
        raise MalformedReply("rule", f"{len(body)} bytes")
    family, destination_bits, source_bits, _, table, action, flags = _HEADER.unpack_from(body)
    if family not in _VERSION:
        raise MalformedReply("rule", f"family {family}")
    values = _RULE.decode(body, _HEADER.size)
    suppress = values.get("suppress_prefix", 0xFFFFFFFF)
    return Rule(
        family=_VERSION[family],
        priority=values.get("priority", 0),
        source=network_of(family, values.get("source"), source_bits) if source_bits else None,
        destination=network_of(family, values.get("destination"), destination_bits)
        if destination_bits
        else None,
        input=values.get("input", ""),
        output=values.get("output", ""),
        mark=values.get("mark", 0),
        mask=values.get("mask", 0),
        table=values.get("table", table),
        action=_ACTION_NAMES.get(action, str(action)),
        goto=values.get("goto", 0),
        invert=bool(flags & _INVERT),
        suppress_prefix=-1 if suppress == 0xFFFFFFFF else suppress,
        protocol=values.get("protocol", 0),
        by_master=bool(values.get("by_master", 0)),
    )


def _message(kind: int, modifiers: int, rule: Rule, operation: str) -> Message:
    if rule.family not in _FAMILY:
        raise InvalidValue(f"rule family {rule.family}", "is neither 4 nor 6")
    if rule.action not in ACTIONS:
        raise InvalidValue(f"rule action {rule.action!r}", f"is none of {', '.join(ACTIONS)}")
    for network in (rule.source, rule.destination):
        if network is not None and network.version != rule.family:
            raise InvalidValue(f"rule network {network}", f"is not IPv{rule.family}")
    source, destination = rule.source, rule.destination
    to_table = rule.action == "table" and not rule.by_master
    values: dict[str, Any] = {
        "source": source and source.network_address,
        "destination": destination and destination.network_address,
        "input": rule.input or None,
        "output": rule.output or None,
        "priority": rule.priority or None,
        "mark": rule.mark if rule.mark or rule.mask else None,
        "mask": rule.mask or None,
        "table": rule.table if to_table else None,
        "goto": rule.goto or None,
        "suppress_prefix": None if rule.suppress_prefix < 0 else rule.suppress_prefix,
        "by_master": 1 if rule.by_master else None,
        "protocol": rule.protocol or None,
    }
    header = _HEADER.pack(
        _FAMILY[rule.family],
        destination.prefixlen if destination else 0,
        source.prefixlen if source else 0,
        0,
        rule.table if to_table and 0 <= rule.table < 256 else 0,
        ACTIONS[rule.action],
        _INVERT if rule.invert else 0,
    )
    subject = f"IPv{rule.family} priority {rule.priority}"
    return Message(kind, modifiers, header + _RULE.encode(values), operation, subject)
