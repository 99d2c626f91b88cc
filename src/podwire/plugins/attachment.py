"""A container's end and the host's end of one veth pair on a bridge: made, verified, found again and removed.

Both names are known without any record: the container's is asked for, the host's follows from the
container's ID and interface. The host's end carries an alias that says whose it is, so that a DEL without a
namespace, a garbage collection or a person finds it.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv6Address,
    IPv6Interface,
)

import msgspec

from podwire.cni.errors import CNIError, TryLater
from podwire.cni.plugin import IPConfig, Route
from podwire.kernel import addresses, devices, links, neighbours, routes, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import parsed
from podwire.plugins.failures import KERNEL, open_netns_if_there, undone_on_failure
from podwire.plugins.parsed import IPInterface

MARK = "podwire"
"""The first word of the alias of everything that is ours."""
_ALIAS_BYTES = 255
_CARRIER_SECONDS = 2.0
_OPERATIONAL = ("up", "unknown")  # netif_oper_up() in linux/netdevice.h
_DAD_SECONDS = 5.0
_TICK = 0.0005


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

    def _digest(self, length: int) -> str:
        return _digest(f"{self.container_id} {self.ifname}", length)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:length]


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


def attach(kernel: Kernel, container: Netns, plan: Plan) -> None:
    """Make the pair, all of it or nothing. Raises :class:`KernelError`, or CNIError for a wait that ends."""
    identity = plan.identity
    with undone_on_failure() as undo:
        try:
            inside, index = container.run(lambda: _create(kernel, plan))
        except KernelError as error:
            if error.errno != errno.EEXIST:  # of either name: then it is not of our making
                undo.append(lambda: detach(kernel, identity))
            raise
        undo.append(lambda: detach(kernel, identity))
        with inside:
            _configure(kernel.route(), inside, index, plan)


def _configure(host: RouteSocket, inside: RouteSocket, index: int, plan: Plan) -> None:
    if plan.up:
        inside.send(*_container_end(index, plan))
    host.send(*_host_end(plan))
    _forget_neighbours(host, plan)
    if plan.up:
        _wait_until_up(inside, plan.identity.ifname)
        _wait_until_up(host, plan.identity.host_end)
        if plan.bridge.operstate not in _OPERATIONAL and not _spans(host, plan.bridge):
            _wait_until_up(host, plan.bridge.name, _OPERATIONAL)
        if plan.dad:
            _wait_for_dad(inside, index)


def _spans(host: RouteSocket, bridge: Link) -> bool:
    """Tell whether a bridge builds a spanning tree, and so has a carrier only half a minute later."""
    link = links.get(host, bridge.index)
    return link is not None and bool(link.data.get("stp"))


def _create(kernel: Kernel, plan: Plan) -> tuple[RouteSocket, int]:
    """Make the pair from inside the container's namespace; return a socket there and the end's index.

    The sysctls come before the link is up: from then on a router's advertisement would be taken.
    """
    identity = plan.identity
    inside = RouteSocket.open()
    try:
        inside.send(
            links.veth(
                identity.ifname,
                identity.host_end,
                peer_netns=kernel.netns,
                mac=plan.mac,
                peer_mac=identity.host_mac,
                mtu=plan.mtu or None,
            )
        )
        _write_sysctls(plan)
        index = devices.index(inside, identity.ifname)
    except BaseException:
        inside.close()
        raise
    return inside, index


def _write_sysctls(plan: Plan) -> None:
    conf = f"net/ipv6/conf/{plan.identity.ifname}"
    values = {f"{conf}/accept_ra": 0, f"{conf}/autoconf": 0}
    if any(ip.family == 4 for ip in plan.ips):
        sysctl.write(f"net/ipv4/conf/{plan.identity.ifname}/arp_notify", 1)
    wanted = any(ip.family == 6 for ip in plan.ips)
    if wanted:
        if plan.dad:
            values[f"{conf}/accept_dad"] = 1
        values |= {
            f"{conf}/disable_ipv6": 0,
            f"{conf}/keep_addr_on_down": 1,
            f"{conf}/ndisc_notify": 1,
        }
    try:
        sysctl.write_all(values)
    except KernelError as error:
        if wanted or error.errno != errno.ENOENT:  # a kernel without IPv6
            raise


def _container_end(index: int, plan: Plan) -> list[Message]:
    messages = [links.configure(index, addr_gen_mode=AddrGenMode.NONE)]
    wanted: list[IPInterface] = [parsed.interface(ip.address) for ip in plan.ips]
    if any(one.version == 6 for one in wanted):
        messages.append(
            addresses.add(index, link_local(plan.mac), nodad=not plan.dad, scope=addresses.SCOPE_LINK)
        )
    messages += [addresses.add(index, one, nodad=not plan.dad, broadcast=broadcast(one)) for one in wanted]
    messages.append(links.configure(index, up=True))
    messages += [_route(index, route, wanted) for route in effective_routes(plan.routes, plan.ips)]
    return messages


def broadcast(one: IPInterface) -> IPv4Address | None:
    """Return the broadcast address that goes with an address; ``None`` in IPv6 and where there is none."""
    if one.version == 4 and one.network.prefixlen < 31:
        return one.network.broadcast_address
    return None


def link_local(mac: str) -> IPv6Interface:
    """Return the link-local address of a MAC (RFC 4291 appendix A)."""
    raw = bytes.fromhex(mac.replace(":", ""))
    host = bytes((raw[0] ^ 0x02, *raw[1:3], 0xFF, 0xFE, *raw[3:]))
    return IPv6Interface((IPv6Address(b"\xfe\x80" + bytes(6) + host), 64))


def effective_routes(wanted: Iterable[Route], ips: Sequence[IPConfig]) -> list[Route]:
    """Return the routes to install: gateways filled in, the first of equal ones, no connected prefixes.

    A route without a gateway takes the first gateway of its family that an address has.
    """
    gateways = {ip.family: ip.gateway for ip in reversed(ips) if ip.gateway}
    seen: set[tuple[object, ...]] = {
        (parsed.interface(ip.address).network, 0, None) for ip in ips if ip.family == 4
    }
    result = []
    for route in wanted:
        key = (parsed.network(route.dst), route.priority, route.table)
        if key in seen:
            continue
        seen.add(key)
        gateway = route.gw or ("" if route.scope == routes.SCOPE_LINK else gateways.get(route.family, ""))
        result.append(
            Route(route.dst, gateway, route.mtu, route.advmss, route.priority, route.table, route.scope)
        )
    return result


def _route(index: int, route: Route, own: Sequence[IPInterface]) -> Message:
    gateway = parsed.address(route.gw) if route.gw else None
    onlink = (
        gateway is not None and not gateway.is_link_local and not any(gateway in one.network for one in own)
    )
    return routes.add(
        parsed.network(route.dst),
        device=index,
        gateway=gateway,
        table=routes.TABLE_MAIN if route.table is None else route.table,
        scope=route.scope,
        metric=route.priority or None,
        mtu=route.mtu or None,
        advmss=route.advmss or None,
        onlink=onlink,
        append=True,  # another interface of the container may have a default route too
    )


def _host_end(plan: Plan) -> list[Message]:
    return [
        links.configure(plan.identity.host_end, addr_gen_mode=AddrGenMode.NONE),
        *_joining(plan.identity, plan.bridge, plan.hairpin, plan.isolated),
    ]


def _joining(identity: Identity, bridge: Link, hairpin: bool, isolated: bool) -> list[Message]:
    name = identity.host_end
    messages = [links.configure(name, alias=identity.alias, master=bridge.index, up=True)]
    if hairpin or isolated:
        messages.append(links.bridge_port(name, hairpin=hairpin or None, isolated=isolated or None))
    return messages


def rejoin(kernel: Kernel, identity: Identity, bridge: Link, *, hairpin: bool, isolated: bool) -> None:
    """Make the host's end a port of the bridge again, and up. Raises :class:`KernelError`."""
    kernel.route().send(*_joining(identity, bridge, hairpin, isolated))


