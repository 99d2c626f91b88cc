"""Ranges of addresses, and the order in which a set of them is given out.

A *range* is a span of one subnet; a *set* is one or more ranges of one family, from which an
attachment gets one address. Addresses are given in turn, from the one after the last that was
given, so that a freed address rests as long as possible.

Never given: gateways, and in subnets of more than two addresses the network address (in IPv6 the
subnet-router anycast address, RFC 4291 2.6.1) and the IPv4 broadcast address. Subnets of two (RFC 3021,
RFC 6164) and of one address have neither.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from ipaddress import (
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

import msgspec

from podwire.ipam.errors import Address, RangeError

Network = IPv4Network | IPv6Network


def _address(field: str, value: object) -> Address:
    try:
        if not isinstance(value, str):
            raise ValueError
        address = ip_address(value)
    except ValueError:
        raise RangeError(field, value, "is not an IP address") from None
    if isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise RangeError(field, value, "zones and IPv4-mapped addresses are not allowed")
    return address


def _network(field: str, value: object) -> Network:
    try:
        if not isinstance(value, str) or "/" not in value:
            raise ValueError
        host, _, length = value.partition("/")
        if not (length.isascii() and length.isdigit()):
            raise ValueError
        loose = ip_network(value, strict=False)
    except ValueError:
        raise RangeError(field, value, "is not a subnet such as 10.1.0.0/16 or fd00::/64") from None
    if int(ip_address(host)) != int(loose.network_address):
        raise RangeError(
            field, value, f"has host bits set; the network of length {loose.prefixlen} is {loose}"
        )
    if isinstance(loose, IPv6Network) and loose.network_address.ipv4_mapped:
        raise RangeError(field, value, "IPv4-mapped addresses are not allowed")
    if loose.is_multicast or loose.is_loopback:
        what = "multicast" if loose.is_multicast else "loopback"
        raise RangeError(field, value, f"is a {what} range: no host can have an address of it")
    return loose


class Range(msgspec.Struct, frozen=True):
    """A span of ``subnet`` from ``start`` to ``end``, both included, and the pods' ``gateway``.

    ``gateway`` is ``None`` only where a subnet of one address leaves none. In IPv6 it may lie outside of the
    subnet (an on-link router such as ``fe80::1``).

    Raises :class:`RangeError` for bounds or a gateway that do not fit the subnet, or if nothing is left.
    """

    subnet: Network
    start: Address
    end: Address
    gateway: Address | None

    def __post_init__(self) -> None:
        for field, bound in (("rangeStart", self.start), ("rangeEnd", self.end)):
            if bound not in self.subnet:
                raise RangeError(field, bound, f"is not in the subnet {self.subnet}")
        if int(self.start) > int(self.end):
            raise RangeError("rangeStart", self.start, f"comes after rangeEnd {self.end}")
        gateway = self.gateway
        if gateway is not None:
            if gateway.version != self.subnet.version:
                raise RangeError("gateway", gateway, f"is not of the family of the subnet {self.subnet}")
            if gateway not in self.subnet and gateway.version == 4:
                raise RangeError("gateway", gateway, f"is not in the subnet {self.subnet}")
        first, last = self.span
        if first > last or (first == last and gateway is not None and int(gateway) == first):
            raise RangeError(
                "rangeStart",
                self.start,
                f"no address is left to give up to {self.end}: the network, broadcast and gateway"
                f" addresses of {self.subnet} are never given",
            )

    @classmethod
    def parse(
        cls, subnet: object, *, start: object = None, end: object = None, gateway: object = None
    ) -> Range:
        """Make a range from configured texts; what is ``None`` or empty gets its default.

        ``gateway`` and ``start`` default to the first usable address, ``end`` to the last one: in IPv4 the
        one before the broadcast address, in IPv6 the last of the subnet.
        """
        network = _network("subnet", subnet)
        first, last = _usable(network)
        family = type(network.network_address)
        if gateway not in (None, ""):
            via: Address | None = _address("gateway", gateway)
        else:
            via = family(first) if network.num_addresses > 1 else None
        return cls(
            network,
            _address("rangeStart", start) if start not in (None, "") else family(first),
            _address("rangeEnd", end) if end not in (None, "") else family(last),
            via,
        )

    @property
    def span(self) -> tuple[int, int]:
        """First and last address that can be given, as numbers (the gateway may lie between)."""
        first, last = _usable(self.subnet)
        return max(first, int(self.start)), min(last, int(self.end))

    def __contains__(self, address: object) -> bool:
        return isinstance(address, type(self.start)) and int(self.start) <= int(address) <= int(self.end)

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"


def _usable(network: Network) -> tuple[int, int]:
    first = int(network.network_address)
    last = first + network.num_addresses - 1
    if network.num_addresses <= 2:
        return first, last
    return first + 1, last - 1 if network.version == 4 else last


class RangeSet:
    """Ranges of one family that do not overlap; an attachment gets one address of them.

    Raises :class:`RangeError` if there is none, for mixed families and for overlaps.
    """

    __slots__ = ("_gateways", "_spans", "ranges", "version")

    def __init__(self, ranges: Sequence[Range]) -> None:
        if not ranges:
            raise RangeError("ranges", "[]", "a set of ranges is empty")
        self.ranges = tuple(ranges)
        self.version = ranges[0].subnet.version
        for position, one in enumerate(self.ranges):
            if one.subnet.version != self.version:
                raise RangeError(
                    "subnet", one.subnet, f"another family than {self.ranges[0].subnet} in its set"
                )
            for other in self.ranges[:position]:
                if _overlap(one, other):
                    raise RangeError("subnet", one.subnet, f"range {one} overlaps with {other}")
        self._spans = [one.span for one in self.ranges]
        self._gateways = {int(one.gateway) for one in self.ranges if one.gateway is not None}

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))

    def __repr__(self) -> str:
        return f"RangeSet({self})"

    @property
    def capacity(self) -> int:
        """How many addresses the set can give at one time."""
        inside = sum(any(a <= gateway <= z for a, z in self._spans) for gateway in self._gateways)
        return sum(z - a + 1 for a, z in self._spans) - inside

    def range_of(self, address: Address) -> Range | None:
        """Return the range that ``address`` lies in, whether or not it can be given."""
        return next((one for one in self.ranges if address in one), None)

    def refusal(self, address: Address) -> str | None:
        """Say why ``address`` can never be given, or ``None`` if it can."""
        home = self.range_of(address)
        if home is None:
            return f"it is outside of {self}"
        if int(address) in self._gateways:
            return "it is a gateway"
        first, last = home.span
        if not first <= int(address) <= last:
            return f"it is the network or broadcast address of {home.subnet}"
        return None

    def candidates(self, after: Address | None = None) -> Iterator[int]:
        """Give every address of the set once, as a number, in the order of allocation.

        The order starts behind ``after``, the address given last, and wraps; if ``after`` is in none of the
        ranges it starts at the first.
        """
        turn, resume = 0, None
        if after is not None and after.version == self.version:
            for position, one in enumerate(self.ranges):
                if after in one:
                    turn, resume = position, int(after) + 1
                    break
        spans = self._spans[turn:] + self._spans[:turn]
        if resume is not None:
            first, last = spans[0]
            spans[0] = (max(first, resume), last)
            spans.append((first, min(last, resume - 1)))
        for first, last in spans:
            number = first
            while number <= last:
                if number not in self._gateways:
                    yield number
                number += 1

    def next_free(self, taken: Container[int], after: Address | None = None) -> Address | None:
        """Return the next address in turn that is not in ``taken``, or ``None`` after one pass.

        Looks at no more addresses than are taken, plus one.
        """
        family = type(self.ranges[0].start)
        return next((family(number) for number in self.candidates(after) if number not in taken), None)

    def locate(self, address: Address) -> Range:
        """Return the range of an address that was given."""
        home = self.range_of(address)
        if home is None:
            raise RangeError("address", address, f"is outside of {self}")
        return home


def _overlap(one: Range, other: Range) -> bool:
    return int(one.start) <= int(other.end) and int(other.start) <= int(one.end)


def check_disjoint(sets: Sequence[RangeSet]) -> None:
    """Raise :class:`RangeError` if ranges of two sets overlap: an attachment would hold two of one span."""
    for position, one in enumerate(sets):
        for earlier, other in enumerate(sets[:position]):
            if one.version != other.version:
                continue
            for mine in one.ranges:
                for theirs in other.ranges:
                    if _overlap(mine, theirs):
                        raise RangeError(
                            "ranges", mine, f"set {position} overlaps with set {earlier} ({theirs})"
                        )
