"""portmap on a throwaway host: real traffic, `nft -j` and `conntrack -L` say whether it works."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable, TryLater
from podwire.cni.plugin import call, make_request
from podwire.kernel import conntrack, nft, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.nft import Nft
from podwire.plugins import portmap, ruleset
from podwire.plugins.portmap_elements import HostPortTaken
from tests.plugins import nat_lab
from tests.plugins.nat_lab import Lab, Pod, mapping, portmap_call, sh

pytestmark = pytest.mark.kernel

V4, V6 = "192.0.2.1", "2001:db8::1"
MAPS = ("portmap_any4", "portmap_any6", "portmap_at4", "portmap_at6")


@pytest.fixture
def lab() -> Iterator[Lab]:
    built = nat_lab.build()
    yield built
    nat_lab.tear_down(built)


@pytest.fixture
def bare() -> Iterator[Lab]:
    """A host without links, for what needs no traffic."""
    built = Lab(Kernel.open())
    yield built
    built.close()


@pytest.fixture
def pod(lab: Lab) -> Pod:
    return lab.pod("one", "10.1.0.5/24", "fd00:1::5/64")


def other(lab: Lab, name: str = "two", last: int = 6) -> Pod:
    return lab.pod(name, f"10.1.0.{last}/24", f"fd00:1::{last}/64")


def add(lab: Lab, pod: Pod, *mappings: Any, **options: Any) -> None:
    result = portmap_call(lab, "ADD", pod, *mappings, **options)
    assert result == pod.result(options.get("ifname", "eth0"))


def owners(*names: str) -> set[str]:
    found = set()
    for name in names or MAPS:
        for key, _ in nat_lab.elements(name):
            found.add(key["elem"]["comment"])
    return found


# Traffic


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("version", [4, 6])
def test_a_client_outside_reaches_the_pod_and_keeps_its_address(
    lab: Lab, pod: Pod, kind: socket.SocketKind, version: int
) -> None:
    protocol = "tcp" if kind == socket.SOCK_STREAM else "udp"
    add(lab, pod, mapping(8080, 80, protocol))
    server = lab.listen("one", pod.v4 if version == 4 else pod.v6, 80, kind)
    host, client = (V4, "192.0.2.9") if version == 4 else (V6, "2001:db8::9")
    assert lab.reach(server, "client", host, 8080) == client


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_the_host_reaches_the_pod_by_its_own_addresses_and_by_127_0_0_1(
    lab: Lab, pod: Pod, kind: socket.SocketKind
) -> None:
    add(lab, pod, mapping(8080, 80, "tcp"), mapping(8080, 80, "udp"))
    server4, server6 = lab.listen("one", pod.v4, 80, kind), lab.listen("one", pod.v6, 80, kind)
    assert lab.reach(server4, None, V4, 8080) == V4
    assert lab.reach(server6, None, V6, 8080) == V6
    assert lab.reach(server4, None, "127.0.0.1", 8080) == "10.1.0.1"


def test_ipv6_loopback_stays_with_the_hosts_own_programs(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    lab.listen("one", pod.v6, 80)
    server = lab.listen(None, "::1", 8080)
    assert lab.reach(server, None, "::1", 8080) == "::1"


@pytest.mark.parametrize("netfilter_on_bridges", ["0", "1"])
@pytest.mark.parametrize("name", ["one", "two"])
def test_pods_on_the_same_bridge_reach_it_by_host_port(
    lab: Lab, pod: Pod, name: str, netfilter_on_bridges: str
) -> None:
    for key in ("iptables", "ip6tables"):
        sh("sysctl", "-qw", f"net.bridge.bridge-nf-call-{key}={netfilter_on_bridges}")
    other(lab)
    add(lab, pod, mapping(8080, 80))
    server4, server6 = lab.listen("one", pod.v4, 80), lab.listen("one", pod.v6, 80)
    assert lab.reach(server4, name, V4, 8080) == "10.1.0.1"
    assert lab.reach(server6, name, V6, 8080) == "fd00:1::1"


ENDS = ("DEL", "DEL without netns", "DEL after the link", "DEL after all", "GC after all")


@pytest.mark.parametrize("end", ENDS)
def test_a_pods_own_link_is_closed_with_its_host_ports_and_forgotten_when_it_is_gone(
    lab: Lab, end: str
) -> None:
    kept = other(lab)
    add(lab, kept, mapping(8081, 80))
    pod = lab.pod("one", "10.1.0.5/24")
    nat_lab.batch(None, "link set vethone nomaster", "route add 10.1.0.5 dev vethone")
    add(lab, pod, mapping(8080, 80))
    assert sorted(nat_lab.elements("localnet")) == ["cni0", "vethone"]
    if "after" in end:
        sh("ip", "link", "del", "vethone")
    if end == "DEL after all":
        sh("ip", "address", "del", "10.1.0.1/24", "dev", "cni0")
    if end == "GC after all":
        portmap_call(lab, "GC", pod, valid=[kept])
    elif end in {"DEL without netns", "DEL after the link"}:
        config = {"cniVersion": "1.1.0", "name": "net", "type": "portmap"}
        request = make_request(
            portmap.PLUGIN,
            "DEL",
            config,
            container_id=pod.container_id,
            ifname="eth0",
            prev_result=pod.result(),
        )
        call(portmap.PLUGIN, request, lab.kernel)
    else:
        portmap_call(lab, "DEL", pod)
    assert nat_lab.elements("localnet") == ["cni0"]
    for name in ("cni0", *([] if "after" in end else ["vethone"])):
        is_open = sh("sysctl", "-n", f"net.ipv4.conf.{name}.route_localnet").strip()
        assert is_open == ("1" if name == "cni0" else "0")


def test_a_link_that_leads_elsewhere_too_stays_open(lab: Lab) -> None:
    """Pods behind a router: the link to it is nobody's own."""
    lab.pod("router", "10.1.0.7/24")
    nat_lab.batch(None, "link set vethrouter nomaster", "route add 10.1.9.0/24 dev vethrouter")
    sh("ip", "netns", "add", "behind")
    pod = Pod("behind", ("10.1.9.5/24",))
    add(lab, pod, mapping(8080, 80))
    portmap_call(lab, "DEL", pod)
    assert nat_lab.elements("localnet") == ["vethrouter"]
    assert sh("sysctl", "-n", "net.ipv4.conf.vethrouter.route_localnet").strip() == "1"


