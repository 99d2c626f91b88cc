"""What the plugin firewall has in nftables for an attachment: its addresses, and the policy of its bridge.

All rules are constant (table.nft); an attachment adds elements, which carry its name.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import msgspec

from podwire.kernel.nft import NftError
from podwire.kernel.nftset import INTERFACE, IPV6, PORT, Element, NamedSet
from podwire.plugins import ruleset
from podwire.plugins.ruleset import IP, Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel

Address = IPv4Address | IPv6Address

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

    Raises KernelError.
    """
    ports = () if policy is None else policy.ports or ()
    for attempt in range(_TRIES):
        preparation = ruleset.prepare(kernel.nft)
        text, freed = _removal(kernel, owner)
        text += _ports_removal(kernel, owner, ports)
        text += _creation(kernel, owner, addresses, freed)
        if policy is not None:
            own = (policy.bridge, policy.bridge)
            text += BRIDGES.add(Element((policy.bridge,), comment=ruleset.network_part(owner.network)))
            text += WITHIN.add(Element(own))
            if policy.ports is not None:
                preparation += "" if _has_ports_rule(kernel) else _PORTS_TABLE
                text += ISOLATED.add(Element(own))
                text += PORTS.create(*(Element((port,), comment=owner.comment) for port in ports))
        try:
            ruleset.run(kernel.nft, preparation, text)
        except NftError:
            # What was read has changed since; the next reading sees it.
            if attempt == _TRIES - 1:
                raise
        else:
            return


def _creation(kernel: Kernel, owner: Owner, addresses: Sequence[Address], freed: Iterable[Address]) -> str:
    text = ""
    for version, where in FIREWALL.items():
        own = [each for each in addresses if each.version == version]
        # Somebody's who lost them: the runtime gives an address once.
        taken = [each for each in own if each not in freed and kernel.nft.get(where, (each,)) is not None]
        text += where.delete(*((each,) for each in taken))
        text += where.create(*(Element((each,), comment=owner.comment) for each in own))
    return text + FIREWALL_INDEX.create(
        *(
            Element((owner.key, number), (ruleset.mapped(each), len(addresses)), owner.comment)
            for number, each in enumerate(addresses)
        )
    )


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


def remove(kernel: Kernel, owner: Owner, ports: Iterable[str] = ()) -> None:
    """Take the attachment's elements away; success if there are none (any more). Raises KernelError.

    ``ports`` are names that its host's end may have; if none of them is known, all are looked through. The
    bridge's policy stays for other pods on it until `collect` finds none.
    """
    for attempt in range(_TRIES):
        text, _ = _removal(kernel, owner)
        text += _ports_removal(kernel, owner, ports, deep=True)
        try:
            ruleset.run(kernel.nft, "", text)
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
    text = ""
    freed: list[Address] = []
    for where in (*FIREWALL.values(), FIREWALL_INDEX, PORTS):
        doomed = [
            element.key
            for element in kernel.nft.elements(where)
            if ruleset.network_of(element.comment) == part and ruleset.place_of(element.comment) not in kept
        ]
        text += where.delete(*doomed)
        freed += [key[0] for key in doomed] if where in FIREWALL.values() else []
    if not kept:
        for element in kernel.nft.elements(BRIDGES):
            if element.comment == part:
                text += _without(kernel, element.key[0])
    ruleset.run(kernel.nft, "", text)
    return freed


def _without(kernel: Kernel, bridge: str) -> str:
    places: tuple[tuple[NamedSet, tuple[str, ...]], ...] = (
        (BRIDGES, (bridge,)),
        (WITHIN, (bridge, bridge)),
        (ISOLATED, (bridge, bridge)),
    )
    return "".join(where.delete(key) for where, key in places if kernel.nft.get(where, key) is not None)


def _removal(kernel: Kernel, owner: Owner) -> tuple[str, set[Address]]:
    """The commands that remove what the attachment has, and the addresses that they free."""
    first = kernel.nft.get(FIREWALL_INDEX, (owner.key, 0))
    if first is None or not isinstance(first.value, tuple):
        return "", set()
    rest = (kernel.nft.get(FIREWALL_INDEX, (owner.key, number)) for number in range(1, first.value[1]))
    indexed = [first, *(each for each in rest if each is not None)]
    text = FIREWALL_INDEX.delete(*(each.key for each in indexed))
    freed = set()
    for each in indexed:
        address = ruleset.unmapped(each.value[0]) if isinstance(each.value, tuple) else None
        element = address and kernel.nft.get(FIREWALL[address.version], (address,))
        if address and element and ruleset.place_of(element.comment) == owner.place:
            text += FIREWALL[address.version].delete((address,))
            freed.add(address)
    return text, freed


def _ports_removal(kernel: Kernel, owner: Owner, ports: Iterable[str], *, deep: bool = False) -> str:
    known = [found for port in ports if (found := kernel.nft.get(PORTS, (port,))) is not None]
    own = [each.key for each in known if ruleset.place_of(each.comment) == owner.place]
    if deep and not own:
        own = [
            each.key for each in kernel.nft.elements(PORTS) if ruleset.place_of(each.comment) == owner.place
        ]
    return PORTS.delete(*own)


def _has_ports_rule(kernel: Kernel) -> bool:
    return any(rule.comment == _PORTS_RULE for rule in kernel.nft.rules(PORTS.table, PORTS.family))
