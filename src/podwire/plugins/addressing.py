"""What an interface inside a container gets: sysctls, addresses and routes, whatever kind of link it is."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Interface

from podwire.cni.errors import CNIError, TryLater
from podwire.cni.plugin import IPConfig, Route
from podwire.kernel import addresses, links, routes, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.links import AddrGenMode
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.plugins import parsed
from podwire.plugins.failures import KERNEL
from podwire.plugins.parsed import IPInterface, IPNetwork

OPERATIONAL = ("up", "unknown")
"""The operational states in which packets pass: netif_oper_up() in linux/netdevice.h."""
_CARRIER_SECONDS = 2.0
_DAD_SECONDS = 5.0
_ON_LINK = ("0.0.0.0", "::")
_TICK = 0.0005


def write_sysctls(ifname: str, ips: Sequence[IPConfig], *, dad: bool = False) -> None:
    """Keep routers' advertisements out, and have IPv6 where it is wanted; in the calling thread's namespace.

    To be done before the link is up: from then on an advertisement would be taken. Raises
    :class:`KernelError`.
    """
    conf = f"net/ipv6/conf/{ifname}"
    values = {f"{conf}/accept_ra": 0, f"{conf}/autoconf": 0}
    wanted = any(ip.family == 6 for ip in ips)
    if wanted:
        if dad:
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


def requests(
    index: int,
    local: IPv6Interface | str,
    ips: Sequence[IPConfig],
    wanted_routes: Sequence[Route],
    *,
    dad: bool = False,
    announce: bool = False,
    prefix_routes: bool = True,
    before_routes: Sequence[Message] = (),
) -> list[Message]:
    """Return what gives a link its addresses, sets it up and adds its routes.

    ``local`` is its link-local address, or the MAC that it follows from, given where it has another IPv6
    address. ``announce`` has the link tell its IPv4 addresses to its neighbours when they are given (the
    sysctl arp_notify). Without ``prefix_routes`` no address brings the route to its subnet; then
    ``before_routes``, sent first, lead to the gateways.
    """
    messages = [links.configure(index, addr_gen_mode=AddrGenMode.NONE, arp_notify=announce or None)]
    wanted: list[IPInterface] = [parsed.interface(ip.address) for ip in ips]
    if any(one.version == 6 for one in wanted):
        if isinstance(local, str):
            local = link_local(local)
        messages.append(addresses.add(index, local, nodad=not dad, scope=addresses.SCOPE_LINK))
    messages += [
        addresses.add(index, one, nodad=not dad, broadcast=broadcast(one), prefix_route=prefix_routes)
        for one in wanted
    ]
    messages += [links.configure(index, up=True), *before_routes]
    reached = [one.network for one in wanted] if prefix_routes else []
    reached += [parsed.network(ip.gateway) for ip in ips if ip.gateway and not prefix_routes]
    messages += [_route(index, route, reached) for route in effective_routes(wanted_routes, ips)]
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

    A route without a gateway takes the first gateway of its family that an address has; one by the
    unspecified address, as dhcp tells it, leads to the link itself.
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
        if gateway in _ON_LINK:
            gateway = ""
        result.append(
            Route(route.dst, gateway, route.mtu, route.advmss, route.priority, route.table, route.scope)
        )
    return result


def _route(index: int, route: Route, reached: Sequence[IPNetwork]) -> Message:
    gateway = parsed.address(route.gw) if route.gw else None
    onlink = gateway is not None and not gateway.is_link_local and not any(gateway in one for one in reached)
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


def wait_until_up(
    sock: RouteSocket, target: str, fine: tuple[str, ...] = ("up",), *, after: Sequence[Message] = ()
) -> None:
    """Wait until packets pass: the kernel drops them until it has noticed the carrier (below 1 ms).

    ``after`` are sent first, in one system call with the first question. Raises :class:`KernelError` for
    them, and TryLater if packets do not pass after 2 s.
    """
    limit = time.monotonic() + _CARRIER_SECONDS
    while True:
        operstate, carrier = links.state(sock, target, *after)
        after = ()
        if carrier and operstate in fine:
            return
        if time.monotonic() > limit:
            raise TryLater(f"link {target} has no carrier after {_CARRIER_SECONDS:.0f} s")
        time.sleep(_TICK)


def wait_until_local(inside: RouteSocket, index: int, ips: Sequence[IPConfig]) -> None:
    """Wait until the kernel takes packets to each address for its own.

    It adds the local route of an IPv6 address from a work queue, whose turn comes late on a busy machine.
    Raises TryLater if that has not happened after 2 s.
    """
    wanted = {parsed.interface(ip.address).ip for ip in ips if ip.family == 6}
    limit = time.monotonic() + _CARRIER_SECONDS
    while wanted:
        local = routes.list_routes(inside, 6, routes.TABLE_LOCAL)
        wanted -= {route.destination.network_address for route in local if route.device == index}
        if wanted and time.monotonic() > limit:
            told = ", ".join(map(str, wanted))
            raise TryLater(f"no packets to {told} after {_CARRIER_SECONDS:.0f} s")
        if wanted:
            time.sleep(_TICK)


def wait_for_dad(inside: RouteSocket, index: int) -> None:
    """Wait until duplicate address detection has ended. Raises CNIError if it found another owner."""
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
