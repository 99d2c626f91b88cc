"""Rules that the reference plugins made on a node before ours took over: found, removed, collected.

Their ipMasq and portmap make, for each container, an iptables chain named by a digest of network and
container ID, and jumps to it whose comment has both; from 1.6 on, by choice, rules in nftables tables of
their own. Rules of iptables-nft are nftables' own and changed as such. Those of iptables-legacy need that
program, which the reference plugins have used as well; it is run only where such tables are in use. Their
firewall lets single addresses pass, and names nobody.

Looking whether there are any costs one system call, and is done only for what we have nothing of.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from podwire.kernel import nft_foreign
from podwire.kernel.attributes import attribute
from podwire.kernel.errors import KernelError
from podwire.kernel.nft import NetfilterSocket
from podwire.kernel.nft_foreign import Chain, ForeignRule

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel

Address = IPv4Address | IPv6Address

_CHAIN_BYTES = 28
_FORWARD = "CNI-FORWARD"
_TRIES = 3
_SECONDS = 10.0
_FAMILIES = {"ip": ("ip_tables_names", "iptables"), "ip6": ("ip6_tables_names", "ip6tables")}
# utils.FormatComment in the reference plugins; iptables-save prints the quotes with backslashes.
_COMMENT = re.compile(rb'name: \\?"([^"\\]*)\\?" id: \\?"([^"\\]*)\\?"')


_NAT = tuple(Chain(family, "nat") for family in _FAMILIES)
_legacy_names: WeakKeyDictionary[Kernel, tuple[tuple[str, int], ...]] = WeakKeyDictionary()
_legacy_lock = threading.Lock()


class Kind(msgspec.Struct, frozen=True):
    """What is done with rules: the chain's prefix, where the jumps are, and the tables of nftables' own."""

    prefix: str
    parent: str
    tables: tuple[Chain, ...]


MASQUERADE = Kind("CNI-", "POSTROUTING", (Chain("inet", "cni_plugins_masquerade"),))
HOST_PORTS = Kind("CNI-DN-", "CNI-HOSTPORT-DNAT", (Chain("ip", "cni_hostport"), Chain("ip6", "cni_hostport")))


class Whose(msgspec.Struct, frozen=True):
    """An attachment, as the reference plugins' names and comments have it."""

    network: str
    container_id: str
    ifname: str

    def chain(self, kind: Kind) -> str:
        """The iptables chain; it is the same for all interfaces that a container has on a network."""
        return (kind.prefix + _digest(self.network + self.container_id))[:_CHAIN_BYTES]

    def marks(self, kind: Kind) -> bytes:
        """What a rule of nftables' own has in its bytes, and no other attachment's."""
        if kind is MASQUERADE:
            own = _digest(f"{self.ifname}:{self.container_id}")[:16]
            return f"{_digest(self.network)[:16]}-{own}, net: ".encode()
        text = self.container_id.encode() + b"\0"
        return bytes((0, len(text) & 0xFF)) + text  # the type and length of a comment in a rule's user data


def _digest(text: str) -> str:
    return hashlib.sha512(text.encode(errors="surrogateescape")).hexdigest()


def remove(kernel: Kernel, kind: Kind, whose: Whose) -> bool:
    """Remove an attachment's rules; False if there were none. Raises KernelError."""
    removed = False
    present = _present(kernel, kind, whose)
    if present:
        with _socket(kernel) as sock:
            for place in present:
                removed |= _removed(sock, kind, whose, place)
    for family in _legacy(kernel):
        removed |= _removed_legacy(kernel, family, kind, whose.chain(kind))
    return removed


def remove_guard(kernel: Kernel, container_id: str, ifname: str) -> bool:
    """Remove what bridge's macspoofchk made for an interface; False if there was nothing. KernelError."""
    chain = _guard(container_id, ifname)
    inner = chain._replace(name=f"{chain.name}-mac")
    chains = _existing(kernel, (chain, inner))
    if chains:
        with _socket(kernel) as sock:
            nft_foreign.remove(sock, _jumps(sock, chain), chains)
    return bool(chains)


def guarded(kernel: Kernel, container_id: str, ifname: str, mac: str) -> bool:
    """Tell whether bridge's macspoofchk lets an interface send from this MAC."""
    chain = _guard(container_id, ifname)
    if not _existing(kernel, (chain,)):
        return False
    with _socket(kernel) as sock:
        rules = nft_foreign.rules(sock, chain._replace(name=f"{chain.name}-mac"))
        allowed = bytes.fromhex(mac.replace(":", ""))
        return bool(_jumps(sock, chain)) and len(rules) > 1 and allowed in rules[0].raw