def test_without_snat_the_source_stays_and_no_sysctl_changes(lab: Lab, pod: Pod) -> None:
    other(lab)
    add(lab, pod, mapping(8080, 80, "udp"), snat=False)
    server = lab.listen("one", pod.v4, 80, socket.SOCK_DGRAM)
    sender = lab.open("two", socket.AF_INET, socket.SOCK_DGRAM)
    sender.sendto(b"ping", (V4, 8080))
    assert server.recvfrom(16)[1][0] == "10.1.0.6"
    assert sh("sysctl", "-n", "net.ipv4.conf.cni0.route_localnet").strip() == "0"
    assert nat_lab.elements("localnet") == []


def test_masq_all_hides_every_client(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80), masqAll=True)
    assert lab.reach(lab.listen("one", pod.v4, 80), "client", V4, 8080) == "10.1.0.1"
    assert lab.reach(lab.listen("one", pod.v6, 80), "client", V6, 8080) == "fd00:1::1"


def test_mark_masq_bit_is_the_bit_that_is_used(lab: Lab, pod: Pod) -> None:
    second = other(lab)
    add(lab, pod, mapping(8080, 80), markMasqBit=5)
    add(lab, second, mapping(8081, 80))
    text = sh("nft", "list", "chain", "inet", "podwire", "hairpin")
    assert "0x00000020 == 0x00000020" in text and "0x00002000 == 0x00002000" in text
    assert lab.reach(lab.listen("one", pod.v4, 80), "two", V4, 8080) == "10.1.0.1"
    assert lab.reach(lab.listen("two", second.v4, 80), "one", V4, 8081) == "10.1.0.1"


def test_external_set_mark_chain_and_backend_change_nothing(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80), externalSetMarkChain="KUBE-MARK-MASQ", backend="iptables")
    assert lab.reach(lab.listen("one", pod.v4, 80), "one", V4, 8080) == "10.1.0.1"


@pytest.mark.parametrize(
    "conditions", [["!", "-s", "192.0.2.9/32"], ["ip", "saddr", "!=", "192.0.2.9"]], ids=["iptables", "nft"]
)
def test_conditions_leave_out_clients_of_their_version_only(
    lab: Lab, pod: Pod, conditions: list[str]
) -> None:
    add(lab, pod, mapping(8080, 80), conditionsV4=conditions)
    server = lab.listen("one", pod.v4, 80)
    assert lab.refused("client", V4, 8080)
    assert lab.reach(server, None, V4, 8080) == V4
    assert lab.reach(lab.listen("one", pod.v6, 80), "client", V6, 8080) == "2001:db8::9"


def test_conditions_that_nftables_refuses_are_told_with_their_field(lab: Lab, pod: Pod) -> None:
    with pytest.raises(InvalidConfig) as caught:
        add(lab, pod, mapping(8080, 80), conditionsV6=["ip6", "saddr", "nonsense-that-is-no-address"])
    assert caught.value.code == 7 and "conditionsV6" in caught.value.msg
    assert nat_lab.ruleset() == []


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_sctp_reaches_the_pod_with_a_right_checksum(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 3868, "SCTP"))
    # The kernel has no SCTP sockets: an INIT by hand, and a raw socket in the pod that sees what arrives.
    chunk = struct.pack("!BBHIIHHI", 1, 0, 20, 0x1234, 65535, 1, 1, 0x5678)
    bare = struct.pack("!HHII", 4000, 8080, 0, 0) + chunk
    packet = bare[:8] + struct.pack("<I", crc32c(bare)) + bare[12:]
    receiver = lab.open("one", socket.AF_INET, socket.SOCK_RAW, 132)
    lab.open("client", socket.AF_INET, socket.SOCK_RAW, 132).sendto(packet, (V4, 0))
    arrived = receiver.recv(256)[20:]
    assert struct.unpack_from("!HH", arrived) == (4000, 3868)
    assert arrived[8:12] == struct.pack("<I", crc32c(arrived[:8] + bytes(4) + arrived[12:]))
    assert arrived[12:] == chunk


