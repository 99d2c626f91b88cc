"""The elements of host ports in the table ``inet podwire``: made, found, explained and removed.

A port is an element of two maps with one key: to the chain of the network's settings, and to the pod. That
two attachments never share one is the kernel's work: ``create`` fails in the transaction that would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.cni.errors import CNIError
from podwire.kernel.nftset import Element, NamedSet
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


def creation(owner: Owner, ports: tuple[HostPort, ...], chains: dict[int, Chain]) -> str:
    """Claims first, as EEXIST of elements that are made and removed again; then the elements to stay."""
    comment = owner.comment
    claims: list[str] = []
    marks: list[str] = []
    elements: list[str] = []
    index: list[Element] = []
    for number, each in enumerate(ports):
        version, chain = each.version, chains[each.version].name
        short = (each.protocol, each.port)
        if each.address is None:
            claims.insert(
                0, PORTMAP_PARTLY[version].create(Element(short)) + PORTMAP_PARTLY[version].delete(short)
            )
        else:
            claim = PORTMAP_ANY[version].create(Element(short, chain)) + PORTMAP_ANY[version].delete(short)
            claims.append(claim)
            marks.append(PORTMAP_PARTLY[version].add(Element(short)))
        verdicts, targets, key = _place(version, each.address, *short)
        elements.append(verdicts.create(Element(key, chain, comment)))
        elements.append(targets.create(Element(key, (each.target, each.target_port), comment)))
        value = (_indexed(version, each.address), each.protocol, each.port, len(ports))
        index.append(Element((owner.key, number), value, comment))
    return "".join([*claims, *marks, *elements, PORTMAP_INDEX.create(*index)])


def held_by(kernel: Kernel, owner: Owner) -> list[Held]:
    """The host ports that the index has for the attachment."""
    first = kernel.nft.get(PORTMAP_INDEX, (owner.key, 0))
    if first is None or not isinstance(first.value, tuple):
        return []
    count = first.value[3]
    rest = (kernel.nft.get(PORTMAP_INDEX, (owner.key, number)) for number in range(1, count))
    held = []
    for element in (first, *rest):
        if element is None or not isinstance(element.value, tuple):
            continue
        mapped, protocol, port, _ = element.value
        address = ruleset.unmapped(mapped)
        specific = None if address.is_unspecified else address
        _, targets, key = _place(address.version, specific, protocol, port)
        found = kernel.nft.get(targets, key)
        mine = found is not None and ruleset.place_of(found.comment) == owner.place
        target = found.value if found is not None and mine and isinstance(found.value, tuple) else None
        held.append(Held(address.version, specific, protocol, port, target and (target[0], target[1])))
    return held


def removal(kernel: Kernel, owner: Owner, held: Iterable[Held]) -> str:
    """The commands that remove the attachment's elements and what the index has of it."""
    text = ""
    for each in held:
        for where in _place(each.version, each.address, each.protocol, each.port)[:2]:
            key = _place(each.version, each.address, each.protocol, each.port)[2]
            found = kernel.nft.get(where, key)
            if found is not None and ruleset.place_of(found.comment) == owner.place:
                text += where.delete(key)
    text += unmark(kernel, held)
    first = kernel.nft.get(PORTMAP_INDEX, (owner.key, 0))
    if first is not None and isinstance(first.value, tuple):
        numbers = range(first.value[3])
        keys = [(owner.key, number) for number in numbers]
        text += PORTMAP_INDEX.delete(*(key for key in keys if kernel.nft.get(PORTMAP_INDEX, key) is not None))
    return text


def unmark(kernel: Kernel, held: Iterable[Held]) -> str:
    """Free ports for "any address" that nobody but ``held`` has at one address (under the lock)."""
    held = list(held)
    text = ""
    for version in PORTMAP_PARTLY:
        specific = [each for each in held if each.version == version and each.address is not None]
        if specific:
            mine = {(each.address, each.protocol, each.port) for each in specific if each.target is not None}
            left = {
                element.key[1:]
                for element in kernel.nft.elements(TARGET_AT[version])
                if element.key not in mine
            }
            text += _unmarking(kernel, version, {(each.protocol, each.port) for each in specific} - left)
    return text


def leftovers(kernel: Kernel, owner: Owner) -> str:
    """The commands that remove what stands in the way though nobody else has it (under the lock).

    The attachment's own elements that the index has lost, and marks of ports whose elements are lost: both
    are left when somebody flushes single maps.
    """

    def own(element: Element) -> bool:
        return ruleset.place_of(element.comment) == owner.place

    _, text = scan(kernel, own)
    for version, where in PORTMAP_PARTLY.items():
        left = {
            element.key[1:]
            for each in (TARGET_AT[version], PORTMAP_AT[version])
            for element in kernel.nft.elements(each)
            if not own(element)
        }
        text += _unmarking(kernel, version, {element.key for element in kernel.nft.elements(where)} - left)
    return text


def _unmarking(kernel: Kernel, version: int, keys: set[Any]) -> str:
    where = PORTMAP_PARTLY[version]
    return where.delete(*sorted(key for key in keys if kernel.nft.get(where, key) is not None))


def scan(kernel: Kernel, doomed: Callable[[Element], bool]) -> tuple[list[Held], str]:
    """All host ports that are to go, by reading everything, and the commands that remove them."""
    held: list[Held] = []
    text = ""
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
        text += where.delete(*(element.key for element in filter(doomed, kernel.nft.elements(where))))
    index = [element.key for element in filter(doomed, kernel.nft.elements(PORTMAP_INDEX))]
    return held, text + PORTMAP_INDEX.delete(*index)


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
