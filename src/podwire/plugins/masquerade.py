"""ipMasq: a pod's traffic to anything outside of its own network leaves with the address of the host.

One element per pod address leads to the chain of its subnets, which spares these and multicast. Not a plugin:
the plugins that have the option ``ipMasq`` call it.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import TYPE_CHECKING

from podwire.kernel.nft import NftError
from podwire.kernel.nftset import Element
from podwire.plugins import ruleset
from podwire.plugins.ruleset import MASQUERADE, MASQUERADE_INDEX, Chain, Owner

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel

Address = IPv4Address | IPv6Address | IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

_TRIES = 3
_SPARED = {4: ("ip", "224.0.0.0/4"), 6: ("ip6", "ff00::/8")}


def commands(  # noqa: PLR0917
    kernel: Kernel,
    network: str,
    container_id: str,
    ifname: str,
    addresses: Sequence[Address],
    subnets: Sequence[Network],
) -> str:
    """The nft text of `add`, to run in one transaction together with other work.

    It replaces what the attachment has already, and what somebody else left behind for these addresses.
    """
    return "".join(_commands(kernel, Owner(network, container_id, ifname), addresses, subnets))


def add(  # noqa: PLR0917
    kernel: Kernel,
    network: str,
    container_id: str,
    ifname: str,
    addresses: Sequence[Address],
    subnets: Sequence[Network],
) -> None:
    """Masquerade what leaves from ``addresses`` (of either family) to outside of ``subnets``.

    ``subnets`` are the network's own, usually each address's network; multicast is spared as well. One
    transaction. Raises KernelError.
    """
    owner = Owner(network, container_id, ifname)
    for attempt in range(_TRIES):
        commands = _commands(kernel, owner, addresses, subnets)
        try:
            ruleset.run(kernel.nft, *commands)
        except NftError:
            # What was read has changed since; the next reading sees it.
            if attempt == _TRIES - 1:
                raise
        else:
            return


def check(  # noqa: PLR0917
    kernel: Kernel,
    network: str,
    container_id: str,
    ifname: str,
    addresses: Sequence[Address],
    subnets: Sequence[Network],
) -> list[str]:
    """What is missing or wrong of what `add` made for the same arguments, in words; empty if it is right."""
    owner = Owner(network, container_id, ifname)
    plain = _plain(addresses)
    chains = {version: _chain(version, subnets) for version in {each.version for each in plain}}
    faults = [
        f"rules of chain {name} of table inet {ruleset.TABLE} are missing"
        for name in ruleset.missing(kernel.nft, *chains.values())
    ]
    for each in plain:
        found = kernel.nft.get(MASQUERADE[each.version], (each,))
        if found is None:
            faults.append(f"{each} is not masqueraded: no element in {MASQUERADE[each.version].name}")
        elif ruleset.place_of(found.comment) != owner.place:
            faults.append(f"{each} is masqueraded for {found.comment}")
        elif found.value != chains[each.version].name:
            faults.append(f"{each} is masqueraded by chain {found.value}, not {chains[each.version].name}")
    if plain and kernel.nft.get(MASQUERADE_INDEX, (owner.key, 0)) is None:
        faults.append(f"the elements are not in {MASQUERADE_INDEX.name}")
    return faults


def remove(kernel: Kernel, container_id: str, ifname: str, network: str = "") -> None:
    """Stop masquerading for the attachment, whatever addresses it had and however its network was named.

    Success if there is nothing (any more). An address that meanwhile belongs to another attachment keeps its
    element. Raises KernelError.
    """
    owner = Owner(network, container_id, ifname)
    for attempt in range(_TRIES):
        text, _ = _removal(kernel, owner)
        try:
            ruleset.run(kernel.nft, "", text)
        except NftError as error:
            if attempt == _TRIES - 1 or error.errno not in {errno.ENOENT, errno.EINVAL}:
                raise
        else:
            return


def collect(kernel: Kernel, network: str, valid: Iterable[tuple[str, str]]) -> int:
    """Remove what attachments of ``network`` have that are not in ``valid`` (container ID, ifname).

    Returns how many elements went. Other networks keep theirs. Raises KernelError.
    """
    kept = {Owner(network, *each).place for each in valid}
    part = ruleset.network_part(network)
    text = ""
    count = 0
    for where in (*MASQUERADE.values(), MASQUERADE_INDEX):
        doomed = [
            element.key
            for element in kernel.nft.elements(where)
            if ruleset.network_of(element.comment) == part and ruleset.place_of(element.comment) not in kept
        ]
        text += where.delete(*doomed)
        count += len(doomed) if where is not MASQUERADE_INDEX else 0
    ruleset.run(kernel.nft, "", text)
    ruleset.sweep(kernel.nft)
    return count


def _commands(
    kernel: Kernel, owner: Owner, addresses: Sequence[Address], subnets: Sequence[Network]
) -> tuple[str, str]:
    """The commands that make chains, and those on elements."""
    plain = _plain(addresses)
    if not plain:
        return "", ""
    chains = {version: _chain(version, subnets) for version in sorted({each.version for each in plain})}
    preparation = ruleset.prepare(kernel.nft, *chains.values())
    text, stale = _removal(kernel, owner)
    taken = [
        each
        for each in plain
        if each not in stale and kernel.nft.get(MASQUERADE[each.version], (each,)) is not None
    ]
    text += "".join(MASQUERADE[each.version].delete((each,)) for each in taken)
    text += MASQUERADE_INDEX.create(
        *(
            Element((owner.key, number), (ruleset.mapped(each), len(plain)), owner.comment)
            for number, each in enumerate(plain)
        )
    )
    for version, chain in chains.items():
        elements = [Element((each,), chain.name, owner.comment) for each in plain if each.version == version]
        text += MASQUERADE[version].create(*elements)
    return preparation, text


def _removal(kernel: Kernel, owner: Owner) -> tuple[str, set[IPv4Address | IPv6Address]]:
    """The commands that remove what the attachment has, and the addresses that they free."""
    first = kernel.nft.get(MASQUERADE_INDEX, (owner.key, 0))
    if first is None or not isinstance(first.value, tuple):
        return "", set()
    rest = (kernel.nft.get(MASQUERADE_INDEX, (owner.key, number)) for number in range(1, first.value[1]))
    indexed = [first, *(each for each in rest if each is not None)]
    text = MASQUERADE_INDEX.delete(*(each.key for each in indexed))
    freed = set()
    for each in indexed:
        address = ruleset.unmapped(each.value[0]) if isinstance(each.value, tuple) else None
        element = address and kernel.nft.get(MASQUERADE[address.version], (address,))
        if address and element and ruleset.place_of(element.comment) == owner.place:
            text += MASQUERADE[address.version].delete((address,))
            freed.add(address)
    return text, freed


def _plain(addresses: Sequence[Address]) -> list[IPv4Address | IPv6Address]:
    bare = (each.ip if isinstance(each, IPv4Interface | IPv6Interface) else each for each in addresses)
    return list(dict.fromkeys(bare))


def _chain(version: int, subnets: Sequence[Network]) -> Chain:
    own = sorted({each for each in subnets if each.version == version}, key=str)
    protocol, multicast = _SPARED[version]
    if len(own) == 1:
        name = str(own[0]).replace(":", ".")
    else:
        name = f"{version}-{hashlib.sha256(' '.join(map(str, own)).encode()).hexdigest()[:16]}"
    spared = (*map(str, own), multicast)
    rules = (*(f"{protocol} daddr {each} return" for each in spared), "masquerade")
    return Chain(f"masquerade-{name}", rules)