def test_pods_do_not_reach_the_hosts_127_0_0_1_by_the_way_that_was_opened(lab: Lab, pod: Pod) -> None:
    second = other(lab)
    add(lab, pod, mapping(8080, 80))
    assert sh("sysctl", "-n", "net.ipv4.conf.cni0.route_localnet").strip() == "1"
    assert sh("sysctl", "-n", "net.ipv4.conf.all.route_localnet").strip() == "0"
    assert sh("sysctl", "-n", "net.ipv4.conf.out0.route_localnet").strip() == "0"
    private = lab.listen(None, "127.0.0.1", 9999, socket.SOCK_DGRAM)
    # A pod that is root in its namespace can send to 127.0.0.1 over its interface.
    sh("ip", "netns", "exec", second.name, "sysctl", "-qw", "net.ipv4.conf.eth0.route_localnet=1")
    nat_lab.ip("-n", second.name, "route", "del", "local", "127.0.0.1", "dev", "lo", "table", "local")
    nat_lab.ip("-n", second.name, "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
    nat_lab.ip("-n", second.name, "route", "add", "127.0.0.1", "via", "10.1.0.1", "dev", "eth0")
    attacker = lab.open(second.name, socket.AF_INET, socket.SOCK_DGRAM)
    attacker.bind((second.v4, 0))
    attacker.sendto(b"ping", ("127.0.0.1", 9999))
    private.settimeout(nat_lab.SHORT)
    with pytest.raises(TimeoutError):
        private.recv(16)


# Field reports


def test_g01_a_udp_client_follows_the_port_to_the_new_pod(lab: Lab, pod: Pod) -> None:
    port = mapping(8125, 9000, "udp")
    client = lab.open("client", socket.AF_INET, socket.SOCK_DGRAM)
    client.connect((V4, 8125))
    client.send(b"before there is a pod")
    add(lab, pod, port)
    first = lab.listen("one", pod.v4, 9000, socket.SOCK_DGRAM)
    try:
        client.send(b"to the first")
    except ConnectionRefusedError:
        client.send(b"to the first")
    assert first.recv(64) == b"to the first"
    second = other(lab)
    second_server = lab.listen("two", second.v4, 9000, socket.SOCK_DGRAM)
    portmap_call(lab, "DEL", pod)
    add(lab, second, port)
    client.send(b"to the second")
    assert second_server.recv(64) == b"to the second"


def test_g01_flows_go_at_del_and_others_stay(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8125, 9000, "udp"))
    second = other(lab)
    add(lab, second, mapping(8126, 9000, "udp"))
    for name, address, port in (("one", pod.v4, 8125), ("two", second.v4, 8126)):
        lab.reach(lab.listen(name, address, 9000, socket.SOCK_DGRAM), "client", V4, port)
    direct = lab.listen("one", pod.v4, 9001, socket.SOCK_DGRAM)
    lab.reach(direct, "client", pod.v4, 9001)
    portmap_call(lab, "DEL", pod)
    left = " ".join(nat_lab.flows())
    assert "dport=8125" not in left
    assert "dport=8126" in left and "dport=9001" in left


def test_g01_flows_through_the_host_to_elsewhere_are_not_cut_at_add(lab: Lab, pod: Pod) -> None:
    second = other(lab)
    add(lab, second, mapping(1000, 80))
    lab.reach(lab.listen("two", second.v4, 8125, socket.SOCK_DGRAM), "client", second.v4, 8125)
    add(lab, pod, mapping(8125, 9000, "udp"))
    assert "dport=8125" in " ".join(nat_lab.flows())


