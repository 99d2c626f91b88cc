from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.ipam.errors import RangeError
from podwire.ipam.ranges import Range, RangeSet, check_disjoint
from tests.ipam.helpers import pool


def order(one: RangeSet, after: str | None = None) -> list[str]:
    family = type(one.ranges[0].start)
    return [str(family(n)) for n in one.candidates(ip_address(after) if after else None)]


def test_defaults_leave_out_network_gateway_and_broadcast() -> None:
    one = Range.parse("10.1.0.0/29")
    assert (str(one.start), str(one.end), str(one.gateway)) == ("10.1.0.1", "10.1.0.6", "10.1.0.1")
    assert order(RangeSet([one])) == [f"10.1.0.{n}" for n in range(2, 7)]


@pytest.mark.parametrize(
    ("start", "end"), [("10.1.0.0", "10.1.255.255"), ("10.1.0.0", None), (None, "10.1.255.255")]
)
def test_C02_network_and_broadcast_are_never_given(start: str | None, end: str | None) -> None:
    one = RangeSet([Range.parse("10.1.0.0/16", start=start, end=end)])
    assert one.capacity == 2**16 - 3
    assert one.refusal(ip_address("10.1.0.0")) or one.range_of(ip_address("10.1.0.0")) is None
    numbers = set(one.candidates())
    assert int(ip_address("10.1.0.0")) not in numbers
    assert int(ip_address("10.1.255.255")) not in numbers
    assert len(numbers) == one.capacity


def test_C02_a_range_of_only_the_broadcast_address_is_refused() -> None:
    with pytest.raises(RangeError, match="no address is left"):
        Range.parse("10.1.0.0/24", start="10.1.0.255", end="10.1.0.255")


@pytest.mark.parametrize("subnet", ["10.1.0.0/30", "10.1.0.0/24", "10.1.0.0/16"])
def test_C20_bounds_on_the_edges_of_the_subnet_never_reach_a_pod(subnet: str) -> None:
    net = ip_network(subnet)
    one = pool(subnet, start=str(net[0]), end=str(net[-1]), gateway=str(net[1]))
    got = order(one)
    assert got[0] == str(net[2])
    assert got[-1] == str(net[-2])


def test_C20_ipv6_never_gives_the_first_address_but_gives_the_last() -> None:
    one = pool("fd00::/124", start="fd00::", gateway="fe80::1")
    assert order(one) == [f"fd00::{n:x}" for n in range(1, 16)]


@pytest.mark.parametrize(
    ("last", "expected_first"), [("10.0.0.6", "10.0.1.2"), ("10.0.1.6", "10.0.0.2"), ("10.9.9.9", "10.0.0.2")]
)
def test_C03_one_pass_ends_wherever_it_starts(last: str, expected_first: str) -> None:
    one = pool("10.0.0.0/29", "10.0.1.0/29")
    got = order(one, last)
    assert got[0] == expected_first
    assert sorted(got) == sorted(order(one))
    assert one.next_free(set(one.candidates()), ip_address(last)) is None


def test_C10_an_ipv6_gateway_outside_of_the_subnet_is_legal() -> None:
    for gateway in ("2001:db8:5::1", "fe80::1"):
        one = Range.parse("2001:db8:5:333::/64", gateway=gateway)
        assert str(one.gateway) == gateway
        assert order_head(RangeSet([one])) == "2001:db8:5:333::1"


def order_head(one: RangeSet) -> str:
    return str(type(one.ranges[0].start)(next(one.candidates())))


def test_C10_an_ipv4_gateway_outside_is_not() -> None:
    with pytest.raises(RangeError, match=r"gateway '10\.2\.0\.1': is not in the subnet"):
        Range.parse("10.1.0.0/16", gateway="10.2.0.1")


@pytest.mark.parametrize(
    ("subnet", "gateway", "given_out"),
    [
        ("10.255.1.0/31", None, ["10.255.1.1"]),
        ("10.255.1.0/31", "10.255.1.1", ["10.255.1.0"]),
        ("fd00::/127", None, ["fd00::1"]),
        ("fd00::/127", "fe80::1", ["fd00::", "fd00::1"]),
        ("10.255.1.7/32", None, ["10.255.1.7"]),
        ("fd00::7/128", None, ["fd00::7"]),
    ],
)
def test_C11_subnets_of_two_and_of_one_address(
    subnet: str, gateway: str | None, given_out: list[str]
) -> None:
    assert order(RangeSet([Range.parse(subnet, gateway=gateway)])) == given_out


def test_C12_addresses_that_end_in_0_and_255_inside_a_larger_net_are_given() -> None:
    got = order(pool("10.1.0.0/16", start="10.1.2.2", end="10.1.4.254"))
    assert got[0] == "10.1.2.2"
    assert got[-1] == "10.1.4.254"
    assert {"10.1.2.255", "10.1.3.0"} <= set(got)
    assert len(got) == 254 + 256 + 255


def test_C13_the_default_end_leaves_out_broadcast_and_an_explicit_end_is_included() -> None:
    assert order(pool("10.1.0.0/24"))[-1] == "10.1.0.254"
    bounded = pool("10.1.0.0/24", end="10.1.0.10")
    assert order(bounded)[-1] == "10.1.0.10"
    assert order(bounded, "10.1.0.10")[0] == "10.1.0.2"
    assert order(bounded, "10.1.0.200")[0] == "10.1.0.2"
    assert bounded.refusal(ip_address("10.1.0.11")) == "it is outside of 10.1.0.1-10.1.0.10"


