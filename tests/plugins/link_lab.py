"""A host with a cable to a router, for the plugins that give a pod a link; and what they leave.

``m0`` is the master or the device: the host's end of the cable. The router has 10.1.0.1 and fd00:1::1.
"""

from __future__ import annotations

from typing import Any

from tests.plugins.helpers import Host, run

MAC = "02:00:00:00:00:01"
SUBNETS = ("10.1.0.0/24", "fd00:1::/64")
MASTER: dict[str, dict[str, Any]] = {
    "macvlan": {"master": "m0"},
    "ptp": {"ipMasq": True},
    "host-device": {"device": "m0"},
    "tap": {},
}
"""The plugins, each with the options it needs here."""

_LOOK = """
for inside in '' '-n one'; do
  ip $inside -d link |
    sed -E 's/ (state|qlen|carrier|promiscuity) [^ ]*//g; s/,?(NO-CARRIER|LOWER_UP|M-DOWN),?//g'
  ip $inside address | grep -E 'inet6? ' | grep -v 'fe80:'
  ip $inside route show table all type unicast | grep -v '^fe80:' | sed 's/ linkdown//'
done
nft list ruleset | grep elements
cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding
"""


def cable(name: str = "m0", mac: str = MAC, mtu: int = 1500) -> None:
    run("ip", "netns", "add", "router")
    run(
        *("ip", "link", "add", name, "address", mac, "mtu", str(mtu), "type", "veth"),
        *("peer", "name", "r0", "mtu", str(mtu), "netns", "router"),
    )
    run("ip", "link", "set", name, "up")
    for command in (
        "link set r0 up",
        "address add 10.1.0.1/24 dev r0",
        "address add fd00:1::1/64 dev r0 nodad",
    ):
        run("ip", "-n", "router", *command.split())


def config(host: Host, type: str, *subnets: str, **options: Any) -> dict[str, Any]:
    """A network of a plugin; ``subnets`` are those of its pods, none for no addresses."""
    return host.config(*subnets, type=type, bridge="", **MASTER[type], **options)


def everything(host: Host) -> list[str]:
    """All that an ADD for pod one may touch, as independent observers see it."""
    return [*run("sh", "-c", _LOOK).splitlines(), *sorted(host.held())]