def test_g01_the_flows_are_deleted_after_the_elements_are_in(
    lab: Lab, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(**_: object) -> int:
        seen.append(len(nat_lab.elements("target_any4")))
        return 0

    monkeypatch.setattr(conntrack, "delete", look)
    add(lab, pod, mapping(8125, 9000, "udp", "0.0.0.0"))
    assert seen == [1]
    portmap_call(lab, "DEL", pod)
    assert seen == [1, 0]


@pytest.mark.parametrize(
    ("host_ip", "present"),
    [
        ("192.0.2.1", "portmap_at4"),
        ("2001:db8::1", "portmap_at6"),
        ("0.0.0.0", "portmap_any4"),
        ("::", "portmap_any6"),
        ("::ffff:192.0.2.1", "portmap_at4"),
    ],
)
def test_g03_host_ip_decides_the_family(lab: Lab, pod: Pod, host_ip: str, present: str) -> None:
    add(lab, pod, mapping(8080, 80, host_ip=host_ip))
    assert [name for name in MAPS if nat_lab.elements(name)] == [present]


def test_g03_a_wildcard_of_a_family_that_the_pod_lacks_adds_nothing(lab: Lab) -> None:
    only4 = lab.pod("only4", "10.1.0.7/24")
    add(lab, only4, mapping(8080, 80, host_ip="0.0.0.0"), mapping(8080, 80, host_ip="::"))
    assert [name for name in MAPS if nat_lab.elements(name)] == ["portmap_any4"]
    with pytest.raises(InvalidConfig, match=r"portMappings\[0\].hostIP.*IPv6.*2001:db8::1"):
        add(lab, lab.pod("again4", "10.1.0.8/24"), mapping(8082, 80, host_ip="2001:db8::1"))


def test_g04_each_family_that_the_pod_has(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    add(lab, lab.pod("only6", "fd00:1::7/64"), mapping(8081, 80))
    assert len(nat_lab.elements("target_any4")) == 1
    assert len(nat_lab.elements("target_any6")) == 2
    assert lab.reach(lab.listen("only6", "fd00:1::7", 80), "client", V6, 8081) == "2001:db8::9"


@pytest.mark.parametrize("host_ip", [None, "203.0.113.5"])
def test_g05_traffic_that_is_not_for_the_host_is_left_alone(lab: Lab, pod: Pod, host_ip: str | None) -> None:
    far = lab.pod("far", "10.1.0.9/24")
    nat_lab.ip("-n", "far", "addr", "add", "203.0.113.5/32", "dev", "eth0")
    nat_lab.ip("route", "add", "203.0.113.5/32", "via", "10.1.0.9")
    add(lab, pod, mapping(8053, 53, host_ip=host_ip))
    thief = lab.listen("one", pod.v4, 53)
    server = lab.listen(far.name, "203.0.113.5", 8053)
    assert lab.reach(server, "client", "203.0.113.5", 8053) == "192.0.2.9"
    assert lab.reach(server, None, "203.0.113.5", 8053)
    assert lab.reach(server, "one", "203.0.113.5", 8053)
    thief.settimeout(0)
    with pytest.raises(BlockingIOError):
        thief.accept()


def test_g05_dnat_hangs_in_prerouting_and_output_only(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    hooks = {
        item["chain"]["hook"] for item in nat_lab.ruleset() if item.get("chain", {}).get("type") == "nat"
    }
    assert hooks == {"prerouting", "output", "postrouting"}


def test_g06_del_works_after_the_network_was_renamed_and_its_configuration_broken(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80), mapping(8081, 81, host_ip=V4))
    portmap_call(
        lab, "DEL", pod, {"hostPort": "nonsense"}, network="renamed", snat="yes", conditionsV4=7, backend=[1]
    )
    assert set(nat_lab.all_elements()) <= {"localnet"}


def test_g08_two_host_ports_lead_to_one_container_port(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(443, 4443), mapping(4443, 4443))
    server = lab.listen("one", pod.v4, 4443)
    assert lab.reach(server, "client", V4, 443) == lab.reach(server, "client", V4, 4443) == "192.0.2.9"


@pytest.mark.parametrize("swapped", [False, True])
def test_g09_the_most_specific_host_ip_wins_in_any_order(lab: Lab, pod: Pod, swapped: bool) -> None:
    nat_lab.ip("addr", "add", "192.0.2.2/32", "dev", "out0")
    ports = [mapping(987, 123), mapping(987, 456, host_ip=V4), mapping(987, 457, host_ip=V6)]
    add(lab, pod, *(reversed(ports) if swapped else ports))
    general, special = lab.listen("one", pod.v4, 123), lab.listen("one", pod.v4, 456)
    assert lab.reach(special, "client", V4, 987)
    assert lab.reach(general, "client", "192.0.2.2", 987)
    assert lab.reach(general, None, "127.0.0.1", 987)
    assert lab.reach(lab.listen("one", pod.v6, 457), "client", V6, 987)


CASES = [
    (mapping(8080, 80, host_ip="10.1.1.1"), mapping(8080, 80, host_ip="10.1.1.2"), False),
    (mapping(2049, 80, "tcp"), mapping(2049, 80, "udp"), False),
    (mapping(8080, 80, host_ip="0.0.0.0"), mapping(8080, 80, host_ip="::"), False),
    (mapping(8080, 80, host_ip="10.1.1.1"), mapping(8080, 80, host_ip="::"), False),
    (mapping(8080, 80), mapping(8081, 80), False),
    (mapping(8080, 80), mapping(8080, 81), True),
    (mapping(8080, 80), mapping(8080, 80, host_ip="::"), True),
    (mapping(8080, 80, host_ip="10.1.1.1"), mapping(8080, 80, host_ip="10.1.1.1"), True),
    (mapping(8080, 80, host_ip="10.1.1.1"), mapping(8080, 80, host_ip="0.0.0.0"), True),
    (mapping(8080, 80, host_ip="10.1.1.1"), mapping(8080, 80), True),
    (mapping(8080, 80, host_ip="2001:db8::5"), mapping(8080, 80, host_ip="::"), True),
]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("first", "second", "conflict"), CASES)
def test_g10_conflict_only_where_addresses_overlap(
    bare: Lab, first: dict[str, Any], second: dict[str, Any], conflict: bool, swapped: bool
) -> None:
    if swapped:
        first, second = second, first
    one = Pod("one", ("10.1.0.5/24", "fd00:1::5/64"), "a" * 64)
    two = Pod("two", ("10.1.0.6/24", "fd00:1::6/64"), "b" * 64)
    add(bare, one, first)
    before = nat_lab.all_elements()
    if not conflict:
        add(bare, two, second)
        assert owners() == {f"net/{'a' * 64}/eth0", f"net/{'b' * 64}/eth0"}
        return
    with pytest.raises(HostPortTaken) as caught:
        add(bare, two, second)
    assert caught.value.holder == f"net/{'a' * 64}/eth0"
    assert "8080" in caught.value.msg and "a" * 64 in caught.value.msg
    assert nat_lab.all_elements() == before
    portmap_call(bare, "DEL", one)
    add(bare, two, second)
    assert owners() == {f"net/{'b' * 64}/eth0"}


def test_g10_an_address_of_two_holders_frees_the_port_with_the_last(bare: Lab) -> None:
    pods = [Pod(f"p{i}", (f"10.1.0.{i}/24",), f"{i}" * 64) for i in range(3)]
    add(bare, pods[0], mapping(8080, 80, host_ip="10.1.1.1"))
    add(bare, pods[1], mapping(8080, 80, host_ip="10.1.1.2"))
    portmap_call(bare, "DEL", pods[0])
    with pytest.raises(HostPortTaken):
        add(bare, pods[2], mapping(8080, 80))
    portmap_call(bare, "DEL", pods[1])
    assert nat_lab.elements("portmap_partly4") == []
    add(bare, pods[2], mapping(8080, 80))


def test_g12_one_request_may_not_ask_twice(lab: Lab, pod: Pod) -> None:
    with pytest.raises(InvalidConfig, match=r"portMappings\[1\].*8077/tcp.*portMappings\[0\]"):
        add(lab, pod, mapping(8077, 80), mapping(8077, 81, host_ip="0.0.0.0"))
    assert nat_lab.ruleset() == []


def test_g12_another_interface_of_the_same_container_conflicts(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8077, 80))
    with pytest.raises(HostPortTaken) as caught:
        add(lab, pod, mapping(8077, 80), ifname="net1")
    assert pod.container_id in caught.value.msg and "eth0" in caught.value.msg
    portmap_call(lab, "DEL", pod, ifname="net1")
    assert len(nat_lab.elements("target_any4")) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "flush ruleset",
        "delete table inet podwire",
        "flush map inet podwire target_any4",
        "flush map inet podwire portmap_any4\nflush map inet podwire target_any6",
        "flush table inet podwire",
    ],
)
def test_g14_del_succeeds_on_what_is_gone(lab: Lab, pod: Pod, damage: str) -> None:
    add(lab, pod, mapping(8080, 80), mapping(8081, 80, "udp", V4))
    sh("nft", damage)
    portmap_call(lab, "DEL", pod)
    portmap_call(lab, "DEL", pod)
    assert set(nat_lab.all_elements()) <= {"localnet"}


