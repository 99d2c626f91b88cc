"""ipMasq: a pod's traffic to anything outside of its own network leaves with the address of the host.

One element per pod address leads to the chain of its subnets, which spares these and multicast. Not a plugin:
the plugins that have the option ``ipMasq`` call it.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from podwire.kernel.nft import NftError
from podwire.kernel.nftset import Element
from podwire.kernel.nftwrite import Changes, create, delete
from podwire.plugins import address_index, ruleset
from podwire.plugins.ruleset import MASQUERADE, MASQUERADE_INDEX, Chain, Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel
    from podwire.plugins.attachment import Identity
    from podwire.plugins.parsed import IPAddress, IPInterface, IPNetwork

_TRIES = 3
_SPARED = {4: ("ip", "224.0.0.0/4"), 6: ("ip6", "ff00::/8")}


def add(
    kernel: Kernel,
    identity: Identity,
    owned: Sequence[IPInterface],
    subnets: Sequence[IPNetwork] | None = None,
) -> None:
    """Masquerade what leaves from the addresses that an attachment owns to outside of ``subnets``.

    ``subnets`` are the network's own, without them each address's; multicast is spared as well. One
    transaction. Raises KernelError.
    """
    owner, plain = _owner(identity), _plain(owned)
    if not plain:
        return
    chains = chains_of(plain, _subnets(owned, subnets))
    changes = creation(owner, plain, chains)
    for attempt in range(_TRIES):
        try:
            ruleset.commit(
                kernel.nft, changes, tuple(chains.values()), time.monotonic() + ruleset.LOCK_SECONDS
            )
        except NftError:
            # Something of it is there, or what was read has changed since; the next reading sees it.
            if attempt == _TRIES - 1:
                raise
            changes = clearing(kernel, owner, plain) + creation(owner, plain, chains)
        else:
            return


def check(
    kernel: Kernel,
    identity: Identity,
    owned: Sequence[IPInterface],
    subnets: Sequence[IPNetwork] | None = None,
) -> list[str]:
    """What is missing or wrong of what `add` made for the same arguments, in words; empty if it is right."""
    owner, plain = _owner(identity), _plain(owned)
    chains = chains_of(plain, _subnets(owned, subnets))
    faults = [
        f"rules of chain {name} of table inet {ruleset.TABLE} are missing"
        for name in ruleset.missing(kernel.nft, *chains.values())
    ]
    faults += element_faults(kernel, owner, plain, chains) if plain else []
    return [] if faults and _by_reference(kernel, owner) else faults


def element_faults(
    kernel: Kernel,
    owner: Owner,
    addresses: Sequence[IPAddress],
    chains: Mapping[int, Chain],
) -> list[str]:
    """What is missing or wrong of the elements that `creation` made for the same arguments, in words."""
    faults = []
    for each in addresses:
        found = kernel.nft.get(MASQUERADE[each.version], (each,))
        if found is None:
            faults.append(f"{each} is not masqueraded: no element in {MASQUERADE[each.version].name}")
        elif ruleset.place_of(found.comment) != owner.place:
            faults.append(f"{each} is masqueraded for {found.comment}")
        elif found.value != chains[each.version].name:
            faults.append(f"{each} is masqueraded by chain {found.value}, not {chains[each.version].name}")
    if kernel.nft.get(MASQUERADE_INDEX, (owner.key, 0)) is None:
        faults.append(f"the elements are not in {MASQUERADE_INDEX.name}")
    return faults


def remove(kernel: Kernel, identity: Identity) -> None:
    """Stop masquerading for the attachment, whatever addresses it had and however its network was named.

    Success if there is nothing (any more). An address that meanwhile belongs to another attachment keeps its
    element. Raises KernelError.
    """
    owner = _owner(identity)
    for attempt in range(_TRIES):
        changes, _ = removal(kernel, owner)
        if not changes:
            _remove_reference(kernel, owner)
            return
        try:
            ruleset.run(kernel.nft, "", changes)
        except NftError as error:
            if attempt == _TRIES - 1 or error.errno not in {errno.ENOENT, errno.EINVAL}:
                raise
        else:
            return


def _by_reference(kernel: Kernel, owner: Owner) -> bool:
    """Tell whether the reference plugins masquerade for the attachment, from before ours took over."""
    from podwire.plugins import reference_rules

    whose = reference_rules.Whose(owner.network, owner.container_id, owner.ifname)
    return reference_rules.there(kernel, reference_rules.MASQUERADE, whose)


def _remove_reference(kernel: Kernel, owner: Owner) -> None:
    """What we have nothing of, the reference plugins may have made before ours took over."""
    from podwire.plugins import reference_rules

    whose = reference_rules.Whose(owner.network, owner.container_id, owner.ifname)
    reference_rules.remove(kernel, reference_rules.MASQUERADE, whose)


def collect(kernel: Kernel, network: str, valid: Iterable[tuple[str, str]]) -> int:
    """Remove what attachments of ``network`` have that are not in ``valid`` (container ID, ifname).

    Returns how many elements went. Other networks keep theirs. Raises KernelError.
    """
    pairs = tuple(valid)
    kept = {Owner(network, *each).place for each in pairs}
    part = ruleset.network_part(network)

    def doomed(element: Element) -> bool:
        comment = element.comment
        return ruleset.network_of(comment) == part and ruleset.place_of(comment) not in kept

    changes = stale(kernel, doomed)
    ruleset.run(kernel.nft, "", changes)
    ruleset.sweep(kernel.nft)

    from podwire.plugins import reference_rules

    containers = {container_id for container_id, _ in pairs}
    reference_rules.collect(kernel, reference_rules.MASQUERADE, network, containers)
    return sum(len(change.elements) for change in changes if change.where is not MASQUERADE_INDEX)


def stale(kernel: Kernel, doomed: Callable[[Element], bool]) -> Changes:
    """Take away the elements that are ``doomed``, by reading all."""
    changes: Changes = ()
    for where in (*MASQUERADE.values(), MASQUERADE_INDEX):
        changes += delete(where, *(element.key for element in kernel.nft.elements(where) if doomed(element)))
    return changes


def chains_of(addresses: Sequence[IPAddress], subnets: Sequence[IPNetwork]) -> dict[int, Chain]:
    """The chain that spares ``subnets`` and multicast, for each IP version of the addresses."""
    return {version: _chain(version, subnets) for version in sorted({each.version for each in addresses})}


def creation(owner: Owner, addresses: Sequence[IPAddress], chains: Mapping[int, Chain]) -> Changes:
    """Have each address masqueraded by the chain of its version; EEXIST if one has an element."""
    changes = address_index.creation(MASQUERADE_INDEX, owner, addresses)
    for version, chain in chains.items():
        changes += create(
            MASQUERADE[version],
            *(Element((each,), chain.name, owner.comment) for each in addresses if each.version == version),
        )
    return changes


def clearing(kernel: Kernel, owner: Owner, addresses: Sequence[IPAddress]) -> Changes:
    """Take away what the attachment has, and what somebody else left behind for these addresses."""
    changes, freed = removal(kernel, owner)
    left = address_index.elements_of(MASQUERADE, (each for each in addresses if each not in freed))
    for (where, key), element in zip(left, kernel.nft.get_all(left), strict=True):
        changes += delete(where, key) if element is not None else ()
    return changes


def removal(kernel: Kernel, owner: Owner) -> tuple[Changes, set[IPAddress]]:
    """Take away what the attachment has; and the addresses that this frees."""
    return address_index.removal(kernel, MASQUERADE_INDEX, MASQUERADE, owner)


def _owner(identity: Identity) -> Owner:
    return Owner(identity.network, identity.container_id, identity.ifname)


def _plain(owned: Sequence[IPInterface]) -> list[IPAddress]:
    return list(dict.fromkeys(each.ip for each in owned))


def _subnets(owned: Sequence[IPInterface], given: Sequence[IPNetwork] | None) -> Sequence[IPNetwork]:
    return [each.network for each in owned] if given is None else given


def _chain(version: int, subnets: Sequence[IPNetwork]) -> Chain:
    own = sorted({each for each in subnets if each.version == version}, key=str)
    protocol, multicast = _SPARED[version]
    if len(own) == 1:
        name = str(own[0]).replace(":", ".")
    else:
        name = f"{version}-{hashlib.sha256(' '.join(map(str, own)).encode()).hexdigest()[:16]}"
    spared = (*map(str, own), multicast)
    rules = (*(f"{protocol} daddr {each} return" for each in spared), "masquerade")
    return Chain(f"masquerade-{name}", rules)
