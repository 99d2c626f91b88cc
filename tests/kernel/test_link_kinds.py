"""Links that not every kernel has: what the builders write, and what a kernel that has them makes of it.

The expectations of the first kind are recordings of ``ip`` (iproute2 6.1.0), taken by an nlmon device.
"""

from __future__ import annotations

import errno
import struct

import pytest

from podwire.kernel import link_kinds, links, rules
from podwire.kernel.errors import InvalidValue, KernelError
from podwire.kernel.link_codec import parse
from podwire.kernel.link_kinds import ETH_P_8021AD, IpvlanFlag, IpvlanMode, VlanFlag
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers
from tests.kernel.helpers import tree

kernel = pytest.mark.kernel
other = pytest.mark.other_kernel

RECORDED = {
    "ip link add d1 type dummy": (
        link_kinds.dummy("d1"),
        "000000000000000000000000000000000700030064310000100012000900010064756d6d79000000",
    ),
    "ip link add link d0 name v0 mtu 1400 type vlan id 5": (
        link_kinds.vlan("v0", parent=42, id=5, mtu=1400),
        "000000000000000000000000000000000800040078050000080005002a00000007000300763000001800120008000100766c616e0c"
        "0002000600010005000000",
    ),
    "ip link add link d0 name v1 type vlan protocol 802.1ad id 4094"
    " reorder_hdr off gvrp on loose_binding on mvrp off": (
        link_kinds.vlan(
            "v1",
            parent=42,
            id=4094,
            protocol=ETH_P_8021AD,
            reorder_hdr=False,
            gvrp=True,
            loose_binding=True,
            mvrp=False,
        ),
        "00000000000000000000000000000000080005002a00000007000300763100002c00120008000100766c616e200002000600050088"
        "a8000006000100fe0f00000c000200060000000f000000",
    ),
    "ip link add link d0 name i0 type ipvlan mode l3s private": (
        link_kinds.ipvlan("i0", parent=42, mode=IpvlanMode.L3S, flag=IpvlanFlag.PRIVATE),
        "00000000000000000000000000000000080005002a0000000700030069300000240012000a0001006970766c616e00001400020006"
        "000100020000000600020001000000",
    ),
    "ip link add link d0 name i1 type ipvlan mode l2": (
        link_kinds.ipvlan("i1", parent=42, flag=IpvlanFlag.BRIDGE),
        "00000000000000000000000000000000080005002a0000000700030069310000240012000a0001006970766c616e00001400020006"
        "000100000000000600020000000000",
    ),
    "ip link add link d1 name i2 type ipvlan mode l3 vepa": (
        link_kinds.ipvlan("i2", parent=7, mode=IpvlanMode.L3, flag=IpvlanFlag.VEPA),
        "0000000000000000000000000000000008000500070000000700030069320000240012000a0001006970766c616e00001400020006"
        "000100010000000600020002000000",
    ),
    "ip link add vrf9 type vrf table 4000000000": (
        link_kinds.vrf("vrf9", table=4_000_000_000),
        "000000000000000000000000000000000900030076726639000000001800120007000100767266000c0002000800010000286bee",
    ),
    "ip link add br0 index 50 type bridge vlan_filtering 1 vlan_default_pvid 0": (
        links.bridge("br0", index=50, vlan_filtering=True, vlan_default_pvid=0),
        "000000003200000000000000000000000800030062723000240012000a00010062726964676500001400020005000700010000000600"
        "270000000000",
    ),
}


@pytest.mark.parametrize("command", RECORDED)
def test_a_request_says_what_ip_says(command: str) -> None:
    message, recorded = RECORDED[command]
    expected = bytes.fromhex(recorded)
    assert (message.type, message.flags) == (16, 0x600)
    assert message.body[:16] == expected[:16]
    assert tree(message.body[16:]) == tree(expected[16:])


def test_what_cannot_be_is_refused_before_it_is_sent() -> None:
    for id in (-1, 4095):
        with pytest.raises(InvalidValue):
            link_kinds.vlan("v", parent=1, id=id)
    for table in (0, 1 << 32):
        with pytest.raises(InvalidValue):
            link_kinds.vrf("v", table=table)


def test_what_the_kernel_says_is_read() -> None:
    """A vlan of 802.1ad as the kernel tells it: the flags come with a mask of ones."""
    data = bytes.fromhex("06000100070000000600050088a800000c00020005000000ffffffff")
    info = bytes.fromhex("08000100766c616e") + struct.pack("=HH", 4 + len(data), 2) + data
    body = struct.pack("=BxHiII", 0, 1, 9, 1, 0) + struct.pack("=HH", 4 + len(info), 18) + info
    link = parse(body)
    assert link.kind == "vlan"
    assert link.data == {
        "id": 7,
        "protocol": ETH_P_8021AD,
        "flags": VlanFlag.REORDER_HDR | VlanFlag.LOOSE_BINDING,
    }


def link(sock: RouteSocket, name: str) -> links.Link:
    found = links.get(sock, name)
    assert found is not None
    return found


def refused(sock: RouteSocket, message: Message) -> int:
    with pytest.raises(KernelError) as caught:
        sock.send(message)
    return caught.value.errno