def test_g14_del_of_an_unknown_container_makes_nothing(lab: Lab, pod: Pod) -> None:
    portmap_call(lab, "DEL", pod)
    assert nat_lab.ruleset() == []


def test_g15_an_index_with_holes_is_tolerated(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80), mapping(8081, 81), mapping(8082, 82))
    key = ruleset.Owner("net", pod.container_id, "eth0").key
    sh("nft", f"delete element inet podwire portmap_index {{ {key} . 3 }}")
    portmap_call(lab, "DEL", pod)
    left = nat_lab.all_elements()
    assert "portmap_index" not in left
    portmap_call(lab, "GC", pod, valid=())
    assert set(nat_lab.all_elements()) <= {"localnet"}


def test_g16_a_pod_without_ports_touches_nothing_and_takes_no_lock(lab: Lab, pod: Pod) -> None:
    with ruleset.exclusive(1e12):
        add(lab, pod)
        portmap_call(lab, "CHECK", pod)
        portmap_call(lab, "DEL", pod)
        assert nat_lab.ruleset() == []


def test_g16_ports_of_any_address_take_no_lock_once_the_rules_are_there(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    with ruleset.exclusive(1e12):
        add(lab, other(lab), mapping(8081, 80))
        portmap_call(lab, "DEL", pod)
    assert len(nat_lab.elements("target_any4")) == 1


def test_g16_the_wait_for_the_lock_is_bounded(lab: Lab, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset, "LOCK_SECONDS", 0.05)
    with ruleset.exclusive(1e12), pytest.raises(TryLater) as caught:
        add(lab, pod, mapping(8080, 80, host_ip=V4))
    assert caught.value.code == 11
    assert nat_lab.ruleset() == []
    add(lab, pod, mapping(8080, 80, host_ip=V4))


def test_e22_the_same_attachment_again_replaces_what_was_left(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80), mapping(9090, 90, host_ip=V4))
    moved = replace(pod, addresses=("10.1.0.77/24",))
    add(lab, moved, mapping(8080, 80), network="other")
    assert owners() == {f"other/{pod.container_id}/eth0"}
    ((_, target),) = nat_lab.elements("target_any4")
    assert target == {"concat": ["10.1.0.77", 80]}
    assert nat_lab.elements("target_any6") == nat_lab.elements("portmap_partly4") == []
    assert len(nat_lab.elements("portmap_index")) == 1


