"""ptp: the host as the pods' router, and what it keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from podwire.cni.errors import CNIError, InvalidConfig, UnknownContainer
from podwire.cni.plugin import make_request
from podwire.cni.types import IPConfig
from podwire.plugins import ptp, routed
from tests.plugins import link_lab
from tests.plugins.helpers import Host, addresses, links, reaches, routes, run, sysctl

pytestmark = pytest.mark.kernel

DEFAULT = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]


@pytest.fixture
def node(host: Host) -> Iterator[Host]:
    """A host with a network beside that of the pods; its router does not know these."""
    link_lab.cable()
    run("ip", "-n", "router", "address", "flush", "dev", "r0")
    for command in ("address add 192.0.2.9/24 dev r0", "address add 2001:db8::9/64 dev r0 nodad"):
        run("ip", "-n", "router", *command.split())
    for address in ("192.0.2.1/24", "2001:db8::1/64"):
        run("ip", "address", "add", address, "dev", "m0", *(["nodad"] if ":" in address else []))
    host.pod("one")
    yield host
    run("ip", "netns", "delete", "router")


def net(host: Host, *subnets: str, **options: Any) -> dict[str, Any]:
    config = host.config(*(subnets or link_lab.SUBNETS), **{"type": "ptp", "bridge": "", **options})
    if "ipam" not in options:
        config["ipam"]["routes"] = [
            one
            for one in DEFAULT
            if any((":" in one["dst"]) == (":" in each) for each in subnets) or not subnets
        ]
    return config


def host_end() -> str:
    (name,) = (name for name in links() if name.startswith("veth"))
    return name


def test_pods_reach_each_other_and_the_host(node: Host) -> None:
    config = net(node)
    node.add(config, "one")
    node.add(config, node.pod("two"))
    for address in ("10.1.0.1", "10.1.0.3", "fd00:1::1", "fd00:1::3", "192.0.2.1", "2001:db8::1"):
        assert reaches("one", address), address
    assert reaches("", "10.1.0.2")
    assert reaches("", "fd00:1::2")


def test_masquerading_opens_the_way_back(node: Host) -> None:
    config = net(node)
    node.add(config, "one")
    assert not reaches("one", "192.0.2.9")
    node.delete(config, "one")
    node.add(net(node, ipMasq=True), "one")
    assert reaches("one", "192.0.2.9")
    assert reaches("one", "2001:db8::9")


@pytest.mark.parametrize("netns", ["", "/run/netns/one"])
def test_E21_no_rule_is_left(node: Host, netns: str) -> None:
    config = net(node, ipMasq=True)
    node.add(config, "one")
    assert "10.1.0.2" in run("nft", "list", "ruleset")
    node.delete({**config, "ipMasq": False}, "one", netns=netns)  # changed meanwhile
    assert "elements" not in run("nft", "list", "ruleset")


def test_the_host_end_is_a_router_and_takes_no_advertisements(node: Host) -> None:
    node.add(net(node), "one")
    name = host_end()
    assert set(addresses(name)) >= {"10.1.0.1/32", "fd00:1::1/128"}
    assert sysctl(f"net/ipv6/conf/{name}/accept_ra") == "0"
    assert sysctl("net/ipv4/ip_forward") == sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert links()[name]["ifalias"] == "podwire net id-one eth0"


def test_only_what_is_needed_is_forwarded(node: Host) -> None:
    run("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding; echo 0 > /proc/sys/net/ipv4/ip_forward")
    node.add(net(node, "10.1.0.0/24"), "one")
    assert (sysctl("net/ipv4/ip_forward"), sysctl("net/ipv6/conf/all/forwarding")) == ("1", "0")


def test_the_interface_goes_down_and_up_without_a_route_to_nowhere(node: Host) -> None:
    node.add(net(node), "one")
    run("ip", "-n", "one", "link", "set", "eth0", "down")
    run("ip", "-n", "one", "link", "set", "eth0", "up")
    assert [one["dst"] for one in routes("one")] == []
    assert not any(one["dst"] == "fd00:1::/64" for one in routes("one", "-6"))


def test_two_sets_of_one_subnet(node: Host) -> None:
    """Two addresses with the same gateway: one route to it does for both."""
    config = net(node, "10.1.0.0/24")
    config["ipam"]["ranges"] = [
        [{"subnet": "10.1.0.0/24", "rangeStart": start, "rangeEnd": end, "gateway": "10.1.0.1"}]
        for start, end in (("10.1.0.10", "10.1.0.19"), ("10.1.0.20", "10.1.0.29"))
    ]
    result = node.add(config, "one")
    assert {one.address for one in result.ips} == {"10.1.0.10/24", "10.1.0.20/24"}
    node.check(config, "one", result)
    assert reaches("one", "10.1.0.1")
    assert reaches("", "10.1.0.20")


def test_a_second_interface_on_the_same_network(node: Host) -> None:
    config = net(node)
    first = node.add(config, "one")
    second = node.add(config, "one", ifname="net1")
    node.check(config, "one", first)
    node.check(config, "one", second, ifname="net1")
    node.delete(config, "one", ifname="net1")
    node.check(config, "one", first)
    assert reaches("one", "10.1.0.1")


@pytest.mark.parametrize(
    ("address", "gateway"),
    [("10.1.0.5/24", "10.1.0.1"), ("10.1.0.5/31", "10.1.0.4"), ("fd00::5/64", "fd00::1")],
)
def test_a_gateway_is_the_first_address_where_none_is_given(address: str, gateway: str) -> None:
    assert routed.with_gateway(IPConfig(address)).gateway == gateway
    assert routed.with_gateway(IPConfig(address, "10.9.9.9")).gateway == "10.9.9.9"


@pytest.mark.parametrize("address", ["10.1.0.1/24", "10.1.0.4/31", "10.1.0.5/32", "fd00::1/128"])
def test_an_address_that_would_be_its_own_gateway(address: str) -> None:
    with pytest.raises(InvalidConfig, match="has no gateway"):
        routed.with_gateway(IPConfig(address))


BREAKS = {
    "ip link set {end} down": "is down",
    "ip address delete 10.1.0.1/32 dev {end}": "the gateway's address 10.1.0.1/32 is missing",
    "ip address delete fd00:1::1/128 dev {end}": "the gateway's address fd00:1::1/128 is missing",
    "ip route delete 10.1.0.2 dev {end}": "the route to 10.1.0.2/32 is missing",
    "ip -6 route delete fd00:1::2 dev {end}": "the route to fd00:1::2/128 is missing",
    "nft flush table inet podwire": "ipMasq: ",
}


@pytest.mark.parametrize("command", BREAKS)
def test_what_the_host_lost_is_found_and_mended(node: Host, command: str) -> None:
    config = net(node, ipMasq=True)
    result = node.add(config, "one")
    run(*command.format(end=host_end()).split())
    with pytest.raises(CNIError, match=BREAKS[command]):
        node.check(config, "one", result)
    request = make_request(
        ptp.PLUGIN,
        "CHECK",
        config,
        container_id="id-one",
        netns="/run/netns/one",
        ifname="eth0",
        prev_result=result,
    )
    assert ptp.mend(request, node.kernel) != []
    node.check(config, "one", result)
    assert reaches("one", "192.0.2.9")
    assert reaches("one", "2001:db8::9")
    assert ptp.mend(request, node.kernel) == []
    node.delete(config, "one")
    with pytest.raises(UnknownContainer):
        ptp.mend(request, node.kernel)


@pytest.mark.parametrize(
    "command",
    [
        "ip -n one route delete 10.1.0.1 dev eth0",
        "ip -n one route delete 10.1.0.0/24",
        "ip -n one -6 route delete fd00:1::1 dev eth0",
        "ip -n one -6 route delete fd00:1::/64",
    ],
)
def test_what_the_pod_lost_is_found(node: Host, command: str) -> None:
    config = net(node)
    result = node.add(config, "one")
    run(*command.split())
    with pytest.raises(CNIError, match="route to"):
        node.check(config, "one", result)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mtu": -1}, "mtu -1"),
        ({"mtu": 65536}, "mtu 65536"),
        ({"ipMasqBackend": "ipfw"}, 'ipMasqBackend "ipfw"'),
        ({"ipam": {}}, "ipam {}"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(node: Host, options: dict[str, Any], match: str) -> None:
    before = link_lab.everything(node)
    with pytest.raises(InvalidConfig, match=match):
        node.add(net(node, **options), "one")
    assert link_lab.everything(node) == before


def test_the_mtu_and_the_resolver(node: Host) -> None:
    config = net(node, mtu=1400, dns={"nameservers": ["192.0.2.53"]})
    result = node.add(config, "one")
    assert links("one")["eth0"]["mtu"] == links()[host_end()]["mtu"] == 1400
    assert [one.mtu for one in result.interfaces] == [1400, 1400]
    assert result.dns.nameservers == ("192.0.2.53",)
