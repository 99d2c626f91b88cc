"""The plugin types that are known: what they are for, and a configuration under which they can be tested.

One entry a type. ``options`` are the plugin's own keys for the attachment of that number (from 1), so that
what can be given away once only (a host port, a device) differs.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Mapping
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import msgspec

from podwire.kernel import addresses, links, netns, routes, rules
from podwire.kernel import message as nl
from podwire.kernel.errors import KernelError
from podwire.kernel.link_codec import HEADER, LINK
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.nft import Nft

UPLINK = "uplink0"
"""A link of every throwaway host that stands for its network card."""
SUBNET = "10.89.0.0/24"
SUBNET6 = "fd89::/64"
ONE_ADDRESS = "10.89.0.9"


class Kind(enum.StrEnum):
    """What a plugin is in a chain; it decides which checks apply."""

    MAIN = "main"
    """Makes the container's interface, addressed by an IPAM plugin."""
    LOOPBACK = "loopback"
    """Uses an interface that the container has anyway."""
    IPAM = "ipam"
    """Gives addresses and makes nothing."""
    CHAINED = "chained"
    """Changes what the plugins before it made: needs their result."""


class Pod(msgspec.Struct):
    """A container of a check: its namespace, what the chain made before the plugin, what the plugin said."""

    number: int
    container_id: str
    netns: str
    ifname: str = "eth0"
    previous: Mapping[str, Any] | None = None
    result: Any = None


Tamper = Callable[[Pod], None]


def _no_options(_number: int) -> dict[str, Any]:
    return {}


def _nothing(_number: int) -> None:
    return None


class Profile(msgspec.Struct, frozen=True):
    """A type of plugin. ``broken`` are changes that no ADD can do; after a ``tamper`` CHECK must fail."""

    kind: Kind
    options: Callable[[int], dict[str, Any]] = _no_options
    prepare: Callable[[int], None] = _nothing
    broken: Mapping[str, Mapping[str, Any]] = {}
    tamper: Mapping[str, Tamper] = {}
    link_kind: str = ""
    ifname: str = "eth0"
    not_testable: str = ""
    fixtures: tuple[str, ...] = ()
    """What the names of the links that ``prepare`` makes begin with."""


def host_local(*, dual_stack: bool = False) -> dict[str, Any]:
    """The IPAM configuration that main plugins get."""
    ranges = [[{"subnet": SUBNET}], [{"subnet": SUBNET6}]] if dual_stack else [[{"subnet": SUBNET}]]
    default = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}] if dual_stack else [{"dst": "0.0.0.0/0"}]
    return {"type": "host-local", "ranges": ranges, "routes": default}


def _change_pod(pod: Pod, change: Callable[[RouteSocket, links.Link], None]) -> None:
    with netns.open(pod.netns) as inside, RouteSocket.open(inside) as sock:
        link = links.get(sock, pod.ifname)
        if link is not None:
            change(sock, link)


def _delete_address(pod: Pod) -> None:
    def change(sock: RouteSocket, link: links.Link) -> None:
        for one in addresses.list_addresses(sock, link.index):
            if not one.address.is_link_local:
                sock.send(addresses.delete(link.index, one.address))

    _change_pod(pod, change)


def _delete_routes(pod: Pod) -> None:
    def change(sock: RouteSocket, link: links.Link) -> None:
        for one in routes.list_routes(sock, table=routes.TABLE_MAIN):
            if one.device == link.index and one.gateway is not None:
                sock.send(routes.delete(one.destination, device=link.index, gateway=one.gateway))

    _change_pod(pod, change)


def _delete_link(pod: Pod) -> None:
    _change_pod(pod, lambda sock, link: sock.send(links.delete(link.index)))


def _set_down(pod: Pod) -> None:
    _change_pod(pod, lambda sock, link: sock.send(links.configure(link.index, up=False)))


def _reset_mtu(pod: Pod) -> None:
    _change_pod(pod, lambda sock, link: sock.send(links.configure(link.index, mtu=1500)))


def _delete_rules(pod: Pod) -> None:
    def change(sock: RouteSocket, _link: links.Link) -> None:
        for one in rules.list_rules(sock):
            if one.priority not in {0, 32766, 32767}:
                sock.send(rules.delete(one))

    _change_pod(pod, change)


