"""A container's end and the host's end of one veth pair on a bridge: made, verified, found again and removed.

Both names are known without any record: the container's is asked for, the host's follows from the
container's ID and interface. The host's end carries an alias that says whose it is, so that a DEL without a
namespace, a garbage collection or a person finds it.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeAlias

import msgspec

from podwire.cni.plugin import IPConfig, Route
from podwire.kernel import devices, links, neighbours
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import addressing, parsed
from podwire.plugins.failures import open_netns_if_there, undone_on_failure

MARK = "podwire"
"""The first word of the alias of everything that is ours."""
_ALIAS_BYTES = 255


class Identity(msgspec.Struct, frozen=True):
    """Which attachment: a container's interface on a network."""

    network: str
    container_id: str
    ifname: str

    @property
    def host_end(self) -> str:
        """The name of the host's end: all 15 characters, the same for the same container and interface."""
        return "veth" + self._digest(11)

    @property
    def alias(self) -> str:
        """The alias of the host's end."""
        text = f"{MARK} {self.network} {self.container_id} {self.ifname}"
        if len(text) <= _ALIAS_BYTES:
            return text
        # Long identifiers are legal; of those the alias keeps a digest.
        return f"{MARK} {_digest(self.network, 40)} {_digest(self.container_id, 40)} {self.ifname}"

    @property
    def host_mac(self) -> str:
        """The host end's MAC, set when it is made so that no manager of names and MACs changes it."""
        return _mac(f"host {self.container_id} {self.ifname}")

    def owns(self, link: Link) -> bool:
        """Tell whether a link of the host is this attachment's end."""
        return link.kind == "veth" and link.alias == self.alias

    def left(self, link: Link) -> bool:
        """Tell whether a link of the name `host_end` is what the attachment left, finished or not.

        Killed between making the pair and naming it, it has no alias yet; but no other maker uses this name
        and MAC.
        """
        return self.owns(link) or (not link.alias and link.mac == self.host_mac)

    def _digest(self, length: int) -> str:
        return _digest(f"{self.container_id} {self.ifname}", length)


@lru_cache(maxsize=256)
def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:length]


@lru_cache(maxsize=256)
def _mac(text: str) -> str:
    raw = bytearray(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:6])
    raw[0] = raw[0] & 0xFC | 0x02  # locally administered, one station
    return raw.hex(":")


def mac_for(identity: Identity, ips: Sequence[IPConfig]) -> str:
    """Return the MAC of a container's end that has these addresses.

    It follows from the first one: the next holder of an address has its MAC as well, and what a neighbour
    remembers stays right.
    """
    own = f"container {identity.container_id} {identity.ifname}"
    return _mac(f"address {ips[0].address}" if ips else own)


Within: TypeAlias = Callable[[int], Sequence[Message]]
"""What the container's end, of that index, gets."""
PortRequests: TypeAlias = Callable[[int], list[Message]]
"""What the host's end, of that index, needs besides once it is a port of the bridge, before it is up."""


class Plan(msgspec.Struct, frozen=True):
    """What an attachment is to be. ``mac_given`` is whether the user chose the MAC."""

    identity: Identity
    bridge: Link
    mac: str
    mac_given: bool
    mtu: int
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    hairpin: bool = False
    isolated: bool = False
    dad: bool = False
    up: bool = True
    port: PortRequests | None = None


@contextmanager
def pair(
    kernel: Kernel,
    container: Netns,
    identity: Identity,
    *,
    mac: str,
    mtu: int = 0,
    ips: Sequence[IPConfig] = (),
    dad: bool = False,
    within: Within | None = None,
) -> Iterator[tuple[RouteSocket, int]]:
    """Have the pair there, its host's end down; if the block fails, it goes again.

    Yields a socket in the container's namespace and the index of the end there, whose sysctls fit ``ips``.
    ``within`` tells what that end gets; without, it is down.
    Raises :class:`KernelError`, EEXIST if either name is taken.
    """
    with undone_on_failure() as undo:
        inside, index = container.run(
            lambda: _create(kernel, identity, undo, mac=mac, mtu=mtu, ips=ips, dad=dad, within=within)
        )
        with inside:
            yield inside, index


def make_pair(
    kernel: Kernel,
    inside: RouteSocket,
    identity: Identity,
    undo: list[Callable[[], object]],
    *,
    mac: str,
    mtu: int = 0,
    within: Within | None = None,
) -> int:
    """Make the pair from inside the container's namespace; return the index of the end there.

    ``within`` tells what that end gets in the same batch. ``undo`` gets the step that removes the pair,
    whatever failed of it, but not if another link has one of its names. Raises :class:`KernelError`.
    """
    # Of a namespace where only the runtime, and in turn, makes interfaces.
    index = devices.free_index(inside)
    pair = links.veth(
        identity.ifname,
        identity.host_end,
        index=index,
        peer_netns=kernel.netns,
        mac=mac,
        peer_mac=identity.host_mac,
        mtu=mtu or None,
    )
    try:
        inside.send(pair, *(within(index) if within is not None else ()))
    except KernelError as error:
        if error.errno != errno.EEXIST or devices.exists(inside, index):
            undo.append(lambda: detach(kernel, identity))
        raise
    undo.append(lambda: detach(kernel, identity))
    return index


