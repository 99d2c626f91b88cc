"""The veth pair of a `podwire` network: made by one batch of requests in each namespace, verified, mended.

Routed, the host has a route and a permanent neighbour for each address of the pod, and the pod a permanent
neighbour for its gateway, which is nobody's address: nothing is ever asked on the wire, and the neighbour
table's limits (gc_thresh) do not count permanent entries. On a bridge, the host's end is a port.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import msgspec

from podwire.cni.errors import CNIError, TryLater
from podwire.cni.plugin import IPConfig, Route
from podwire.kernel import devices, links, neighbours, outgoing, routes, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.plugins import addressing, attachment, parsed, spoofing
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL, undone_on_failure
from podwire.plugins.parsed import IPAddress, IPNetwork

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel
    from podwire.kernel.netns import Netns

GATEWAYS = {4: "169.254.1.1", 6: "fe80::1"}
"""The gateways of routed pods, by IP version; no interface has these addresses."""
_LOCAL_SECONDS = 2.0
_TICK = 0.0005
_ROUTED = "pwr"  # the chains guard and routed of table.nft know the host ends by it


class PodIdentity(Identity, frozen=True):
    """An attachment of a `podwire` network; the name of its host end tells the mode and whose it is."""

    routed: bool = True

    @property
    def host_end(self) -> str:
        """The name of the host's end: all 15 characters, the same for the same container and interface."""
        prefix = _ROUTED if self.routed else spoofing.PREFIX
        return prefix + self._digest(15 - len(prefix))


class Ends(msgspec.Struct, frozen=True):
    """What the pair of an attachment is to be. ``bridge`` is None for a routed pod.

    ``localnet`` lets 127.0.0.0/8 out to the pod, by the host's end or the bridge.
    """

    identity: PodIdentity
    mac: str
    mtu: int
    ips: tuple[IPConfig, ...]
    routes: tuple[Route, ...] = ()
    bridge: Link | None = None
    hairpin: bool = False
    localnet: bool = False


def make(
    kernel: Kernel, container: Netns, ends: Ends, before_up: Callable[[Link], None] | None = None
) -> None:
    """Make the pair, all of it or nothing, and wait until packets pass.

    ``before_up`` is called with the host's end while that is down: a queueing discipline made then has
    nothing to wait for, where one of a device that is up waits for all processors to see it stopped.
    Raises :class:`KernelError`, EEXIST if either name is taken, and CNIError for a wait that ends.
    """
    identity, host = ends.identity, kernel.route()
    with undone_on_failure() as undo:
        inside = container.run(lambda: _make_inside(kernel, ends, undo))
        with inside:
            index = devices.index(host, identity.host_end)
            if before_up is not None:
                before_up(Link(index, identity.host_end, "veth", identity.host_mac, ends.mtu))
            addressing.wait_until_up(host, identity.host_end, after=_outside(index, ends))
            addressing.wait_until_up(inside, identity.ifname)
            _wait_until_local(inside, ends.ips)
            if ends.bridge is not None and ends.bridge.operstate not in addressing.OPERATIONAL:
                _wait_for_bridge(host, ends.bridge)


def _wait_for_bridge(host: RouteSocket, bridge: Link) -> None:
    """Wait for its first port, unless it builds a spanning tree, which takes half a minute."""
    link = links.get(host, bridge.index)
    if link is None or not link.data.get("stp"):
        addressing.wait_until_up(host, bridge.name, addressing.OPERATIONAL)


def _wait_until_local(inside: RouteSocket, ips: Iterable[IPConfig]) -> None:
    """Wait for the IPv6 addresses' local routes, which the kernel adds by work of its own, below 1 ms."""
    limit = time.monotonic() + _LOCAL_SECONDS
    for one in _addresses(ip for ip in ips if ip.family == 6):
        while not outgoing.is_local(inside, one):
            if time.monotonic() > limit:
                raise TryLater(f"address {one} is not in use after {_LOCAL_SECONDS:.0f} s")
            time.sleep(_TICK)


def _make_inside(kernel: Kernel, ends: Ends, undo: list[Callable[[], object]]) -> RouteSocket:
    """Make the pair and all of the pod's end in one batch; return a socket in the pod's namespace.

    The sysctls come after it, and still before there is a carrier: until the host's end is up nothing is
    received, and nothing is sent.
    """
    inside = RouteSocket.open()
    try:
        try:
            attachment.make_pair(
                kernel,
                inside,
                ends.identity,
                undo,
                mac=ends.mac,
                mtu=ends.mtu,
                within=lambda index: _within(ends, index),
            )
        except KernelError as error:
            if error.errno != errno.EACCES or all(ip.family == 4 for ip in ends.ips):
                raise
            # The namespace came with IPv6 switched off for new interfaces.
            sysctl.write(f"net/ipv6/conf/{ends.identity.ifname}/disable_ipv6", 0)
            inside.send(*_within(_ipv6_of(ends), devices.index(inside, ends.identity.ifname)))
        _keep_advertisements_out(ends)
    except BaseException:
        inside.close()
        raise
    return inside


def _within(ends: Ends, index: int) -> list[Message]:
    if ends.bridge is not None:
        return addressing.requests(index, ends.mac, ends.ips, ends.routes)
    gateways = [parsed.address(gateway) for gateway in dict.fromkeys(ip.gateway for ip in ends.ips)]
    # Appended: another interface of the container may be routed as well.
    reach = [routes.add(ip_network(one), device=index, append=True) for one in gateways if one.version == 4]
    return [
        *addressing.requests(
            index, ends.mac, ends.ips, ends.routes, prefix_routes=False, before_routes=reach
        ),
        *(neighbours.add(index, one, ends.identity.host_mac) for one in gateways),
    ]


