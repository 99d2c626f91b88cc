"""Routes: added, replaced and deleted as ``ip route`` sees it."""

from __future__ import annotations

import errno
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import addresses, links, routes
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.routes import Nexthop, Route
from tests.kernel import helpers

kernel = pytest.mark.kernel


@pytest.fixture
def index(sock: RouteSocket) -> int:
    """A link with an address of each family and nothing that came by itself."""
    sock.send(links.veth("a", "b", index=10, peer_index=11))
    sock.send(
        links.configure(10, addr_gen_mode=links.AddrGenMode.NONE),
        links.configure(11, addr_gen_mode=links.AddrGenMode.NONE),
        links.configure(10, up=True),
        links.configure(11, up=True),
        addresses.add(10, ip_interface("10.1.0.5/16")),
        addresses.add(10, ip_interface("2001:db8::5/64")),
    )
    return 10


def shown(destination: str, *selector: str) -> list[dict[str, Any]]:
    family = "-6" if ":" in destination else "-4"
    return helpers.ip(family, "route", "show", "exact", destination, *selector)


@kernel
@pytest.mark.parametrize(
    ("destination", "gateway", "default"),
    [
        ("0.0.0.0/0", "10.1.0.1", "default"),
        ("::/0", "2001:db8::1", "default"),
        ("::/0", "fe80::1", "default"),
    ],
)
def test_the_default_route_takes_its_family_from_the_gateway(
    sock: RouteSocket, index: int, destination: str, gateway: str, default: str
) -> None:
    device = index if gateway.startswith("fe80") else None
    sock.send(routes.add(None, gateway=ip_address(gateway), device=device))
    [route] = shown(destination)
    assert (route["dst"], route["gateway"], route["dev"], route["protocol"]) == (
        default,
        gateway,
        "a",
        "static",
    )
    [ours] = [one for one in routes.list_routes(sock, table=254) if one.destination.prefixlen == 0]
    assert (str(ours.destination), str(ours.gateway), ours.device) == (destination, gateway, index)
    sock.send(routes.delete(None, gateway=ip_address(gateway)))
    assert shown(destination) == []


@kernel
def test_every_option_of_a_route(sock: RouteSocket, index: int) -> None:
    sock.send(
        routes.add(
            ip_network("10.9.0.0/16"),
            device=index,
            gateway=ip_address("192.0.2.1"),
            onlink=True,
            table=1000,
            source=ip_address("10.1.0.5"),
            metric=77,
            mtu=1300,
            advmss=1200,
            protocol=routes.PROTOCOL_BOOT,
        ),
        routes.add(
            ip_network("2001:db8:9::/48"),
            device=index,
            gateway=ip_address("2001:db8::1"),
            table=1000,
            source=ip_address("2001:db8::5"),
            metric=78,
            mtu=1301,
            advmss=1201,
        ),
    )
    [four] = shown("10.9.0.0/16", "table", "1000")
    assert (four["gateway"], four["prefsrc"], four["metric"]) == ("192.0.2.1", "10.1.0.5", 77)
    assert (four["metrics"], four["flags"]) == ([{"mtu": 1300, "advmss": 1200}], ["onlink"])
    [six] = shown("2001:db8:9::/48", "table", "1000")
    assert (six["gateway"], six["prefsrc"], six["metric"]) == ("2001:db8::1", "2001:db8::5", 78)
    assert six["metrics"] == [{"mtu": 1301, "advmss": 1201}]
    assert routes.list_routes(sock, table=1000) == [
        Route(
            destination=ip_network("10.9.0.0/16"),
            device=index,
            gateway=ip_address("192.0.2.1"),
            table=1000,
            protocol=routes.PROTOCOL_BOOT,
            source=ip_address("10.1.0.5"),
            metric=77,
            mtu=1300,
            advmss=1200,
            onlink=True,
        ),
        Route(
            destination=ip_network("2001:db8:9::/48"),
            device=index,
            gateway=ip_address("2001:db8::1"),
            table=1000,
            protocol=routes.PROTOCOL_STATIC,
            source=ip_address("2001:db8::5"),
            metric=78,
            mtu=1301,
            advmss=1201,
        ),
    ]
    sock.send(
        routes.delete(ip_network("10.9.0.0/16"), table=1000),
        routes.delete(ip_network("2001:db8:9::/48"), table=1000, metric=78),
    )
    assert routes.list_routes(sock, table=1000) == []


@kernel
def test_without_a_gateway_the_scope_is_the_link(sock: RouteSocket, index: int) -> None:
    sock.send(
        routes.add(ip_network("10.8.0.0/24"), device=index),
        routes.add(ip_network("10.8.1.0/24"), device=index, scope=routes.SCOPE_UNIVERSE),
        routes.add(ip_network("10.8.2.1/32"), device=index, type="local", table=routes.TABLE_LOCAL),
    )
    assert shown("10.8.0.0/24")[0]["scope"] == "link"
    sock.send(routes.delete(ip_network("10.8.0.0/24"), device=index))
    assert shown("10.8.0.0/24") == []
    assert shown("10.8.1.0/24")[0]["scope"] == "global"
    local = shown("10.8.2.1/32", "table", "local")[0]
    assert (local["scope"], local["type"]) == ("host", "local")


