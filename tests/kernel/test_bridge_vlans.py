"""The VLANs of bridges and ports: what the requests say, and what a kernel that filters makes of it.

The expectations of the first kind are what ``bridge`` (iproute2 6.1.0) sends, as strace shows it.
"""

from __future__ import annotations

import json
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import bridge_vlans, links
from podwire.kernel.bridge_vlans import BridgeVlan
from podwire.kernel.errors import InvalidValue, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from tests.kernel.helpers import tree

kernel = pytest.mark.kernel
other = pytest.mark.other_kernel("bridge-vlan")

_PORT = "07000000330000000000000000000000"
_BRIDGE = "07000000320000000000000000000000"

RECORDED: dict[str, tuple[Message, int, str]] = {
    "vlan add dev p0 vid 100 pvid untagged master": (
        bridge_vlans.add(51, 100, pvid=True, untagged=True),
        19,
        f"{_PORT}14001a0006000000010000000800020006006400",
    ),
    "vlan add dev p0 vid 200-300 master": (
        bridge_vlans.add(51, 200, 300),
        19,
        f"{_PORT}1c001a000600000001000000080002000800c8000800020010002c01",
    ),
    "vlan add dev br0 vid 7 self": (
        bridge_vlans.add(50, 7, of_bridge=True),
        19,
        f"{_BRIDGE}14001a0006000000020000000800020000000700",
    ),
    "vlan del dev p0 vid 100 master": (
        bridge_vlans.delete(51, 100),
        17,
        f"{_PORT}14001a0006000000010000000800020000006400",
    ),
    "vlan del dev p0 vid 210-220 master": (
        bridge_vlans.delete(51, 210, 220),
        17,
        f"{_PORT}1c001a000600000001000000080002000800d200080002001000dc00",
    ),
    "vlan del dev br0 vid 7 self": (
        bridge_vlans.delete(50, 7, of_bridge=True),
        17,
        f"{_BRIDGE}14001a0006000000020000000800020000000700",
    ),
}


@pytest.mark.parametrize("command", RECORDED)
def test_a_request_says_what_bridge_says(command: str) -> None:
    message, kind, recorded = RECORDED[command]
    assert (message.type, message.flags) == (kind, 0)
    expected = bytearray.fromhex(recorded)
    expected[19] |= 0x80  # the flag of a nest, which iproute2 leaves out
    assert message.body == bytes(expected)


def test_the_bridges_filter_is_set_as_ip_does_it() -> None:
    message = bridge_vlans.configure(50, filtering=False, default_pvid=1)
    recorded = bytes.fromhex(
        "00000000320000000000000000000000"
        "240012000a000100627269646765000014000200050007000000000006002700"
        "01000000"
    )
    assert message.body[:16] == recorded[:16]
    assert tree(message.body[16:]) == tree(recorded[16:])
    assert message.type == 16


@pytest.mark.parametrize(("first", "last"), [(0, None), (4095, None), (5, 4), (1, 4095)])
def test_what_is_no_vlan_is_refused(first: int, last: int | None) -> None:
    with pytest.raises(InvalidValue):
        bridge_vlans.add(1, first, last)
    with pytest.raises(InvalidValue):
        bridge_vlans.delete(1, first, last)


def test_a_range_is_no_pvid() -> None:
    with pytest.raises(InvalidValue):
        bridge_vlans.add(1, 5, 6, pvid=True)


def answer(*infos: tuple[int, int]) -> bytes:
    spec = b"".join(struct.pack("=HHHH", 8, 2, flags, vid) for flags, vid in infos)
    return struct.pack("=BxHiII", 7, 1, 51, 0, 0) + struct.pack("=HH", 4 + len(spec), 26) + spec


def test_single_vlans_and_ranges_are_read() -> None:
    body = answer((6, 1), (0x8, 10), (0x10, 20), (0x4 | 0x8, 30), (0x4 | 0x10, 31))
    vlans = [BridgeVlan(1, 1, True, True), BridgeVlan(10, 20), BridgeVlan(30, 31, untagged=True)]
    assert bridge_vlans.parse(body) == (51, vlans)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        bridge_vlans.parse(struct.pack("=BxHiII", 7, 1, 51, 0, 0) + data)
    except MalformedReply:
        return


def test_a_cut_answer_is_refused() -> None:
    with pytest.raises(MalformedReply):
        bridge_vlans.parse(answer((6, 1))[:10])
    with pytest.raises(MalformedReply):
        bridge_vlans.parse(answer() + struct.pack("=HHHH", 8, 26, 3, 2))


def shown() -> dict[str, list[tuple[int, int, list[str]]]]:
    """What ``bridge vlan`` sees."""
    text = subprocess.run(
        ["bridge", "-j", "-compressvlans", "vlan", "show"], capture_output=True, text=True, check=True
    ).stdout
    return {
        port["ifname"]: [
            (vlan["vlan"], vlan.get("vlanEnd", vlan["vlan"]), vlan.get("flags", [])) for vlan in port["vlans"]
        ]
        for port in json.loads(text)
    }


@kernel
@other
def test_vlans_come_and_go(sock: RouteSocket) -> None:
    sock.send(links.bridge("br0", vlan_filtering=True, vlan_default_pvid=3), links.veth("p0", "p1"))
    bridge, port = (found.index for name in ("br0", "p0") if (found := links.get(sock, name)))
    sock.send(links.configure("p0", master=bridge))
    both = ["PVID", "Egress Untagged"]
    assert shown() == {"br0": [(3, 3, both)], "p0": [(3, 3, both)]}
    sock.send(
        bridge_vlans.delete(port, 3),
        bridge_vlans.add(port, 100, pvid=True, untagged=True),
        bridge_vlans.add(port, 200, 300),
        bridge_vlans.delete(port, 210, 220),
        bridge_vlans.add(bridge, 7, of_bridge=True),
    )
    assert shown() == {
        "br0": [(3, 3, both), (7, 7, [])],
        "p0": [(100, 100, both), (200, 209, []), (221, 300, [])],
    }
    assert bridge_vlans.list_vlans(sock) == {
        bridge: [BridgeVlan(3, 3, True, True), BridgeVlan(7, 7)],
        port: [BridgeVlan(100, 100, True, True), BridgeVlan(200, 209), BridgeVlan(221, 300)],
    }
    sock.send(bridge_vlans.delete(port, 4000))


@kernel
@other
def test_the_filter_and_the_default_pvid_are_switched(sock: RouteSocket) -> None:
    sock.send(links.bridge("br0"))
    found = links.get(sock, "br0")
    assert found is not None
    assert (found.data["vlan_filtering"], found.data["vlan_default_pvid"]) == (False, 1)
    sock.send(bridge_vlans.configure(found.index, filtering=True, default_pvid=0))
    after = links.get(sock, "br0")
    assert after is not None
    assert (after.data["vlan_filtering"], after.data["vlan_default_pvid"]) == (True, 0)
