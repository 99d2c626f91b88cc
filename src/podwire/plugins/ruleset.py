"""The table ``inet podwire``: its fixed part, the chains of network settings, and whose each element is.

A constant number of rules is walked: a pod or a host port adds elements only. What is missing, because it is
the first time, another version, or somebody flushed it, comes back in the transaction of the next ADD.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from podwire.cni.errors import TryLater
from podwire.kernel import nftwrite
from podwire.kernel.nft import NftError
from podwire.kernel.nftset import INTERFACE, IPV4, IPV6, PORT, PROTOCOL, NamedSet

if TYPE_CHECKING:
    from podwire.kernel.nft import Nft
    from podwire.kernel.nftwrite import Changes

TABLE = "podwire"
LOCK_SECONDS = 10.0

IP = {4: IPV4, 6: IPV6}
PORTMAP_ANY = {v: NamedSet(f"portmap_any{v}", (PROTOCOL, PORT), verdict=True) for v in IP}
PORTMAP_AT = {v: NamedSet(f"portmap_at{v}", (ip, PROTOCOL, PORT), verdict=True) for v, ip in IP.items()}
PORTMAP_PARTLY = {v: NamedSet(f"portmap_partly{v}", (PROTOCOL, PORT)) for v in IP}
TARGET_ANY = {v: NamedSet(f"target_any{v}", (PROTOCOL, PORT), (ip, PORT)) for v, ip in IP.items()}
TARGET_AT = {v: NamedSet(f"target_at{v}", (ip, PROTOCOL, PORT), (ip, PORT)) for v, ip in IP.items()}
PORTMAP_INDEX = NamedSet("portmap_index", (IPV6, PORT), (IPV6, PROTOCOL, PORT, PORT))
MASQUERADE = {v: NamedSet(f"masquerade{v}", (ip,), verdict=True) for v, ip in IP.items()}
MASQUERADE_INDEX = NamedSet("masquerade_index", (IPV6, PORT), (IPV6, PORT))
PODS = {v: NamedSet(f"pods{v}", (ip,)) for v, ip in IP.items()}
POD_NETWORKS = {v: NamedSet(f"pod_networks{v}", (ip,), verdict=True) for v, ip in IP.items()}
LOCALNET = NamedSet("localnet", (INTERFACE,))
"""The sets and maps of the table, by IP version where there are two; see table.nft for what they mean."""

VERDICTS = (*PORTMAP_ANY.values(), *PORTMAP_AT.values(), *MASQUERADE.values(), *POD_NETWORKS.values())

_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
# With two slashes below the 128 bytes of a comment; container IDs usually have 64 digits.
_NETWORK_BYTES, _CONTAINER_BYTES, _INTERFACE_BYTES = 40, 64, 15


class Owner(msgspec.Struct, frozen=True):
    """Whose an element is: an attachment's network, container ID and interface, as its comment has them.

    A part that is too long, or that holds what a comment cannot, is shortened and ends in ``~`` and 16 hex
    digits of its SHA-256.
    """

    network: str
    container_id: str
    ifname: str

    @property
    def comment(self) -> str:
        """The comment of this attachment's elements, at most 121 bytes."""
        return "/".join(
            (
                _part(self.network, _NETWORK_BYTES),
                _part(self.container_id, _CONTAINER_BYTES),
                _part(self.ifname, _INTERFACE_BYTES),
            )
        )

    @property
    def key(self) -> IPv6Address:
        """16 bytes that stand for container ID and interface in an index, whatever the network's name."""
        return _key(self.container_id, self.ifname)

    @property
    def place(self) -> str:
        """The comment without the network: an attachment keeps it when its network is renamed."""
        return self.comment.partition("/")[2]


@lru_cache(maxsize=256)
def _key(container_id: str, ifname: str) -> IPv6Address:
    return IPv6Address(hashlib.sha256(f"{container_id}/{ifname}".encode()).digest()[:16])


def mapped(address: IPv4Address | IPv6Address) -> IPv6Address:
    """An address of either family as an index holds it: IPv4 as ``::ffff:a.b.c.d``."""
    return address if address.version == 6 else IPv6Address(f"::ffff:{address}")


def unmapped(address: IPv6Address) -> IPv4Address | IPv6Address:
    """What `mapped` was given."""
    return address.ipv4_mapped or address


def network_of(comment: str) -> str:
    """The network's part of an element's comment."""
    return comment.partition("/")[0]


