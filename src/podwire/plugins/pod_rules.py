"""What an attachment of a `podwire` network has in nftables, made and removed in one transaction each.

Masquerading, host ports and, on a bridge, the addresses that the pod may send from: elements only.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import msgspec

from podwire.cni.errors import CNIError
from podwire.kernel import nftwrite
from podwire.kernel.nft import NftError
from podwire.kernel.nftset import Element
from podwire.kernel.nftwrite import Changes
from podwire.plugins import address_index, pod_masquerade, portmap, ruleset, spoofing
from podwire.plugins import portmap_elements as elements
from podwire.plugins.failures import KERNEL
from podwire.plugins.hostports import HostPort
from podwire.plugins.pod_masquerade import Outward
from podwire.plugins.portmap_elements import Held
from podwire.plugins.ruleset import LOCALNET, MASQUERADE_INDEX, PORTMAP_INDEX, Chain, Owner
from podwire.plugins.spoofing import Source

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel
    from podwire.kernel.nft import Nft

_TRIES = 3


class PodRules(msgspec.Struct, frozen=True):
    """What one attachment is to have.

    ``outward`` says how ``masqueraded`` addresses leave. ``leading`` are the chains of the host ports by IP
    version, with that of the mark bit. ``localnet`` is the interface that lets 127.0.0.0/8 out, empty if
    none has to.
    """

    owner: Owner
    masqueraded: tuple[IPv4Address | IPv6Address, ...] = ()
    outward: Outward | None = None
    ports: tuple[HostPort, ...] = ()
    leading: Mapping[int, Chain] = {}
    source: Source | None = None
    localnet: str = ""

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chains that must be there."""
        return (*pod_masquerade.chains(self.outward).values(), *self.leading.values())

    def beside(self, nft: Nft) -> str:
        """The commands for what is made once for a network, beside the chains; empty if all is right."""
        text = self.outward(nft) if self.outward is not None else ""
        return text + (spoofing.prepare(nft) if self.source is not None else "")

    @property
    def at_one_address(self) -> bool:
        """Whether a host port is taken at one address of the host only."""
        return any(each.address is not None for each in self.ports)

    def creation(self) -> Changes:
        """All that is made."""
        changes: Changes = ()
        if self.ports:
            changes += elements.creation(self.owner, self.ports, dict(self.leading))
        if self.masqueraded:
            changes += pod_masquerade.creation(self.owner, self.masqueraded)
        if self.source is not None:
            changes += spoofing.creation(self.owner, self.source)
        if self.localnet:
            changes += nftwrite.add(LOCALNET, Element((self.localnet,)))
        return changes


def make(kernel: Kernel, rules: PodRules, deadline: float) -> None:
    """Make all of it or nothing; what is left of an earlier attachment of this container goes.

    Raises HostPortTaken (101), NftError, and TryLater for the lock of host ports at single addresses.
    """
    lock: AbstractContextManager[None] = (
        ruleset.exclusive(deadline) if rules.at_one_address else nullcontext()
    )
    with lock:
        _make(kernel, rules, deadline, locked=rules.at_one_address)


def _make(kernel: Kernel, rules: PodRules, deadline: float, *, locked: bool) -> None:
    changes = rules.creation()
    # What was found right is remembered by what it was: the network's settings, and the guard.
    needed = (rules.outward, rules.source is not None)
    for attempt in range(_TRIES):
        try:
            # Under the lock of the host ports nothing else may wait for it.
            if locked:
                ruleset.complete(kernel.nft, ruleset.prepare(kernel.nft, *rules.chains))
                ruleset.complete(kernel.nft, rules.beside(kernel.nft))
                kernel.nft.write(changes)
            else:
                ruleset.commit(kernel.nft, changes, rules.chains, deadline, (needed, rules.beside))
        except NftError as error:
            taken = elements.taken(kernel, rules.owner, rules.ports) if error.errno == errno.EEXIST else None
            if taken is not None:
                raise taken from error
            changes = _clearing(kernel, rules, thoroughly=attempt > 0) + rules.creation()
            if attempt == _TRIES - 1:
                raise
        else:
            return


