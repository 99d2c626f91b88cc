"""Pods of a throwaway host, and the links that they have before the plugin comes."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from ipaddress import IPv4Interface
from typing import Any

import msgspec

from podwire.kernel import addresses, links, netns, routes
from podwire.kernel import message as nl
from podwire.kernel.errors import KernelError
from podwire.kernel.link_codec import HEADER, LINK
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

UPLINK = "uplink0"
"""A link of every throwaway host that stands for its network card."""
BRIDGE = "chain-bridge"
"""The bridge that pods are plugged into where the plugin under test does not do that."""
_GATEWAY = IPv4Interface("10.89.0.1/24")


class Pod(msgspec.Struct):
    """A container of a check: its namespace, what the chain made before the plugin, what the plugin said."""

    number: int
    container_id: str
    netns: str
    ifname: str = "eth0"
    previous: Mapping[str, Any] | None = None
    result: Mapping[str, Any] = {}


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


def bridge_with_gateway(sock: RouteSocket) -> links.Link:
    """Return the host's bridge of pods, made at need, with 10.89.0.1/24."""
    if links.get(sock, BRIDGE) is None:
        sock.send(links.bridge(BRIDGE, mac="02:89:00:00:00:01", up=True))
        sock.send(addresses.add(_existing(sock, BRIDGE).index, _GATEWAY))
    return _existing(sock, BRIDGE)


def _existing(sock: RouteSocket, name: str) -> links.Link:
    link = links.get(sock, name)
    if link is None:
        raise KernelError(errno.ENODEV, "look up link", name)
    return link


def plug(pod: Pod) -> tuple[links.Link, links.Link, links.Link]:
    """Give the pod a link to a bridge of the host; return bridge, host end and container end."""
    host_end = f"chain{pod.number}"
    with netns.open(pod.netns) as inside, RouteSocket.open() as sock, RouteSocket.open(inside) as within:
        bridge = bridge_with_gateway(sock)
        sock.send(
            links.veth(host_end, pod.ifname, peer_netns=inside, up=True),
            links.configure(host_end, master=bridge.index),
        )
        within.send(links.configure(pod.ifname, up=True))
        return bridge, _existing(sock, host_end), _existing(within, pod.ifname)


def wire(pod: Pod, address: str = "") -> dict[str, Any]:
    """Do a main plugin's work for a chained one, and return its result (without ``cniVersion``).

    A veth between a bridge of the host and the pod, with an address and a default route.
    """
    own = IPv4Interface(address or f"10.89.0.{20 + pod.number}/24")
    bridge, outer, inner = plug(pod)
    with netns.open(pod.netns) as inside, RouteSocket.open(inside) as within:
        within.send(addresses.add(inner.index, own))
        # A metric of its own: a container with two interfaces has two default routes.
        within.send(routes.add(None, device=inner.index, gateway=_GATEWAY.ip, metric=pod.number))
    return {
        "interfaces": [
            {"name": bridge.name, "mac": bridge.mac},
            {"name": outer.name, "mac": outer.mac},
            {"name": inner.name, "mac": inner.mac, "sandbox": pod.netns},
        ],
        "ips": [{"interface": 2, "address": str(own), "gateway": str(_GATEWAY.ip)}],
        "routes": [{"dst": "0.0.0.0/0", "gw": str(_GATEWAY.ip)}],
    }


def unwire(pod: Pod) -> None:
    """Undo `wire` on the host's side; what is gone already is fine."""
    with RouteSocket.open() as sock:
        link = links.get(sock, f"chain{pod.number}")
        if link is not None:
            sock.send(links.delete(link.index))