def network_part(network: str) -> str:
    """What `network_of` gives for the elements of ``network``."""
    return _part(network, _NETWORK_BYTES)


def place_of(comment: str) -> str:
    """Container ID and interface of an element's comment, to compare with `Owner.place`."""
    return comment.partition("/")[2]


class Chain(msgspec.Struct, frozen=True):
    """A chain beside the fixed part: what its rules are follows from its name, so it is never changed.

    ``shared`` chains gather single rules of several makers instead; each is only ever added.
    """

    name: str
    rules: tuple[str, ...]
    shared: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """The rules' comments, which tell that they are there and of this version."""
        if self.shared:
            return tuple(f"podwire {_digest(rule)}" for rule in self.rules)
        return (f"podwire {_digest(*self.rules)}",) * len(self.rules)

    def text(self, present: Counter[tuple[str, str]]) -> str:
        """The commands that bring it about, given the (chain, comment) of each rule; empty if it is right."""
        wanted = Counter((self.name, tag) for tag in self.tags)
        if not wanted - present:
            return ""
        start = f"add chain inet {TABLE} {self.name}\n"
        if not self.shared:
            start += f"flush chain inet {TABLE} {self.name}\n"
        return start + "".join(
            f'add rule inet {TABLE} {self.name} {rule} comment "{tag}"\n'
            for rule, tag in zip(self.rules, self.tags, strict=True)
            if not (self.shared and present[self.name, tag])
        )


_right: WeakKeyDictionary[Nft, tuple[object, frozenset[object]]] = WeakKeyDictionary()
"""Which chains, and what beside, were found right with the fixed part, in which reading of the rules."""
_TRIES = 16


class _Skeleton(msgspec.Struct, frozen=True):
    text: str
    rules: Counter[tuple[str, str]]
    chains: tuple[str, ...]
    hooked: tuple[str, ...]


@cache
def _skeleton() -> _Skeleton:
    source = Path(__file__).with_name("table.nft").read_text()
    tag = f"podwire {_digest(source)}"
    chains: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in source.splitlines():
        if line.strip().startswith("chain "):
            lines = chains.setdefault(line.split()[1], [])
        lines.append(line)
    rules = {(name, tag): sum('comment "podwire"' in line for line in body) for name, body in chains.items()}
    return _Skeleton(
        text=source.replace('comment "podwire"', f'comment "{tag}"'),
        rules=+Counter(rules),
        chains=tuple(chains),
        hooked=tuple(name for name, body in chains.items() if any(" hook " in line for line in body)),
    )


def prepare(nft: Nft, *chains: Chain) -> str:
    """The commands that must come before elements in the same transaction; empty if everything is right."""
    # Taken before: if the rules are read anew now, or by another thread, nothing is known of that reading.
    reading = nft.reading
    present = _present(nft)
    text = "".join(chain.text(present) for chain in chains)
    if _skeleton().rules - present:
        return _renewal(present) + text
    if not text:
        _note_right(nft, reading, chains)
    return text


def missing(nft: Nft, *chains: Chain) -> list[str]:
    """The names of the chains of which a rule is missing."""
    present = _present(nft)
    names = [name for name, _ in _skeleton().rules - present]
    return names + [chain.name for chain in chains if chain.text(present)]


def judge(nft: Nft) -> None:
    """Let the kernel judge the whole fixed part without changing anything. Raises NftError."""
    nft.check(_renewal(_present(nft)))


def remove_table(nft: Nft) -> None:
    """Remove the whole table with all elements; does nothing if it is not there."""
    nft.run(f"add table inet {TABLE}\ndelete table inet {TABLE}\n")


def sweep(nft: Nft) -> None:
    """Remove the chains of network settings that no element leads to any more."""
    wanted = {element.value for each in VERDICTS for element in nft.elements(each)}
    present = {rule.chain for rule in nft.rules(TABLE) if rule.chain.startswith(_SETTINGS)}
    for chain in sorted(present - wanted):
        try:
            nft.run(f"flush chain inet {TABLE} {chain}\ndelete chain inet {TABLE} {chain}\n")
        except NftError as error:
            # Somebody has just begun to use it, or removed it as well.
            if error.errno not in {errno.EBUSY, errno.ENOENT, errno.EINVAL}:
                raise