def attach(kernel: Kernel, container: Netns, plan: Plan) -> None:
    """Make the pair, all of it or nothing. Raises :class:`KernelError`, or CNIError for a wait that ends."""

    def within(index: int) -> list[Message]:
        announce = bool(plan.ips)
        return addressing.requests(index, plan.mac, plan.ips, plan.routes, dad=plan.dad, announce=announce)

    with pair(
        kernel,
        container,
        plan.identity,
        mac=plan.mac,
        mtu=plan.mtu,
        ips=plan.ips,
        dad=plan.dad,
        within=within if plan.up else None,
    ) as (inside, index):
        _configure(kernel.route(), inside, index, plan)


def _configure(host: RouteSocket, inside: RouteSocket, index: int, plan: Plan) -> None:
    if plan.up:
        addressing.wait_until_up(host, plan.identity.host_end, after=_host_end(host, plan))
    else:
        host.send(*_host_end(host, plan))
    _forget_neighbours(host, plan)
    if plan.up:
        addressing.wait_until_up(inside, plan.identity.ifname)
        if plan.bridge.operstate not in addressing.OPERATIONAL and not _spans(host, plan.bridge):
            addressing.wait_until_up(host, plan.bridge.name, addressing.OPERATIONAL)
        if plan.dad:
            addressing.wait_for_dad(inside, index)
        addressing.wait_until_local(inside, index, plan.ips)


def _spans(host: RouteSocket, bridge: Link) -> bool:
    """Tell whether a bridge builds a spanning tree, and so has a carrier only half a minute later."""
    link = links.get(host, bridge.index)
    return link is not None and bool(link.data.get("stp"))


def _create(
    kernel: Kernel,
    identity: Identity,
    undo: list[Callable[[], object]],
    *,
    mac: str,
    mtu: int,
    ips: Sequence[IPConfig],
    dad: bool,
    within: Within | None,
) -> tuple[RouteSocket, int]:
    """Make the pair and the container's end; return a socket in the container's namespace and its index.

    The sysctls come before there is a carrier, from which on a router's advertisement would be taken, and
    before the first IPv6 address.
    """
    late = within if any(ip.family == 6 for ip in ips) else None
    inside = RouteSocket.open()
    try:
        index = make_pair(kernel, inside, identity, undo, mac=mac, mtu=mtu, within=None if late else within)
        addressing.write_sysctls(identity.ifname, ips, dad=dad)
        if late is not None:
            inside.send(*late(index))
    except BaseException:
        inside.close()
        raise
    return inside, index


def _host_end(host: RouteSocket, plan: Plan) -> list[Message]:
    return [
        links.configure(plan.identity.host_end, addr_gen_mode=AddrGenMode.NONE),
        *_joining(
            host, plan.identity, plan.bridge, hairpin=plan.hairpin, isolated=plan.isolated, port=plan.port
        ),
    ]


def _joining(
    host: RouteSocket,
    identity: Identity,
    bridge: Link,
    *,
    hairpin: bool,
    isolated: bool,
    port: PortRequests | None,
) -> list[Message]:
    name = identity.host_end
    up = None if port else True
    messages = [links.configure(name, alias=identity.alias, master=bridge.index, up=up)]
    if hairpin or isolated:
        messages.append(links.bridge_port(name, hairpin=hairpin or None, isolated=isolated or None))
    if port:
        messages += [*port(devices.index(host, name)), links.configure(name, up=True)]
    return messages


def rejoin(
    kernel: Kernel,
    identity: Identity,
    bridge: Link,
    *,
    hairpin: bool,
    isolated: bool,
    port: PortRequests | None = None,
) -> None:
    """Make the host's end a port of the bridge again, and up. Raises :class:`KernelError`."""
    host = kernel.route()
    host.send(*_joining(host, identity, bridge, hairpin=hairpin, isolated=isolated, port=port))


def _forget_neighbours(host: RouteSocket, plan: Plan) -> None:
    """Drop what the host remembers of these addresses' earlier holders, where their MAC may differ."""
    for ip in plan.ips if plan.mac_given else plan.ips[1:]:
        try:
            host.send(neighbours.delete(plan.bridge.index, parsed.interface(ip.address).ip))
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise


def find(kernel: Kernel, identity: Identity) -> Link | None:
    """Return the attachment's host end, or ``None`` if there is none that is ours."""
    host = kernel.route()
    if not devices.find(host, identity.host_end):
        return None
    link = links.get(host, identity.host_end)
    return link if link is not None and identity.owns(link) else None


def detach(kernel: Kernel, identity: Identity) -> bool:
    """Remove the pair by its host end, wherever the other end is and whatever its name.

    False if there is none, or if another caller removes it at this moment.
    """
    from podwire.kernel.removal import Candidate

    index = devices.find(kernel.route(), identity.host_end)
    if not index:
        return False
    found: list[Link] = []

    def ours(link: Link) -> bool:
        if identity.left(link):
            found.append(link)
        return bool(found)

    kernel.links.remove(Candidate(index, identity.host_end, ours))
    return bool(found)


def detach_foreign(netns: str, ifname: str, mac: str) -> None:
    """Remove a veth that another plugin made: by its name in the namespace, if its MAC is as expected."""
    container = open_netns_if_there(netns)
    if container is None:
        return
    with container, RouteSocket.open(container) as inside:
        link = links.get(inside, ifname, details=False)
        if link is not None and link.kind == "veth" and link.mac == mac.lower():
            inside.send(links.delete(link.index))


def marks(network: str) -> tuple[str, str]:
    """Return what the aliases of a network's attachments begin with."""
    return f"{MARK} {network} ", f"{MARK} {_digest(network, 40)} "


def host_ends(kernel: Kernel, network: str) -> list[Link]:
    """Return the host ends of all attachments of a network."""
    begin = marks(network)
    return [link for link in links.list_links(kernel.route(), kind="veth") if link.alias.startswith(begin)]
