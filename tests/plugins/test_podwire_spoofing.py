"""What a pod sends under another's name does not arrive: raw frames from inside of the pod."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.cni.plugin import Result
from tests.plugins import nat_lab, podwire_lab
from tests.plugins.helpers import ip, links
from tests.plugins.podwire_lab import ETH_ALL, SILENCE, Node, frame, mac, packet4, packet6

pytestmark = pytest.mark.kernel

MODES = ("routed", "bridge")
BROADCAST = "ff:ff:ff:ff:ff:ff"
OTHER_MAC = "02:00:5e:99:99:99"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with podwire_lab.node(tmp_path) as made:
        yield made


class Wire:
    """Raw frames of pod "one", and what pod "two" and the host get by UDP port 9."""

    def __init__(self, node: Node, mode: str) -> None:
        self.node, self.mode = node, mode
        self.one, self.two = node.attached(node.network(mode), "one", "two")
        self.raw = node.open("one", socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.raw.bind(("eth0", 0))
        self.own = links("one")["eth0"]["address"]
        self.next_hop = self._next_hop()

    def _next_hop(self) -> str:
        if self.mode == "bridge":
            return str(links()["podwire0"]["address"])
        return str(ip("neigh", "show", "169.254.1.1", "dev", "eth0", pod="one")[0]["lladdr"])

    def listener(self, where: str, family: int) -> socket.socket:
        sock = self.node.open(where, family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 9))
        sock.settimeout(SILENCE)
        return sock

    def arrives(self, server: socket.socket, packet: bytes, source: str = "") -> bool:
        kind = 0x800 if packet[0] >> 4 == 4 else 0x86DD
        self.raw.send(frame(self.next_hop, source or self.own, kind, packet))
        try:
            server.recv(100)
        except TimeoutError:
            return False
        return True


def v4(result: Result) -> str:
    return result.ips[0].address.partition("/")[0]


def v6(result: Result) -> str:
    return result.ips[1].address.partition("/")[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_source_that_is_not_the_pods_does_not_arrive(node: Node, mode: str) -> None:
    wire = Wire(node, mode)
    for where, to4, to6 in (("two", v4(wire.two), v6(wire.two)), ("", "192.0.2.1", "2001:db8::1")):
        four, six = wire.listener(where, socket.AF_INET), wire.listener(where, socket.AF_INET6)
        assert wire.arrives(four, packet4(v4(wire.one), to4, b"own"))
        assert wire.arrives(six, packet6(v6(wire.one), to6, b"own"))
        for source in ("10.1.0.77", "192.0.2.1", "192.0.2.9", "198.51.100.1", "127.0.0.1", v4(wire.two)):
            assert not wire.arrives(four, packet4(source, to4, b"spoof")), source
        for source in ("fd00:1::77", "2001:db8::9", "2001:db8:1::1", "::1", v6(wire.two)):
            assert not wire.arrives(six, packet6(source, to6, b"spoof")), source
        assert wire.arrives(four, packet4(v4(wire.one), to4, b"own"))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_flushed_is_not_needed_for_the_others(node: Node, mode: str) -> None:
    """A second pod's ADD and DEL leave the first one guarded."""
    wire = Wire(node, mode)
    node.delete(node.network(mode), "two")
    server = wire.listener("", socket.AF_INET)
    assert wire.arrives(server, packet4(v4(wire.one), "192.0.2.1", b"own"))
    assert not wire.arrives(server, packet4("10.1.0.77", "192.0.2.1", b"spoof"))


def test_another_mac_on_the_bridge_does_not_arrive(node: Node) -> None:
    wire = Wire(node, "bridge")
    server = wire.listener("", socket.AF_INET)
    own = packet4(v4(wire.one), "192.0.2.1", b"own")
    assert not wire.arrives(server, own, source=OTHER_MAC)
    assert not wire.arrives(server, own, source=links("two")["eth0"]["address"])
    assert wire.arrives(server, own)


def arp_answer(sender_mac: str, sender: str, target: str) -> bytes:
    head = struct.pack("!HHBBH", 1, 0x800, 6, 4, 2)
    return head + mac(sender_mac) + socket.inet_aton(sender) + bytes(6) + socket.inet_aton(target)


def advertisement(target: str, target_mac: str) -> bytes:
    """A neighbour advertisement that overrides (RFC 4861 section 4.4)."""
    body = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + socket.inet_pton(socket.AF_INET6, target)
    return body + bytes((2, 1)) + mac(target_mac)


def sniffed(node: Node, where: str, device: str) -> socket.socket:
    sock = node.open(where, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_ALL))
    sock.bind((device, ETH_ALL))
    sock.settimeout(SILENCE)
    return sock


def gets(sock: socket.socket, wanted: bytes) -> bool:
    try:
        while True:
            if sock.recv(200).startswith(wanted):
                return True
    except TimeoutError:
        return False


def test_no_pod_on_the_bridge_answers_for_another(node: Node) -> None:
    """ARP and neighbour discovery: neither the host nor another pod sees a claim to an address."""
    wire = Wire(node, "bridge")
    seen = sniffed(node, "two", "eth0")
    own4, own6 = v4(wire.one), v6(wire.one)

    def sent(kind: int, payload: bytes, *, source: str = "") -> bool:
        whole = frame(BROADCAST, source or wire.own, kind, payload)
        wire.raw.send(whole)
        return gets(seen, whole)

    assert sent(0x806, arp_answer(wire.own, own4, v4(wire.two)))
    assert not sent(0x806, arp_answer(wire.own, "10.1.0.1", v4(wire.two)))  # the gateway
    assert not sent(0x806, arp_answer(OTHER_MAC, own4, v4(wire.two)))
    assert not sent(0x806, arp_answer(wire.own, own4, v4(wire.two)), source=OTHER_MAC)
    assert sent(0x86DD, packet6(own6, "ff02::1", advertisement(own6, wire.own), 58))
    assert not sent(0x86DD, packet6(own6, "ff02::1", advertisement("fd00:1::1", wire.own), 58))
    router = struct.pack("!BBHIII", 134, 0, 0, 0x40000708, 0, 0)
    assert not sent(0x86DD, packet6(own6, "ff02::1", router, 58))
    assert not sent(0x88CC, b"something else")


def test_cve_2020_10749_a_routed_pod_is_no_router_of_the_host(node: Node) -> None:
    """Even where the host takes advertisements, none arrives from a pod."""
    wire = Wire(node, "routed")
    (end, *_) = [name for name in links() if name.startswith("pwr")]
    for key in ("accept_ra", "forwarding"):
        Path(f"/proc/sys/net/ipv6/conf/{end}/{key}").write_text("2" if key == "accept_ra" else "0")
    local = next(
        each["local"]
        for each in ip("address", "show", "dev", "eth0", pod="one")[0]["addr_info"]
        if each["local"].startswith("fe80")
    )
    router = struct.pack("!BBHIII", 134, 0, 0, 0x40000708, 0, 0)
    wire.raw.send(frame("33:33:00:00:00:01", wire.own, 0x86DD, packet6(local, "ff02::1", router, 58)))
    server = wire.listener("", socket.AF_INET)
    assert wire.arrives(server, packet4(v4(wire.one), "192.0.2.1", b"after it"))
    ways = nat_lab.sh("ip", "-6", "route", "show", "default")
    assert "proto ra" not in ways