def run(nft: Nft, preparation: str, changes: Changes) -> None:
    """Do what `prepare` gave and changes of elements as one transaction. Raises NftError."""
    if preparation:
        nft.run(preparation + nftwrite.text(changes))
    elif changes:
        nft.write(changes)


def commit(
    nft: Nft,
    changes: Changes,
    chains: Sequence[Chain],
    deadline: float,
    beside: tuple[object, Callable[[Nft], str]] | None = None,
) -> None:
    """Change elements where the rules are right, in one transaction with those of them that are not.

    Where nobody else changed nftables since the last time, that is one system call. ``beside`` is what else
    must be right: something to know it by, and what gives the commands for it, empty if it is; then the rules
    come first, in transactions of their own. Raises NftError, and TryLater for the lock of the rules' makers.
    """
    needed = chains if beside is None else (*chains, beside[0])
    for _ in range(_TRIES):
        if _known_right(nft, needed) and nft.write(changes, in_known_rules=True):
            return
        if prepare(nft, *chains):
            # Only one at a time makes rules: two would make the one of a mark bit twice.
            with exclusive(deadline):
                preparation = prepare(nft, *chains)
                if preparation and beside is None:
                    run(nft, preparation, changes)
                    return
                complete(nft, preparation)
        reading = nft.reading
        if beside is not None and beside[1](nft):
            with exclusive(deadline):
                complete(nft, beside[1](nft))
        elif beside is not None:
            _note_right(nft, reading, (beside[0],))
    # Somebody changes nftables all the time; that these rules go just now is not to be expected.
    nft.write(changes)


def complete(nft: Nft, preparation: str) -> None:
    """Make rules alone: libnftables 1.0 cannot fill an interval map in the transaction that makes it."""
    if preparation:
        nft.run(preparation)


def _known_right(nft: Nft, needed: Sequence[object]) -> bool:
    known = _right.get(nft)
    return known is not None and known[0] is nft.reading and known[1].issuperset(needed)


def _note_right(nft: Nft, reading: object, found: Sequence[object]) -> None:
    known = _right.get(nft)
    right = known[1] if known is not None and known[0] is reading else frozenset()
    _right[nft] = reading, right.union(found)


@contextmanager
def exclusive(deadline: float) -> Iterator[None]:
    """Hold the lock of this network namespace's host ports, by flock(2) on the namespace itself.

    ``deadline`` is a time.monotonic(); the wait is at most `LOCK_SECONDS`. Raises TryLater (11).
    """
    until = min(deadline, time.monotonic() + LOCK_SECONDS)
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pause = 0.001
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() + pause > until:
                    raise TryLater(
                        "the lock of the host ports is held by another operation",
                        f"waited {LOCK_SECONDS:g} s",
                    ) from None
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
        yield
    finally:
        os.close(fd)


def _present(nft: Nft) -> Counter[tuple[str, str]]:
    return Counter((rule.chain, rule.comment) for rule in nft.rules(TABLE))


def _renewal(present: Counter[tuple[str, str]]) -> str:
    """The fixed part as commands that work whatever version of it, or nothing, is there."""
    skeleton = _skeleton()
    lines = [f"add table inet {TABLE}"]
    # A hook or priority cannot be changed: chains with a hook are made anew. Those of settings stay.
    ours = {chain for chain, comment in present if comment.startswith("podwire ")}
    gone = {chain for chain in ours if chain not in skeleton.chains and not chain.startswith(_SETTINGS)}
    lines += [f"add chain inet {TABLE} {chain}" for chain in (*skeleton.chains, *sorted(gone))]
    emptied = [
        chain for chain in (*skeleton.chains, *sorted(gone)) if any(c == chain for c, _ in skeleton.rules)
    ]
    lines += [f"flush chain inet {TABLE} {chain}" for chain in (*emptied, *sorted(gone))]
    lines += [f"delete chain inet {TABLE} {chain}" for chain in (*skeleton.hooked, *sorted(gone))]
    return "\n".join(lines) + "\n" + skeleton.text


_SETTINGS = ("portmap-", "masquerade-")
"""How the names of chains begin that settings made."""


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@lru_cache(maxsize=256)
def _part(text: str, size: int) -> str:
    if len(text) <= size and _PLAIN.fullmatch(text):
        return text
    safe = "".join(letter for letter in text if _PLAIN.fullmatch(letter))
    return f"{safe[: max(size - 17, 0)]}~{_digest(text)}"