def _ipv6_of(ends: Ends) -> Ends:
    return msgspec.structs.replace(
        ends,
        ips=tuple(ip for ip in ends.ips if ip.family == 6),
        routes=tuple(route for route in ends.routes if route.family == 6),
    )


def _keep_advertisements_out(ends: Ends) -> None:
    ipv6 = any(ip.family == 6 for ip in ends.ips)
    if ends.bridge is None and not ipv6:
        return  # on this wire is only the host, which sends none
    conf = f"net/ipv6/conf/{ends.identity.ifname}"
    values = {f"{conf}/accept_ra": 0, f"{conf}/autoconf": 0}
    if ipv6:
        values |= {f"{conf}/keep_addr_on_down": 1, f"{conf}/ndisc_notify": 1}
    try:
        sysctl.write_all(values)
    except KernelError as error:
        if ipv6 or error.errno != errno.ENOENT:  # a kernel without IPv6
            raise


def _outside(index: int, ends: Ends) -> list[Message]:
    messages = [links.configure(index, addr_gen_mode=AddrGenMode.NONE)]
    return messages + _joining(index, ends)


def _joining(index: int, ends: Ends, *, again: bool = False) -> list[Message]:
    """Name the host's end and set it up, as a port or as the way to the pod's addresses.

    A route that another pod has is EEXIST, unless this is done ``again``.
    """
    alias = ends.identity.alias
    if ends.bridge is not None:
        messages = [links.configure(index, alias=alias, master=ends.bridge.index, up=True)]
        if ends.hairpin:
            messages.append(links.bridge_port(index, hairpin=True))
        if ends.localnet:
            messages.append(links.configure(ends.bridge.index, route_localnet=True))
        return messages
    messages = [links.configure(index, alias=alias, route_localnet=ends.localnet or None, up=True)]
    for one in _addresses(ends.ips):
        messages.append(routes.add(ip_network(one), device=index, replace=again))
        messages.append(neighbours.add(index, one, ends.mac))
    return messages


def mend(kernel: Kernel, ends: Ends) -> None:
    """Make the host's side again as `make` made it. Raises :class:`KernelError`, ENODEV without the pair."""
    host = kernel.route()
    index = devices.index(host, ends.identity.host_end)
    host.send(*_joining(index, ends, again=True))


def _addresses(ips: Iterable[IPConfig]) -> list[IPAddress]:
    return [parsed.interface(ip.address).ip for ip in ips]


def routed(ip: IPConfig) -> IPConfig:
    """An address as a routed pod has it: alone, behind the gateway that is nobody."""
    bare = ip.address.partition("/")[0]
    return IPConfig(f"{bare}/{128 if ip.family == 6 else 32}", GATEWAYS[ip.family], 1)


def find(kernel: Kernel, identities: Iterable[Identity]) -> Link | None:
    """Return the host's end that an attachment has under one of these names, or None."""
    for identity in identities:
        link = attachment.find(kernel, identity)
        if link is not None:
            return link
    return None


def verify_host_end(kernel: Kernel, link: Link, ends: Ends) -> None:
    """Verify the host's end: up, and a port, or with its routes and neighbours. Raises CNIError (100)."""
    faults = host_faults(kernel, link, ends)
    if faults:
        raise CNIError("; ".join(faults), code=KERNEL)


def host_faults(kernel: Kernel, link: Link, ends: Ends) -> list[str]:
    """What is missing or wrong of the host's end, in words."""
    name = link.name
    faults = [] if link.up else [f"host end {name}: is down"]
    if ends.bridge is not None:
        if link.master != ends.bridge.index:
            faults.append(f"host end {name}: is no port of bridge {ends.bridge.name}")
        elif bool(link.port.get("hairpin")) != ends.hairpin:
            faults.append(f"host end {name}: its port has hairpin {'off' if ends.hairpin else 'on'}")
        return faults
    key = f"net/ipv4/conf/{name}/route_localnet"
    if ends.localnet and sysctl.read(key, kernel.netns) != "1":
        faults.append(f"{key} is off")
    host = kernel.route()
    ways = _routes_by(host, link.index, ends.ips)
    known = {one.address: one for one in neighbours.list_neighbours(host, link.index)}
    for one in _addresses(ends.ips):
        if ip_network(one) not in ways:
            faults.append(f"host end {name}: the route to {one} is missing")
        found = known.get(one)
        if found is None or found.mac != ends.mac or not found.state & neighbours.PERMANENT:
            faults.append(f"host end {name}: the neighbour {one} at {ends.mac} is missing")
    return faults


def verify_gateways(container: Netns, ends: Ends) -> None:
    """Verify a routed pod's neighbours, and the route to the IPv4 one. Raises CNIError (100)."""
    ifname, host_mac = ends.identity.ifname, ends.identity.host_mac
    with RouteSocket.open(container) as inside:
        index = devices.index(inside, ifname)
        known = {one.address: one for one in neighbours.list_neighbours(inside, index)}
        ways = _routes_by(inside, index, ends.ips)
    for gateway in dict.fromkeys(ip_address(ip.gateway) for ip in ends.ips):
        found = known.get(gateway)
        if found is None or found.mac != host_mac or not found.state & neighbours.PERMANENT:
            raise CNIError(
                f"interface {ifname}: the neighbour {gateway} at {host_mac} is missing", code=KERNEL
            )
        if gateway.version == 4 and ip_network(gateway) not in ways:
            raise CNIError(f"interface {ifname}: the route to {gateway} is missing", code=KERNEL)


def _routes_by(sock: RouteSocket, index: int, ips: Sequence[IPConfig]) -> set[IPNetwork]:
    return {
        one.destination
        for family in {ip.family for ip in ips}
        for one in routes.list_routes(sock, family, routes.TABLE_MAIN)
        if one.device == index
    }
