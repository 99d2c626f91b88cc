"""Routes of any table (linux/rtnetlink.h): requests that add, replace and delete them, and their list."""

from __future__ import annotations

import errno
import struct
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import msgspec

from podwire.kernel import message as nl
from podwire.kernel.attributes import BINARY, IP, U32, IPAddress, Table
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

NEWROUTE = 24
DELROUTE = 25
GETROUTE = 26

TABLE_MAIN = 254
TABLE_LOCAL = 255

SCOPE_UNIVERSE = 0
SCOPE_SITE = 200
SCOPE_LINK = 253
SCOPE_HOST = 254
SCOPE_NOWHERE = 255

PROTOCOL_KERNEL = 2
PROTOCOL_BOOT = 3
PROTOCOL_STATIC = 4

# RTN_*: what becomes of a packet that takes the route.
TYPES = {
    "unicast": 1,
    "local": 2,
    "broadcast": 3,
    "anycast": 4,
    "multicast": 5,
    "blackhole": 6,
    "unreachable": 7,
    "prohibit": 8,
    "throw": 9,
}
_TYPE_NAMES = {number: name for name, number in TYPES.items()}
_ONLINK = 4
_CLONED = 0x200
_FAMILY = {4: 2, 6: 10}

_HEADER = struct.Struct("=BBBBBBBBI")
_METRICS = Table("route metrics", mtu=(2, U32), advmss=(8, U32))
_ROUTE = Table(
    "route",
    destination=(1, IP),
    device=(4, U32),
    gateway=(5, IP),
    metric=(6, U32),
    source=(7, IP),
    metrics=(8, _METRICS),
    multipath=(9, BINARY),
    table=(15, U32),
    via=(18, BINARY),
)
_NEXTHOP = struct.Struct("=HBBi")

Network = IPv4Network | IPv6Network


class Nexthop(msgspec.Struct, frozen=True):
    """One way of a multipath route; ``weight`` counts from 1."""

    device: int
    gateway: IPAddress | None = None
    weight: int = 1


class Route(msgspec.Struct, frozen=True):
    """One route. The default route's ``destination`` is 0.0.0.0/0 or ::/0; ``device`` 0 means none."""

    destination: Network
    device: int = 0
    gateway: IPAddress | None = None
    table: int = TABLE_MAIN
    scope: int = SCOPE_UNIVERSE
    type: str = "unicast"
    protocol: int = 0
    source: IPAddress | None = None
    metric: int = 0
    mtu: int = 0
    advmss: int = 0
    onlink: bool = False
    nexthops: tuple[Nexthop, ...] = ()


def add(
    destination: Network | None,
    *,
    device: int | None = None,
    gateway: IPAddress | None = None,
    table: int = TABLE_MAIN,
    scope: int | None = None,
    source: IPAddress | None = None,
    metric: int | None = None,
    mtu: int | None = None,
    advmss: int | None = None,
    onlink: bool = False,
    replace: bool = False,
    append: bool = False,
    type: str = "unicast",
    protocol: int = PROTOCOL_STATIC,
) -> Message:
    """Add a route; None is the default route of the gateway's (or source's) family.

    ``scope`` None means link without a gateway and universe with one (IPv4; IPv6 has no scopes). ``onlink``
    takes a gateway that no prefix covers. ``replace`` takes the place of the route with the same destination,
    table and metric; ``append`` goes behind it, to be used when that one is gone (IPv4) or beside it (IPv6);
    with neither, such a route is EEXIST. An IPv4 route may have an IPv6 gateway.
    """
    network = _network(destination, gateway, source)
    if scope is None:
        if network.version == 6 or gateway is not None:
            scope = SCOPE_UNIVERSE
        else:
            scope = {"unicast": SCOPE_LINK, "local": SCOPE_HOST, "broadcast": SCOPE_LINK}.get(
                type, SCOPE_UNIVERSE
            )
    metrics = None if mtu is None and advmss is None else {"mtu": mtu, "advmss": advmss}
    flags = _ONLINK if onlink else 0
    values = _selector(network, device, gateway, table, metric)
    values["source"] = source
    values["metrics"] = metrics
    return _message(
        NEWROUTE,
        nl.PUT if replace else nl.CREATE | nl.APPEND if append else nl.MAKE,
        network,
        values,
        "add route",
        table=table,
        type_name=type,
        scope=scope,
        protocol=protocol,
        flags=flags,
    )


def again(route: Route, table: int, *, replace: bool = False, append: bool = False) -> Message:
    """Add a route as it was read, in ``table``; ``replace`` and ``append`` as for `add`."""
    return add(
        route.destination,
        device=route.device,
        gateway=route.gateway,
        table=table,
        scope=route.scope,
        source=route.source,
        metric=route.metric or None,
        mtu=route.mtu or None,
        advmss=route.advmss or None,
        onlink=route.onlink,
        replace=replace,
        append=append,
        type=route.type,
        protocol=route.protocol,
    )


def delete(
    destination: Network | None,
    *,
    device: int | None = None,
    gateway: IPAddress | None = None,
    table: int = TABLE_MAIN,
    metric: int | None = None,
    type: str = "unicast",
) -> Message:
    """Delete the first route that matches all that is given; ESRCH if none does.

    None is the default route of the gateway's family.
    """
    network = _network(destination, gateway, None)
    values = _selector(network, device, gateway, table, metric)
    return _message(DELROUTE, 0, network, values, "delete route", table=table, type_name=type)