def _guard(container_id: str, ifname: str) -> Chain:
    return Chain("bridge", "nat", f"cni-br-iface-{container_id}-{ifname}")


def _jumps(sock: NetfilterSocket, chain: Chain) -> list[ForeignRule]:
    mark = chain.name.encode() + b"\0"
    return [rule for rule in nft_foreign.rules(sock, chain._replace(name="PREROUTING")) if mark in rule.raw]


def _present(kernel: Kernel, kind: Kind, whose: Whose) -> list[Chain]:
    """The attachment's chains, and the tables of nftables' own in which it may have rules."""
    tables = _existing(kernel, (*_NAT, *kind.tables))
    chains = _existing(kernel, [table._replace(name=whose.chain(kind)) for table in tables if table in _NAT])
    return [*chains, *(table for table in tables if table not in _NAT)]


def _existing(kernel: Kernel, places: Sequence[Chain]) -> list[Chain]:
    answers = kernel.nft.exist(places) if places else []
    return [place for place, is_there in zip(places, answers, strict=True) if is_there]


def _removed(sock: NetfilterSocket, kind: Kind, whose: Whose, place: Chain) -> bool:
    for attempt in range(_TRIES):
        doomed = _rules_of(sock, kind, whose, place)
        if not doomed and not place.name:
            return False
        try:
            nft_foreign.remove(sock, doomed, (place,) if place.name else ())
        except KernelError as error:
            # Somebody was faster, or has just made another jump.
            if error.errno not in {errno.ENOENT, errno.EBUSY} or attempt == _TRIES - 1:
                raise
            if place.name and not nft_foreign.rules(sock, place):
                return True
        else:
            return True
    return False


def _rules_of(sock: NetfilterSocket, kind: Kind, whose: Whose, place: Chain) -> list[ForeignRule]:
    """The jumps to an attachment's chain, or its rules in a table of nftables' own."""
    if place.name:
        mark, where = place.name.encode() + b"\0", Chain(place.family, place.table, kind.parent)
    else:
        mark, where = whose.marks(kind), place
    return [rule for rule in nft_foreign.rules(sock, where) if mark in rule.raw]


def there(kernel: Kernel, kind: Kind, whose: Whose) -> bool:
    """Tell whether an attachment has rules that packets meet: a jump to a chain that is not empty."""
    present = _present(kernel, kind, whose)
    if present:
        with _socket(kernel) as sock:
            for place in present:
                if _rules_of(sock, kind, whose, place) and nft_foreign.rules(sock, place):
                    return True
    chain = whose.chain(kind)
    return any(
        any(f" -j {chain}" in line for line in _saved(kernel, family, kind.parent))
        and len(_saved(kernel, family, chain)) > 1
        for family in _legacy(kernel)
    )


def let_pass(kernel: Kernel, addresses: Sequence[Address]) -> bool:
    """Tell whether firewall lets all of these addresses pass by rules of iptables. Raises KernelError."""
    there = _existing(kernel, _passes(addresses))
    found: set[Address] = set()
    if there:
        with _socket(kernel) as sock:
            for chain in there:
                held = [rule.raw for rule in nft_foreign.rules(sock, chain)]
                found |= {each for each in addresses if any(_operand(each) in raw for raw in held)}
    for family in _legacy(kernel, "filter"):
        words = _saved(kernel, family, _FORWARD, "filter")
        found |= {each for each in addresses if any(_prefix(each) in line.split() for line in words)}
    return bool(addresses) and found == set(addresses)


def remove_passes(kernel: Kernel, addresses: Sequence[Address]) -> None:
    """Remove the rules of iptables by which firewall lets these addresses pass. Raises KernelError."""
    there = _existing(kernel, _passes(addresses))
    if there:
        with _socket(kernel) as sock:
            for chain in there:
                doomed = [
                    rule
                    for rule in nft_foreign.rules(sock, chain)
                    if any(_operand(each) in rule.raw for each in addresses)
                ]
                nft_foreign.remove(sock, doomed)
    for family in _legacy(kernel, "filter"):
        for line in _saved(kernel, family, _FORWARD, "filter"):
            words = line.split()
            if words[:1] == ["-A"] and any(_prefix(each) in words for each in addresses):
                _iptables(kernel, family, "-D", *words[1:], table="filter")


def _passes(addresses: Sequence[Address]) -> list[Chain]:
    families = {4: "ip", 6: "ip6"}
    return [
        Chain(families[version], "filter", _FORWARD) for version in sorted({a.version for a in addresses})
    ]


def _operand(address: Address) -> bytes:
    """What a rule that compares something with an address has in its bytes (NFTA_DATA_VALUE)."""
    return attribute(1, address.packed)