@kernel
def test_a_route_that_exists_is_refused_unless_replaced(sock: RouteSocket, index: int) -> None:
    for text, first, second in (
        ("10.7.0.0/16", "10.1.0.1", "10.1.0.2"),
        ("2001:db8:7::/48", "2001:db8::1", "2001:db8::2"),
    ):
        network = ip_network(text)
        sock.send(routes.add(network, gateway=ip_address(first)))
        with pytest.raises(KernelError) as caught:
            sock.send(routes.add(network, gateway=ip_address(second)))
        assert caught.value.errno == errno.EEXIST
        assert text in caught.value.subject
        sock.send(routes.add(network, gateway=ip_address(second), append=True))
        hops = [hop for route in shown(text) for hop in route.get("nexthops", [route])]
        assert [hop["gateway"] for hop in hops] == [first, second]
        sock.send(routes.delete(network, gateway=ip_address(first)))
        assert [route["gateway"] for route in shown(text)] == [second]
        sock.send(routes.add(network, gateway=ip_address(first), replace=True))
        assert [route["gateway"] for route in shown(text)] == [first]


@kernel
def test_an_ipv4_route_by_an_ipv6_gateway(sock: RouteSocket, index: int) -> None:
    sock.send(routes.add(ip_network("10.6.0.0/16"), device=index, gateway=ip_address("fe80::1")))
    [route] = shown("10.6.0.0/16")
    assert route["via"] == {"family": "inet6", "host": "fe80::1"}
    [ours] = [one for one in routes.list_routes(sock, 4) if one.destination == ip_network("10.6.0.0/16")]
    assert ours.gateway == ip_address("fe80::1")


@kernel
def test_routes_that_drop(sock: RouteSocket) -> None:
    for kind in ("blackhole", "unreachable", "prohibit"):
        sock.send(
            routes.add(ip_network("10.5.0.0/16"), type=kind),
            routes.add(ip_network("2001:db8:5::/48"), type=kind),
        )
        assert shown("10.5.0.0/16")[0]["type"] == kind
        assert shown("2001:db8:5::/48")[0]["type"] == kind
        sock.send(
            routes.delete(ip_network("10.5.0.0/16"), type=kind),
            routes.delete(ip_network("2001:db8:5::/48"), type=kind),
        )


@kernel
def test_the_kernel_says_why_a_gateway_is_refused(sock: RouteSocket, index: int) -> None:
    with pytest.raises(KernelError) as caught:
        sock.send(routes.add(None, gateway=ip_address("203.0.113.1")))
    assert caught.value.errno == errno.ENETUNREACH
    assert caught.value.detail == "Nexthop has invalid gateway"
    assert (caught.value.operation, caught.value.subject) == ("add route", "0.0.0.0/0")


@kernel
def test_what_is_not_there_cannot_be_deleted_and_an_unused_table_is_empty(sock: RouteSocket) -> None:
    for text in ("10.5.0.0/16", "2001:db8:5::/48"):
        with pytest.raises(KernelError) as caught:
            sock.send(routes.delete(ip_network(text), table=2345))
        assert caught.value.errno == errno.ESRCH
        assert "table 2345" in caught.value.subject
    assert routes.list_routes(sock, table=2345) == []


@kernel
def test_the_list_is_what_ip_lists(sock: RouteSocket, index: int) -> None:
    sock.send(routes.add(None, gateway=ip_address("10.1.0.1")))
    # The kernel adds the local route of an IPv6 address from a work queue, some time later.
    for family, table in ((4, None), (6, routes.TABLE_MAIN)):
        theirs = {
            (route["dst"], route.get("table", "main"), route.get("gateway"))
            for route in helpers.ip(
                f"-{family}", "route", "show", "table", "all" if table is None else "main"
            )
        }
        ours = set()
        for route in routes.list_routes(sock, family, table):
            network = route.destination
            whole = network.prefixlen == network.max_prefixlen
            text = "default" if not network.prefixlen else str(network.network_address if whole else network)
            gateway = None if route.gateway is None else str(route.gateway)
            ours.add((text, {254: "main", 255: "local"}[route.table], gateway))
        assert ours == theirs


@kernel
def test_the_ways_of_a_multipath_route_are_read(sock: RouteSocket, index: int) -> None:
    helpers.run(
        "ip",
        "route",
        "add",
        "10.4.0.0/16",
        *("nexthop", "via", "10.1.0.1", "weight", "2"),
        *("nexthop", "via", "10.1.0.2"),
    )
    [route] = [one for one in routes.list_routes(sock, 4) if one.destination == ip_network("10.4.0.0/16")]
    assert route.nexthops == (
        Nexthop(index, ip_address("10.1.0.1"), 2),
        Nexthop(index, ip_address("10.1.0.2"), 1),
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: routes.add(None), "default route needs a gateway"),
        (lambda: routes.add(ip_network("10.0.0.0/8"), device=1, type="odd"), "route type 'odd'"),
        (lambda: routes.add(ip_network("10.0.0.0/8"), device=1, mtu=-1), "route metrics mtu -1"),
        (lambda: routes.add(ip_network("10.0.0.0/8"), device=1, table=-1), "route table -1"),
        (lambda: routes.list_routes(None, 5), "route family 5"),  # type: ignore[arg-type]
    ],
)
def test_impossible_requests_are_refused_before_they_are_sent(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidValue) as caught:
        make()
    assert says in str(caught.value)


@given(st.binary(max_size=120))
def test_random_bytes_parse_or_raise_the_typed_error(data: bytes) -> None:
    try:
        route = routes.parse(data)
    except MalformedReply:
        return
    assert route is None or isinstance(route, Route)


@given(st.sampled_from([2, 10]), st.integers(0, 255), st.binary(max_size=60))
def test_random_attributes_behind_a_right_header(family: int, length: int, data: bytes) -> None:
    try:
        route = routes.parse(bytes([family, length, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]) + data)
    except MalformedReply:
        return
    assert route is not None
    assert route.destination.version == (4 if family == 2 else 6)
