"""What the plugin firewall has in nftables for an attachment: its addresses, and the policy of its bridge.

All rules are constant (table.nft); an attachment adds elements, which carry its name.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from podwire.kernel.nft import NftError
from podwire.kernel.nftset import INTERFACE, IPV6, PORT, Element, Fields, NamedSet
from podwire.kernel.nftwrite import Changes, create, delete
from podwire.kernel.nftwrite import add as add_elements
from podwire.plugins import address_index, ruleset
from podwire.plugins.address_index import Address
from podwire.plugins.ruleset import IP, Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel


FIREWALL = {v: NamedSet(f"firewall{v}", (ip,)) for v, ip in IP.items()}
FIREWALL_INDEX = NamedSet("firewall_index", (IPV6, PORT), (IPV6, PORT))
BRIDGES = NamedSet("firewall_bridges", (INTERFACE,))
WITHIN = NamedSet("firewall_within", (INTERFACE, INTERFACE))
ISOLATED = NamedSet("firewall_isolated", (INTERFACE, INTERFACE))
PORTS = NamedSet("isolated", (INTERFACE,), family="bridge")
"""Ports that reach one another by no IP packet: no chain of ``inet`` sees what a bridge passes on."""

_TRIES = 3
_PORTS_RULE = "podwire isolated"
_IP = "ether type { ip, ip6 }"
_PORTS_TABLE = f"""
add table bridge podwire
add set bridge podwire isolated {{ type ifname; }}
add chain bridge podwire isolation {{ type filter hook forward priority 0; policy accept; }}
flush chain bridge podwire isolation
add rule bridge podwire isolation iifname @isolated oifname @isolated {_IP} drop comment "{_PORTS_RULE}"
"""


class Policy(msgspec.Struct, frozen=True):
    """Whom a bridge keeps apart: its pods from other such bridges' pods, and ``ports`` from one another.

    ``ports`` are the attachment's; None if pods of the bridge may reach one another.
    """

    bridge: str
    ports: tuple[str, ...] | None = None


def add(kernel: Kernel, owner: Owner, addresses: Sequence[Address], policy: Policy | None = None) -> None:
    """Let the attachment's addresses through, in one transaction; it replaces what it had before.

    Raises KernelError, or TryLater for the lock that only the makers of rules take.
    """
    if policy is not None and policy.ports is not None and not _has_ports_rule(kernel):
        kernel.nft.run(_PORTS_TABLE)
    changes = _creation(owner, addresses, policy)
    for attempt in range(_TRIES):
        try:
            ruleset.commit(kernel.nft, changes, (), time.monotonic() + ruleset.LOCK_SECONDS)
        except NftError:
            # Something of it is there, or what was read has changed since; the next reading sees it.
            if attempt == _TRIES - 1:
                raise
            changes = _clearing(kernel, owner, addresses, policy) + _creation(owner, addresses, policy)
        else:
            return


def _creation(owner: Owner, addresses: Sequence[Address], policy: Policy | None) -> Changes:
    comment = owner.comment
    changes: Changes = ()
    for version, where in FIREWALL.items():
        own = (Element((each,), comment=comment) for each in addresses if each.version == version)
        changes += create(where, *own)
    changes += address_index.creation(FIREWALL_INDEX, owner, addresses)
    if policy is None:
        return changes
    within = Element((policy.bridge, policy.bridge))
    changes += add_elements(
        BRIDGES, Element((policy.bridge,), comment=ruleset.network_part(owner.network))
    ) + add_elements(WITHIN, within)
    if policy.ports is not None:
        changes += add_elements(ISOLATED, within)
        changes += create(PORTS, *(Element((port,), comment=comment) for port in policy.ports))
    return changes


def _clearing(kernel: Kernel, owner: Owner, addresses: Sequence[Address], policy: Policy | None) -> Changes:
    """Take away what the attachment has, and what others left behind: the runtime gives an address once."""
    changes, freed = _removal(kernel, owner)
    left = address_index.elements_of(FIREWALL, (each for each in addresses if each not in freed))
    left += [(PORTS, (port,)) for port in (policy.ports or () if policy is not None else ())]
    for (where, key), found in zip(left, kernel.nft.get_all(left), strict=True):
        changes += delete(where, key) if found is not None else ()
    return changes


def check(
    kernel: Kernel, owner: Owner, addresses: Sequence[Address], policy: Policy | None = None
) -> list[str]:
    """What is missing or wrong of what `add` made for the same arguments, in words; empty if it is right."""
    faults = [
        f"rules of chain {name} of table inet {ruleset.TABLE} are missing"
        for name in ruleset.missing(kernel.nft)
    ]
    for each in addresses:
        found = kernel.nft.get(FIREWALL[each.version], (each,))
        if found is None:
            faults.append(f"{each} is not in {FIREWALL[each.version].name}")
        elif ruleset.place_of(found.comment) != owner.place:
            faults.append(f"{each} is let through for {found.comment}")
    if addresses and kernel.nft.get(FIREWALL_INDEX, (owner.key, 0)) is None:
        faults.append(f"the addresses are not in {FIREWALL_INDEX.name}")
    return faults if policy is None else faults + _policy_faults(kernel, policy)


def _policy_faults(kernel: Kernel, policy: Policy) -> list[str]:
    faults = []
    own = (policy.bridge, policy.bridge)
    wanted: list[tuple[NamedSet, tuple[str, ...]]] = [(BRIDGES, own[:1]), (WITHIN, own)]
    if policy.ports is not None:
        wanted += [(ISOLATED, own), *((PORTS, (port,)) for port in policy.ports)]
        if not _has_ports_rule(kernel):
            faults.append("the rule of chain isolation of table bridge podwire is missing")
    return faults + [
        f"{key[0]} is not in {where.name} of table {where.family} {where.table}"
        for where, key in wanted
        if kernel.nft.get(where, key) is None
    ]


def held(kernel: Kernel, owner: Owner) -> list[Address]:
    """The addresses that the attachment has, whatever its network is named now, and nobody else by now."""
    return sorted(_removal(kernel, owner)[1], key=str)


def free(kernel: Kernel, addresses: Sequence[Address]) -> list[Address]:
    """Those of the addresses that no attachment has."""
    found = kernel.nft.get_all([(FIREWALL[each.version], (each,)) for each in addresses])
    return [each for each, element in zip(addresses, found, strict=True) if element is None]


def remove(kernel: Kernel, owner: Owner, ports: Iterable[str] = ()) -> None:
    """Take the attachment's elements away; success if there are none (any more). Raises KernelError.

    ``ports`` are names that its host's end may have; if none of them is known, all are looked through. The
    bridge's policy stays for other pods on it until `collect` finds none.
    """
    for attempt in range(_TRIES):
        changes, _ = _removal(kernel, owner)
        changes += _ports_removal(kernel, owner, ports)
        try:
            ruleset.run(kernel.nft, "", changes)
        except NftError as error:
            # Somebody flushed the table meanwhile.
            if attempt == _TRIES - 1 or error.errno not in {errno.ENOENT, errno.EINVAL}:
                raise
        else:
            return


def collect(kernel: Kernel, network: str, valid: Iterable[tuple[str, str]]) -> list[Address]:
    """Take away what attachments of ``network`` have that are not ``valid`` (container ID, ifname).

    Once it has none, the policies of its bridges go too. Returns the addresses. Raises KernelError.
    """
    kept = {Owner(network, *each).place for each in valid}
    part = ruleset.network_part(network)
    changes: Changes = ()
    freed: list[Address] = []
    for where in (*FIREWALL.values(), FIREWALL_INDEX, PORTS):
        doomed = [
            element.key
            for element in kernel.nft.elements(where)
            if ruleset.network_of(element.comment) == part and ruleset.place_of(element.comment) not in kept
        ]
        changes += delete(where, *doomed)
        freed += [key[0] for key in doomed] if where in FIREWALL.values() else []
    if not kept:
        for element in kernel.nft.elements(BRIDGES):
            if element.comment == part:
                changes += _without(kernel, element.key[0])
    ruleset.run(kernel.nft, "", changes)
    return freed


def _without(kernel: Kernel, bridge: str) -> Changes:
    places: list[tuple[NamedSet, Fields]] = [
        (BRIDGES, (bridge,)),
        (WITHIN, (bridge, bridge)),
        (ISOLATED, (bridge, bridge)),
    ]
    changes: Changes = ()
    for (where, key), found in zip(places, kernel.nft.get_all(places), strict=True):
        changes += delete(where, key) if found is not None else ()
    return changes


def _removal(kernel: Kernel, owner: Owner) -> tuple[Changes, set[Address]]:
    """Take away what the attachment has, but its ports; and the addresses that this frees."""
    return address_index.removal(kernel, FIREWALL_INDEX, FIREWALL, owner)


def _ports_removal(kernel: Kernel, owner: Owner, ports: Iterable[str]) -> Changes:
    known = kernel.nft.get_all([(PORTS, (port,)) for port in ports])
    own = [each.key for each in known if each is not None and ruleset.place_of(each.comment) == owner.place]
    if not own:
        own = [
            each.key for each in kernel.nft.elements(PORTS) if ruleset.place_of(each.comment) == owner.place
        ]
    return delete(PORTS, *own)


def _has_ports_rule(kernel: Kernel) -> bool:
    return any(rule.comment == _PORTS_RULE for rule in kernel.nft.rules(PORTS.table, PORTS.family))
