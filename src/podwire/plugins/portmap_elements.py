"""The elements of host ports in the table ``inet podwire``: made, found, explained and removed.

A port is an element of two maps with one key: to the chain of the network's settings, and to the pod. That
two attachments never share one is the kernel's work: ``create`` fails in the transaction that would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.cni.errors import CNIError
from podwire.kernel.nftset import Element, NamedSet
from podwire.kernel.nftwrite import Changes, add, create, delete
from podwire.plugins import ruleset
from podwire.plugins.hostports import HostPort
from podwire.plugins.ruleset import (
    PORTMAP_ANY,
    PORTMAP_AT,
    PORTMAP_INDEX,
    PORTMAP_PARTLY,
    TARGET_ANY,
    TARGET_AT,
    Chain,
    Owner,
)

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel

HOST_PORT_TAKEN = 101


class HostPortTaken(CNIError):
    """101: another attachment has the host port. ``holder`` is its "network/container ID/interface"."""

    code = HOST_PORT_TAKEN

    def __init__(self, wanted: HostPort, held: str, holder: str) -> None:
        network, container_id, ifname = [*holder.split("/"), "", ""][:3]
        super().__init__(
            f"{wanted.field}: host port {wanted} is taken: container {container_id}, interface {ifname} "
            f"(network {network}) has {held}"
        )
        self.wanted = wanted
        self.holder = holder


class Held(msgspec.Struct, frozen=True):
    """A host port of an attachment as the tables have it; no ``target``: its element is another's."""

    version: int
    address: IPv4Address | IPv6Address | None
    protocol: int
    port: int
    target: tuple[IPv4Address | IPv6Address, int] | None


def creation(owner: Owner, ports: tuple[HostPort, ...], chains: dict[int, Chain]) -> Changes:
    """Claims first, as EEXIST of elements that are made and removed again; then the elements to stay."""
    comment, owner_key = owner.comment, owner.key
    claims: Changes = ()
    marks: Changes = ()
    made: dict[NamedSet, list[Element]] = {}
    index: list[Element] = []
    for number, each in enumerate(ports):
        version, chain = each.version, chains[each.version].name
        short = (each.protocol, each.port)
        if each.address is None:
            partly = PORTMAP_PARTLY[version]
            claims = create(partly, Element(short)) + delete(partly, short) + claims
        else:
            anywhere = PORTMAP_ANY[version]
            claims += create(anywhere, Element(short, chain)) + delete(anywhere, short)
            marks += add(PORTMAP_PARTLY[version], Element(short))
        verdicts, targets, key = _place(version, each.address, *short)
        made.setdefault(verdicts, []).append(Element(key, chain, comment))
        made.setdefault(targets, []).append(Element(key, (each.target, each.target_port), comment))
        value = (_indexed(version, each.address), each.protocol, each.port, len(ports))
        index.append(Element((owner_key, number), value, comment))
    changes = claims + marks
    for where, elements in made.items():
        changes += create(where, *elements)
    return changes + create(PORTMAP_INDEX, *index)


def held_by(kernel: Kernel, owner: Owner) -> list[Held]:
    """The host ports that the index has for the attachment."""
    nft, key = kernel.nft, owner.key
    first = nft.get(PORTMAP_INDEX, (key, 0))
    if first is None or not isinstance(first.value, tuple):
        return []
    rest = nft.get_all([(PORTMAP_INDEX, (key, number)) for number in range(1, first.value[3])])
    places = []
    for element in (first, *rest):
        if element is not None and isinstance(element.value, tuple):
            mapped, protocol, port, _ = element.value
            address = ruleset.unmapped(mapped)
            places.append((address.version, None if address.is_unspecified else address, protocol, port))
    found = nft.get_all([_place(*place)[1:] for place in places])
    held = []
    for place, target in zip(places, found, strict=True):
        mine = target is not None and ruleset.place_of(target.comment) == owner.place
        value = target.value if target is not None and mine and isinstance(target.value, tuple) else None
        held.append(Held(*place, value and (value[0], value[1])))
    return held


def removal(kernel: Kernel, owner: Owner, held: Sequence[Held]) -> Changes:
    """Remove the attachment's elements, and what the index has of it."""
    nft, changes = kernel.nft, unmark(kernel, held)
    first = nft.get(PORTMAP_INDEX, (owner.key, 0))
    count = first.value[3] if first is not None and isinstance(first.value, tuple) else 0
    wanted: list[tuple[NamedSet, Any]] = [(PORTMAP_INDEX, (owner.key, number)) for number in range(count)]
    for each in held:
        verdicts, targets, key = _place(each.version, each.address, each.protocol, each.port)
        wanted += [(verdicts, key), (targets, key)]
    doomed: dict[NamedSet, list[Any]] = {}
    for (where, key), element in zip(wanted, nft.get_all(wanted), strict=True):
        if element is not None and (
            where is PORTMAP_INDEX or ruleset.place_of(element.comment) == owner.place
        ):
            doomed.setdefault(where, []).append(key)
    for where, keys in doomed.items():
        changes += delete(where, *keys)
    return changes


