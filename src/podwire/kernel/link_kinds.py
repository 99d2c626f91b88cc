"""Links that not every kernel has: vlan, ipvlan, dummy, vrf. Builders as in :mod:`podwire.kernel.links`.

Sources: linux/if_link.h, linux/if_vlan.h, net/8021q/vlan_netlink.c, drivers/net/ipvlan, drivers/net/vrf.c.
What the kernel says of them is in ``Link.data``, by the tables of :mod:`podwire.kernel.link_codec`. A kernel
without the kind answers EOPNOTSUPP.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from podwire.kernel.errors import InvalidValue, KernelError
from podwire.kernel.link_codec import IPVLAN, VLAN, VRF, IpvlanFlag, IpvlanMode, VlanFlag
from podwire.kernel.links import make
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

__all__ = [
    "ETH_P_8021AD",
    "ETH_P_8021Q",
    "IpvlanFlag",
    "IpvlanMode",
    "VlanFlag",
    "dummy",
    "ipvlan",
    "is_known",
    "vlan",
    "vrf",
]

ETH_P_8021Q = 0x8100
ETH_P_8021AD = 0x88A8
_LAST_VLAN = 4094


def vlan(
    name: str,
    *,
    parent: int,
    id: int,
    protocol: int | None = None,
    reorder_hdr: bool | None = None,
    gvrp: bool | None = None,
    mvrp: bool | None = None,
    loose_binding: bool | None = None,
    bridge_binding: bool | None = None,
    mac: str | None = None,
    mtu: int | None = None,
    netns: Netns | int | None = None,
    up: bool = False,
) -> Message:
    """Make a VLAN (IEEE 802.1Q) of ``parent``, a link's index in the socket's namespace, born in ``netns``.

    ``protocol`` is the EtherType of the tag (None: 802.1Q). Of a parent and a protocol there is one link an
    ``id`` in all namespaces: EEXIST. Without ``mac`` and ``mtu`` it has those of the parent.
    """
    if not 0 <= id <= _LAST_VLAN:
        raise InvalidValue(f"vlan id {id}", f"is not between 0 and {_LAST_VLAN}")
    flags = mask = 0
    for wanted, bit in (
        (reorder_hdr, VlanFlag.REORDER_HDR),
        (gvrp, VlanFlag.GVRP),
        (mvrp, VlanFlag.MVRP),
        (loose_binding, VlanFlag.LOOSE_BINDING),
        (bridge_binding, VlanFlag.BRIDGE_BINDING),
    ):
        if wanted is not None:
            mask |= bit
            flags |= bit if wanted else 0
    data = VLAN.encode({"id": id, "protocol": protocol, "flags": (flags, mask) if mask else None})
    return make("vlan", name, data, mac=mac, mtu=mtu, up=up, parent=parent, netns=netns)


def ipvlan(
    name: str,
    *,
    parent: int,
    mode: IpvlanMode = IpvlanMode.L2,
    flag: IpvlanFlag | None = None,
    mtu: int | None = None,
    netns: Netns | int | None = None,
    up: bool = False,
) -> Message:
    """Make an ipvlan over the link ``parent``, an index in the socket's namespace, born in ``netns``.

    It has the parent's MAC. The mode belongs to the parent: another mode changes its other ipvlans too.
    """
    data = IPVLAN.encode({"mode": mode, "flags": flag})
    return make("ipvlan", name, data, mtu=mtu, up=up, parent=parent, netns=netns)


def dummy(
    name: str,
    *,
    mac: str | None = None,
    mtu: int | None = None,
    netns: Netns | int | None = None,
    up: bool = False,
) -> Message:
    """Make a link that drops what is sent by it."""
    return make("dummy", name, b"", mac=mac, mtu=mtu, up=up, netns=netns)


def vrf(name: str, *, table: int, netns: Netns | int | None = None, up: bool = False) -> Message:
    """Make a VRF: the links that have it as their master look routes up in ``table``."""
    if not 0 < table < 1 << 32:
        raise InvalidValue(f"vrf table {table}", "a routing table is positive and has 32 bits")
    return make("vrf", name, VRF.encode({"table": table}), up=up, netns=netns)


def is_known(sock: RouteSocket, kind: str) -> bool:
    """Tell whether the kernel has links of a kind; it loads the module if that is what it takes. Makes none.

    It is asked for a link that no kind can be: with the MAC of a group, and of two flags that exclude one
    another.
    """
    data = IPVLAN.encode({"flags": IpvlanFlag.PRIVATE | IpvlanFlag.VEPA}) if kind == "ipvlan" else b""
    try:
        sock.send(make(kind, "probe", data, mac="01:00:00:00:00:00"))
    except KernelError as error:
        return error.errno != errno.EOPNOTSUPP
    return True