def list_routes(sock: RouteSocket, family: int | None = None, table: int | None = None) -> list[Route]:
    """The routes of both families, or of one (4 or 6), of all tables or one; cached ones are left out."""
    routes = []
    for version in (4, 6) if family is None else (family,):
        if version not in _FAMILY:
            raise InvalidValue(f"route family {family}", "is neither 4 nor 6")
        values = {} if table is None else {"table": table}
        body = _HEADER.pack(_FAMILY[version], 0, 0, 0, 0, 0, 0, 0, 0) + _ROUTE.encode(values)
        subject = f"IPv{version} table {'all' if table is None else table}"
        try:
            entries = sock.dump(Message(GETROUTE, 0, body, "list routes", subject))
        except KernelError as error:
            # The strict dump of a table that was never used.
            if error.errno == errno.ENOENT:
                continue
            raise
        for kind, entry in entries:
            if kind == NEWROUTE:
                route = parse(entry)
                if route is not None and (table is None or route.table == table):
                    routes.append(route)
    return routes


def parse(body: bytes) -> Route | None:
    """Read the body of an RTM_NEWROUTE; None for a cached clone or another family.

    Raises :class:`MalformedReply`.
    """
    if len(body) < _HEADER.size:
        raise MalformedReply("route", f"{len(body)} bytes")
    family, length, _, _, table, protocol, scope, kind, flags = _HEADER.unpack_from(body)
    if flags & _CLONED or family not in _FAMILY.values():
        return None
    values = _ROUTE.decode(body, _HEADER.size)
    metrics = values.get("metrics", {})
    return Route(
        destination=network_of(family, values.get("destination"), length),
        device=values.get("device", 0),
        gateway=_gateway(values),
        table=values.get("table", table),
        scope=scope,
        type=_TYPE_NAMES.get(kind, str(kind)),
        protocol=protocol,
        source=values.get("source"),
        metric=values.get("metric", 0),
        mtu=metrics.get("mtu", 0),
        advmss=metrics.get("advmss", 0),
        onlink=bool(flags & _ONLINK),
        nexthops=_nexthops(values["multipath"]) if "multipath" in values else (),
    )


def network_of(family: int, address: IPAddress | None, length: int) -> Network:
    """The prefix of ``length`` bits at ``address`` (None: all zero) of an address family (AF_INET, AF_INET6).

    Raises :class:`MalformedReply`.
    """
    try:
        if family == _FAMILY[4]:
            return IPv4Network((b"\0" * 4 if address is None else address.packed, length), strict=False)
        return IPv6Network((b"\0" * 16 if address is None else address.packed, length), strict=False)
    except ValueError as error:
        raise MalformedReply("prefix", str(error)) from error


def _nexthops(data: bytes) -> tuple[Nexthop, ...]:
    hops = []
    offset = 0
    while len(data) - offset >= _NEXTHOP.size:
        length, _, more, device = _NEXTHOP.unpack_from(data, offset)
        if length < _NEXTHOP.size or offset + length > len(data):
            raise MalformedReply("route nexthop", f"{length} bytes at {offset} of {len(data)}")
        values = _ROUTE.decode(data[offset + _NEXTHOP.size : offset + length])
        hops.append(Nexthop(device=device, gateway=_gateway(values), weight=more + 1))
        offset += (length + 3) & ~3
    return tuple(hops)


def _gateway(values: dict[str, Any]) -> IPAddress | None:
    via: bytes | None = values.get("via")
    if via is None:
        gateway: IPAddress | None = values.get("gateway")
        return gateway
    if len(via) not in {6, 18}:
        raise MalformedReply("route via", f"{len(via)} bytes")
    return IPv4Address(via[2:]) if len(via) == 6 else IPv6Address(via[2:])


def _network(destination: Network | None, gateway: IPAddress | None, source: IPAddress | None) -> Network:
    if destination is not None:
        return destination
    hint = gateway or source
    if hint is None:
        raise InvalidValue(
            "route destination", "the default route needs a gateway to tell its family, or 0.0.0.0/0, ::/0"
        )
    return IPv4Network("0.0.0.0/0") if hint.version == 4 else IPv6Network("::/0")


def _selector(
    network: Network, device: int | None, gateway: IPAddress | None, table: int, metric: int | None
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "destination": network.network_address if network.prefixlen else None,
        "device": device,
        "metric": metric,
        "table": table,
    }
    if gateway is None or gateway.version == network.version:
        values["gateway"] = gateway
    else:
        values["via"] = struct.pack("=H", _FAMILY[gateway.version]) + gateway.packed
    return values


def _message(
    kind: int,
    modifiers: int,
    network: Network,
    values: dict[str, Any],
    operation: str,
    *,
    table: int,
    type_name: str,
    scope: int = SCOPE_NOWHERE,
    protocol: int = 0,
    flags: int = 0,
) -> Message:
    if type_name not in TYPES:
        raise InvalidValue(f"route type {type_name!r}", f"is none of {', '.join(TYPES)}")
    short = table if 0 <= table < 256 else 0
    attributes = _ROUTE.encode(values)
    header = _HEADER.pack(
        _FAMILY[network.version], network.prefixlen, 0, 0, short, protocol, scope, TYPES[type_name], flags
    )
    subject = str(network) if table == TABLE_MAIN else f"{network} table {table}"
    return Message(kind, modifiers, header + attributes, operation, subject)
