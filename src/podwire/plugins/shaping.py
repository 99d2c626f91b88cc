"""A pod's bandwidth: limits of what it receives and what it sends, on the host's end of its veth pair.

What the pod receives leaves by the host's end, where a token bucket holds it back. What it sends comes in
there, where the kernel can hold nothing back: it is sent on by an ifb device, which has a token bucket too.
With subnets, htb classes stand in the token buckets' place. Not a plugin: plugins that limit bandwidth call
it.

The ifb has the name that the reference plugin gives it, from network and container ID; a second interface of
a container gets a name of its own. Its alias tells whose it is.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING

import msgspec

from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig
from podwire.kernel import devices, links, tc
from podwire.kernel.errors import KernelError
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.plugins import parsed
from podwire.plugins.attachment import MARK, Identity
from podwire.plugins.failures import KERNEL, undone_on_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kernel.host import Kernel
    from podwire.kernel.netlink import RouteSocket

Network = IPv4Network | IPv6Network

_LATENCY_MS = 25
_QUEUE_MIN = 1000
_PREFIX = "bwp"
_BURST_BYTES = 0xFFFFFFFF
_HANDLE = tc.handle(1)
_SHAPED, _UNSHAPED = 0x30, 1
_SHAPED_CLASS, _UNSHAPED_CLASS = tc.handle(1, _SHAPED), tc.handle(1, _UNSHAPED)
_UNLIMITED = 100_000_000_000
"""The reference plugin's rate of what is not shaped, in bytes a second."""
_PRIORITY = {4: 16, 6: 15}
_MISSING = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV})


class Rate(msgspec.Struct, frozen=True):
    """A limit in one direction: ``rate`` in bytes a second on average, ``burst`` in bytes at once."""

    rate: int
    burst: int

    @property
    def limit(self) -> int:
        """How many bytes may wait: what goes out in 25 ms, and one burst."""
        return self.rate * _LATENCY_MS // 1000 + self.burst


class Limits(msgspec.Struct, frozen=True):
    """What a pod may receive and send; None for no limit.

    ``subnets`` are destinations: those alone are limited, or with ``spared`` all but those. Without any, all
    traffic is.
    """

    receive: Rate | None = None
    send: Rate | None = None
    subnets: tuple[Network, ...] = ()
    spared: bool = False

    def __bool__(self) -> bool:
        return self.receive is not None or self.send is not None


class Entry(msgspec.Struct, frozen=True):
    """Limits as configurations write them: rates in bits a second, bursts in bits, 0 for none.

    Ingress is what the pod receives, egress what it sends.
    """

    ingressRate: int = 0
    ingressBurst: int = 0
    egressRate: int = 0
    egressBurst: int = 0
    unshapedSubnets: tuple[str, ...] = ()
    shapedSubnets: tuple[str, ...] = ()

    def limits(self, where: str = "") -> Limits:
        """Return the limits; InvalidConfig (7) names the field, after ``where``, and the value."""
        receive = _rate(where, "ingress", self.ingressRate, self.ingressBurst)
        send = _rate(where, "egress", self.egressRate, self.egressBurst)
        if self.unshapedSubnets and self.shapedSubnets:
            raise InvalidConfig(
                f"{where}unshapedSubnets and {where}shapedSubnets exclude each other",
                f"they are {', '.join(self.unshapedSubnets)} and {', '.join(self.shapedSubnets)}",
            )
        unshaped = _networks(f"{where}unshapedSubnets", self.unshapedSubnets)
        shaped = _networks(f"{where}shapedSubnets", self.shapedSubnets)
        return Limits(receive, send, unshaped or shaped, bool(unshaped))


FIELDS = frozenset(field.lower() for field in Entry.__struct_fields__)
"""The fields of `Entry` in lower case: configurations may write them in any."""


