"""A few constant rules in the chain FORWARD of iptables, which may drop what it does not accept.

A container engine sets that chain's policy to drop, and no table of ours can overrule a drop. So, where the
chain is there (as iptables-nft keeps it in nftables), it gets one rule that leads to a chain of ours, and
that accepts what has our mark (table.nft). Rules are written so that iptables lists, saves and restores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from podwire.plugins import ruleset

if TYPE_CHECKING:
    from podwire.kernel.nft import Nft

TABLE, HOOKED = "filter", "FORWARD"
CHAIN = "PODWIRE-FORWARD"
FAMILIES = {4: "ip", 6: "ip6"}
_MARK = "0x00100000"
_JUMP, _ACCEPT, _ADMIN = "podwire forward", "podwire accept", "podwire admin "


def ensure(nft: Nft, versions: Iterable[int], admin: str, deadline: float) -> None:
    """Make what is missing, in one transaction; nothing where iptables has no such chain.

    ``admin`` is a chain of the administrator's, passed first; it is made if it is not there. ``deadline`` is
    a time.monotonic(): of two that would make it one waits. Raises KernelError, TryLater (11).
    """
    versions = tuple(versions)
    if not faults(nft, versions, admin):
        return
    with ruleset.exclusive(deadline):
        text = _commands(nft, versions, admin)
        if text:
            nft.run(text)


def _commands(nft: Nft, versions: Iterable[int], admin: str) -> str:
    text = ""
    for version in versions:
        family = FAMILIES[version]
        if faults(nft, [version], admin):
            text += _renewal(nft, family, admin)
    return text


def faults(nft: Nft, versions: Iterable[int], admin: str) -> list[str]:
    """What is missing of what `ensure` makes, in words."""
    found = []
    for version in versions:
        family = FAMILIES[version]
        if not nft.has_chain(TABLE, HOOKED, family):
            continue
        rules = [(rule.chain, rule.comment) for rule in nft.rules(TABLE, family)]
        wanted = ((HOOKED, _JUMP), (CHAIN, _ADMIN + admin), (CHAIN, _ACCEPT))
        found += [
            f"the rule {comment!r} of chain {chain} of table {family} {TABLE} is missing"
            for chain, comment in wanted
            if (chain, comment) not in rules
        ]
    return found


def remove(nft: Nft) -> None:
    """Take all of it away; the administrator's chains stay. Does nothing where there is nothing."""
    text = ""
    for family in FAMILIES.values():
        if nft.has_chain(TABLE, CHAIN, family):
            place = f"{family} {TABLE} {CHAIN}"
            text += _jumps_removed(nft, family) + f"flush chain {place}\ndelete chain {place}\n"
    if text:
        nft.run(text)


def _renewal(nft: Nft, family: str, admin: str) -> str:
    known = [
        rule.comment.removeprefix(_ADMIN)
        for rule in nft.rules(TABLE, family)
        if rule.chain == CHAIN and rule.comment.startswith(_ADMIN)
    ]
    admins = list(dict.fromkeys([*known, admin]))
    place = f"{family} {TABLE}"
    lines = [f"add chain {place} {CHAIN}", f"flush chain {place} {CHAIN}"]
    for name in admins:
        lines += [
            f"add chain {place} {name}",
            f'add rule {place} {CHAIN} counter jump {name} comment "{_ADMIN}{name}"',
        ]
    accept = f"meta mark & {_MARK} == {_MARK} counter accept"
    lines.append(f'add rule {place} {CHAIN} {accept} comment "{_ACCEPT}"')
    lines.append(f'insert rule {place} {HOOKED} counter jump {CHAIN} comment "{_JUMP}"')
    return _jumps_removed(nft, family) + "\n".join(lines) + "\n"


def _jumps_removed(nft: Nft, family: str) -> str:
    """The commands that take away what leads to our chain, also as iptables-restore wrote it."""
    handles = [
        rule["handle"]
        for item in nft.query(f"list chain {family} {TABLE} {HOOKED}")
        if (rule := item.get("rule")) is not None and _leads_to_us(rule.get("expr", ()))
    ]
    return "".join(f"delete rule {family} {TABLE} {HOOKED} handle {handle}\n" for handle in handles)


def _leads_to_us(statements: Sequence[Any]) -> bool:
    return any(
        isinstance(each, dict) and (each.get("jump") or {}).get("target") == CHAIN for each in statements
    )