DAMAGE = [
    "flush chain inet podwire prerouting",
    "flush chain inet podwire output",
    "flush chain inet podwire postrouting",
    "flush chain inet podwire hostports",
    "flush chain inet podwire hairpin",
    "flush chain inet podwire guard",
    "flush table inet podwire",
    "flush ruleset",
    "flush map inet podwire portmap_any4",
    "flush map inet podwire target_any4",
    "flush map inet podwire portmap_at6",
    "flush map inet podwire portmap_index",
    "flush set inet podwire portmap_partly6",
    "delete element inet podwire target_any4 { tcp . 8080 }\n"
    "add element inet podwire target_any4 { tcp . 8080 : 10.1.0.99 . 80 }",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_b12_check_finds_what_is_missing(lab: Lab, pod: Pod, damage: str) -> None:
    ports = (mapping(8080, 80), mapping(8081, 81, host_ip=V6))
    add(lab, pod, *ports)
    portmap_call(lab, "CHECK", pod, *ports)
    sh("nft", damage)
    with pytest.raises(CNIError) as caught:
        portmap_call(lab, "CHECK", pod, *ports)
    assert caught.value.code == portmap.HOST_PORT_WRONG
    assert damage.split()[4] in caught.value.msg if "podwire " in damage else caught.value.msg


def test_b12_check_finds_the_emptied_chain_of_the_settings_and_the_sysctl(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    chain = next(item["chain"]["name"] for item in nat_lab.ruleset() if "portmap-4" in str(item.get("chain")))
    sh("sysctl", "-qw", "net.ipv4.conf.cni0.route_localnet=0")
    sh("nft", f"flush chain inet podwire {chain}")
    with pytest.raises(CNIError, match=rf"{chain}.*route_localnet of cni0"):
        portmap_call(lab, "CHECK", pod, mapping(8080, 80))


# Life cycle


@pytest.mark.parametrize("damage", DAMAGE[:7])
def test_the_next_add_restores_what_somebody_flushed(lab: Lab, pod: Pod, damage: str) -> None:
    add(lab, pod, mapping(8080, 80))
    wanted = nat_lab.rules()
    sh("nft", damage)
    second = other(lab)
    add(lab, second, mapping(8081, 80))
    assert nat_lab.rules() == wanted
    assert lab.reach(lab.listen("one", pod.v4, 80), "two", V4, 8080) == "10.1.0.1"


def test_another_version_of_the_table_is_replaced_and_elements_stay(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    wanted = nat_lab.rules()
    old = sh("nft", "list", "table", "inet", "podwire").replace("priority dstnat;", "priority dstnat + 7;")
    old = old.replace(f'"{_tag()}"', '"podwire 0123456789abcdef"')
    old = old.replace(
        "\tchain guard", '\tchain of_old {\n\t\taccept comment "podwire 0123456789abcdef"\n\t}\n\tchain guard'
    )
    sh("nft", "delete table inet podwire")
    subprocess.run(["nft", "-f", "-"], input=old, text=True, check=True)
    add(lab, other(lab), mapping(8081, 80))
    chains = {item["chain"]["name"]: item["chain"] for item in nat_lab.ruleset() if "chain" in item}
    assert nat_lab.rules() == wanted
    assert "of_old" not in chains
    assert chains["prerouting"]["prio"] == -100
    assert len(nat_lab.elements("target_any4")) == 2
    assert lab.reach(lab.listen("one", pod.v4, 80), "client", V4, 8080) == "192.0.2.9"


def _tag() -> str:
    (tag,) = {comment for (chain, comment) in ruleset._skeleton().rules if chain == "prerouting"}
    return tag


def test_rules_do_not_grow_with_pods_and_ports(bare: Lab) -> None:
    counts = set()
    for number in range(1, 31):
        pod = Pod(f"p{number}", (f"10.1.0.{number}/24", f"fd00:1::{number}/64"), f"{number:064}")
        add(bare, pod, mapping(8000 + number, 80), mapping(9000 + number, 90, "udp"))
        counts.add(nat_lab.rules())
    assert len(counts) == 1
    assert len(nat_lab.elements("target_any4")) == 60


def test_a_refused_request_leaves_none_of_its_ports(lab: Lab, pod: Pod) -> None:
    add(lab, pod, mapping(8080, 80))
    before = nat_lab.all_elements()
    with pytest.raises(HostPortTaken):
        add(lab, other(lab), mapping(7070, 70), mapping(7071, 71, host_ip=V4), mapping(8080, 80))
    assert nat_lab.all_elements() == before


@pytest.mark.parametrize("broken", ["sysctl", "conntrack"])
def test_an_add_that_fails_later_takes_back_its_elements(
    lab: Lab, pod: Pod, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_args: object, **_named: object) -> int:
        monkeypatch.undo()
        raise KernelError(5, "fail", "on purpose")

    if broken == "sysctl":
        monkeypatch.setattr(sysctl, "write", fail)
    else:
        monkeypatch.setattr(conntrack, "delete", fail)
    with pytest.raises(CNIError, match="on purpose"):
        add(lab, pod, mapping(8080, 80, "udp"))
    assert set(nat_lab.all_elements()) <= {"localnet"}


def test_del_of_an_old_container_leaves_the_ports_new_holder_alone(lab: Lab, pod: Pod) -> None:
    ports = (mapping(8080, 80), mapping(8081, 81, host_ip=V4))
    add(lab, pod, *ports)
    # Somebody emptied the maps but not the index, and the ports found a new holder.
    targets = ("target_any4", "target_any6", "target_at4")
    sh("nft", "; ".join(f"flush map inet podwire {name}" for name in (*MAPS, *targets)))
    second = other(lab)
    add(lab, second, *ports)
    portmap_call(lab, "DEL", pod)
    assert owners(*MAPS, *targets) == {f"net/{second.container_id}/eth0"}
    portmap_call(lab, "CHECK", second, *ports)


@pytest.mark.parametrize("host_ip", [None, V4])
@pytest.mark.parametrize(
    "lost",
    [
        ("portmap_index",),
        ("portmap_index", "target_any4", "target_at4"),
        ("portmap_index", *MAPS, "target_any4", "target_any6", "target_at4"),
    ],
)
def test_what_a_partial_flush_left_does_not_stop_the_same_attachment(
    bare: Lab, host_ip: str | None, lost: tuple[str, ...]
) -> None:
    pod = Pod("one", ("10.1.0.5/24",))
    add(bare, pod, mapping(8080, 80, host_ip=V4))
    sh("nft", "; ".join(f"flush map inet podwire {name}" for name in lost))
    add(bare, pod, mapping(8080, 80, host_ip=host_ip))
    portmap_call(bare, "CHECK", pod, mapping(8080, 80, host_ip=host_ip))
    portmap_call(bare, "DEL", pod)
    assert nat_lab.all_elements() == {}


def test_marks_of_lost_ports_stop_nobody_and_a_half_lost_port_keeps_its_holder(bare: Lab) -> None:
    one, two = Pod("one", ("10.1.0.5/24",), "1" * 64), Pod("two", ("10.1.0.6/24",), "2" * 64)
    add(bare, one, mapping(8080, 80, host_ip=V4), mapping(8081, 81, host_ip=V4))
    sh("nft", "flush map inet podwire target_at4")
    sh("nft", "delete element inet podwire portmap_at4 { 192.0.2.1 . tcp . 8080 }")
    add(bare, two, mapping(8080, 80))
    with pytest.raises(HostPortTaken, match="1" * 64):
        add(bare, two, mapping(8081, 80), ifname="net1")
    portmap_call(bare, "DEL", one)
    portmap_call(bare, "DEL", two)
    assert nat_lab.all_elements() == {}


def test_gc_removes_what_is_not_valid_of_its_network_only(bare: Lab) -> None:
    pods = [Pod(f"p{i}", (f"10.1.0.{i}/24",), f"{i}" * 64) for i in range(3)]
    add(bare, pods[0], mapping(8080, 80))
    add(bare, pods[1], mapping(8081, 80), mapping(8081, 81, host_ip=V4))
    add(bare, pods[2], mapping(8082, 80), network="other", masqAll=True)
    portmap_call(bare, "GC", pods[0], valid=(pods[0],))
    assert owners() == {f"net/{'0' * 64}/eth0", f"other/{'2' * 64}/eth0"}
    assert nat_lab.elements("portmap_partly4") == []
    portmap_call(bare, "CHECK", pods[0], mapping(8080, 80))
    portmap_call(bare, "GC", pods[0], network="other", valid=())
    chains = [item["chain"]["name"] for item in nat_lab.ruleset() if "chain" in item]
    assert sum(name.startswith("portmap-") for name in chains) == 1


def test_status_asks_the_kernel_and_makes_nothing(lab: Lab, pod: Pod) -> None:
    portmap_call(lab, "STATUS", pod)
    assert nat_lab.ruleset() == []
    add(lab, pod, mapping(8080, 80))
    before = nat_lab.ruleset()
    portmap_call(lab, "STATUS", pod)
    assert nat_lab.ruleset() == before


def test_without_libnftables_status_and_add_say_what_to_install_and_del_succeeds(
    lab: Lab, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nft, "LIBRARY", "libnftables-is-not-here.so.1")
    monkeypatch.setattr(nft, "_loaded", None)
    with pytest.raises(NotAvailable, match="libnftables1"):
        portmap_call(lab, "STATUS", pod)
    with pytest.raises(CNIError, match="install the Debian package libnftables1"):
        add(lab, pod, mapping(8080, 80))
    add(lab, pod)
    portmap_call(lab, "DEL", pod)


def test_pods_that_come_at_once_get_the_port_once(bare: Lab) -> None:
    outcomes: list[str] = []

    def work(number: int) -> None:
        pod = Pod(f"p{number}", (f"10.1.0.{number}/24",), f"{number:064}")
        host_ip = ("192.0.2.1", None, "0.0.0.0")[number % 3]
        try:
            portmap_call(bare, "ADD", pod, mapping(8080, 80, host_ip=host_ip))
            outcomes.append("got it")
        except HostPortTaken:
            outcomes.append("taken")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["got it", *["taken"] * 7]
    assert len(owners()) == 1


def test_the_first_pods_that_come_at_once_make_each_rule_once(
    bare: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(bare, Pod("first", ("10.1.0.99/24",), "f" * 64), mapping(8000, 80))
    wanted = nat_lab.rules()
    ruleset.remove_table(bare.kernel.nft)
    barrier = threading.Barrier(2)
    prepare = ruleset.prepare

    def together(ours: Nft, *chains: ruleset.Chain) -> str:
        """Let both have read the rules before either makes any, where nothing keeps them apart."""
        text = prepare(ours, *chains)
        with suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)
        return text

    def work(number: int) -> None:
        pod = Pod(f"p{number}", (f"10.1.0.{number}/24",), f"{number:064}")
        portmap_call(bare, "ADD", pod, mapping(8000 + number, 80))

    monkeypatch.setattr(ruleset, "prepare", together)
    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(nat_lab.elements("target_any4")) == 2
    assert nat_lab.rules() == wanted


def test_long_names_fit_and_are_found_again(bare: Lab) -> None:
    pod = Pod("long", ("10.1.0.5/24",), "c" * 200)
    name = "a-network-with-a-very-long-name-" * 4
    add(bare, pod, mapping(8080, 80), network=name, ifname='e;"}$(x)')
    portmap_call(bare, "CHECK", pod, mapping(8080, 80), network=name, ifname='e;"}$(x)')
    portmap_call(bare, "DEL", pod, network=name, ifname='e;"}$(x)')
    assert set(nat_lab.all_elements()) <= {"localnet"}


def test_somebody_elses_tables_are_left_alone(lab: Lab, pod: Pod) -> None:
    sh("nft", "table ip nat { chain PREROUTING { type nat hook prerouting priority -100; }; }")
    before = nat_lab.ruleset()
    add(lab, pod, mapping(8080, 80))
    portmap_call(lab, "DEL", pod)
    ruleset.remove_table(lab.kernel.nft)
    assert nat_lab.ruleset() == before


def test_it_must_come_after_another_plugin(lab: Lab, pod: Pod) -> None:
    config = {"cniVersion": "1.0.0", "name": "net", "type": "portmap"}
    request = make_request(portmap.PLUGIN, "ADD", config, container_id=pod.container_id, ifname="eth0")
    with pytest.raises(InvalidConfig, match="prevResult"):
        call(portmap.PLUGIN, request, lab.kernel)


def test_add_and_del_are_one_transaction_each(lab: Lab, pod: Pod) -> None:
    before = nat_lab.generation()
    add(lab, pod, mapping(8080, 80), mapping(8081, 81, host_ip=V4))  # makes the table as well
    portmap_call(lab, "DEL", pod)
    add(lab, pod, mapping(8080, 80))
    assert len(nat_lab.elements("target_any4")) == 1
    assert nat_lab.generation() - before == 3


def test_the_end_of_one_network_leaves_the_containers_host_ports_on_another(lab: Lab, pod: Pod) -> None:
    """Elements are known by container and interface, and not by the container alone."""
    for protocol in ("tcp", "udp", "sctp"):
        portmap_call(lab, "DEL", pod, ifname="net1")
        add(lab, pod, mapping(8077, 80, protocol), ifname="eth0")
        add(lab, pod, mapping(8078, 80, protocol), ifname="net1")
        portmap_call(lab, "DEL", pod, ifname="net1")
        ports = {element.key[-1] for element in lab.kernel.nft.elements(ruleset.PORTMAP_ANY[4])}
        assert ports == {8077}
        portmap_call(lab, "DEL", pod)