def test_C17_the_default_end_in_ipv6_is_the_last_address_of_the_prefix() -> None:
    assert str(Range.parse("fd00:1::/64").end) == "fd00:1::ffff:ffff:ffff:ffff"


def test_a_64_is_walked_by_what_is_taken_and_not_by_its_size() -> None:
    one = pool("fd00:1::/64")
    taken = set(islice(one.candidates(), 1000))
    assert str(one.next_free(taken)) == "fd00:1::3ea"
    assert str(one.next_free(set(), one.ranges[0].end)) == "fd00:1::2"


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        ({"subnet": "10.1.0.5/16"}, "subnet", "host bits"),
        ({"subnet": "fd00::1/64"}, "subnet", "host bits"),
        ({"subnet": "10.1.0.0"}, "subnet", "is not a subnet"),
        ({"subnet": "10.1.0.0/255.255.0.0"}, "subnet", "is not a subnet"),
        ({"subnet": "10.1.0.0/33"}, "subnet", "is not a subnet"),
        ({"subnet": ""}, "subnet", "is not a subnet"),
        ({"subnet": 7}, "subnet", "is not a subnet"),
        ({"subnet": "::ffff:10.9.0.0/120"}, "subnet", "IPv4-mapped"),
        ({"subnet": "10.1.0.0/16", "start": "10.2.0.1"}, "rangeStart", "is not in the subnet"),
        ({"subnet": "10.1.0.0/16", "end": "fd00::1"}, "rangeEnd", "is not in the subnet"),
        ({"subnet": "10.1.0.0/16", "end": "x"}, "rangeEnd", "is not an IP address"),
        ({"subnet": "fd00::/64", "end": "fe80::1%eth0"}, "rangeEnd", "zones"),
        ({"subnet": "10.1.0.0/16", "gateway": "fd00::1"}, "gateway", "is not of the family"),
        (
            {"subnet": "10.1.0.0/16", "start": "10.1.0.9", "end": "10.1.0.8"},
            "rangeStart",
            "comes after rangeEnd 10.1.0.8",
        ),
        (
            {"subnet": "10.1.0.0/16", "start": "10.1.0.9", "end": "10.1.0.9", "gateway": "10.1.0.9"},
            "rangeStart",
            "no address is left",
        ),
    ],
)
def test_a_bad_range_names_its_field_and_value(config: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(RangeError, match=reason) as caught:
        Range.parse(**config)
    assert caught.value.field == field
    assert str(caught.value.value) in str(caught.value)


def test_a_set_refuses_mixed_families_overlaps_and_emptiness() -> None:
    with pytest.raises(RangeError, match="another family"):
        pool("10.1.0.0/24", "fd00::/64")
    with pytest.raises(RangeError, match=r"overlaps with 10\.1\.0\.1"):
        pool("10.1.0.0/24", "10.1.0.128/25")
    with pytest.raises(RangeError, match="empty"):
        RangeSet([])


def test_two_parts_of_one_subnet_are_no_overlap() -> None:
    low = Range.parse("10.1.0.0/24", end="10.1.0.9")
    high = Range.parse("10.1.0.0/24", start="10.1.0.100", end="10.1.0.109")
    assert RangeSet([low, high]).capacity == 8 + 10
    check_disjoint([RangeSet([low]), RangeSet([high])])


def test_sets_that_overlap_are_refused() -> None:
    with pytest.raises(RangeError, match="set 1 overlaps with set 0"):
        check_disjoint([pool("10.1.0.0/24"), pool("10.1.0.0/16", start="10.1.0.200")])


def test_the_gateway_of_another_range_of_the_set_is_not_given() -> None:
    one = RangeSet(
        [
            Range.parse("10.1.0.0/24", start="10.1.0.2", end="10.1.0.3", gateway="10.1.0.10"),
            Range.parse("10.1.0.0/24", start="10.1.0.9", end="10.1.0.11", gateway="10.1.0.10"),
        ]
    )
    assert order(one) == ["10.1.0.2", "10.1.0.3", "10.1.0.9", "10.1.0.11"]
    assert one.refusal(ip_address("10.1.0.10")) == "it is a gateway"


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    length = draw(st.integers(24, 32))
    networks = st.integers(0, 2**length - 1).map(lambda n: ip_network((n << (32 - length), length)))
    subnet = draw(networks.filter(lambda one: not one.is_multicast and not one.is_loopback))
    bounds = sorted(draw(st.lists(st.integers(0, subnet.num_addresses - 1), min_size=2, max_size=2)))
    gateway = draw(st.none() | st.integers(0, subnet.num_addresses - 1).map(lambda n: str(subnet[n])))
    try:
        return Range.parse(
            str(subnet), start=str(subnet[bounds[0]]), end=str(subnet[bounds[1]]), gateway=gateway
        )
    except RangeError:
        return Range.parse(str(subnet))


@settings(max_examples=60, deadline=None)
@given(ranges(), st.integers(0, 2**32 - 1), st.data())
def test_every_order_is_each_usable_address_once(one: Range, last: int, data: st.DataObject) -> None:
    whole = RangeSet([one])
    inside = data.draw(st.integers(int(one.start), int(one.end)) | st.just(last))
    got = list(whole.candidates(ip_address(inside)))
    assert len(got) == len(set(got)) == whole.capacity >= 1
    for number in got:
        address = ip_address(number)
        assert address in one
        assert address != one.gateway
        assert whole.refusal(address) is None
        if one.subnet.num_addresses > 2:
            assert address not in (one.subnet.network_address, one.subnet.broadcast_address)
