"""The plugin `podwire` with real traffic: both modes, both IP versions, seen by ip, nft and sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.kernel import links as kernel_links
from podwire.kernel import netns
from podwire.kernel.netlink import RouteSocket
from podwire.plugins.repair import Attached, Repairer
from tests.plugins import nat_lab, podwire_lab
from tests.plugins.helpers import addresses, ip, links, reaches, routes, run, sysctl
from tests.plugins.podwire_lab import SUBNETS, Node

pytestmark = pytest.mark.kernel

MODES = ("routed", "bridge")
V4, V6 = SUBNETS


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with podwire_lab.node(tmp_path) as made:
        yield made


def plain(result: Any) -> list[str]:
    return [each.address.partition("/")[0] for each in result.ips]


def mapping(host: int, container: int, protocol: str = "tcp", **more: Any) -> dict[str, Any]:
    return {"hostPort": host, "containerPort": container, "protocol": protocol, **more}


def with_ports(config: dict[str, Any], *mappings: dict[str, Any]) -> dict[str, Any]:
    return {**config, "runtimeConfig": {"portMappings": list(mappings)}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("subnets", [(V4,), (V6,), SUBNETS], ids=["v4", "v6", "dual"])
def test_pods_and_host_reach_one_another_at_once(node: Node, mode: str, subnets: tuple[str, ...]) -> None:
    config = node.network(mode, *subnets)
    one, two = node.attached(config, "one", "two")
    for address in plain(two):
        assert reaches("one", address)
        assert reaches("", address)
        assert node.talk("two", "one", address, 80) in plain(one)
        assert node.talk("two", "one", address, 81, kind=socket.SOCK_DGRAM) in plain(one)
    node.check(config, "one", one)
    assert sorted(node.held()) == sorted(plain(one) + plain(two))


@pytest.mark.parametrize("mode", MODES)
def test_what_leaves_the_network_is_masqueraded(node: Node, mode: str) -> None:
    node.attached(node.network(mode), "one")
    assert node.talk("client", "one", "192.0.2.9", 80) == "192.0.2.1"
    assert node.talk("client", "one", "2001:db8::9", 80) == "2001:db8::1"


@pytest.mark.parametrize("mode", MODES)
def test_not_where_no_masquerade_says_so(node: Node, mode: str) -> None:
    nat_lab.batch("client", "route add 10.1.0.0/24 via 192.0.2.1", "route add fd00:1::/64 via 2001:db8::1")
    (one,) = node.attached(node.network(mode, noMasquerade=["192.0.2.0/24", "2001:db8::/64"]), "one")
    assert node.talk("client", "one", "192.0.2.9", 80) == plain(one)[0]
    assert node.talk("client", "one", "2001:db8::9", 80) == plain(one)[1]
    nat_lab.batch("client", "route add 10.2.0.0/24 via 192.0.2.1")
    other = node.network(mode, "10.2.0.0/24", name="other", bridge="br1", masquerade=False)
    (two,) = node.attached(other, "two")
    assert node.talk("client", "two", "192.0.2.9", 80) == plain(two)[0]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
@pytest.mark.parametrize("mode", MODES)
def test_host_ports_lead_to_the_pod_from_everywhere(node: Node, mode: str, kind: int) -> None:
    protocol = "tcp" if kind == socket.SOCK_STREAM else "udp"
    config = node.network(mode)
    one = node.add(with_ports(config, mapping(8080, 80, protocol)), node.pod("one"))
    node.attached(config, "two")
    for where, address in (
        ("client", "192.0.2.1"),
        ("client", "2001:db8::1"),
        ("", "192.0.2.1"),
        ("", "127.0.0.1"),
        ("two", "192.0.2.1"),
        ("two", "2001:db8::1"),
        ("one", "192.0.2.1"),  # hairpin
        ("one", "2001:db8::1"),
    ):
        node.talk("one", where, address, 8080, inner=80, kind=kind)
    node.check(with_ports(config, mapping(8080, 80, protocol)), "one", one)
    node.delete(config, "one")
    assert "target_any4" not in podwire_lab.pod_elements()


@pytest.mark.parametrize("mode", MODES)
def test_a_host_port_is_taken_once_and_the_refused_add_leaves_nothing(node: Node, mode: str) -> None:
    config = with_ports(node.network(mode), mapping(8080, 80))
    node.add(config, node.pod("one"))
    held, elements, there = node.held(), podwire_lab.pod_elements(), sorted(links())
    with pytest.raises(CNIError, match=r"host port 0\.0\.0\.0:8080/tcp is taken: container id-one") as caught:
        node.add(config, node.pod("two"))
    assert caught.value.code == 101
    assert (node.held(), podwire_lab.pod_elements(), sorted(links())) == (held, elements, there)


@pytest.mark.parametrize("mode", MODES)
def test_rules_are_the_same_with_one_pod_and_with_many(node: Node, mode: str) -> None:
    """Flat rules: neither a pod nor its host ports add a rule that packets meet."""
    config = node.network(mode)

    def attach(number: int) -> None:
        ports = [mapping(9000 + number, 80), mapping(9000 + number, 80, "udp", hostIP="192.0.2.1")]
        node.add(with_ports(config, *ports), node.pod(f"p{number}"))

    attach(0)
    one = nat_lab.rules()
    for number in range(1, 30):
        attach(number)
    assert len(nat_lab.elements("target_any4")) == 30
    assert nat_lab.rules() == one > 20


def test_a_routed_pod_has_a_host_route_and_needs_no_neighbour_discovery(node: Node) -> None:
    (one,) = node.attached(node.network("routed"), "one")
    (end,) = [name for name in links() if name.startswith("pwr")]
    assert addresses("eth0", "one")[:2] == ["10.1.0.2/32", "fd00:1::2/128"]
    for family, gateway, own in (("-4", "169.254.1.1", "10.1.0.2"), ("-6", "fe80::1", "fd00:1::2")):
        ways = {each["dst"]: each for each in routes("one", family)}
        assert ways["default"]["gateway"] == gateway
        assert {each["dst"] for each in routes("", family) if each["dev"] == end} == {own}
    inside = {each["dst"]: each["state"] for each in ip("neigh", "show", "dev", "eth0", pod="one")}
    assert inside == {"169.254.1.1": ["PERMANENT"], "fe80::1": ["PERMANENT"]}
    outside = {each["dst"]: each["state"] for each in ip("neigh", "show", "dev", end)}
    assert outside == {"10.1.0.2": ["PERMANENT"], "fd00:1::2": ["PERMANENT"]}
    assert [each.gateway for each in one.ips] == ["169.254.1.1", "fe80::1"]


def test_ipv6_that_is_off_in_the_namespace_is_switched_on(node: Node) -> None:
    for name in ("one", "two"):
        node.pod(name)
        run("ip", "netns", "exec", name, "busybox", "sysctl", "-wq", "net.ipv6.conf.default.disable_ipv6=1")
    for name, mode in (("one", "routed"), ("two", "bridge")):
        result = node.add(node.network(mode, name=mode, bridge="br0"), name)
        assert reaches("", plain(result)[1])
        node.check(node.network(mode, name=mode, bridge="br0"), name, result)


def test_f03_no_advertisement_is_taken(node: Node) -> None:
    for name, mode in (("one", "routed"), ("two", "bridge")):
        node.attached(node.network(mode, name=mode), name)
        assert sysctl("net/ipv6/conf/eth0/accept_ra", name) == "0"
        assert sysctl("net/ipv6/conf/eth0/autoconf", name) == "0"


def test_f04_a_new_pod_does_not_change_the_bridges_mac(node: Node) -> None:
    config = node.network("bridge")
    node.attached(config, "one")
    before = links()["podwire0"]["address"]
    node.attached(config, "two", "three", "four")
    assert links()["podwire0"]["address"] == before


@pytest.mark.parametrize("mode", MODES)
def test_the_mtu_is_that_of_the_uplink_less_the_overhead(node: Node, mode: str) -> None:
    run("ip", "link", "set", "up0", "mtu", "9000")
    (one, *_) = node.attached(node.network(mode, mtuOverhead=50), "one", "two")
    assert links("one")["eth0"]["mtu"] == 8950
    assert {link["mtu"] for name, link in links().items() if name.startswith(("pw", "podwire"))} == {8950}
    assert one.interfaces[-1].mtu == 8950
    node.attached(node.network(mode, mtu=1400, name="other", bridge="br1"), "three")
    assert links("three")["eth0"]["mtu"] == 1400


@pytest.mark.parametrize("mode", MODES)
def test_f14_a_wrong_mtu_is_reported_and_new_pods_have_the_right_one(node: Node, mode: str) -> None:
    config = node.network(mode)
    (one,) = node.attached(config, "one")
    run("ip", "link", "set", "up0", "mtu", "1450")
    with pytest.raises(CNIError, match="interface eth0: has MTU 1500, uplink up0 allows 1450"):
        node.check(config, "one", one)
    node.attached(config, "two")
    assert links("two")["eth0"]["mtu"] == 1450
    if mode == "bridge":
        assert links()["podwire0"]["mtu"] == 1450
    with pytest.raises(CNIError, match="mtu 1500: the uplink up0 has 1450") as caught:
        node.call("STATUS", node.network(mode, mtu=1500))
    assert caught.value.code == 50


def test_status_tells_a_missing_uplink_and_a_full_range(node: Node) -> None:
    with pytest.raises(CNIError, match="uplink wan0: is missing") as caught:
        node.call("STATUS", node.network("routed", uplink="wan0"))
    assert caught.value.code == 50
    config = node.network("routed", "10.1.0.0/30")
    node.call("STATUS", config)
    node.attached(config, "one")
    with pytest.raises(CNIError, match=r"no free address in 10\.1\.0\.1-10\.1\.0\.2") as caught:
        node.call("STATUS", config)
    assert caught.value.code == 50
    with pytest.raises(CNIError, match="no free address") as caught:
        node.add(config, node.pod("two"))
    assert caught.value.code == 11


def test_without_any_uplink_pods_have_1500(node: Node) -> None:
    run("ip", "link", "delete", "up0")
    node.attached(node.network("routed"), "one")
    assert links("one")["eth0"]["mtu"] == 1500
    node.call("STATUS", node.network("routed"))


@pytest.mark.parametrize("mode", MODES)
def test_the_runtime_asks_for_addresses_mac_and_ranges(node: Node, mode: str) -> None:
    runtime = {
        "ipRanges": [[{"subnet": "10.7.0.0/24"}]],
        "ips": ["10.7.0.9"],
        "mac": "02:00:5e:10:00:09",
        "dns": {"servers": ["10.0.0.10"], "searches": ["x.test"]},
    }
    config = {**node.network(mode), "runtimeConfig": runtime}
    result = node.add(config, node.pod("one"))
    assert plain(result) == ["10.7.0.9"]
    assert links("one")["eth0"]["address"] == "02:00:5e:10:00:09"
    assert (result.dns.nameservers, result.dns.search) == (("10.0.0.10",), ("x.test",))
    assert reaches("", "10.7.0.9")
    node.check(config, "one", result)
    other = node.add(
        node.network(mode, bridge="br1"), node.pod("two"), args="IP=10.1.0.77;MAC=02:00:5e:10:00:0a"
    )
    assert plain(other)[0] == "10.1.0.77"
    assert links("two")["eth0"]["address"] == "02:00:5e:10:00:0a"


@pytest.mark.parametrize("mode", MODES)
def test_routes_take_the_place_of_the_default_route(node: Node, mode: str) -> None:
    config = node.network(mode, routes=[{"dst": "192.0.2.0/24"}, {"dst": "fd01::/16", "mtu": 1300}])
    (one,) = node.attached(config, "one")
    assert "default" not in {each["dst"] for each in routes("one")}
    assert node.talk("client", "one", "192.0.2.9", 80) == "192.0.2.1"
    node.check(config, "one", one)


@pytest.mark.parametrize("mode", MODES)
def test_a_second_add_is_refused_and_changes_nothing(node: Node, mode: str) -> None:
    config = with_ports(node.network(mode), mapping(8080, 80))
    one = node.add(config, node.pod("one"))
    with pytest.raises(CNIError, match="has eth0 on network net already"):
        node.add(config, "one")
    node.check(config, "one", one)


@pytest.mark.parametrize("where", ["/run/netns/gone", "", "/etc/hostname"], ids=["gone", "empty", "no netns"])
@pytest.mark.parametrize("mode", MODES)
def test_e01_e02_e03_del_needs_neither_namespace_nor_result(node: Node, mode: str, where: str) -> None:
    config = with_ports(node.network(mode), mapping(8080, 80), mapping(53, 53, "udp"))
    node.add(config, node.pod("one"))
    for _ in range(2):
        node.delete({**node.network(mode), "unknown": 1, "mtu": -5}, "one", netns=where)
    assert not [name for name in links() if name.startswith("pw")]
    assert node.held() == {}
    assert podwire_lab.pod_elements() == {}
    assert nat_lab.elements("localnet") == (["podwire0"] if mode == "bridge" else [])


def test_del_knows_a_pod_whatever_the_mode_is_now(node: Node) -> None:
    node.attached(node.network("routed"), "one")
    node.delete(node.network("bridge"), "one")
    node.attached(node.network("bridge"), "two")
    node.delete(node.network("routed"), "two")
    assert node.held() == {}
    assert not podwire_lab.pod_elements()


def test_e04_a_late_del_of_an_old_container_does_not_touch_the_new_one(node: Node) -> None:
    config = with_ports(node.network("routed"), mapping(8080, 80))
    node.add(config, node.pod("one"), container_id="old")
    node.delete(config, "one", container_id="old")
    result = node.add(config, "one", container_id="new")
    node.delete(config, "one", container_id="old")
    node.check(config, "one", result, container_id="new")


def test_leases_move_from_bridge_and_host_local_and_back(node: Node) -> None:
    before = node.config(V4, isGateway=True, ipMasq=True)
    node.attached(before, "one")
    after = node.network("routed", V4)
    two = node.add(after, node.pod("two"))
    assert plain(two) == ["10.1.0.3"]
    node.delete(after, "one")  # made by bridge
    assert list(node.held()) == ["10.1.0.3"]
    assert not [name for name in links() if name.startswith("veth")]
    assert set(podwire_lab.pod_elements()) == {"masquerade_index", "pods4"}
    three = node.add(before, node.pod("three"))
    assert plain(three) == ["10.1.0.4"]


@pytest.mark.parametrize("mode", MODES)
def test_gc_removes_what_is_not_valid(node: Node, mode: str) -> None:
    ports = (mapping(8080, 80), mapping(8081, 80, "udp", hostIP="192.0.2.1"))
    config = node.network(mode)
    stay = node.add(with_ports(config, mapping(8000, 80)), node.pod("stay"))
    before = podwire_lab.pod_elements()
    node.add(with_ports(config, *ports), node.pod("go"))
    other = node.network(mode, "10.2.0.0/24", name="other", bridge="br1")
    foreign = node.add(other, node.pod("foreign"))
    valid = [{"containerID": "id-stay", "ifname": "eth0"}]
    node.call("GC", {**config, "cni.dev/valid-attachments": valid})
    node.check(with_ports(config, mapping(8000, 80)), "stay", stay)
    node.check(other, "foreign", foreign)
    assert list(node.held()) == plain(stay)
    assert "eth0" not in links("go")
    node.delete(other, "foreign")
    assert podwire_lab.pod_elements() == before


def test_a_network_with_the_addresses_of_another_is_refused(node: Node) -> None:
    config = node.network("routed", V4)
    (one,) = node.attached(config, "one")
    with pytest.raises(CNIError, match=r"10\.1\.0\.2 is in use by net/id-one/eth0"):
        node.add({**config, "name": "other"}, node.pod("two"))
    with pytest.raises(CNIError, match=r"add route 10\.1\.0\.2/32: File exists"):
        node.add({**config, "name": "other", "masquerade": False}, "two", args="IP=10.1.0.2")
    node.check(config, "one", one)


DAMAGE = {
    "host end down": "ip link set {end} down",
    "no address": "ip -n one addr del {v4} dev eth0",
    "no v6 address": "ip -n one addr del {v6} dev eth0",
    "no default route": "ip -n one route del default",
    "no v6 default route": "ip -n one -6 route del default",
    "no link": "ip link delete {end}",
    "no masquerading": "nft delete element inet podwire pods4 {{ 10.1.0.2 }}",
    "no v6 masquerading": "nft delete element inet podwire pods6 {{ fd00:1::2 }}",
    "no host port": "nft delete element inet podwire target_any4 {{ tcp . 8080 }}",
    "networks flushed": "nft flush map inet podwire pod_networks4",
    "rules flushed": "nft flush chain inet podwire postrouting",
    "guard flushed": "nft flush chain inet podwire routed",
    "everything flushed": "nft flush ruleset",
    "another MTU": "ip -n one link set eth0 mtu 1300",
    "no forwarding": "busybox sysctl -wq net.ipv4.ip_forward=0",
    "no lease": "rm {data}/net/10.1.0.2",
    "no bucket": "tc qdisc del dev {end} root",
    "no ifb": "ip link delete {ifb}",
}
OF_MODE = {
    "routed": {
        "no host route": "ip route del 10.1.0.2",
        "no v6 host route": "ip -6 route del fd00:1::2",
        "no neighbour": "ip neigh del 10.1.0.2 dev {end}",
        "no gateway": "ip -n one neigh del 169.254.1.1 dev eth0",
        "no way to the gateway": "ip -n one route del 169.254.1.1",
        "127.0.0.0/8 kept in": "busybox sysctl -wq net.ipv4.conf.{end}.route_localnet=0",
        "localnet flushed": "nft flush set inet podwire localnet",
    },
    "bridge": {
        "not on the bridge": "ip link set {end} nomaster",
        "no hairpin": "bridge link set dev {end} hairpin off",
        "no gateway": "ip addr del 10.1.0.1/24 dev podwire0",
        "bridge down": "ip link set podwire0 down",
        "no source": "nft flush set bridge podwire sources4",
        "spoofing flushed": "nft flush chain bridge podwire spoofing",
    },
}
INSIDE = ("ip -n one", "ip link delete {end}", "rm ")


@pytest.mark.parametrize(
    ("mode", "what"), [(mode, what) for mode in MODES for what in (*DAMAGE, *OF_MODE[mode])]
)
def test_check_finds_and_mend_repairs_what_is_missing(node: Node, mode: str, what: str) -> None:
    from podwire.cni.plugin import make_request
    from podwire.plugins import podwire

    rate = {
        "ingressRate": 8_000_000,
        "ingressBurst": 8_000_000,
        "egressRate": 8_000_000,
        "egressBurst": 8_000_000,
    }
    config = with_ports(node.network(mode, bandwidth=rate), mapping(8080, 80))
    (one,) = [node.add(config, node.pod("one"))]
    node.check(config, "one", one)
    (end,) = [name for name in links() if name.startswith("pw")]
    command = {**DAMAGE, **OF_MODE[mode]}[what]
    v4, v6 = addresses("eth0", "one")[:2]
    ifb = next(name for name in links() if name.startswith("bwp"))
    run("sh", "-c", command.format(end=end, ifb=ifb, v4=v4, v6=v6, data=node.data))
    with pytest.raises(CNIError):
        node.check(config, "one", one)
    if command.startswith(INSIDE):
        return  # the pod's own, or beyond repair
    request = make_request(
        podwire.PLUGIN,
        "CHECK",
        config,
        container_id="id-one",
        netns="/run/netns/one",
        ifname="eth0",
        prev_result=one,
    )
    assert podwire.mend(request, node.kernel)
    node.check(config, "one", one)
    assert podwire.mend(request, node.kernel) == []


def test_bandwidth_comes_from_the_network_or_the_runtime(node: Node) -> None:
    rate = {"ingressRate": 8_000_000, "ingressBurst": 8_000_000}
    node.attached(node.network("routed", bandwidth=rate), "one")
    own = {
        "ingressRate": 16_000_000,
        "ingressBurst": 8_000_000,
        "egressRate": 8_000_000,
        "egressBurst": 80_000,
    }
    node.add({**node.network("routed", bandwidth=rate), "runtimeConfig": {"bandwidth": own}}, node.pod("two"))
    shown = json.loads(run("tc", "-j", "qdisc", "show"))
    rates = sorted(each["options"]["rate"] for each in shown if each["kind"] == "tbf")
    assert rates == [1_000_000, 1_000_000, 2_000_000]
    node.delete(node.network("routed"), "two")
    assert not [name for name in links() if name.startswith("bwp")]


@pytest.mark.parametrize("mode", MODES)
def test_limits_are_made_before_the_host_end_is_up(
    node: Node, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from podwire.plugins import shaping

    up: list[bool] = []
    real = shaping.make

    def watched(*arguments: Any, **named: Any) -> Any:
        made = real(*arguments, **named)
        up.append("UP" in links()[arguments[2].name]["flags"])
        return made

    monkeypatch.setattr(shaping, "make", watched)
    both = {
        "ingressRate": 8_000_000,
        "ingressBurst": 8_000_000,
        "egressRate": 8_000_000,
        "egressBurst": 80_000,
    }
    node.attached(node.network(mode, bandwidth=both), "one")
    assert up == [False]
    kinds = {each["kind"] for each in json.loads(run("tc", "-j", "qdisc", "show"))}
    assert {"tbf", "ingress"} <= kinds


def test_many_pods_of_one_container_id_and_other_interfaces(node: Node) -> None:
    config = node.network("routed", V4)
    node.pod("one")
    first = node.add(config, "one")
    second = node.add(
        {**config, "name": "other", "subnets": ["10.2.0.0/24"], "routes": []}, "one", ifname="net1"
    )
    assert {"eth0", "net1"} <= set(links("one"))
    node.delete({**config, "name": "other"}, "one", ifname="net1")
    assert "net1" not in links("one")
    node.check(config, "one", first)
    assert plain(second) == ["10.2.0.2"]


def test_an_interface_name_that_the_container_has_is_refused_and_kept(node: Node) -> None:
    node.pod("one")
    with netns.open("/run/netns/one") as inside, RouteSocket.open(inside) as sock:
        sock.send(kernel_links.veth("eth0", "far0"))
    before = links("one")
    with pytest.raises(CNIError, match="EEXIST"):
        node.add(node.network("routed"), "one")
    assert links("one") == before
    assert node.held() == {}
    assert podwire_lab.pod_elements() == {}


@pytest.mark.parametrize(
    ("mode", "command"),
    [
        ("routed", "ip route del 10.1.0.2"),
        ("routed", "nft flush set inet podwire pods6"),
        ("routed", "ip link set {end} down"),
        ("bridge", "nft flush ruleset"),
        ("bridge", "nft flush set bridge podwire sources4"),
        ("bridge", "ip link set {end} nomaster"),
        ("bridge", "nft delete element inet podwire target_any4 {{ tcp . 8080 }}"),
    ],
)
def test_the_repairer_suspects_whom_something_was_taken_from(node: Node, mode: str, command: str) -> None:
    config = with_ports(node.network(mode), mapping(8080, 80))
    results = {"one": node.add(config, node.pod("one"))}
    text = json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [node.network(mode)]})
    attached = [
        Attached(text, f"id-{name}", "eth0", tuple(plain(result)), host_ports=True)
        for name, result in results.items()
    ]
    assert Repairer(node.kernel).suspects(attached) == []
    (end,) = [name for name in links() if name.startswith("pw")]
    run("sh", "-c", command.format(end=end))
    assert Repairer(node.kernel).suspects(attached) == attached
