"""Masquerading for `podwire` networks: a pod is one element of a plain set for each of its addresses.

A set, not a verdict map as in `masquerade`: for each new element that leads to a chain the kernel validates
all that do (nft_table_validate), so with thousands of pods every ADD would be slower than the one before.
Which chain it is follows from the subnet, by one element of an interval map for each subnet of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import msgspec

from podwire.kernel.nftset import Element
from podwire.kernel.nftwrite import Changes, create, delete
from podwire.plugins import address_index, masquerade, ruleset
from podwire.plugins.parsed import IPNetwork
from podwire.plugins.ruleset import MASQUERADE, MASQUERADE_INDEX, POD_NETWORKS, PODS, Chain, Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel
    from podwire.kernel.nft import Nft

Address = IPv4Address | IPv6Address


class Outward(msgspec.Struct, frozen=True):
    """How a network's pods are masqueraded: its own subnets, and the chain that spares destinations."""

    subnets: tuple[IPNetwork, ...]
    chains: tuple[tuple[int, Chain], ...]

    def __call__(self, nft: Nft) -> str:
        """The commands that lead the subnets to their chains; empty if they do."""
        text = ""
        chains = dict(self.chains)
        for version, where in POD_NETWORKS.items():
            own = [each for each in self.subnets if each.version == version]
            if not own or version not in chains:
                continue
            led = {element.key[0]: element.value for element in nft.elements(where) if element.value}
            name = chains[version].name
            place = f"inet {ruleset.TABLE} {where.name}"
            for subnet in own:
                before = led.get(subnet.network_address)
                if before != name:
                    text += f"delete element {place} {{ {subnet} }}\n" if before else ""
                    text += f"add element {place} {{ {subnet} : goto {name} }}\n"
        return text


def outward(subnets: Sequence[IPNetwork], spared: Sequence[IPNetwork]) -> Outward:
    """Masquerade what leaves from ``subnets`` to anywhere but ``spared`` and multicast."""
    addresses = [each.network_address for each in subnets]
    return Outward(tuple(subnets), tuple(masquerade.chains_of(addresses, spared).items()))


def creation(owner: Owner, addresses: Sequence[Address]) -> Changes:
    """Have the addresses masqueraded; EEXIST if one is already."""
    changes = address_index.creation(MASQUERADE_INDEX, owner, addresses)
    for version, where in PODS.items():
        own = [Element((each,), None, owner.comment) for each in addresses if each.version == version]
        changes += create(where, *own)
    return changes


def removal(kernel: Kernel, owner: Owner, answers: Sequence[Element | None] | None = None) -> Changes:
    """Take away what the attachment has, also if `masquerade` made it; ``answers`` as for `entries`."""
    held = address_index.entries(kernel, MASQUERADE_INDEX, owner, answers)
    changes = delete(MASQUERADE_INDEX, *(key for key, _ in held))
    wanted = [(maps[address.version], (address,)) for _, address in held for maps in (PODS, MASQUERADE)]
    for (where, place), element in zip(wanted, kernel.nft.get_all(wanted), strict=True):
        if element is not None and ruleset.place_of(element.comment) == owner.place:
            changes += delete(where, place)
    return changes


def leftovers(kernel: Kernel, owner: Owner, addresses: Sequence[Address]) -> tuple[Changes, list[Element]]:
    """Take away elements that are there for these addresses; and those of them that other networks have."""
    changes: Changes = ()
    foreign = []
    own = dict(address_index.entries(kernel, MASQUERADE_INDEX, owner)).values()
    wanted = [(maps[each.version], (each,)) for each in addresses for maps in (PODS, MASQUERADE)]
    for (where, place), element in zip(wanted, kernel.nft.get_all(wanted), strict=True):
        if element is None or (place[0] in own and ruleset.place_of(element.comment) == owner.place):
            continue
        network = ruleset.network_of(element.comment)
        if (
            network != ruleset.network_part(owner.network)
            and ruleset.place_of(element.comment) != owner.place
        ):
            foreign.append(element)
        changes += delete(where, place)
    return changes, foreign


def faults(kernel: Kernel, owner: Owner, addresses: Sequence[Address], how: Outward) -> list[str]:
    """What is missing or wrong of what `creation` made, in words."""
    nft = kernel.nft
    found = ["the network's subnets do not lead to their chains"] if how(nft) else []
    wanted = [(PODS[each.version], (each,)) for each in addresses]
    for (where, (address,)), element in zip(wanted, nft.get_all(wanted), strict=True):
        if element is None:
            found.append(f"{address} is not masqueraded: no element in {where.name}")
        elif ruleset.place_of(element.comment) != owner.place:
            found.append(f"{address} is masqueraded for {element.comment}")
    if nft.get(MASQUERADE_INDEX, (owner.key, 0)) is None:
        found.append(f"the elements are not in {MASQUERADE_INDEX.name}")
    return found


def stale(kernel: Kernel, doomed: Callable[[Element], bool]) -> Changes:
    """Take away the elements that are ``doomed``, by reading all."""
    changes = masquerade.stale(kernel, doomed)
    for where in PODS.values():
        changes += delete(where, *(element.key for element in kernel.nft.elements(where) if doomed(element)))
    return changes


def chains(how: Outward | None) -> Mapping[int, Chain]:
    """The chains of a network's settings, by IP version."""
    return {} if how is None else dict(how.chains)