def _rate(where: str, direction: str, rate: int, burst: int) -> Rate | None:
    for field, value in ((f"{direction}Rate", rate), (f"{direction}Burst", burst)):
        if not 0 <= value < 1 << 64:
            raise InvalidConfig(f"{where}{field} {value}: is not a number of bits, of 0 or more")
    if not rate and not burst:
        return None
    if not burst:
        raise InvalidConfig(f"{where}{direction}Rate {rate}: needs {direction}Burst as well")
    if not rate:
        raise InvalidConfig(f"{where}{direction}Burst {burst}: needs {direction}Rate as well")
    for field, value in ((f"{direction}Rate", rate), (f"{direction}Burst", burst)):
        if value < 8:
            raise InvalidConfig(f"{where}{field} {value}: is less than a byte, which has 8 bits")
    if burst // 8 >= _BURST_BYTES:
        raise InvalidConfig(f"{where}{direction}Burst {burst}: is not below 4 GiB")
    return Rate(rate // 8, burst // 8)


def _networks(field: str, texts: Sequence[str]) -> tuple[Network, ...]:
    found = []
    for text in texts:
        try:
            if "/" not in text:
                raise ValueError("the prefix length is missing")
            found.append(parsed.network(text))
        except ValueError:
            raise InvalidConfig(f'{field} "{text}": is not a subnet, as 10.1.0.0/16') from None
    return tuple(found)


def names(identity: Identity) -> tuple[str, str]:
    """The names that an attachment's ifb may have: the reference plugin's, and one of the interface's own."""
    reference = hashlib.sha512(f"{identity.network}{identity.container_id}".encode()).hexdigest()
    own = hashlib.sha256(f"{identity.container_id} {identity.ifname}".encode()).hexdigest()
    return (_PREFIX + reference)[:15], (_PREFIX + own)[:15]


def make(
    kernel: Kernel, identity: Identity, host_end: Link, limits: Limits, *, fresh: bool = False
) -> Link | None:
    """Limit an attachment by its host end, all of it or nothing; return the ifb, if it sends by one.

    Raises AlreadyAttached where the attachment has limits or the host end has somebody's queueing
    discipline, :class:`KernelError` for what the kernel refuses. ``host_end`` may be up or down. What a
    ``fresh`` one has stays at a failure: its maker takes it away.
    """
    host = kernel.route()
    ifb = None
    with undone_on_failure() as undo:
        messages: list[Message] = []
        if limits.send is not None:
            ifb = _make_ifb(kernel, identity, host_end, undo)
            messages += [
                links.configure(ifb.index, addr_gen_mode=AddrGenMode.NONE),
                links.configure(ifb.index, alias=identity.alias),
                *_bucket(ifb.index, limits.send, limits),
                links.configure(ifb.index, up=True),
            ]
        if fresh:
            if ifb is not None:
                messages += [tc.ingress(host_end.index), tc.redirect(host_end.index, ifb.index)]
            if limits.receive is not None:
                messages += _bucket(host_end.index, limits.receive, limits)
            host.send(*messages)
            return ifb
        if ifb is not None:
            host.send(*messages)
            index = ifb.index
            _step(host, host_end, undo, lambda: _open(host, host_end.index), tc.ingress(host_end.index))
            host.send(tc.redirect(host_end.index, index))
        if limits.receive is not None:
            first, *rest = _bucket(host_end.index, limits.receive, limits)
            _step(host, host_end, undo, lambda: _lift(host, host_end.index), first)
            host.send(*rest)
    return ifb


def _make_ifb(kernel: Kernel, identity: Identity, host_end: Link, undo: list[Callable[[], object]]) -> Link:
    """Make the ifb, down and without a name in its alias yet, under the first name that is free."""
    host = kernel.route()
    mac = _mac(identity)
    taken = []
    for name in names(identity):
        queue = max(host_end.txqlen, _QUEUE_MIN)
        try:
            host.send(links.ifb(name, mac=mac, mtu=host_end.mtu or None, txqlen=queue))
        except KernelError as error:
            if error.errno != errno.EEXIST:
                undo.append(lambda name=name: _discard(kernel, name, mac))  # type: ignore[misc]
                raise
            other = links.get(host, name, details=False)
            if other is not None and _owns(identity, other):
                raise AlreadyAttached(
                    f"container {identity.container_id} has the limits of {identity.ifname} already: {name}",
                    "a DEL must come before a second ADD",
                ) from error
            taken.append(f"{name} ({other.alias or other.kind if other is not None else 'gone'})")
            continue
        undo.append(lambda name=name: _discard(kernel, name, mac))  # type: ignore[misc]
        index = devices.index(host, name)
        return Link(index, name, "ifb", mac=mac, mtu=host_end.mtu, alias=identity.alias)
    raise CNIError(f"the names for an ifb are taken: {', '.join(taken)}", code=KERNEL)


def _mac(identity: Identity) -> str:
    raw = bytearray(hashlib.sha256(f"ifb {identity.container_id} {identity.ifname}".encode()).digest()[:6])
    raw[0] = raw[0] & 0xFC | 0x02  # locally administered, one station
    return raw.hex(":")


def _discard(kernel: Kernel, name: str, mac: str) -> None:
    link = links.get(kernel.route(), name, details=False)
    if link is not None and link.kind == "ifb" and link.mac == mac:
        kernel.links.remove(link)


def _step(
    host: RouteSocket,
    host_end: Link,
    undo: list[Callable[[], object]],
    back: Callable[[], None],
    message: Message,
) -> None:
    """Make a queueing discipline of the host's end. A failure undoes what was made, not what was there."""
    try:
        host.send(message)
    except KernelError as error:
        if error.errno == errno.EEXIST:
            raise AlreadyAttached(
                f"link {host_end.name} has a queueing discipline already ({message.operation})",
                "a DEL must come before a second ADD",
            ) from error
        undo.append(back)
        raise
    undo.append(back)


def _open(host: RouteSocket, index: int) -> None:
    _send_tolerant(host, tc.delete_qdisc(index, tc.INGRESS, tc.INGRESS_HANDLE))


def _lift(host: RouteSocket, index: int) -> None:
    _send_tolerant(host, tc.delete_qdisc(index, tc.ROOT, _HANDLE))


def _send_tolerant(host: RouteSocket, message: Message) -> None:
    try:
        host.send(message)
    except KernelError as error:
        if error.errno not in _MISSING:
            raise


def _bucket(index: int, rate: Rate, limits: Limits) -> list[Message]:
    """What limits a link: one token bucket, or with subnets a class that is limited and one that is not."""
    if not limits.subnets:
        return [tc.tbf(index, rate=rate.rate, burst=rate.burst, limit=rate.limit)]
    buffer = tc.buffer_ticks(rate.rate, rate.burst)
    default, matched = (_SHAPED, _UNSHAPED_CLASS) if limits.spared else (_UNSHAPED, _SHAPED_CLASS)
    return [
        tc.htb(index, default=default),
        tc.htb_class(index, _SHAPED_CLASS, rate=rate.rate, ceil=2 * rate.rate, buffer=buffer),
        tc.htb_class(index, _UNSHAPED_CLASS, rate=_UNLIMITED, ceil=_UNLIMITED),
        *(
            tc.steer(index, subnet, matched, priority=_PRIORITY[subnet.version])
            for subnet in dict.fromkeys(limits.subnets)
        ),
    ]


def check(kernel: Kernel, identity: Identity, host_end: Link, limits: Limits) -> list[str]:
    """What is missing or wrong of what `make` made for the same arguments, in words; empty if it is right."""
    host = kernel.route()
    faults = []
    if limits.receive is not None:
        faults += _bucket_faults(host, host_end, limits.receive, limits)
    if limits.send is None:
        return faults
    ifb = find(kernel, identity)
    if ifb is None:
        return [*faults, f"the ifb {names(identity)[0]} is missing"]
    if not ifb.up:
        faults.append(f"the ifb {ifb.name} is down")
    faults += _bucket_faults(host, ifb, limits.send, limits)
    if tc.get_qdisc(host, host_end.index, tc.INGRESS, tc.INGRESS_HANDLE) is None:
        return [*faults, f"link {host_end.name} has no ingress discipline"]
    targets = {each.redirect for each in tc.list_filters(host, host_end.index, tc.INGRESS_HANDLE)}
    if ifb.index not in targets:
        faults.append(f"no filter of {host_end.name} sends what it receives to {ifb.name}")
    return faults


def _bucket_faults(host: RouteSocket, link: Link, rate: Rate, limits: Limits) -> list[str]:
    found = tc.get_qdisc(host, link.index, tc.ROOT, _HANDLE)
    kind = "htb" if limits.subnets else "tbf"
    if found is None or found.kind != kind:
        return [f"link {link.name} has no {kind}"]
    ticks = tc.buffer_ticks(rate.rate, rate.burst)
    if found.tbf is not None:
        wanted = tc.Tbf(rate.rate, ticks, min(rate.limit, 0xFFFFFFFF))
        return [] if found.tbf == wanted else [f"the tbf of {link.name} is {found.tbf}, not {wanted}"]
    default, matched = (_SHAPED, _UNSHAPED_CLASS) if limits.spared else (_UNSHAPED, _SHAPED_CLASS)
    faults = []
    if found.default_class != default:
        faults.append(f"the htb of {link.name} has the default class {found.default_class}, not {default}")
    classes = {each.classid: (each.rate, each.buffer) for each in tc.list_classes(host, link.index)}
    if classes.get(_SHAPED_CLASS) != (rate.rate, ticks):
        faults.append(f"the class 1:{_SHAPED:x} of {link.name} is missing or has another rate or burst")
    if classes.get(_UNSHAPED_CLASS, (0, 0))[0] != _UNLIMITED:
        faults.append(f"the class 1:{_UNSHAPED:x} of {link.name} is missing or has another rate")
    filters = {(each.keys, each.classid) for each in tc.list_filters(host, link.index, _HANDLE)}
    faults += [
        f"link {link.name} has no filter for {subnet}"
        for subnet in limits.subnets
        if (tc.destination_keys(subnet), matched) not in filters
    ]
    return faults


def find(kernel: Kernel, identity: Identity, others: Iterable[str] = ()) -> Link | None:
    """Return the attachment's ifb, or None if there is none; ``others`` are more names that it may have."""
    host = kernel.route()
    for name in dict.fromkeys((*names(identity), *others)):
        index = devices.find(host, name)
        link = links.get(host, index, details=False) if index else None
        if link is not None and _owns(identity, link):
            return link
    return None


def _owns(identity: Identity, link: Link) -> bool:
    """Tell whether an ifb is this attachment's, whatever its network is named now.

    One without an alias is the reference plugin's, or of ours was made by an ADD that was killed.
    """
    if link.kind != "ifb":
        return False
    if not link.alias:
        return link.mac == _mac(identity) or link.name == names(identity)[0]
    return _place(link.alias) == _place(identity.alias)


def _place(alias: str) -> tuple[str, ...]:
    words = alias.split(" ")
    return tuple(words[2:]) if words[0] == MARK and len(words) == 4 else ()


def remove(
    kernel: Kernel,
    identity: Identity,
    host_ends: Iterable[str] = (),
    *,
    others: Iterable[str] = (),
    deep: bool = False,
) -> None:
    """Take an attachment's limits away; what is gone already, and what others have there, is fine.

    ``host_ends`` are names that the host's end may have. ``others`` are names that the ifb may have beside
    `names`; ``deep`` looks through all ifb devices for one of a network that was renamed since.
    """
    host = kernel.route()
    ifb = find(kernel, identity, others)
    if ifb is None and deep:
        ifb = next((each for each in links.list_links(host, kind="ifb") if _owns(identity, each)), None)
    for name in dict.fromkeys(host_ends):
        _free(host, name, ifb)
    if ifb is not None:
        kernel.links.remove(ifb)


def _free(host: RouteSocket, name: str, ifb: Link | None) -> None:
    """Take the queueing disciplines from a host's end that are of our making."""
    try:
        index = devices.index(host, name)
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return
        raise
    filters = tc.list_filters(host, index, tc.INGRESS_HANDLE)
    used = [each for each in filters if each.keys]
    own = [each for each in used if each.redirect == 0 or (ifb is not None and each.redirect == ifb.index)]
    if len(own) == len(used):
        place = tc.get_qdisc(host, index, tc.INGRESS, tc.INGRESS_HANDLE)
        if place is not None and (own or place.kind == "ingress"):  # an empty one is nobody's loss
            _open(host, index)
    elif own:
        _send_tolerant(host, tc.delete_filters(index, tc.INGRESS_HANDLE, own[0].priority))
    root = tc.get_qdisc(host, index, tc.ROOT, _HANDLE)
    if root is not None and (root.kind == "tbf" or root.default_class in {_SHAPED, _UNSHAPED}):
        _lift(host, index)


def collect(kernel: Kernel, network: str, valid: Iterable[Identity]) -> None:
    """Remove the ifb devices of a network's attachments that are not ``valid``.

    The disciplines of their host's ends go with these, whose maker removes them.
    """
    kept = {identity.alias for identity in valid}
    # The alias of a long container ID has digests.
    marks = {tuple(Identity(network, length * "x", "").alias.split(" ")[:2]) for length in (1, 256)}
    doomed = [
        link
        for link in links.list_links(kernel.route(), kind="ifb")
        if tuple(link.alias.split(" ")[:2]) in marks and link.alias not in kept
    ]
    if doomed:
        kernel.links.remove(*doomed)


def probe(kernel: Kernel) -> None:
    """Make an ifb with limits and remove it again. Raises :class:`KernelError` for what the kernel lacks."""
    host = kernel.route()
    name = f"{_PREFIX}{os.urandom(6).hex()}"
    host.send(links.ifb(name))
    try:
        index = devices.index(host, name)
        host.send(
            tc.tbf(index, rate=1000, burst=1000, limit=1000), tc.ingress(index), tc.redirect(index, index)
        )
    finally:
        kernel.links.remove(name)
