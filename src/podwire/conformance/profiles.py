"""The plugin types that are known: what they are for, and a configuration under which they can be tested.

One entry a type. ``options`` are the plugin's own keys for the attachment of that number (from 1), so that
what can be given away once only (a host port, a device) differs.
"""

from __future__ import annotations

import enum
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from podwire.conformance import pods, services, tampering
from podwire.conformance.pods import UPLINK, Pod
from podwire.conformance.tampering import Tamper
from podwire.kernel import links
from podwire.kernel.netlink import RouteSocket

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


def _no_options(_number: int) -> dict[str, Any]:
    return {}


def _nothing(_pod: Pod) -> None:
    return None


def _no_services(_executable: str, _served: bool) -> list[subprocess.Popen[bytes]]:
    return []


class Profile(msgspec.Struct, frozen=True):
    """A type of plugin. ``broken`` are changes that no ADD can do; after a ``tamper`` CHECK must fail.

    ``prepare`` makes what an attachment uses up, ``serve`` starts what the plugin needs beside itself,
    given its executable and whether another daemon serves it.
    """

    kind: Kind
    options: Callable[[int], dict[str, Any]] = _no_options
    prepare: Callable[[Pod], None] = _nothing
    serve: Callable[[str, bool], list[subprocess.Popen[bytes]]] = _no_services
    broken: Mapping[str, Mapping[str, Any]] = {}
    tamper: Mapping[str, Tamper] = {}
    link_kind: str = ""
    ifname: str = "eth0"
    fixtures: tuple[str, ...] = ()
    """What the names of the links that ``prepare`` makes begin with."""


def host_local(*, dual_stack: bool = False) -> dict[str, Any]:
    """The IPAM configuration that main plugins get."""
    ranges = [[{"subnet": SUBNET}], [{"subnet": SUBNET6}]] if dual_stack else [[{"subnet": SUBNET}]]
    default = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}] if dual_stack else [{"dst": "0.0.0.0/0"}]
    return {"type": "host-local", "ranges": ranges, "routes": default}


_MAIN_TAMPER: Mapping[str, Tamper] = {
    "its address was deleted": tampering.delete_address,
    "its default route was deleted": tampering.delete_routes,
    "its interface was deleted": tampering.delete_link,
}


def _make_device(pod: Pod) -> None:
    with RouteSocket.open() as sock:
        sock.send(links.veth(f"device{pod.number}", f"far{pod.number}"))


def _plug(pod: Pod) -> None:
    pods.plug(pod)


def _serve_dhcp(executable: str, served: bool) -> list[subprocess.Popen[bytes]]:
    with RouteSocket.open() as sock:
        pods.bridge_with_gateway(sock)
    return services.dhcp(executable, pods.BRIDGE, served=served)


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
    "podwire": Profile(
        Kind.MAIN,
        lambda _number: {"mode": "routed", "subnets": [SUBNET]},
        broken={
            "an option that does not exist": {"nosuch": 1},
            "an uplink that does not exist": {"uplink": "nosuch0"},
        },
        tamper={**_MAIN_TAMPER, "the host's rules were flushed": tampering.flush_rules},
    ),
    "ptp": Profile(Kind.MAIN, _ptp, tamper=_MAIN_TAMPER),
    "macvlan": Profile(Kind.MAIN, _over_uplink, broken=_NO_MASTER, tamper=_MAIN_TAMPER, link_kind="macvlan"),
    "ipvlan": Profile(Kind.MAIN, _over_uplink, broken=_NO_MASTER, tamper=_MAIN_TAMPER, link_kind="ipvlan"),
    "dummy": Profile(
        Kind.MAIN, lambda _number: {"ipam": host_local()}, tamper=_MAIN_TAMPER, link_kind="dummy"
    ),
    "vlan": Profile(Kind.MAIN, _vlan, broken=_NO_MASTER, tamper=_MAIN_TAMPER, link_kind="vlan"),
    "host-device": Profile(
        Kind.MAIN,
        _host_device,
        prepare=_make_device,
        fixtures=("device", "far"),
        broken={"a device that does not exist": {"device": "nosuch0"}},
        tamper=_MAIN_TAMPER,
    ),
    "tap": Profile(
        Kind.MAIN,
        lambda _number: {"ipam": host_local()},
        tamper=_MAIN_TAMPER,
    ),
    "loopback": Profile(Kind.LOOPBACK, tamper={"lo was set down": tampering.set_down}, ifname="lo"),
    "host-local": Profile(
        Kind.IPAM,
        lambda _number: {"ipam": host_local()},
        broken={"a subnet with host bits": {"ipam": {"type": "host-local", "subnet": "10.89.0.5/24"}}},
        tamper={"its lease was deleted": tampering.delete_leases},
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
        prepare=_plug,
        serve=_serve_dhcp,
        fixtures=("chain",),
    ),
    "portmap": Profile(
        Kind.CHAINED, _portmap, tamper={"the host's rules were flushed": tampering.flush_rules}
    ),
    "bandwidth": Profile(
        Kind.CHAINED,
        _bandwidth,
        broken={"a rate without a burst": {"ingressBurst": 0}},
        tamper={
            "its ifb was deleted": tampering.delete_ifbs,
            "its token buckets were deleted": tampering.delete_qdiscs,
            "its filter was deleted": tampering.delete_redirects,
        },
    ),
    "tuning": Profile(
        Kind.CHAINED,
        lambda _number: {"mtu": 1400, "sysctl": {"net.ipv4.conf.all.log_martians": "1"}},
        broken={"a sysctl that does not exist": {"sysctl": {"net.ipv4.nosuch": "1"}}},
        tamper={"the MTU was set back": tampering.reset_mtu},
    ),
    "firewall": Profile(
        Kind.CHAINED,
        lambda _number: {"backend": "iptables"},
        tamper={"the host's rules were flushed": tampering.flush_rules},
    ),
    "sbr": Profile(Kind.CHAINED, tamper={"its rules were deleted": tampering.delete_rules}),
    "vrf": Profile(
        Kind.CHAINED,
        lambda _number: {"vrfname": "blue"},
        broken={"a table that no VRF can have": {"table": -1}},
        tamper={
            "its VRF was deleted": tampering.delete_vrfs,
            "its interface was taken out of the VRF": tampering.free_link,
            "its default route was deleted": tampering.delete_routes,
        },
        link_kind="vrf",
    ),
}


def of_kind(kind: Kind) -> Profile:
    """What is taken for a plugin of an unknown type, whose configuration the user gave."""
    return Profile(kind, tamper=_MAIN_TAMPER if kind is Kind.MAIN else {})