def unmark(kernel: Kernel, held: Iterable[Held]) -> Changes:
    """Free ports for "any address" that nobody but ``held`` has at one address (under the lock)."""
    held = list(held)
    changes: Changes = ()
    for version in PORTMAP_PARTLY:
        specific = [each for each in held if each.version == version and each.address is not None]
        if specific:
            mine = {(each.address, each.protocol, each.port) for each in specific if each.target is not None}
            left = {
                element.key[1:]
                for element in kernel.nft.elements(TARGET_AT[version])
                if element.key not in mine
            }
            changes += _unmarking(kernel, version, {(each.protocol, each.port) for each in specific} - left)
    return changes


def leftovers(kernel: Kernel, owner: Owner) -> Changes:
    """Remove what stands in the way though nobody else has it (under the lock).

    The attachment's own elements that the index has lost, and marks of ports whose elements are lost: both
    are left when somebody flushes single maps.
    """

    def own(element: Element) -> bool:
        return ruleset.place_of(element.comment) == owner.place

    _, changes = scan(kernel, own)
    for version, where in PORTMAP_PARTLY.items():
        left = {
            element.key[1:]
            for each in (TARGET_AT[version], PORTMAP_AT[version])
            for element in kernel.nft.elements(each)
            if not own(element)
        }
        changes += _unmarking(kernel, version, {element.key for element in kernel.nft.elements(where)} - left)
    return changes


def _unmarking(kernel: Kernel, version: int, keys: set[Any]) -> Changes:
    where = PORTMAP_PARTLY[version]
    return delete(where, *sorted(key for key in keys if kernel.nft.get(where, key) is not None))


def scan(kernel: Kernel, doomed: Callable[[Element], bool]) -> tuple[list[Held], Changes]:
    """All host ports that are to go, by reading everything, and the changes that remove them."""
    held: list[Held] = []
    changes: Changes = ()
    for version in (4, 6):
        for targets in (TARGET_ANY[version], TARGET_AT[version]):
            for element in filter(doomed, kernel.nft.elements(targets)):
                *address, protocol, port = element.key
                target = element.value if isinstance(element.value, tuple) else None
                held.append(
                    Held(
                        version, next(iter(address), None), protocol, port, target and (target[0], target[1])
                    )
                )
    for where in (*PORTMAP_ANY.values(), *PORTMAP_AT.values(), *TARGET_ANY.values(), *TARGET_AT.values()):
        changes += delete(where, *(element.key for element in filter(doomed, kernel.nft.elements(where))))
    index = [element.key for element in filter(doomed, kernel.nft.elements(PORTMAP_INDEX))]
    return held, changes + delete(PORTMAP_INDEX, *index)


def taken(kernel: Kernel, owner: Owner, ports: Iterable[HostPort]) -> HostPortTaken | None:
    """Who has one of these ports; None if nobody has any more."""
    for each in ports:
        short = (each.protocol, each.port)
        candidates = []
        for any_address, one_address in (
            (TARGET_ANY[each.version], TARGET_AT[each.version]),
            (PORTMAP_ANY[each.version], PORTMAP_AT[each.version]),
        ):
            candidates.append(kernel.nft.get(any_address, short))
            if each.address is None:
                candidates += [found for found in kernel.nft.elements(one_address) if found.key[1:] == short]
            else:
                candidates.append(kernel.nft.get(one_address, (each.address, *short)))
        for element in candidates:
            if element is not None and ruleset.place_of(element.comment) != owner.place:
                address = element.key[0] if len(element.key) == 3 else None
                held = HostPort(address, *short, each.target, 0)
                return HostPortTaken(each, str(held), element.comment)
    return None


def faults(kernel: Kernel, owner: Owner, port: HostPort, chain: Chain) -> Iterator[str]:
    """What is missing or wrong of one host port, in words."""
    verdicts, targets, key = _place(port.version, port.address, port.protocol, port.port)
    for where, wanted in ((verdicts, chain.name), (targets, (port.target, port.target_port))):
        found = kernel.nft.get(where, key)
        if found is None:
            yield f"host port {port}: its element in {where.name} is missing"
        elif ruleset.place_of(found.comment) != owner.place:
            yield f"host port {port}: its element in {where.name} is of {found.comment}"
        elif found.value != wanted:
            yield f"host port {port}: its element in {where.name} leads to {found.value}, not {wanted}"
    if port.address is not None and not kernel.nft.get(
        PORTMAP_PARTLY[port.version], (port.protocol, port.port)
    ):
        yield f"host port {port}: its element in {PORTMAP_PARTLY[port.version].name} is missing"


def _place(
    version: int, address: IPv4Address | IPv6Address | None, protocol: int, port: int
) -> tuple[NamedSet, NamedSet, tuple[Any, ...]]:
    """The verdict map, the map of targets, and the key in both."""
    if address is None:
        return PORTMAP_ANY[version], TARGET_ANY[version], (protocol, port)
    return PORTMAP_AT[version], TARGET_AT[version], (address, protocol, port)


def _indexed(version: int, address: IPv4Address | IPv6Address | None) -> IPv6Address:
    unspecified = IPv4Address(0) if version == 4 else IPv6Address(0)
    return ruleset.mapped(unspecified if address is None else address)
