"""A lease as a server's acknowledgement tells it: address, times, routes and resolver settings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

import msgspec

from podwire.dhcp.errors import Unusable
from podwire.dhcp.packet import UNSPECIFIED, Option, Packet

DEFAULT_SECONDS = 3600
"""The term of a lease whose server does not say one: the reference's."""
FOREVER = 0xFFFFFFFF
"""The term that never ends (RFC 2131 section 3.3)."""

_SECONDS = struct.Struct("!I")
_LABEL_MAX = 63
_NAME_MAX = 255


class LeaseRoute(msgspec.Struct, frozen=True):
    """A route that the server gave. ``gateway`` is empty for a destination on the link itself (RFC 3442)."""

    destination: str
    gateway: str = ""


class Lease(msgspec.Struct, frozen=True):
    """What was leased. ``address`` has its prefix length; ``router`` is the first one, empty if none is told.

    ``acquired`` is the clock's time (seconds since boot) when it was asked for, the others are seconds from
    then on: ``renew_after`` is T1, ``rebind_after`` T2, ``seconds`` the whole term (FOREVER: it never ends).
    """

    address: str
    server: str
    acquired: float
    seconds: int
    renew_after: float
    rebind_after: float
    router: str = ""
    routes: tuple[LeaseRoute, ...] = ()
    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()

    @property
    def ip(self) -> IPv4Address:
        """The address alone."""
        return IPv4Address(self.address.partition("/")[0])

    @property
    def expires(self) -> float:
        """When the lease ends, by the clock of ``acquired``; infinity if it does not."""
        return float("inf") if self.seconds == FOREVER else self.acquired + self.seconds

    @property
    def renews(self) -> float:
        """When its renewal begins (T1)."""
        return float("inf") if self.seconds == FOREVER else self.acquired + self.renew_after

    @property
    def rebinds(self) -> float:
        """When any server may renew it (T2)."""
        return float("inf") if self.seconds == FOREVER else self.acquired + self.rebind_after


def lease_of(ack: Packet, server: IPv4Address, now: float) -> Lease:
    """Return the lease that an OFFER or ACK tells; Unusable says what it lacks.

    T1 and T2 are the server's where they make sense, else half and 85 % of the term (RFC 2131 section 4.4.5).
    """
    if ack.yours == UNSPECIFIED:
        raise Unusable(f"server {server} gave no address")
    prefix = prefix_length(ack.options.get(Option.SUBNET_MASK, b""))
    if prefix is None:
        raise Unusable(f"server {server} gave {ack.yours} without a proper subnet mask (option 1)")
    seconds = _number(ack, Option.LEASE_SECONDS)
    if seconds is None:
        seconds = DEFAULT_SECONDS
    if seconds == 0:
        raise Unusable(f"server {server} gave {ack.yours} for 0 seconds")
    rebind = _number(ack, Option.REBINDING_SECONDS)
    rebind_after = float(rebind) if rebind and rebind < seconds else seconds * 0.85
    renew = _number(ack, Option.RENEWAL_SECONDS)
    renew_after = float(renew) if renew and renew < rebind_after else min(seconds / 2, rebind_after)
    routers = _addresses(ack.options.get(Option.ROUTERS, b""))
    return Lease(
        address=f"{ack.yours}/{prefix}",
        server=str(server),
        acquired=now,
        seconds=seconds,
        renew_after=renew_after,
        rebind_after=rebind_after,
        router=str(routers[0]) if routers else "",
        routes=_routes(ack, routers),
        nameservers=tuple(map(str, _addresses(ack.options.get(Option.NAME_SERVERS, b"")))),
        domain=_text(ack.options.get(Option.DOMAIN_NAME, b"")),
        search=tuple(domain_names(ack.options.get(Option.SEARCH, b""))),
    )