def _flush_rules(_pod: Pod) -> None:
    with Nft.open() as nft:
        nft.run("flush ruleset")


def _delete_ifbs(_pod: Pod) -> None:
    with RouteSocket.open() as sock:
        for link in links.list_links(sock, kind="ifb"):
            sock.send(links.delete(link.index))


def _delete_leases(_pod: Pod) -> None:
    for path in Path("/var/lib/cni/networks").rglob("10.89.0.*"):
        path.unlink()


_MAIN_TAMPER: Mapping[str, Tamper] = {
    "its address was deleted": _delete_address,
    "its default route was deleted": _delete_routes,
    "its interface was deleted": _delete_link,
}


def _make_device(number: int) -> None:
    with RouteSocket.open() as sock:
        sock.send(links.veth(f"device{number}", f"far{number}"))


def _bridge(_number: int) -> dict[str, Any]:
    return {"bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": host_local()}


def _ptp(_number: int) -> dict[str, Any]:
    return {"ipMasq": True, "ipam": host_local()}


def _over_uplink(_number: int) -> dict[str, Any]:
    return {"master": UPLINK, "ipam": host_local()}


def _vlan(number: int) -> dict[str, Any]:
    return {"master": UPLINK, "vlanId": 100 + number, "ipam": host_local()}


def _host_device(number: int) -> dict[str, Any]:
    return {"device": f"device{number}", "ipam": host_local()}


def _static(number: int) -> dict[str, Any]:
    address = {"address": f"10.89.0.{20 + number}/24", "gateway": "10.89.0.1"}
    return {"ipam": {"type": "static", "addresses": [address], "routes": [{"dst": "0.0.0.0/0"}]}}


def _portmap(number: int) -> dict[str, Any]:
    mapping = {"hostPort": 18080 + number, "containerPort": 80, "protocol": "tcp"}
    return {
        "snat": True,
        "capabilities": {"portMappings": True},
        "runtimeConfig": {"portMappings": [mapping]},
    }


def _bandwidth(_number: int) -> dict[str, Any]:
    rate = {"ingressRate": 8_000_000, "ingressBurst": 8_000_000}
    return {**rate, "egressRate": 8_000_000, "egressBurst": 8_000_000}


_NO_MASTER = {"a master that does not exist": {"master": "nosuch0"}}

PROFILES: Mapping[str, Profile] = {
    "bridge": Profile(
        Kind.MAIN,
        _bridge,
        broken={"a bridge name that another link has": {"bridge": UPLINK}},
        tamper=_MAIN_TAMPER,
    ),
    "ptp": Profile(Kind.MAIN, _ptp, tamper=_MAIN_TAMPER),
    "macvlan": Profile(Kind.MAIN, _over_uplink, broken=_NO_MASTER, tamper=_MAIN_TAMPER, link_kind="macvlan"),
    "ipvlan": Profile(Kind.MAIN, _over_uplink, broken=_NO_MASTER, tamper=_MAIN_TAMPER, link_kind="ipvlan"),
    "vlan": Profile(Kind.MAIN, _vlan, broken=_NO_MASTER, tamper=_MAIN_TAMPER, link_kind="vlan"),
    "host-device": Profile(
        Kind.MAIN,
        _host_device,
        prepare=_make_device,
        fixtures=("device", "far"),
        broken={"a device that does not exist": {"device": "nosuch0"}},
        tamper=_MAIN_TAMPER,
    ),
    "loopback": Profile(Kind.LOOPBACK, tamper={"lo was set down": _set_down}, ifname="lo"),
    "host-local": Profile(
        Kind.IPAM,
        lambda _number: {"ipam": host_local()},
        broken={"a subnet with host bits": {"ipam": {"type": "host-local", "subnet": "10.89.0.5/24"}}},
        tamper={"its lease was deleted": _delete_leases},
    ),
    "static": Profile(
        Kind.IPAM,
        _static,
        broken={
            "an address that is none": {
                "ipam": {"type": "static", "addresses": [{"address": "10.89.0.300/24"}]}
            }
        },
    ),
    "dhcp": Profile(
        Kind.IPAM,
        lambda _number: {"ipam": {"type": "dhcp"}},
        not_testable="dhcp needs its daemon and a DHCP server on the container's link",
    ),
    "portmap": Profile(Kind.CHAINED, _portmap, tamper={"the host's rules were flushed": _flush_rules}),
    "bandwidth": Profile(Kind.CHAINED, _bandwidth, tamper={"its ifb was deleted": _delete_ifbs}),
    "tuning": Profile(
        Kind.CHAINED,
        lambda _number: {"mtu": 1400, "sysctl": {"net.ipv4.conf.all.log_martians": "1"}},
        broken={"a sysctl that does not exist": {"sysctl": {"net.ipv4.nosuch": "1"}}},
        tamper={"the MTU was set back": _reset_mtu},
    ),
    "firewall": Profile(
        Kind.CHAINED,
        lambda _number: {"backend": "iptables"},
        tamper={"the host's rules were flushed": _flush_rules},
    ),
    "sbr": Profile(Kind.CHAINED, tamper={"its rules were deleted": _delete_rules}),
    "vrf": Profile(Kind.CHAINED, lambda _number: {"vrfname": "blue"}, link_kind="vrf"),
}


