"""The attributes of a link, and a :class:`Link` read from them (linux/if_link.h, linux/rtnetlink.h)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.kernel.attributes import (
    ATTRIBUTE,
    BE16,
    IFNAME,
    IP,
    MAC,
    NESTED_BYTES,
    STRING,
    SWITCH,
    U8,
    U16,
    U32,
    PayloadCodec,
    Table,
    attribute,
)
from podwire.kernel.errors import MalformedReply

IFF_UP = 0x1
IFF_NOARP = 0x80
IFF_PROMISC = 0x100
IFF_ALLMULTI = 0x200
IFF_LOWER_UP = 0x10000

_AF_INET = 2
_AF_INET6 = 10
HEADER = struct.Struct("=BxHiII")
_OPERSTATE = 16
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")


class AddrGenMode(enum.IntEnum):
    """IN6_ADDR_GEN_MODE_*: how an interface makes its link-local address."""

    EUI64 = 0
    NONE = 1
    STABLE_PRIVACY = 2
    RANDOM = 3


class MacvlanMode(enum.IntEnum):
    """MACVLAN_MODE_*."""

    PRIVATE = 1
    VEPA = 2
    BRIDGE = 4
    PASSTHRU = 8


class IpvlanMode(enum.IntEnum):
    """IPVLAN_MODE_*: what decides which link a packet goes to."""

    L2 = 0
    L3 = 1
    L3S = 2


class IpvlanFlag(enum.IntFlag):
    """IPVLAN_F_*: whether links of one parent reach one another: yes (BRIDGE), no, or by way of a switch."""

    BRIDGE = 0
    PRIVATE = 1
    VEPA = 2


class VlanFlag(enum.IntFlag):
    """VLAN_FLAG_*."""

    REORDER_HDR = 0x1
    GVRP = 0x2
    LOOSE_BINDING = 0x4
    MVRP = 0x8
    BRIDGE_BINDING = 0x10


_VLAN_FLAGS = struct.Struct("=II")


def _pack_vlan_flags(number: int, value: tuple[int, int]) -> bytes:
    return attribute(number, _VLAN_FLAGS.pack(*value))


def _unpack_vlan_flags(data: bytes) -> VlanFlag:
    flags, _ = _VLAN_FLAGS.unpack_from(data)
    return VlanFlag(flags)


_INFO = Table(
    "link info", kind=(1, STRING), data=(2, NESTED_BYTES), port_kind=(4, STRING), port_data=(5, NESTED_BYTES)
)
LINK = Table(
    "link",
    mac=(1, MAC),
    name=(3, IFNAME),
    mtu=(4, U32),
    peer_index=(5, U32),
    master=(10, U32),
    txqlen=(13, U32),
    operstate=(_OPERSTATE, U8),
    info=(18, _INFO),
    alias=(20, STRING),
    families=(26, NESTED_BYTES),
    group=(27, U32),
    netns=(28, U32),
    filter=(29, U32),
    promiscuity=(30, U32),
    tx_queues=(31, U32),
    rx_queues=(32, U32),
    carrier=(33, SWITCH),
    peer_netns_id=(37, U32),
)
_INET6 = Table("IPv6 link", addr_gen_mode=(8, U8))
# IFLA_INET_CONF takes settings by their IPV4_DEVCONF_* number (linux/ip.h).
_INET_CONF = Table("IPv4 link settings", arp_notify=(22, U32), route_localnet=(26, U32))
_INET = Table("IPv4 link", conf=(1, _INET_CONF))
FAMILIES = Table("link families", inet=(_AF_INET, _INET), inet6=(_AF_INET6, _INET6))
# The kernel tells IPv4's settings as one array, which is not read.
_FAMILIES_READ = Table("link families", inet6=(_AF_INET6, _INET6))
BRIDGE = Table(
    "bridge",
    forward_delay=(1, U32),
    ageing_time=(4, U32),
    stp=(5, U32),
    vlan_filtering=(7, SWITCH),
    group_fwd_mask=(9, U16),
    mcast_snooping=(23, SWITCH),
    nf_call_iptables=(36, SWITCH),
    nf_call_ip6tables=(37, SWITCH),
    vlan_default_pvid=(39, U16),
)
BRIDGE_PORT = Table(
    "bridge port",
    state=(1, U8),
    priority=(2, U16),
    cost=(3, U32),
    hairpin=(4, SWITCH),
    guard=(5, SWITCH),
    learning=(8, SWITCH),
    unicast_flood=(9, SWITCH),
    proxy_arp=(10, SWITCH),
    mcast_flood=(27, SWITCH),
    bcast_flood=(30, SWITCH),
    neigh_suppress=(32, SWITCH),
    isolated=(33, SWITCH),
)
MACVLAN = Table("macvlan", mode=(1, U32), flags=(2, U16), bc_queue_len=(7, U32))
VXLAN = Table(
    "vxlan",
    vni=(1, U32),
    group=(2, IP),
    parent=(3, U32),
    local=(4, IP),
    ttl=(5, U8),
    learning=(7, SWITCH),
    proxy=(11, SWITCH),
    l2miss=(13, SWITCH),
    l3miss=(14, SWITCH),
    port=(15, BE16),
    group6=(16, IP),
    local6=(17, IP),
    udp_csum=(18, SWITCH),
    udp_zero_csum6_tx=(19, SWITCH),
    udp_zero_csum6_rx=(20, SWITCH),
)
VLAN = Table(
    "vlan",
    id=(1, U16),
    # struct ifla_vlan_flags: written as (flags, mask), read as the flags.
    flags=(2, PayloadCodec(_pack_vlan_flags, _unpack_vlan_flags)),
    protocol=(5, BE16),
)
IPVLAN = Table("ipvlan", mode=(1, U16), flags=(2, U16))
VRF = Table("vrf", table=(1, U32))
_DATA = {
    "bridge": BRIDGE,
    "ipvlan": IPVLAN,
    "macvlan": MACVLAN,
    "vlan": VLAN,
    "vrf": VRF,
    "vxlan": VXLAN,
}


class Link(msgspec.Struct, frozen=True):
    """One interface as RTM_NEWLINK tells it.

    ``kind`` is "" for links without one (loopback, hardware). ``peer_index`` is IFLA_LINK: the peer of a
    veth, the parent of a macvlan, 0 for none; it counts in namespace ``peer_netns_id`` (None: this one).
    ``master`` is 0 for none. ``promisc`` is the flag that was asked for, ``promiscuity`` the kernel's count.
    ``data`` holds what the link's kind says (see the tables above), ``port`` what its bridge says.
    """

    index: int
    name: str
    kind: str = ""
    mac: str = ""
    mtu: int = 0
    up: bool = False
    flags: int = 0
    master: int = 0
    peer_index: int = 0
    peer_netns_id: int | None = None
    alias: str = ""
    group: int = 0
    operstate: str = "unknown"
    carrier: bool = False
    txqlen: int = 0
    promisc: bool = False
    allmulti: bool = False
    promiscuity: int = 0
    addr_gen_mode: AddrGenMode | None = None
    data: Mapping[str, Any] = {}
    port: Mapping[str, Any] = {}


def operstate_name(number: int) -> str:
    """The name of an IF_OPER_* (RFC 2863)."""
    return _OPERSTATES[number] if number < len(_OPERSTATES) else str(number)


def parse_state(body: bytes) -> tuple[str, bool]:
    """Read the operational state and whether a link that is up has a carrier, and no more of an RTM_NEWLINK.

    The flags tell the carrier (dev_get_flags of net/core/dev.c). Raises :class:`MalformedReply`.
    """
    if len(body) < HEADER.size:
        raise MalformedReply("link", f"{len(body)} bytes")
    carrier = bool(HEADER.unpack_from(body)[3] & IFF_LOWER_UP)
    offset, end = HEADER.size, len(body)
    while end - offset > 4:
        length, number = ATTRIBUTE.unpack_from(body, offset)
        if number == _OPERSTATE:
            return operstate_name(body[offset + 4]), carrier
        if length < 4:
            raise MalformedReply("link", f"attribute of {length} bytes at {offset} of {end}")
        offset += (length + 3) & ~3
    return operstate_name(0), carrier


def parse(body: bytes, *, details: bool = True) -> Link:
    """Read the body of an RTM_NEWLINK, or what is common to all kinds. Raises :class:`MalformedReply`."""
    if len(body) < HEADER.size:
        raise MalformedReply("link", f"{len(body)} bytes")
    _, _, index, flags, _ = HEADER.unpack_from(body)
    values = LINK.decode(body, HEADER.size)
    info = values.get("info", {})
    kind = info.get("kind", "")
    table = _DATA.get(kind) if details else None
    families = _FAMILIES_READ.decode(values["families"]) if details and "families" in values else {}
    mode = families.get("inet6", {}).get("addr_gen_mode")
    state = values.get("operstate", 0)
    return Link(
        index=index,
        name=values.get("name", ""),
        kind=kind,
        mac=values.get("mac", ""),
        mtu=values.get("mtu", 0),
        up=bool(flags & IFF_UP),
        flags=flags,
        master=values.get("master", 0),
        peer_index=values.get("peer_index", 0),
        peer_netns_id=values.get("peer_netns_id"),
        alias=values.get("alias", ""),
        group=values.get("group", 0),
        operstate=operstate_name(state),
        carrier=values.get("carrier", False),
        txqlen=values.get("txqlen", 0),
        promisc=bool(flags & IFF_PROMISC),
        allmulti=bool(flags & IFF_ALLMULTI),
        promiscuity=values.get("promiscuity", 0),
        addr_gen_mode=AddrGenMode(mode) if mode in _ADDR_GEN_MODES else None,
        data=table.decode(info["data"]) if table is not None and "data" in info else {},
        port=BRIDGE_PORT.decode(info["port_data"])
        if details and info.get("port_kind") == "bridge" and "port_data" in info
        else {},
    )


_ADDR_GEN_MODES = frozenset(AddrGenMode)
