"""Traffic control by our messages, observed by ``tc``."""

from __future__ import annotations

import json
import struct
import subprocess
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import links, tc
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.tc_codec import parse_class, parse_filter, parse_qdisc

HANDLE = tc.handle(1)


def observed(*arguments: str) -> list[dict[str, Any]]:
    """What ``tc -j`` says."""
    done = subprocess.run(["tc", "-j", *arguments], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found


@pytest.fixture
def link(sock: RouteSocket) -> links.Link:
    """One end of a pair that is up, and an ifb."""
    sock.send(
        links.veth("near", "far", up=True),
        links.configure("far", up=True),
        links.ifb("ifb-test", mac="02:00:00:00:00:09", up=True),
    )
    found = links.get(sock, "near")
    assert found is not None
    return found


def index_of(sock: RouteSocket, name: str) -> int:
    found = links.get(sock, name)
    assert found is not None
    return found.index


@pytest.mark.kernel
@pytest.mark.parametrize("rate", [1_000_000, 6_000_000_000])
def test_a_token_bucket_is_what_tc_says(sock: RouteSocket, link: links.Link, rate: int) -> None:
    sock.send(tc.tbf(link.index, rate=rate, burst=1_000_000, limit=1_025_000))
    [seen] = observed("qdisc", "show", "dev", "near")
    assert (seen["kind"], seen["handle"], seen["root"]) == ("tbf", "1:", True)
    assert seen["options"]["rate"] == rate
    assert seen["options"]["burst"] == pytest.approx(1_000_000, rel=0.01)
    read = tc.get_qdisc(sock, link.index, tc.ROOT, HANDLE)
    assert read is not None
    assert read.tbf == tc.Tbf(rate, tc.buffer_ticks(rate, 1_000_000), 1_025_000)
    assert tc.list_qdiscs(sock, link.index) == [read]


@pytest.mark.kernel
def test_a_burst_and_a_queue_of_more_than_32_bits_are_cut(sock: RouteSocket, link: links.Link) -> None:
    sock.send(tc.tbf(link.index, rate=1_250_000, burst=536_870_911, limit=1 << 40))
    read = tc.get_qdisc(sock, link.index, tc.ROOT, HANDLE)
    assert read is not None
    assert read.tbf == tc.Tbf(1_250_000, 0xFFFFFFFF, 0xFFFFFFFF)


@pytest.mark.kernel
def test_replaced_and_not_replaced(sock: RouteSocket, link: links.Link) -> None:
    sock.send(tc.tbf(link.index, rate=1000, burst=2000, limit=3000))
    with pytest.raises(KernelError) as caught:
        sock.send(tc.tbf(link.index, rate=5000, burst=2000, limit=3000))
    assert caught.value.errno == 17
    sock.send(tc.tbf(link.index, rate=5000, burst=2000, limit=3000, replace=True))
    [seen] = observed("qdisc", "show", "dev", "near")
    assert seen["options"]["rate"] == 5000
    sock.send(tc.delete_qdisc(link.index, tc.ROOT, HANDLE))
    [seen] = observed("qdisc", "show", "dev", "near")
    assert seen["kind"] == "noqueue"


@pytest.mark.kernel
def test_what_is_not_there_is_none(sock: RouteSocket, link: links.Link) -> None:
    """Also the kernel's own disciplines, about which it answers nothing."""
    assert tc.get_qdisc(sock, link.index, tc.ROOT, HANDLE) is None
    assert tc.get_qdisc(sock, link.index, tc.INGRESS, tc.INGRESS_HANDLE) is None
    sock.send(tc.ingress(link.index))
    sock.send(tc.delete_qdisc(link.index, tc.INGRESS, tc.INGRESS_HANDLE))
    assert tc.get_qdisc(sock, link.index, tc.INGRESS, tc.INGRESS_HANDLE) is None
    assert tc.get_qdisc(sock, 999, tc.ROOT, HANDLE) is None
    assert tc.list_filters(sock, link.index, tc.INGRESS_HANDLE) == []
    assert tc.list_qdiscs(sock) == []
    with pytest.raises(InvalidValue):
        tc.get_qdisc(sock, link.index, tc.ROOT, 0)


@pytest.mark.kernel
@pytest.mark.parametrize(("kind", "parent"), [("ingress", tc.INGRESS_HANDLE), ("clsact", tc.CLSACT_INGRESS)])
def test_a_redirect_is_what_tc_says(sock: RouteSocket, link: links.Link, kind: str, parent: int) -> None:
    target = index_of(sock, "ifb-test")
    sock.send(getattr(tc, kind)(link.index), tc.redirect(link.index, target, parent=parent))
    assert [each["kind"] for each in observed("qdisc", "show", "dev", "near")] == ["noqueue", kind]
    seen = observed("filter", "show", "dev", "near", "ingress")[-1]
    assert (seen["protocol"], seen["pref"], seen["kind"]) == ("all", 1, "u32")
    [action] = seen["options"]["actions"]
    assert (action["mirred_action"], action["direction"], action["to_dev"]) == (
        "redirect",
        "egress",
        "ifb-test",
    )
    assert action["control_action"] == {"type": "stolen"}
    read = tc.list_filters(sock, link.index, parent)
    assert [each.redirect for each in read] == [None, None, target]
    assert (read[2].priority, read[2].protocol, read[2].keys) == (1, tc.PROTOCOL_ALL, (tc.Key(0, 0, 0),))
    sock.send(links.delete("ifb-test"))
    assert tc.list_filters(sock, link.index, parent)[2].redirect == 0
    sock.send(tc.delete_filters(link.index, parent, 1))
    assert observed("filter", "show", "dev", "near", "ingress") == []


@pytest.mark.kernel
def test_classes_and_filters_of_an_htb_are_what_tc_says(sock: RouteSocket, link: links.Link) -> None:
    inner, outer = tc.handle(1, 0x30), tc.handle(1, 1)
    four, six = ip_network("10.1.0.0/16"), ip_network("fd00:1::/40")
    sock.send(
        tc.htb(link.index, default=0x30),
        tc.htb_class(link.index, inner, rate=1_000_000, ceil=2_000_000, buffer=15_625_000),
        tc.htb_class(link.index, outer, rate=10**11, ceil=10**11),
        tc.steer(link.index, four, outer, priority=16),
        tc.steer(link.index, six, outer, priority=15),
    )
    [seen] = observed("qdisc", "show", "dev", "near")
    assert (seen["kind"], seen["options"]["default"]) == ("htb", "0x30")
    text = subprocess.run(["tc", "class", "show", "dev", "near"], capture_output=True, text=True, check=True)
    assert "class htb 1:30 root prio 0 rate 8Mbit ceil 16Mbit burst 1000000b" in text.stdout
    assert "class htb 1:1 root prio 0 rate 800Gbit ceil 800Gbit" in text.stdout
    filters = [
        each for each in observed("filter", "show", "dev", "near") if "flowid" in each.get("options", {})
    ]
    assert [(each["protocol"], each["pref"], each["options"]["flowid"]) for each in filters] == [
        ("ipv6", 15, "1:1"),
        ("ip", 16, "1:1"),
    ]
    assert filters[1]["options"]["match"] == {
        "value": "a010000",
        "mask": "ffff0000",
        "offmask": "",
        "off": 16,
    }
    read = tc.get_qdisc(sock, link.index, tc.ROOT, HANDLE)
    assert read is not None and read.default_class == 0x30
    assert {
        each.classid: (each.rate, each.ceil, each.buffer) for each in tc.list_classes(sock, link.index)
    } == {
        inner: (1_000_000, 2_000_000, 15_625_000),
        outer: (10**11, 10**11, 0),
    }
    keys = [each.keys for each in tc.list_filters(sock, link.index, HANDLE) if each.keys]
    assert keys == [tc.destination_keys(six), tc.destination_keys(four)]


@given(rate=st.integers(1, 1 << 61), burst=st.integers(1, 0xFFFFFFFF))
def test_a_burst_is_never_nothing_and_fits(rate: int, burst: int) -> None:
    ticks = tc.buffer_ticks(rate, burst)
    exact = burst * 1e9 / 64 / rate
    assert 1 <= ticks <= 0xFFFFFFFF
    assert ticks <= max(exact, 1) * 1.0001
    # Whole microseconds are 15.625 ticks.
    assert ticks >= min(exact, 0xFFFFFFFF) * 0.999 - 17


@given(st.ip_addresses().flatmap(lambda ip: st.integers(0, ip.max_prefixlen).map(lambda n: (ip, n))))
def test_the_keys_of_a_subnet_match_its_addresses_alone(given: Any) -> None:
    address, length = given
    network = ip_network(f"{address}/{length}", strict=False)
    start = 16 if network.version == 4 else 24

    def matched(packed: bytes) -> bool:
        header = bytes(start) + packed
        return all(
            int.from_bytes(header[key.offset : key.offset + 4], "big") & key.mask == key.value
            for key in tc.destination_keys(network)
        )

    assert matched(address.packed)
    flipped = bytearray(network.network_address.packed)
    if length:
        flipped[(length - 1) // 8] ^= 0x80 >> ((length - 1) % 8)
        assert not matched(bytes(flipped))


@pytest.mark.parametrize("read", [parse_qdisc, parse_class, parse_filter])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(19),
        bytes(20) + struct.pack("=HH", 8, 1) + b"tbf\0" + struct.pack("=HH", 9, 2) + b"\5\0\1\0\0",
        bytes(20) + struct.pack("=HH", 8, 1) + b"htb\0" + struct.pack("=HHHHI", 12, 2, 8, 2, 7),
        bytes(20) + struct.pack("=HH", 8, 1) + b"u32\0" + struct.pack("=HHHHI", 12, 2, 8, 5, 7),
    ],
)
def test_a_broken_answer_is_told_as_such(read: Any, body: bytes) -> None:
    try:
        found = read(body)
    except MalformedReply:
        return
    assert found is None or not getattr(found, "tbf", None)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="tbf rate 0"):
        tc.tbf(1, rate=0, burst=1, limit=1)