def of_kind(kind: Kind) -> Profile:
    """What is taken for a plugin of an unknown type, whose configuration the user gave."""
    return Profile(kind, tamper=_MAIN_TAMPER if kind is Kind.MAIN else {})


def make_uplink() -> None:
    """Give the calling thread's namespace its uplink."""
    with RouteSocket.open() as sock:
        sock.send(links.veth(UPLINK, "uplink1", up=True), links.configure("uplink1", up=True))


def kernel_has(link_kind: str) -> bool:
    """Whether this kernel can make links of a kind; asks in the calling thread's namespace."""
    attributes = LINK.encode({"name": "probe0", "info": {"kind": link_kind}})
    body = HEADER.pack(0, 0, 0, 0, 0) + attributes
    try:
        with RouteSocket.open() as sock:
            sock.send(Message(links.NEWLINK, nl.MAKE, body, "create", link_kind))
    except KernelError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def unwire(pod: Pod) -> None:
    """Undo `wire` on the host's side; what is gone already is fine."""
    with RouteSocket.open() as sock:
        link = links.get(sock, f"chain{pod.number}")
        if link is not None:
            sock.send(links.delete(link.index))


_CHAIN_BRIDGE = "chain-bridge"
_GATEWAY = IPv4Interface("10.89.0.1/24")


def wire(pod: Pod, address: str = "") -> dict[str, Any]:
    """Do a main plugin's work for a chained one, and return its result (without ``cniVersion``).

    A veth between a bridge of the host and the pod, with an address and a default route.
    """
    own = IPv4Interface(address or f"10.89.0.{20 + pod.number}/24")
    host_end = f"chain{pod.number}"
    with netns.open(pod.netns) as inside, RouteSocket.open() as sock:
        if links.get(sock, _CHAIN_BRIDGE) is None:
            sock.send(links.bridge(_CHAIN_BRIDGE, mac="02:89:00:00:00:01", up=True))
            made = links.get(sock, _CHAIN_BRIDGE)
            sock.send(addresses.add(made.index if made else 0, _GATEWAY))
        bridge = links.get(sock, _CHAIN_BRIDGE)
        sock.send(
            links.veth(host_end, pod.ifname, peer_netns=inside, up=True),
            links.configure(host_end, master=bridge.index if bridge else 0),
        )
        outer = links.get(sock, host_end)
        with RouteSocket.open(inside) as within:
            within.send(links.configure(pod.ifname, up=True))
            inner = links.get(within, pod.ifname)
            index = inner.index if inner else 0
            within.send(addresses.add(index, own))
            # A metric of its own: a container with two interfaces has two default routes.
            within.send(routes.add(None, device=index, gateway=_GATEWAY.ip, metric=pod.number))
    if bridge is None or outer is None or inner is None:
        raise RuntimeError("a link that was just made is gone")
    return {
        "interfaces": [
            {"name": _CHAIN_BRIDGE, "mac": bridge.mac},
            {"name": host_end, "mac": outer.mac},
            {"name": pod.ifname, "mac": inner.mac, "sandbox": pod.netns},
        ],
        "ips": [{"interface": 2, "address": str(own), "gateway": str(_GATEWAY.ip)}],
        "routes": [{"dst": "0.0.0.0/0", "gw": str(_GATEWAY.ip)}],
    }