def prefix_length(mask: bytes) -> int | None:
    """Return the length of a subnet mask's prefix; None if it is no mask."""
    if len(mask) != 4:
        return None
    bits = int.from_bytes(mask)
    length = bits.bit_count()
    return length if bits == (0xFFFFFFFF << (32 - length)) & 0xFFFFFFFF else None


def _routes(ack: Packet, routers: list[IPv4Address]) -> tuple[LeaseRoute, ...]:
    """Where classless routes are told, the static ones and the routers do not count (RFC 3442)."""
    classless = tuple(classless_routes(ack.options.get(Option.CLASSLESS_ROUTES, b"")))
    if classless:
        return classless
    routes = list(static_routes(ack.options.get(Option.STATIC_ROUTES, b"")))
    if routers:
        routes.append(LeaseRoute("0.0.0.0/0", str(routers[0])))
    return tuple(routes)


def classless_routes(value: bytes) -> Iterator[LeaseRoute]:
    """Read option 121 (RFC 3442); what is cut short or impossible ends it."""
    offset = 0
    while offset < len(value):
        length = value[offset]
        size = (length + 7) // 8
        end = offset + 1 + size + 4
        if length > 32 or end > len(value):
            return
        destination = value[offset + 1 : offset + 1 + size].ljust(4, b"\0")
        network = IPv4Network((destination, length), strict=False)
        gateway = IPv4Address(value[end - 4 : end])
        yield LeaseRoute(str(network), "" if gateway == UNSPECIFIED else str(gateway))
        offset = end


def static_routes(value: bytes) -> Iterator[LeaseRoute]:
    """Read option 33: destinations with the prefix of their class. A default route does not belong here."""
    for start in range(0, len(value) - 7, 8):
        destination = IPv4Address(value[start : start + 4])
        gateway = IPv4Address(value[start + 4 : start + 8])
        first = value[start]
        if UNSPECIFIED in {destination, gateway} or first >= 224:
            continue
        length = 8 if first < 128 else 16 if first < 192 else 24
        yield LeaseRoute(str(IPv4Network((int(destination), length), strict=False)), str(gateway))


def domain_names(value: bytes) -> Iterator[str]:
    """Read option 119 (RFC 3397): names as in DNS messages, with pointers back; what is wrong ends it."""
    offset = 0
    while offset < len(value):
        name, offset = _domain_name(value, offset)
        if not name:
            return
        yield name


def _domain_name(value: bytes, offset: int) -> tuple[str, int]:
    labels: list[str] = []
    after = 0  # where the next name starts, once a pointer was followed
    size = 0
    while offset < len(value):
        length = value[offset]
        if length == 0:
            return ".".join(labels), after or offset + 1
        if length & 0xC0 == 0xC0:
            if offset + 1 >= len(value):
                break
            target = (length & 0x3F) << 8 | value[offset + 1]
            if target >= offset:  # forward, or a circle
                break
            after = after or offset + 2
            offset = target
            size += 2
        elif length <= _LABEL_MAX and offset + 1 + length <= len(value):
            label = _text(value[offset + 1 : offset + 1 + length])
            if not label:
                break
            labels.append(label)
            offset += 1 + length
            size += 1 + length
        else:
            break
        if size > _NAME_MAX:
            break
    return "", len(value)


def _text(value: bytes) -> str:
    """Return a text option; empty where it holds what does not belong into resolver settings."""
    text = value.rstrip(b"\0").decode("ascii", errors="replace")
    return text if text.isprintable() and " " not in text and "\ufffd" not in text else ""


def _number(ack: Packet, option: Option) -> int | None:
    value = ack.options.get(option, b"")
    number: int | None = _SECONDS.unpack(value)[0] if len(value) == _SECONDS.size else None
    return number


def _addresses(value: bytes) -> list[IPv4Address]:
    found = [IPv4Address(value[start : start + 4]) for start in range(0, len(value) - 3, 4)]
    return [one for one in found if one != UNSPECIFIED]