def _clearing(kernel: Kernel, rules: PodRules, *, thoroughly: bool) -> Changes:
    """Take away what stands in the way though nobody else has it. Raises CNIError (100) if somebody has."""
    owner = rules.owner
    changes, foreign = pod_masquerade.leftovers(kernel, owner, rules.masqueraded)
    if foreign:
        raise CNIError(
            f"address {foreign[0].key[0]} is in use by {foreign[0].comment}",
            "two networks have the same subnet",
            code=KERNEL,
        )
    changes += pod_masquerade.removal(kernel, owner)
    if thoroughly:
        return changes + elements.leftovers(kernel, owner) + spoofing.leftovers(kernel, owner.place)
    held = elements.held_by(kernel, owner)
    return changes + elements.removal(kernel, owner, held) + spoofing.removal(kernel, owner)


def faults(kernel: Kernel, rules: PodRules) -> list[str]:
    """What is missing or wrong of what `make` made, in words; empty if it is right."""
    nft, owner = kernel.nft, rules.owner
    found = [
        f"rules of chain {name} of table inet {ruleset.TABLE} are missing"
        for name in dict.fromkeys(ruleset.missing(nft, *rules.chains))
    ]
    if rules.masqueraded and rules.outward is not None:
        found += pod_masquerade.faults(kernel, owner, rules.masqueraded, rules.outward)
    for each in rules.ports:
        found += elements.faults(kernel, owner, each, rules.leading[each.version])
    if rules.ports and nft.get(PORTMAP_INDEX, (owner.key, 0)) is None:
        found.append(f"the host ports are not in {PORTMAP_INDEX.name}")
    if rules.localnet and nft.get(LOCALNET, (rules.localnet,)) is None:
        found.append(f"{rules.localnet} is not in {LOCALNET.name}")
    if rules.source is not None:
        found += spoofing.faults(kernel, owner, rules.source)
    return found


def remove(kernel: Kernel, owner: Owner, localnet: Iterable[str], deadline: float) -> list[Held]:
    """Remove whatever the attachment has; return the host ports that it had. Success if there is nothing."""
    for attempt in range(_TRIES):
        has_ports, has_source, *masqueraded = kernel.nft.get_all(
            [
                (PORTMAP_INDEX, (owner.key, 0)),
                (spoofing.INDEX, (owner.key, 0)),
                *address_index.questions(MASQUERADE_INDEX, owner),
            ]
        )
        if not (has_ports or masqueraded[0] or has_source):
            return []
        held = elements.held_by(kernel, owner) if has_ports else []
        partly = any(each.address is not None for each in held)
        lock: AbstractContextManager[None] = ruleset.exclusive(deadline) if partly else nullcontext()
        with lock:
            changes = elements.removal(kernel, owner, held) if held else ()
            changes += pod_masquerade.removal(kernel, owner, masqueraded)
            changes += spoofing.removal(kernel, owner) if has_source else ()
            changes += _localnet_removal(kernel, localnet if held else ())
            try:
                ruleset.run(kernel.nft, "", changes)
            except NftError as error:
                # Somebody flushed or changed it meanwhile; the next reading sees it.
                if attempt == _TRIES - 1 or error.errno not in {errno.ENOENT, errno.EINVAL}:
                    raise
                continue
        return held
    return []


def _localnet_removal(kernel: Kernel, names: Iterable[str]) -> Changes:
    keys = [(name,) for name in names]
    found = kernel.nft.get_all([(LOCALNET, key) for key in keys])
    return nftwrite.delete(
        LOCALNET, *(key for key, element in zip(keys, found, strict=True) if element is not None)
    )


def collect(kernel: Kernel, network: str, kept: set[str], ends: Iterable[str], deadline: float) -> None:
    """Remove what attachments of a network have whose places are not ``kept``; ``ends`` are gone."""
    part = ruleset.network_part(network)

    def doomed(element: Element) -> bool:
        comment = element.comment
        return ruleset.network_of(comment) == part and ruleset.place_of(comment) not in kept

    with ruleset.exclusive(deadline):
        held, changes = elements.scan(kernel, doomed)
        changes += elements.unmark(kernel, held)
        changes += pod_masquerade.stale(kernel, doomed) + spoofing.collect(kernel, network, kept)
        ruleset.run(kernel.nft, "", changes + _localnet_removal(kernel, ends))
    portmap.forget_answers(kernel, held)
    ruleset.sweep(kernel.nft)