def _prefix(address: Address) -> str:
    return f"{address}/{address.max_prefixlen}"


def collect(kernel: Kernel, kind: Kind, network: str, valid: Collection[str]) -> None:
    """Remove the rules of a network's containers whose IDs are not valid. Raises KernelError.

    Host ports in tables of nftables' own name no network, and stay until their DEL.
    """
    found: set[str] = set()
    if _existing(kernel, (*_NAT, *kind.tables)):
        with _socket(kernel) as sock:
            for place in _NAT:
                lines = [rule.raw for rule in nft_foreign.rules(sock, place._replace(name=kind.parent))]
                found |= _containers(lines, network)
            if kind is MASQUERADE:
                _collect_own(sock, network, valid)
    for family in _legacy(kernel):
        found |= _containers([line.encode() for line in _saved(kernel, family, kind.parent)], network)
    for container_id in sorted(found - set(valid)):
        remove(kernel, kind, Whose(network, container_id, ""))


def _containers(rules: list[bytes], network: str) -> set[str]:
    named = [match.groups() for rule in rules if (match := _COMMENT.search(rule))]
    return {container_id.decode(errors="replace") for name, container_id in named if name == network.encode()}


def _collect_own(sock: NetfilterSocket, network: str, valid: Collection[str]) -> None:
    """Comments begin with the network's digest and end, if they are not too long, with the container's ID."""
    start = _digest(network)[:16].encode() + b"-"
    kept = [re.compile(rb", id: " + re.escape(one.encode()[:64])) for one in valid]
    for place in MASQUERADE.tables:
        ours = [rule for rule in nft_foreign.rules(sock, place) if start in rule.raw]
        stale = [
            rule for rule in ours if b", id: " in rule.raw and not any(one.search(rule.raw) for one in kept)
        ]
        nft_foreign.remove(sock, stale)


@contextmanager
def _socket(kernel: Kernel) -> Iterator[NetfilterSocket]:
    with NetfilterSocket.open(kernel.netns) as sock:
        yield sock


def _legacy(kernel: Kernel, table: str = "nat") -> list[str]:
    """The families of which iptables-legacy uses a table in the host's namespace."""
    with _legacy_lock:
        files = _legacy_names.get(kernel)
        opened = kernel.netns.run(_open_legacy_names) if files is None else files
        found = [family for family, fd in opened if f"{table}\n".encode() in os.pread(fd, 4096, 0)]
        if files is None and len(opened) == len(_FAMILIES):
            _legacy_names[kernel] = opened
            for _, fd in opened:
                weakref.finalize(kernel, os.close, fd)
        elif files is None:
            for _, fd in opened:
                os.close(fd)
    return found


def _open_legacy_names() -> tuple[tuple[str, int], ...]:
    """Open the lists of the tables in use, which tell of this namespace for good."""
    found = []
    for family, (names, _) in _FAMILIES.items():
        with suppress(OSError):
            fd = os.open(f"/proc/thread-self/net/{names}", os.O_RDONLY | os.O_CLOEXEC)
            found.append((family, fd))
    return tuple(found)


def _removed_legacy(kernel: Kernel, family: str, kind: Kind, chain: str) -> bool:
    if not _saved(kernel, family, chain):
        return False
    import shlex

    for line in _saved(kernel, family, kind.parent):
        words = shlex.split(line)
        if words[:1] == ["-A"] and chain in words:
            _iptables(kernel, family, "-D", *words[1:])
    _iptables(kernel, family, "-F", chain)
    _iptables(kernel, family, "-X", chain)
    return True


def _saved(kernel: Kernel, family: str, chain: str, table: str = "nat") -> list[str]:
    """The rules of a chain as iptables-save prints them; none if it, or the program, is not there."""
    return _iptables(kernel, family, "-S", chain, table=table, may_fail=True).splitlines()


def _iptables(
    kernel: Kernel, family: str, *arguments: str, table: str = "nat", may_fail: bool = False
) -> str:
    import shutil
    import subprocess

    name = _FAMILIES[family][1]
    program = shutil.which(f"{name}-legacy") or shutil.which(name)
    if program is None:
        return ""  # whoever uses legacy tables here, it was not the reference plugins
    command = [program, "-w", "5", "-t", table, *arguments]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)

    try:
        done = kernel.netns.run(run)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(errno.EIO, "run", " ".join(command), str(error)) from error
    # 1 is for what is not there; 4 for a lock that somebody holds (xtables_error, RESOURCE_PROBLEM).
    if done.returncode and not (may_fail and done.returncode == 1):
        raise KernelError(errno.EIO, "run", " ".join(command), done.stderr.strip())
    return done.stdout if done.returncode == 0 else ""
