"""What an acknowledgement means: times, masks, routes (RFC 2131, 2132, 3397, 3442)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dhcp.errors import Unusable
from podwire.dhcp.lease import (
    FOREVER,
    Lease,
    LeaseRoute,
    classless_routes,
    domain_names,
    lease_of,
    prefix_length,
    static_routes,
)
from podwire.dhcp.packet import Packet

SERVER = IPv4Address("10.0.0.1")
MASK = {1: b"\xff\xff\xff\0"}


def lease(options: dict[int, bytes], yours: str = "10.0.0.5") -> Lease:
    packet = Packet(1, bytes(6), {**MASK, **options}, reply=True, yours=IPv4Address(yours))
    return lease_of(packet, SERVER, 1000.0)


def seconds(number: int) -> bytes:
    return number.to_bytes(4)


@pytest.mark.parametrize(
    ("term", "t1", "t2", "renew", "rebind"),
    [
        (1000, None, None, 500, 850),
        (1000, 100, 200, 100, 200),
        (1000, 100, None, 100, 850),
        (1000, None, 400, 400, 400),  # half would be after T2
        (1000, 900, 800, 500, 800),  # T1 behind T2 makes no sense
        (1000, 0, 0, 500, 850),
        (1000, 1, 1000, 1, 850),  # T2 at the end makes no sense
        (1000, 2000, 3000, 500, 850),
    ],
)
def test_t1_and_t2_are_the_servers_where_they_make_sense(
    term: int, t1: int | None, t2: int | None, renew: float, rebind: float
) -> None:
    options = {51: seconds(term)}
    if t1 is not None:
        options[58] = seconds(t1)
    if t2 is not None:
        options[59] = seconds(t2)
    found = lease(options)
    assert (found.renew_after, found.rebind_after) == (renew, rebind)
    assert (found.renews, found.rebinds, found.expires) == (1000 + renew, 1000 + rebind, 1000 + term)


def test_without_a_term_it_is_an_hour_as_with_the_reference() -> None:
    assert lease({}).seconds == 3600


def test_the_longest_term_never_ends() -> None:
    found = lease({51: seconds(FOREVER)})
    assert found.renews == found.rebinds == found.expires == float("inf")


@pytest.mark.parametrize(
    ("options", "yours", "reason"),
    [
        ({1: b""}, "10.0.0.5", "without a proper subnet mask"),
        ({1: b"\xff\0\xff\0"}, "10.0.0.5", "without a proper subnet mask"),
        ({51: seconds(0)}, "10.0.0.5", "for 0 seconds"),
        ({}, "0.0.0.0", "gave no address"),
    ],
)
def test_what_makes_no_lease_is_told(options: dict[int, bytes], yours: str, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        lease(options, yours)


@given(st.integers(0, 32))
def test_masks_of_all_lengths(length: int) -> None:
    assert prefix_length(IPv4Network((0, length)).netmask.packed) == length


def test_routers_and_static_routes() -> None:
    found = lease({3: b"\n\0\0\1\n\0\0\2", 33: b"\xac\x10\0\0\n\0\0\3\xc0\xa8\7\0\n\0\0\4"})
    assert found.router == "10.0.0.1"
    assert found.routes == (
        LeaseRoute("172.16.0.0/16", "10.0.0.3"),
        LeaseRoute("192.168.7.0/24", "10.0.0.4"),
        LeaseRoute("0.0.0.0/0", "10.0.0.1"),
    )


def test_classless_routes_take_the_place_of_the_others() -> None:
    found = lease({3: b"\n\0\0\1", 33: b"\n\1\0\0\n\0\0\3", 121: b"\x10\xac\x10\n\0\0\7\0\n\0\0\x08"})
    assert found.router == "10.0.0.1"
    assert found.routes == (LeaseRoute("172.16.0.0/16", "10.0.0.7"), LeaseRoute("0.0.0.0/0", "10.0.0.8"))


def test_a_classless_route_without_a_gateway_is_on_the_link() -> None:
    assert list(classless_routes(b"\x18\n\1\2\0\0\0\0")) == [LeaseRoute("10.1.2.0/24")]


@given(
    st.lists(st.tuples(st.integers(0, 32), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1)), max_size=6)
)
def test_classless_routes_are_read_as_rfc3442_writes_them(given: list[tuple[int, int, int]]) -> None:
    data, wanted = b"", []
    for length, destination, gateway in given:
        network = IPv4Network((destination, length), strict=False)
        significant = network.network_address.packed[: (length + 7) // 8]
        data += bytes((length,)) + significant + IPv4Address(gateway).packed
        wanted.append(LeaseRoute(str(network), str(IPv4Address(gateway))))
    assert list(classless_routes(data)) == wanted
    if data:
        assert list(classless_routes(data[:-1])) == wanted[:-1]


@pytest.mark.parametrize("data", [b"\x21\n\0\0\1\n\0\0\1", b"\x20", b"\0\n\0\0"])
def test_impossible_classless_routes_are_none(data: bytes) -> None:
    assert list(classless_routes(data)) == []


def test_a_static_default_route_is_not_taken() -> None:
    assert list(static_routes(b"\0\0\0\0\n\0\0\1" + b"\n\0\0\0\n\0\0\1" + b"\1\2\3")) == [
        LeaseRoute("10.0.0.0/8", "10.0.0.1")
    ]


def test_resolver_settings() -> None:
    found = lease({6: b"\n\0\0\1\0\0\0\0\n\0\0\2", 15: b"example.org\0", 119: b"\1a\2bc\0\3sub\xc0\0"})
    assert found.nameservers == ("10.0.0.1", "10.0.0.2")
    assert found.domain == "example.org"
    assert found.search == ("a.bc", "sub.a.bc")


@pytest.mark.parametrize("value", [b"exa mple", b"a\nnameserver 6.6.6.6", b"\xff\xfe", b""])
def test_a_domain_that_would_break_resolv_conf_is_none(value: bytes) -> None:
    assert lease({15: value}).domain == ""


@pytest.mark.parametrize(
    "value", [b"\xc0\0", b"\1a\xc0\0", b"\1a\xc0\x09", b"\x40a", b"\5ab", b"\3a\n \0", b"\xc0"]
)
def test_circles_and_cut_names_end_the_search_list(value: bytes) -> None:
    assert list(domain_names(value)) == []


@given(st.binary(max_size=120))
def test_any_search_list_ends(value: bytes) -> None:
    for name in domain_names(value):
        assert len(name) <= 255
        assert " " not in name