def _forget_neighbours(host: RouteSocket, plan: Plan) -> None:
    """Drop what the host remembers of these addresses' earlier holders, where their MAC may differ."""
    for ip in plan.ips if plan.mac_given else plan.ips[1:]:
        try:
            host.send(neighbours.delete(plan.bridge.index, parsed.interface(ip.address).ip))
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise


def _wait_until_up(sock: RouteSocket, target: str, fine: tuple[str, ...] = ("up",)) -> None:
    """Wait until packets pass: the kernel drops them until it has noticed the carrier (below 1 ms)."""
    limit = time.monotonic() + _CARRIER_SECONDS
    while True:
        operstate, carrier = links.state(sock, target)
        if carrier and operstate in fine:
            return
        if time.monotonic() > limit:
            raise TryLater(f"link {target} has no carrier after {_CARRIER_SECONDS:.0f} s")
        time.sleep(_TICK)


def _wait_for_dad(inside: RouteSocket, index: int) -> None:
    limit = time.monotonic() + _DAD_SECONDS
    while True:
        held = addresses.list_addresses(inside, index)
        for one in held:
            if one.duplicate:
                raise CNIError(f"address {one.address.ip} is in use by another station", code=KERNEL)
        waiting = [str(one.address.ip) for one in held if one.tentative]
        if not waiting:
            return
        if time.monotonic() > limit:
            raise TryLater(
                f"duplicate address detection of {', '.join(waiting)} has not ended in {_DAD_SECONDS:.0f} s"
            )
        time.sleep(0.02)


def find(kernel: Kernel, identity: Identity) -> Link | None:
    """Return the attachment's host end, or ``None`` if there is none that is ours."""
    host = kernel.route()
    try:
        devices.flags(host, identity.host_end)
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    link = links.get(host, identity.host_end)
    return link if link is not None and identity.owns(link) else None


def detach(kernel: Kernel, identity: Identity) -> bool:
    """Remove the pair by its host end, wherever the other end is and whatever its name.

    False if there is none.
    """
    link = links.get(kernel.route(), identity.host_end, details=False)
    # Killed between making the pair and naming it: no alias yet, but no other maker uses this name and MAC.
    if link is not None and (identity.owns(link) or (not link.alias and link.mac == identity.host_mac)):
        kernel.links.remove(link)
        return True
    return False


def detach_foreign(netns: str, ifname: str, mac: str) -> None:
    """Remove a veth that another plugin made: by its name in the namespace, if its MAC is as expected."""
    container = open_netns_if_there(netns)
    if container is None:
        return
    with container, RouteSocket.open(container) as inside:
        link = links.get(inside, ifname, details=False)
        if link is not None and link.kind == "veth" and link.mac == mac.lower():
            inside.send(links.delete(link.index))


def host_ends(kernel: Kernel, network: str) -> list[Link]:
    """Return the host ends of all attachments of a network."""
    marks = (f"{MARK} {network} ", f"{MARK} {_digest(network, 40)} ")
    return [link for link in links.list_links(kernel.route(), kind="veth") if link.alias.startswith(marks)]
