"""What a plugin answers: interfaces, addresses, routes and DNS, in the shapes of spec 1.1.0 (section 5).

All versions are read into these shapes and written from them (`podwire.cni.convert`). Zero and empty mean
"not said", as they do in the protocol; None where zero has a meaning. Addresses are checked and put into
their canonical form when an object is made: ValueError says what is wrong.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec
from msgspec.structs import force_setattr

_V4_MAPPED = bytes(10) + b"\xff\xff"


def canonical_address(text: str) -> str:
    """Return an address as Go and the kernel print it; ValueError for anything else, also a zone."""
    try:
        if ":" not in text:
            return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, text))
        packed = socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):
        raise ValueError(f'"{text}" is not an IP address') from None
    if packed.startswith(_V4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed)


def canonical_prefix(text: str) -> str:
    """Return ``address/length`` in canonical form, host bits kept; ValueError for anything else."""
    address, slash, digits = text.partition("/")
    bits = 128 if ":" in address else 32
    if not slash or not digits.isascii() or not digits.isdigit() or len(digits) > 3 or int(digits) > bits:
        raise ValueError(f'"{text}" is not an address with a prefix length, as 10.1.0.5/16')
    length = int(digits)
    canonical = canonical_address(address)
    if bits == 128 and ":" not in canonical:
        if length < 96:
            raise ValueError(f'"{text}" mixes IPv4 and IPv6')
        length -= 96
    return f"{canonical}/{length}"


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """An interface that the chain made or took; ``sandbox`` is its namespace's path, empty on the host."""

    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""
    socketPath: str = ""
    pciID: str = ""


class IPConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """An address (``10.1.0.5/16``) with its gateway; ``interface`` is an index into `Result.interfaces`."""

    address: str
    gateway: str = ""
    interface: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "address", canonical_prefix(self.address))
        if self.gateway:
            force_setattr(self, "gateway", canonical_address(self.gateway))

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.address else 4


class Route(msgspec.Struct, frozen=True, omit_defaults=True):
    """A route of the container: destination prefix, gateway (empty: the default one of its family).

    ``mtu`` and ``advmss`` in bytes, ``priority`` is the metric; ``table`` and ``scope`` as the kernel
    numbers them.
    """

    dst: str
    gw: str = ""
    mtu: int = 0
    advmss: int = 0
    priority: int = 0
    table: int | None = None
    scope: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "dst", canonical_prefix(self.dst))
        if self.gw:
            force_setattr(self, "gw", canonical_address(self.gw))

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.dst else 4


class DNS(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resolver settings, as /etc/resolv.conf has them."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nameservers or self.domain or self.search or self.options)


NO_DNS = DNS()


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ADD answers; an IPAM plugin leaves ``interfaces`` empty."""

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = NO_DNS

    def on(self, interfaces: tuple[Interface, ...], index: int) -> Result:
        """Return an IPAM plugin's result as that of the plugin that called it.

        ``interfaces`` are those that it made; the addresses are on the one at ``index``.
        """
        ips = tuple(msgspec.structs.replace(ip, interface=index) for ip in self.ips)
        return Result(interfaces, ips, self.routes, self.dns)

    def gateway_of(self, route: Route) -> str:
        """Return a route's gateway: its own, else the first of the addresses of its family, or none."""
        return route.gw or next(
            (ip.gateway for ip in self.ips if ip.family == route.family and ip.gateway), ""
        )

    def interface_index(self, ifname: str) -> int | None:
        """Return the index of the container's interface of that name, or None.

        One with a sandbox is preferred; a result whose plugins left ``sandbox`` out still has an answer.
        """
        named = [index for index, interface in enumerate(self.interfaces) if interface.name == ifname]
        inside = [index for index in named if self.interfaces[index].sandbox]
        return next(iter(inside or named), None)

    def ips_of(self, ifname: str) -> tuple[IPConfig, ...]:
        """Return the addresses of the container's interface: those that point to it or to none."""
        index = self.interface_index(ifname)
        return tuple(ip for ip in self.ips if ip.interface is None or ip.interface == index)


class AttachmentKey(msgspec.Struct, frozen=True):
    """A container's interface on a network, as GC names what is to stay."""

    container_id: str = msgspec.field(name="containerID")
    ifname: str = msgspec.field(name="ifname")


class TraceContext(msgspec.Struct, frozen=True):
    """The span that a request belongs to, as W3C Trace Context and Baggage write it in HTTP headers.

    Foreign plugins get it as TRACEPARENT, TRACESTATE and BAGGAGE; ours as `Request.trace`.
    """

    parent: str
    state: str = ""
    baggage: str = ""

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> TraceContext | None:
        """Return the context that headers or variables hold, in whatever case; None without a parent."""
        found = {key.lower(): value for key, value in headers.items()}
        parent = found.get("traceparent", "")
        return cls(parent, found.get("tracestate", ""), found.get("baggage", "")) if parent else None

    def variables(self) -> dict[str, str]:
        """Return the environment of a plugin's process; what is empty is left out."""
        said = {"TRACEPARENT": self.parent, "TRACESTATE": self.state, "BAGGAGE": self.baggage}
        return {key: value for key, value in said.items() if value}
