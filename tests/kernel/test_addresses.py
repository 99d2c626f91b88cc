"""Addresses: given and taken as ``ip`` sees it."""

from __future__ import annotations

import errno
from ipaddress import IPv4Address, ip_address, ip_interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import addresses, links
from podwire.kernel.addresses import Address
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.netlink import RouteSocket
from tests.kernel import helpers

kernel = pytest.mark.kernel


def seen(name: str) -> dict[str, dict[str, Any]]:
    [link] = helpers.ip("address", "show", "dev", name)
    return {f"{entry['local']}/{entry['prefixlen']}": entry for entry in link["addr_info"]}


@pytest.fixture
def index(sock: RouteSocket) -> int:
    sock.send(links.veth("a", "b", index=10, peer_index=11))
    sock.send(
        links.configure(10, addr_gen_mode=links.AddrGenMode.NONE),
        links.configure(10, up=True),
        links.configure(11, up=True),
    )
    return 10


@kernel
def test_addresses_of_both_families_are_given_and_taken(sock: RouteSocket, index: int) -> None:
    wanted = {"10.1.0.5/16", "2001:db8::5/64", "192.0.2.1/32", "fd00::1/128"}
    sock.send(*(addresses.add(index, ip_interface(one)) for one in wanted))
    assert set(seen("a")) == wanted
    ours = {str(one.address): one for one in addresses.list_addresses(sock, index)}
    assert set(ours) == wanted
    assert all(one.index == index and one.scope == addresses.SCOPE_GLOBAL for one in ours.values())
    sock.send(*(addresses.delete(index, ip_interface(one)) for one in wanted))
    assert seen("a") == {}
    assert addresses.list_addresses(sock, index) == []


@kernel
def test_an_address_given_twice_is_refused_unless_replaced(sock: RouteSocket, index: int) -> None:
    for text in ("10.1.0.5/16", "2001:db8::5/64"):
        address = ip_interface(text)
        sock.send(addresses.add(index, address))
        with pytest.raises(KernelError) as caught:
            sock.send(addresses.add(index, address))
        assert caught.value.errno == errno.EEXIST
        assert text in str(caught.value)
        sock.send(addresses.add(index, address, replace=True))
    assert set(seen("a")) == {"10.1.0.5/16", "2001:db8::5/64"}


@kernel
def test_an_address_that_is_not_there_cannot_be_taken(sock: RouteSocket, index: int) -> None:
    for text in ("10.1.0.5/16", "2001:db8::5/64"):
        with pytest.raises(KernelError) as caught:
            sock.send(addresses.delete(index, ip_interface(text)))
        assert caught.value.errno == errno.EADDRNOTAVAIL


@kernel
def test_without_detection_an_ipv6_address_is_ready_at_once(sock: RouteSocket, index: int) -> None:
    sock.send(
        addresses.add(index, ip_interface("2001:db8::1/64")),
        addresses.add(index, ip_interface("2001:db8::2/64"), nodad=False),
    )
    now = seen("a")
    assert "tentative" not in now["2001:db8::1/64"]
    assert now["2001:db8::1/64"]["nodad"] is True
    assert now["2001:db8::2/64"]["tentative"] is True
    ours = {str(one.address.ip): one.tentative for one in addresses.list_addresses(sock, index)}
    assert ours == {"2001:db8::1": False, "2001:db8::2": True}


@kernel
def test_scope_broadcast_label_peer_metric_and_no_prefix_route(sock: RouteSocket, index: int) -> None:
    sock.send(
        addresses.add(
            index,
            ip_interface("10.1.0.5/16"),
            scope=addresses.SCOPE_LINK,
            broadcast=IPv4Address("10.1.255.255"),
            label="a:podwire",
            prefix_route=False,
        ),
        addresses.add(index, ip_interface("192.0.2.1/32"), peer=ip_address("192.0.2.9"), metric=50),
    )
    now = seen("a")
    first = now["10.1.0.5/16"]
    assert (first["scope"], first["broadcast"], first["label"]) == ("link", "10.1.255.255", "a:podwire")
    assert first["noprefixroute"] is True
    assert now["192.0.2.1/32"]["address"] == "192.0.2.9"
    assert [route["dst"] for route in helpers.ip("route", "show")] == ["192.0.2.9"]
    assert helpers.ip("route", "show")[0]["metric"] == 50
    ours = {str(one.address): one for one in addresses.list_addresses(sock)}
    assert ours["10.1.0.5/16"].label == "a:podwire"
    assert ours["10.1.0.5/16"].broadcast == IPv4Address("10.1.255.255")
    assert ours["192.0.2.1/32"].peer == IPv4Address("192.0.2.9")


@kernel
def test_loopback_addresses_have_host_scope(sock: RouteSocket) -> None:
    sock.send(addresses.add(1, ip_interface("127.0.0.2/8")))
    assert seen("lo")["127.0.0.2/8"]["scope"] == "host"


@kernel
def test_a_link_that_is_not_there_has_no_addresses(sock: RouteSocket) -> None:
    assert addresses.list_addresses(sock, 4711) == []
    with pytest.raises(KernelError) as caught:
        sock.send(addresses.add(4711, ip_interface("10.0.0.1/24")))
    assert caught.value.errno == errno.ENODEV


def test_an_impossible_index_is_refused() -> None:
    with pytest.raises(InvalidValue, match="link index 0"):
        addresses.add(0, ip_interface("10.0.0.1/24"))


@given(st.binary(max_size=80))
def test_random_bytes_parse_or_raise_the_typed_error(data: bytes) -> None:
    try:
        address = addresses.parse(data)
    except MalformedReply:
        return
    assert isinstance(address, Address)
