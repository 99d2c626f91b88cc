"""Network interfaces: requests that make, change and delete them, and what the kernel says of them.

Builders are pure and return a :class:`Message`; readers take a socket. Sources: linux/if_link.h,
linux/rtnetlink.h, net/core/rtnetlink.c. A ``target`` is an interface index or a name.

The kernel drops an alias in the message that makes a link, so only :func:`configure` takes one.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from podwire.kernel import message as nl
from podwire.kernel.attributes import IPAddress, attribute
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.link_codec import (
    BRIDGE,
    BRIDGE_PORT,
    FAMILIES,
    HEADER,
    IFF_ALLMULTI,
    IFF_NOARP,
    IFF_PROMISC,
    IFF_UP,
    LINK,
    MACVLAN,
    VXLAN,
    AddrGenMode,
    Link,
    MacvlanMode,
    parse,
    parse_state,
)
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

__all__ = [
    "AddrGenMode",
    "Link",
    "MacvlanMode",
    "bridge",
    "bridge_port",
    "configure",
    "delete",
    "delete_group",
    "get",
    "ifb",
    "list_links",
    "macvlan",
    "make",
    "parse",
    "state",
    "veth",
    "vxlan",
]

NEWLINK = 16
DELLINK = 17
GETLINK = 18
SETLINK = 19

_AF_UNSPEC = 0
_SKIP_STATS = 1 << 3
_VETH_PEER = 1


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
    The peer is always made down, since the kernel refuses otherwise. Both ends have one queue in each
    direction, as many as a kernel that is not asked uses: it makes one for each processor and takes them out
    of use again, which waits for all processors (synchronize_net in veth_init_queues).
    """
    other = LINK.encode(
        {
            "name": peer,
            "mac": peer_mac,
            "mtu": mtu if peer_mtu is None else peer_mtu,
            "txqlen": txqlen,
            "netns": _netns(peer_netns),
            "tx_queues": 1,
            "rx_queues": 1,
        }
    )
    data = attribute(_VETH_PEER, HEADER.pack(_AF_UNSPEC, 0, peer_index, 0, 0) + other)
    return make("veth", name, data, index=index, mac=mac, mtu=mtu, up=up, txqlen=txqlen, queues=1)


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
    data = BRIDGE.encode(
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
    return make("bridge", name, data, index=index, mac=mac, mtu=mtu, up=up)


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
    """Make a macvlan over the link ``parent`` (an index in the socket's namespace), born in ``netns``.

    In passthru mode the kernel gives it the parent's address, whatever ``mac`` says.
    """
    data = MACVLAN.encode({"mode": mode, "bc_queue_len": bc_queue_len})
    return make("macvlan", name, data, index=index, mac=mac, mtu=mtu, up=up, parent=parent, netns=netns)


def ifb(
    name: str,
    *,
    mac: str | None = None,
    mtu: int | None = None,
    up: bool = False,
    txqlen: int | None = None,
) -> Message:
    """Make an intermediate functional block device, where ingress is shaped as egress."""
    return make("ifb", name, b"", mac=mac, mtu=mtu, up=up, txqlen=txqlen)


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
    data = VXLAN.encode(
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
    return make("vxlan", name, data, mac=mac, mtu=mtu, up=up)


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
    route_localnet: bool | None = None,
    arp_notify: bool | None = None,
) -> Message:
    """Change what is given of one link, and nothing else (RTM_SETLINK).

    ``master`` 0 takes it out of its bridge, ``alias`` "" removes the alias, ``netns`` moves it away. A
    link is renamed by its index only. The kernel wants ``addr_gen_mode`` in a message of its own.
    ``route_localnet`` and ``arp_notify`` are the sysctls of these names of IPv4.
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
    families: dict[str, Any] = {}
    if route_localnet is not None or arp_notify is not None:
        families["inet"] = {"conf": {"route_localnet": route_localnet, "arp_notify": arp_notify}}
    if addr_gen_mode is not None:
        families["inet6"] = {"addr_gen_mode": addr_gen_mode}
    if families:
        values["families"] = FAMILIES.encode(families)
    flags = change = 0
    for wanted, bit in ((up, IFF_UP), (promisc, IFF_PROMISC), (allmulti, IFF_ALLMULTI)):
        if wanted is not None:
            change |= bit
            flags |= bit if wanted else 0
    if arp is not None:
        change |= IFF_NOARP
        flags |= 0 if arp else IFF_NOARP
    body = HEADER.pack(_AF_UNSPEC, 0, index, flags, change) + LINK.encode(values)
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
    port = BRIDGE_PORT.encode(
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
    body = HEADER.pack(_AF_UNSPEC, 0, index, 0, 0) + LINK.encode(values)
    return Message(NEWLINK, 0, body, "change bridge port", subject)


def delete(target: int | str) -> Message:
    """Delete a link.

    The answer takes some 20 ms; :class:`~podwire.kernel.removal.LinkRemover` waits for less.
    """
    index, subject = _target(target)
    named = b"" if index else LINK.encode({"name": target})
    return Message(DELLINK, 0, HEADER.pack(_AF_UNSPEC, 0, index, 0, 0) + named, "delete link", subject)


def delete_group(group: int) -> Message:
    """Delete every link of ``group`` (IFLA_GROUP) at once; none is touched if one of them cannot be."""
    if group <= 0:
        raise InvalidValue(f"link group {group}", "0 is every link's first group, and not to be deleted")
    body = HEADER.pack(_AF_UNSPEC, 0, 0, 0, 0) + LINK.encode({"group": group})
    return Message(DELLINK, 0, body, "delete link group", str(group))


def get(sock: RouteSocket, target: int | str, *, details: bool = True) -> Link | None:
    """Look one link up; None if there is none.

    Without ``details`` it has no ``data``, ``port`` and ``addr_gen_mode``, which are most of the reading.
    """
    try:
        kind, reply = sock.request(_question(target))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    if kind != NEWLINK:
        raise MalformedReply("link", f"message type {kind} in answer to RTM_GETLINK")
    return parse(reply, details=details)


def get_all(sock: RouteSocket, indexes: Sequence[int]) -> list[Link | None]:
    """Look links up in one system call, as `get` does without ``details``. Raises :class:`KernelError`."""
    found: list[Link | None] = []
    for answer in sock.ask([_question(index) for index in indexes]):
        if isinstance(answer, KernelError):
            if answer.errno != errno.ENODEV:
                raise answer
            found.append(None)
        else:
            found.append(parse(answer[1], details=False))
    return found


def state(sock: RouteSocket, target: int | str, *before: Message) -> tuple[str, bool]:
    """The operational state of a link and whether it has a carrier, for a fraction of what get() costs.

    Messages that come ``before`` the question are sent with it, in one system call.

    The kernel notices a carrier by work of its own, which marks the link as "up", starts its queue, and has
    a bridge forward by it; until then it drops packets. RTM_GETLINK waits for the lock that this work holds,
    and from Linux 6.8 on it makes the kernel do that work at once. A link whose carrier never changed stays
    "unknown". Raises :class:`KernelError`, ENODEV if there is no such link.
    """
    _, reply = sock.request_after(before, _question(target))
    return parse_state(reply)


def list_links(sock: RouteSocket, *, master: int | None = None, kind: str | None = None) -> list[Link]:
    """All links, or those of a bridge, or of one kind; the kernel filters."""
    values: dict[str, Any] = {"filter": _SKIP_STATS, "master": master}
    if kind is not None:
        values["info"] = {"kind": kind}
    body = HEADER.pack(_AF_UNSPEC, 0, 0, 0, 0) + LINK.encode(values)
    entries = sock.dump(Message(GETLINK, 0, body, "list links", kind or "all"))
    links = [parse(entry) for number, entry in entries if number == NEWLINK]
    # The kernel's filter lets through what it cannot tell, such as the links of a kind that is not loaded.
    return [
        link
        for link in links
        if (master is None or link.master == master) and (kind is None or link.kind == kind)
    ]


def make(
    kind: str,
    name: str,
    data: bytes,
    *,
    index: int = 0,
    up: bool = False,
    mac: str | None = None,
    mtu: int | None = None,
    txqlen: int | None = None,
    queues: int | None = None,
    parent: int | None = None,
    netns: Netns | int | None = None,
) -> Message:
    """Make a link of any kind; ``data`` are the attributes of that kind, encoded (IFLA_INFO_DATA).

    ``parent`` is an index in the socket's namespace, ``netns`` where the link is born (None: there as well);
    ``queues`` are made in each direction.
    """
    attributes = LINK.encode(
        {
            "name": name,
            "mac": mac,
            "mtu": mtu,
            "txqlen": txqlen,
            "tx_queues": queues,
            "rx_queues": queues,
            "peer_index": parent,
            "netns": None if netns is None else _netns(netns),
            "info": {"kind": kind, "data": data or None},
        }
    )
    flags = IFF_UP if up else 0
    body = HEADER.pack(_AF_UNSPEC, 0, index, flags, flags) + attributes
    return Message(NEWLINK, nl.MAKE, body, f"create {kind}", name)


def _question(target: int | str) -> Message:
    index, subject = _target(target)
    values: dict[str, Any] = {} if index else {"name": target}
    values["filter"] = _SKIP_STATS
    body = HEADER.pack(_AF_UNSPEC, 0, index, 0, 0) + LINK.encode(values)
    return Message(GETLINK, 0, body, "look up link", subject)


def _target(target: int | str) -> tuple[int, str]:
    if isinstance(target, str):
        return 0, target
    if not 0 < target < 1 << 31:
        raise InvalidValue(f"link index {target}", "an index is positive and has 31 bits")
    return target, f"index {target}"


def _netns(netns: Netns | int | None) -> int | None:
    return netns if netns is None or isinstance(netns, int) else netns.fd
