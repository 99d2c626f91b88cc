"""Network interfaces: requests that make, change and delete them, and what the kernel says of them.

Builders are pure and return a :class:`Message`; readers take a socket. Sources: linux/if_link.h,
linux/rtnetlink.h, net/core/rtnetlink.c. A ``target`` is an interface index or a name.

The kernel drops an alias in the message that makes a link, so only :func:`configure` takes one.
"""

from __future__ import annotations

import enum
import errno
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.kernel import message as nl
from podwire.kernel.attributes import (
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
    IPAddress,
    Table,
    attribute,
)
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

NEWLINK = 16
DELLINK = 17
GETLINK = 18
SETLINK = 19

IFF_UP = 0x1
IFF_NOARP = 0x80
IFF_PROMISC = 0x100
IFF_ALLMULTI = 0x200

_AF_UNSPEC = 0
_AF_INET6 = 10
_HEADER = struct.Struct("=BxHiII")
_SKIP_STATS = 1 << 3
_VETH_PEER = 1
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


_INFO = Table(
    "link info", kind=(1, STRING), data=(2, NESTED_BYTES), port_kind=(4, STRING), port_data=(5, NESTED_BYTES)
)
_LINK = Table(
    "link",
    mac=(1, MAC),
    name=(3, IFNAME),
    mtu=(4, U32),
    peer_index=(5, U32),
    master=(10, U32),
    txqlen=(13, U32),
    operstate=(16, U8),
    info=(18, _INFO),
    alias=(20, STRING),
    families=(26, NESTED_BYTES),
    group=(27, U32),
    netns=(28, U32),
    filter=(29, U32),
    promiscuity=(30, U32),
    carrier=(33, SWITCH),
    peer_netns_id=(37, U32),
)
_INET6 = Table("IPv6 link", addr_gen_mode=(8, U8))
_FAMILIES = Table("link families", inet6=(_AF_INET6, _INET6))
_BRIDGE = Table(
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
_BRIDGE_PORT = Table(
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
_MACVLAN = Table("macvlan", mode=(1, U32), flags=(2, U16), bc_queue_len=(7, U32))
_VXLAN = Table(
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
_DATA = {"bridge": _BRIDGE, "macvlan": _MACVLAN, "vxlan": _VXLAN}


class Link(msgspec.Struct, frozen=True):
    """One interface as RTM_NEWLINK tells it.

    ``kind`` is "" for links without one (loopback, hardware). ``peer_index`` is IFLA_LINK: the peer of a
    veth, the parent of a macvlan, 0 for none; it counts in namespace ``peer_netns_id`` (None: this one).
    ``master`` is 0 for none. ``promisc`` is the flag that was asked for, ``promiscuity`` the kernel's count.
    ``data`` holds what the link's kind says (see bridge, macvlan, vxlan), ``port`` what its bridge says.
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


def veth(
    name: str,
    peer: str,
    *,
    peer_netns: Netns | int | None = None,
    index: int = 0,
    peer_index: int = 0,
    mac: str | None = None,
    peer_mac: str | None = None,
    mtu: int | None = None,
    peer_mtu: int | None = None,
    up: bool = False,
    txqlen: int | None = None,
) -> Message:
    """Make a pair: ``name`` in the socket's namespace, ``peer`` in ``peer_netns`` (None: the same one).

    ``mtu`` counts for both unless ``peer_mtu`` is given; of an index 0 the kernel chooses.
    The peer is always made down, since the kernel refuses otherwise.
    """
    other = _LINK.encode(
        {
            "name": peer,
            "mac": peer_mac,
            "mtu": mtu if peer_mtu is None else peer_mtu,
            "txqlen": txqlen,
            "netns": _netns(peer_netns),
        }
    )
    data = attribute(_VETH_PEER, _HEADER.pack(_AF_UNSPEC, 0, peer_index, 0, 0) + other)
    return _make("veth", name, data, index=index, mac=mac, mtu=mtu, up=up, txqlen=txqlen)


def bridge(
    name: str,
    *,
    index: int = 0,
    mac: str | None = None,
    mtu: int | None = None,
    up: bool = False,
    forward_delay: int | None = None,
    ageing_time: int | None = None,
    stp: bool | None = None,
    vlan_filtering: bool | None = None,
    vlan_default_pvid: int | None = None,
    mcast_snooping: bool | None = None,
    nf_call_iptables: bool | None = None,
    nf_call_ip6tables: bool | None = None,
) -> Message:
    """Make a bridge. ``forward_delay`` and ``ageing_time`` are in 1/100 s."""
    data = _BRIDGE.encode(
        {
            "forward_delay": forward_delay,
            "ageing_time": ageing_time,
            "stp": None if stp is None else int(stp),
            "vlan_filtering": vlan_filtering,
            "vlan_default_pvid": vlan_default_pvid,
            "mcast_snooping": mcast_snooping,
            "nf_call_iptables": nf_call_iptables,
            "nf_call_ip6tables": nf_call_ip6tables,
        }
    )
    return _make("bridge", name, data, index=index, mac=mac, mtu=mtu, up=up)


def macvlan(
    name: str,
    *,
    parent: int,
    mode: MacvlanMode = MacvlanMode.BRIDGE,
    index: int = 0,
    mac: str | None = None,
    mtu: int | None = None,
    netns: Netns | int | None = None,
    up: bool = False,
    bc_queue_len: int | None = None,
) -> Message:
    """Make a macvlan over the link ``parent`` (an index in the socket's namespace), born in ``netns``."""
    data = _MACVLAN.encode({"mode": mode, "bc_queue_len": bc_queue_len})
    return _make("macvlan", name, data, index=index, mac=mac, mtu=mtu, up=up, parent=parent, netns=netns)


def ifb(
    name: str,
    *,
    mtu: int | None = None,
    up: bool = False,
    txqlen: int | None = None,
) -> Message:
    """Make an intermediate functional block device, where ingress is shaped as egress."""
    return _make("ifb", name, b"", mtu=mtu, up=up, txqlen=txqlen)


def vxlan(
    name: str,
    *,
    vni: int,
    port: int = 4789,
    parent: int | None = None,
    local: IPAddress | None = None,
    group: IPAddress | None = None,
    learning: bool = False,
    ttl: int | None = None,
    proxy: bool | None = None,
    l2miss: bool | None = None,
    l3miss: bool | None = None,
    udp_csum: bool | None = None,
    mac: str | None = None,
    mtu: int | None = None,
    up: bool = False,
) -> Message:
    """Make a VXLAN device (RFC 7348). ``parent`` is the underlay's index, ``port`` the UDP port.

    Learning is off: the entries of the forwarding database are ours (:mod:`podwire.kernel.neighbours`).
    """
    if not 0 <= vni < 1 << 24:
        raise InvalidValue(f"vxlan vni {vni}", "a VNI has 24 bits")
    data = _VXLAN.encode(
        {
            "vni": vni,
            "parent": parent,
            "local" if local is None or local.version == 4 else "local6": local,
            "group" if group is None or group.version == 4 else "group6": group,
            "learning": learning,
            "ttl": ttl,
            "port": port,
            "proxy": proxy,
            "l2miss": l2miss,
            "l3miss": l3miss,
            "udp_csum": udp_csum,
        }
    )
    return _make("vxlan", name, data, mac=mac, mtu=mtu, up=up)


def configure(
    target: int | str,
    *,
    name: str | None = None,
    up: bool | None = None,
    mtu: int | None = None,
    mac: str | None = None,
    master: int | None = None,
    alias: str | None = None,
    netns: Netns | int | None = None,
    addr_gen_mode: AddrGenMode | None = None,
    promisc: bool | None = None,
    allmulti: bool | None = None,
    arp: bool | None = None,
    txqlen: int | None = None,
    group: int | None = None,
) -> Message:
    """Change what is given of one link, and nothing else (RTM_SETLINK).

    ``master`` 0 takes it out of its bridge, ``alias`` "" removes the alias, ``netns`` moves it away. A
    link is renamed by its index only. The kernel wants ``addr_gen_mode`` in a message of its own.
    """
    index, subject = _target(target)
    values: dict[str, Any] = {}
    if not index:
        if name is not None:
            raise InvalidValue(f"link name {name!r}", f"{target!r} is renamed by its index, not by its name")
        values["name"] = target
    else:
        values["name"] = name
    values["mtu"] = mtu
    values["mac"] = mac
    values["master"] = master
    values["alias"] = alias
    values["txqlen"] = txqlen
    values["group"] = group
    values["netns"] = _netns(netns)
    if addr_gen_mode is not None:
        values["families"] = _FAMILIES.encode({"inet6": {"addr_gen_mode": addr_gen_mode}})
    flags = change = 0
    for wanted, bit in ((up, IFF_UP), (promisc, IFF_PROMISC), (allmulti, IFF_ALLMULTI)):
        if wanted is not None:
            change |= bit
            flags |= bit if wanted else 0
    if arp is not None:
        change |= IFF_NOARP
        flags |= 0 if arp else IFF_NOARP
    body = _HEADER.pack(_AF_UNSPEC, 0, index, flags, change) + _LINK.encode(values)
    return Message(SETLINK, 0, body, "change link", subject)


def bridge_port(
    target: int | str,
    *,
    hairpin: bool | None = None,
    isolated: bool | None = None,
    learning: bool | None = None,
    unicast_flood: bool | None = None,
    mcast_flood: bool | None = None,
    bcast_flood: bool | None = None,
    neigh_suppress: bool | None = None,
    proxy_arp: bool | None = None,
    guard: bool | None = None,
    cost: int | None = None,
    priority: int | None = None,
) -> Message:
    """Change what is given of a bridge's port; the link must be one already (IFLA_BRPORT_*)."""
    port = _BRIDGE_PORT.encode(
        {
            "hairpin": hairpin,
            "isolated": isolated,
            "learning": learning,
            "unicast_flood": unicast_flood,
            "mcast_flood": mcast_flood,
            "bcast_flood": bcast_flood,
            "neigh_suppress": neigh_suppress,
            "proxy_arp": proxy_arp,
            "guard": guard,
            "cost": cost,
            "priority": priority,
        }
    )
    index, subject = _target(target)
    values: dict[str, Any] = {} if index else {"name": target}
    values["info"] = {"port_kind": "bridge", "port_data": port}
    body = _HEADER.pack(_AF_UNSPEC, 0, index, 0, 0) + _LINK.encode(values)
    return Message(NEWLINK, 0, body, "change bridge port", subject)


def delete(target: int | str) -> Message:
    """Delete a link. The answer takes some 20 ms;

    :class:`~podwire.kernel.removal.LinkRemover` waits for less.
    """
    index, subject = _target(target)
    named = b"" if index else _LINK.encode({"name": target})
    return Message(DELLINK, 0, _HEADER.pack(_AF_UNSPEC, 0, index, 0, 0) + named, "delete link", subject)


def delete_group(group: int) -> Message:
    """Delete every link of ``group`` (IFLA_GROUP) at once; none is touched if one of them cannot be."""
    if group <= 0:
        raise InvalidValue(f"link group {group}", "0 is every link's first group, and not to be deleted")
    body = _HEADER.pack(_AF_UNSPEC, 0, 0, 0, 0) + _LINK.encode({"group": group})
    return Message(DELLINK, 0, body, "delete link group", str(group))


def get(sock: RouteSocket, target: int | str) -> Link | None:
    """Look one link up; None if there is none."""
    index, subject = _target(target)
    values: dict[str, Any] = {} if index else {"name": target}
    values["filter"] = _SKIP_STATS
    body = _HEADER.pack(_AF_UNSPEC, 0, index, 0, 0) + _LINK.encode(values)
    try:
        kind, reply = sock.request(Message(GETLINK, 0, body, "look up link", subject))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    if kind != NEWLINK:
        raise MalformedReply("link", f"message type {kind} in answer to RTM_GETLINK")
    return parse(reply)


def list_links(sock: RouteSocket, *, master: int | None = None, kind: str | None = None) -> list[Link]:
    """All links, or those of a bridge, or of one kind; the kernel filters."""
    values: dict[str, Any] = {"filter": _SKIP_STATS, "master": master}
    if kind is not None:
        values["info"] = {"kind": kind}
    body = _HEADER.pack(_AF_UNSPEC, 0, 0, 0, 0) + _LINK.encode(values)
    entries = sock.dump(Message(GETLINK, 0, body, "list links", kind or "all"))
    links = [parse(entry) for number, entry in entries if number == NEWLINK]
    # The kernel's filter lets through what it cannot tell, such as the links of a kind that is not loaded.
    return [
        link
        for link in links
        if (master is None or link.master == master) and (kind is None or link.kind == kind)
    ]


def parse(body: bytes) -> Link:
    """Read the body of an RTM_NEWLINK. Raises :class:`MalformedReply`."""
    if len(body) < _HEADER.size:
        raise MalformedReply("link", f"{len(body)} bytes")
    _, _, index, flags, _ = _HEADER.unpack_from(body)
    values = _LINK.decode(body, _HEADER.size)
    info = values.get("info", {})
    kind = info.get("kind", "")
    table = _DATA.get(kind)
    families = _FAMILIES.decode(values["families"]) if "families" in values else {}
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
        operstate=_OPERSTATES[state] if state < len(_OPERSTATES) else str(state),
        carrier=values.get("carrier", False),
        txqlen=values.get("txqlen", 0),
        promisc=bool(flags & IFF_PROMISC),
        allmulti=bool(flags & IFF_ALLMULTI),
        promiscuity=values.get("promiscuity", 0),
        addr_gen_mode=AddrGenMode(mode) if mode in _ADDR_GEN_MODES else None,
        data=table.decode(info["data"]) if table is not None and "data" in info else {},
        port=_BRIDGE_PORT.decode(info["port_data"])
        if info.get("port_kind") == "bridge" and "port_data" in info
        else {},
    )


_ADDR_GEN_MODES = frozenset(AddrGenMode)


def _make(
    kind: str,
    name: str,
    data: bytes,
    *,
    index: int = 0,
    up: bool = False,
    mac: str | None = None,
    mtu: int | None = None,
    txqlen: int | None = None,
    parent: int | None = None,
    netns: Netns | int | None = None,
) -> Message:
    attributes = _LINK.encode(
        {
            "name": name,
            "mac": mac,
            "mtu": mtu,
            "txqlen": txqlen,
            "peer_index": parent,
            "netns": None if netns is None else _netns(netns),
            "info": {"kind": kind, "data": data or None},
        }
    )
    flags = IFF_UP if up else 0
    body = _HEADER.pack(_AF_UNSPEC, 0, index, flags, flags) + attributes
    return Message(NEWLINK, nl.MAKE, body, f"create {kind}", name)


def _target(target: int | str) -> tuple[int, str]:
    if isinstance(target, str):
        return 0, target
    if not 0 < target < 1 << 31:
        raise InvalidValue(f"link index {target}", "an index is positive and has 31 bits")
    return target, f"index {target}"


def _netns(netns: Netns | int | None) -> int | None:
    return netns if netns is None or isinstance(netns, int) else netns.fd
