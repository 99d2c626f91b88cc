"""A pod on a bridge sends with its own MAC and addresses alone: in IP, in ARP and as an IPv6 neighbour.

The rules are constant, for all host ends whose names begin as `PREFIX` says; a pod is one element for each of
its addresses. A host end without elements may send nothing. Pods that are routed need no elements: see the
chain ``routed`` in table.nft.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import msgspec

from podwire.kernel.nftset import INTERFACE, IPV4, IPV6, PORT, Element, Kind, NamedSet
from podwire.kernel.nftwrite import Changes, create, delete
from podwire.plugins import ruleset
from podwire.plugins.ruleset import Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel
    from podwire.kernel.nft import Nft

PREFIX = "pwb"
"""How the names of the guarded host ends begin."""
FAMILY, TABLE = "bridge", "podwire"
_ETHER = Kind(
    "ether_addr", 6, lambda value: bytes.fromhex(value.replace(":", "")), lambda data: bytes(data).hex(":")
)
# The set of IPv6 is made with typeof, by whose text its addresses are numbers; their bytes are the same.
_NUMBER = IPV6._replace(text=lambda value: hex(int(value)))
SOURCES = {
    version: NamedSet(f"sources{version}", (INTERFACE, _ETHER, kind), table=TABLE, family=FAMILY)
    for version, kind in ((4, IPV4), (6, _NUMBER))
}
"""Host end, MAC and address: what may come in."""
INDEX = NamedSet("sources_index", (IPV6, PORT), (INTERFACE, _ETHER, IPV6, PORT), table=TABLE, family=FAMILY)
"""An attachment's sources, as the indexes of the table ``inet podwire`` have theirs."""
_USUAL = 3

# The target of an advertisement, and the source as bytes like it, since nft 1.0 has no name for the first.
_SOURCE6, _TARGET6 = "@nh,64,128", "@th,64,128"
_RULES = (
    f'iifname != "{PREFIX}*" accept',
    "ether type arp iifname . ether saddr . arp saddr ip @sources4"
    " iifname . arp saddr ether . arp saddr ip @sources4 accept",
    "ether type ip iifname . ether saddr . ip saddr @sources4 accept",
    "icmpv6 type { nd-router-advert, nd-redirect } drop",
    f"icmpv6 type nd-neighbor-advert iifname . ether saddr . {_TARGET6} != @sources6 drop",
    f"ether type ip6 iifname . ether saddr . {_SOURCE6} @sources6 accept",
    "ip6 saddr :: icmpv6 type { nd-neighbor-solicit, mld2-listener-report } accept",
    "drop",
)
_TAG = f"podwire {hashlib.sha256(chr(10).join(_RULES).encode()).hexdigest()[:16]}"
_WHERE = f"{FAMILY} {TABLE}"
_INDEXED = "ifname . ether_addr . ipv6_addr . inet_service"
_SKELETON = f"""
add table {_WHERE}
add set {_WHERE} sources4 {{ type ifname . ether_addr . ipv4_addr; }}
add set {_WHERE} sources6 {{ typeof iifname . ether saddr . {_SOURCE6}; }}
add map {_WHERE} sources_index {{ type ipv6_addr . inet_service : {_INDEXED}; }}
add chain {_WHERE} spoofing {{ type filter hook prerouting priority -300; policy accept; }}
flush chain {_WHERE} spoofing
""" + "".join(f'add rule {_WHERE} spoofing {rule} comment "{_TAG}"\n' for rule in _RULES)


class Source(msgspec.Struct, frozen=True):
    """What a host end may send from: one MAC, several addresses (the link-local one among them)."""

    host_end: str
    mac: str
    addresses: tuple[IPv4Address | IPv6Address, ...]


def prepare(nft: Nft) -> str:
    """The commands that must come before elements in the same transaction; empty if the rules are right."""
    found = [rule.comment for rule in nft.rules(TABLE, FAMILY) if rule.chain == "spoofing"]
    return "" if found == [_TAG] * len(_RULES) else _SKELETON


def creation(owner: Owner, source: Source) -> Changes:
    """Let the host end send from the source; EEXIST if it may already."""
    key, comment, count = owner.key, owner.comment, len(source.addresses)
    changes = create(
        INDEX,
        *(
            Element((key, number), (source.host_end, source.mac, ruleset.mapped(each), count), comment)
            for number, each in enumerate(source.addresses)
        ),
    )
    for version, where in SOURCES.items():
        changes += create(
            where,
            *(
                Element((source.host_end, source.mac, each), None, comment)
                for each in source.addresses
                if each.version == version
            ),
        )
    return changes


def removal(kernel: Kernel, owner: Owner) -> Changes:
    """Take away what the attachment may send from."""
    nft, key = kernel.nft, owner.key
    found = nft.get_all([(INDEX, (key, number)) for number in range(_USUAL)])
    first = found[0]
    if first is None or not isinstance(first.value, tuple):
        return ()
    count = first.value[3]
    if count > _USUAL:
        found += nft.get_all([(INDEX, (key, number)) for number in range(_USUAL, count)])
    indexed = [each for each in found[:count] if each is not None and isinstance(each.value, tuple)]
    changes = delete(INDEX, *(each.key for each in indexed))
    return changes + _deleted(kernel, [_place(each) for each in indexed])


def _place(element: Element) -> tuple[str, str, IPv4Address | IPv6Address]:
    value = element.value
    assert isinstance(value, tuple)
    return value[0], value[1], ruleset.unmapped(value[2])


def _deleted(kernel: Kernel, places: Sequence[tuple[str, str, IPv4Address | IPv6Address]]) -> Changes:
    found = kernel.nft.get_all([(SOURCES[place[2].version], place) for place in places])
    there = [place for place, element in zip(places, found, strict=True) if element is not None]
    changes: Changes = ()
    for version, where in SOURCES.items():
        changes += delete(where, *(place for place in there if place[2].version == version))
    return changes


def faults(kernel: Kernel, owner: Owner, source: Source) -> list[str]:
    """What is missing of what `creation` made, in words."""
    nft = kernel.nft
    found = ["rules of chain spoofing of table bridge podwire are missing"] if prepare(nft) else []
    wanted = [(SOURCES[each.version], (source.host_end, source.mac, each)) for each in source.addresses]
    for (where, key), element in zip(wanted, nft.get_all(wanted), strict=True):
        if element is None:
            found.append(f"{key[2]} may not be sent from: no element in {where.name}")
    if nft.get(INDEX, (owner.key, 0)) is None:
        found.append(f"the sources are not in {INDEX.name}")
    return found


def leftovers(kernel: Kernel, place: str) -> Changes:
    """Take away what an attachment has though the index has lost it, by reading everything."""
    changes: Changes = ()
    for where in (*SOURCES.values(), INDEX):
        doomed = [each.key for each in kernel.nft.elements(where) if ruleset.place_of(each.comment) == place]
        changes += delete(where, *doomed)
    return changes


def collect(kernel: Kernel, network: str, kept: set[str]) -> Changes:
    """Take away what attachments of a network have whose places are not ``kept``."""
    part = ruleset.network_part(network)
    changes: Changes = ()
    for where in (*SOURCES.values(), INDEX):
        doomed = [
            each.key
            for each in kernel.nft.elements(where)
            if ruleset.network_of(each.comment) == part and ruleset.place_of(each.comment) not in kept
        ]
        changes += delete(where, *doomed)
    return changes