@kernel
def test_a_kind_is_known_or_not_and_nothing_is_made(sock: RouteSocket) -> None:
    assert [link_kinds.is_known(sock, kind) for kind in ("veth", "macvlan", "nosuchkind")] == [
        True,
        True,
        False,
    ]
    assert helpers.link_names() == {"lo"}


@kernel
@other("vlan", "ipvlan", "dummy", "vrf")
def test_the_kinds_that_this_kernel_has_are_known(sock: RouteSocket) -> None:
    assert all(link_kinds.is_known(sock, kind) for kind in ("vlan", "ipvlan", "dummy", "vrf"))
    assert helpers.link_names() == {"lo"}


@kernel
@other("vlan", "dummy")
def test_a_vlan_is_born_in_the_pod(sock: RouteSocket, pod: Netns, pod_sock: RouteSocket) -> None:
    sock.send(link_kinds.dummy("d0", mac="02:00:00:00:00:01", mtu=1400, up=True))
    parent = link(sock, "d0")
    assert (parent.kind, parent.mac, parent.mtu, parent.up) == ("dummy", "02:00:00:00:00:01", 1400, True)
    sock.send(link_kinds.vlan("v0", parent=parent.index, id=5, netns=pod))
    seen = helpers.link("v0", "pod")
    assert seen["linkinfo"]["info_data"] == {"protocol": "802.1Q", "id": 5, "flags": ["REORDER_HDR"]}
    assert (seen["address"], seen["mtu"]) == ("02:00:00:00:00:01", 1400)
    ours = link(pod_sock, "v0")
    assert (ours.kind, ours.peer_index) == ("vlan", parent.index)
    assert ours.data == {"id": 5, "protocol": 0x8100, "flags": VlanFlag.REORDER_HDR}
    assert refused(sock, link_kinds.vlan("v1", parent=parent.index, id=5)) == errno.EEXIST


@kernel
@other("vlan", "dummy")
def test_a_vlan_has_the_flags_that_were_asked_for(sock: RouteSocket) -> None:
    sock.send(link_kinds.dummy("d0"))
    parent = link(sock, "d0").index
    sock.send(
        link_kinds.vlan(
            "v0",
            parent=parent,
            id=4094,
            protocol=ETH_P_8021AD,
            reorder_hdr=False,
            gvrp=False,
            mvrp=True,
            loose_binding=True,
            bridge_binding=True,
            mac="02:00:00:00:00:09",
            mtu=1300,
        )
    )
    seen = helpers.link("v0")
    assert seen["linkinfo"]["info_data"] == {
        "protocol": "802.1ad",
        "id": 4094,
        "flags": ["MVRP", "LOOSE_BINDING", "BRIDGE_BINDING"],
    }
    assert (seen["address"], seen["mtu"]) == ("02:00:00:00:00:09", 1300)


@kernel
@other("ipvlan", "dummy")
@pytest.mark.parametrize("mode", IpvlanMode)
@pytest.mark.parametrize("flag", IpvlanFlag.__members__.values())
def test_an_ipvlan_has_its_mode(
    sock: RouteSocket, pod: Netns, pod_sock: RouteSocket, mode: IpvlanMode, flag: IpvlanFlag
) -> None:
    sock.send(link_kinds.dummy("d0", up=True))
    parent = link(sock, "d0")
    sock.send(
        link_kinds.ipvlan("i0", parent=parent.index, mode=mode, flag=flag, mtu=1400, netns=pod, up=True)
    )
    seen = helpers.link("i0", "pod")
    assert seen["linkinfo"]["info_kind"] == "ipvlan"
    assert seen["linkinfo"]["info_data"]["mode"] == mode.name.lower()
    assert (seen["mtu"], seen["address"], "UP" in seen["flags"]) == (1400, parent.mac, True)
    assert link(pod_sock, "i0").data == {"mode": mode, "flags": flag}


@kernel
@other("vrf", "dummy")
def test_a_vrf_has_its_table_and_takes_links(sock: RouteSocket) -> None:
    sock.send(link_kinds.vrf("blue", table=4_000_000_000, up=True), link_kinds.dummy("d0", up=True))
    vrf = link(sock, "blue")
    assert helpers.link("blue")["linkinfo"]["info_data"] == {"table": 4_000_000_000}
    assert (vrf.kind, vrf.data, vrf.up) == ("vrf", {"table": 4_000_000_000}, True)
    sock.send(links.configure("d0", master=vrf.index))
    assert helpers.link("d0")["master"] == "blue"
    assert [one.name for one in links.list_links(sock, master=vrf.index)] == ["d0"]


@kernel
@other("vrf")
@pytest.mark.parametrize("family", [4, 6])
def test_the_rule_of_vrfs_is_told_from_others(sock: RouteSocket, family: int) -> None:
    rule = rules.Rule(family, priority=999, by_master=True)
    sock.send(rules.add(rule))
    [seen] = [one for one in helpers.ip(f"-{family}", "rule") if one["priority"] == 999]
    assert "l3mdev" in seen
    [ours] = [one for one in rules.list_rules(sock, family) if one.priority == 999]
    assert ours.by_master
    assert not any(one.by_master for one in rules.list_rules(sock) if one.priority != 999)
    sock.send(rules.delete(rule))
    assert not any(one.priority == 999 for one in rules.list_rules(sock))
