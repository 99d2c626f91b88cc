"""The index of an attachment's addresses in nftables: how a DEL finds its elements by the attachment alone.

An index maps an attachment's key and a number from 0 to an address, as IPv6, and to how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from podwire.kernel.nftset import Element, Fields, NamedSet
from podwire.kernel.nftwrite import Changes, create, delete
from podwire.plugins import ruleset
from podwire.plugins.ruleset import Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel

Address = IPv4Address | IPv6Address

_USUAL = 2  # addresses that most pods have at most


def creation(index: NamedSet, owner: Owner, addresses: Sequence[Address]) -> Changes:
    """Enter the addresses; EEXIST if the attachment has some already."""
    count = len(addresses)
    return create(
        index,
        *(
            Element((owner.key, number), (ruleset.mapped(each), count), owner.comment)
            for number, each in enumerate(addresses)
        ),
    )


def questions(index: NamedSet, owner: Owner) -> list[tuple[NamedSet, Fields]]:
    """What to ask for the entries that an attachment usually has at most."""
    return [(index, (owner.key, number)) for number in range(_USUAL)]


def entries(
    kernel: Kernel, index: NamedSet, owner: Owner, answers: Sequence[Element | None] | None = None
) -> list[tuple[Fields, Address]]:
    """The keys of an attachment's entries, and the addresses.

    ``answers`` are those to `questions`, if they have been asked.
    """
    found = list(kernel.nft.get_all(questions(index, owner)) if answers is None else answers)
    first = found[0]
    if first is None or not isinstance(first.value, tuple):
        return []
    count = first.value[1]
    if count > _USUAL:
        found += kernel.nft.get_all([(index, (owner.key, number)) for number in range(_USUAL, count)])
    return [
        (each.key, ruleset.unmapped(each.value[0]))
        for each in found[:count]
        if each is not None and isinstance(each.value, tuple)
    ]


def removal(
    kernel: Kernel, index: NamedSet, places: Mapping[int, NamedSet], owner: Owner
) -> tuple[Changes, set[Address]]:
    """Take away an attachment's entries and, of ``places`` by IP version, its elements; and what this frees.

    An address that meanwhile belongs to another attachment keeps its element and is not freed.
    """
    held = entries(kernel, index, owner)
    changes = delete(index, *(key for key, _ in held))
    addresses = [address for _, address in held]
    found = kernel.nft.get_all(elements_of(places, addresses))
    freed = {
        address
        for address, element in zip(addresses, found, strict=True)
        if element is not None and ruleset.place_of(element.comment) == owner.place
    }
    for version, where in places.items():
        changes += delete(where, *((each,) for each in sorted(freed, key=int) if each.version == version))
    return changes, freed


def elements_of(
    places: Mapping[int, NamedSet], addresses: Iterable[Address]
) -> list[tuple[NamedSet, Fields]]:
    """Where the elements of addresses are."""
    return [(places[each.version], (each,)) for each in addresses]
