"""The host ports that a pod asks for: decoded, checked, and split into one entry per IP version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface
from typing import Any

import msgspec

from podwire.cni import fields
from podwire.cni.errors import InvalidConfig
from podwire.cni.types import Result

PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
NAMES = {number: name for name, number in PROTOCOLS.items()}
FIELD = "runtimeConfig.portMappings"

Pod = dict[int, IPv4Interface | IPv6Interface]
"""A pod's first address of each IP version, with its prefix length."""


class HostPort(msgspec.Struct, frozen=True):
    """One port of the host that leads to the pod, for one IP version.

    ``address`` is the host's address, None for any; ``field`` says which mapping asked for it.
    """

    address: IPv4Address | IPv6Address | None
    protocol: int
    port: int
    target: IPv4Address | IPv6Address
    target_port: int
    field: str = FIELD

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.target.version

    @property
    def loopback(self) -> bool:
        """Whether it takes what is sent to 127.0.0.1."""
        return self.version == 4 and (self.address is None or self.address.is_loopback)

    def __str__(self) -> str:
        any_address = "0.0.0.0" if self.version == 4 else "[::]"
        address = any_address if self.address is None else str(self.address)
        host = f"[{address}]" if ":" in address and not address.startswith("[") else address
        return f"{host}:{self.port}/{NAMES[self.protocol]}"


def addresses(result: Result, ifname: str) -> Pod:
    """The pod's first address of each version on its interface, as host ports lead there."""
    found: Pod = {}
    for config in result.ips_of(ifname):
        found.setdefault(config.family, ip_interface(config.address))
    return found


def wanted(runtime_config: Mapping[str, Any], pod: Pod) -> tuple[HostPort, ...]:
    """Decode ``portMappings`` [{hostPort, containerPort, protocol, hostIP}] for a pod's addresses.

    hostIP sets the version; ``0.0.0.0`` and ``::`` mean all addresses of only theirs, an empty one all of
    every version that the pod has. Raises InvalidConfig (7) naming the field and the value.
    """
    listed = fields.lookup(runtime_config, "portMappings")
    if listed is None:
        return ()
    if not isinstance(listed, list | tuple):
        raise InvalidConfig(f"{FIELD}: want a list (it is {listed!r})")
    found: dict[tuple[int, IPv4Address | IPv6Address | None, int, int], HostPort] = {}
    for number, entry in enumerate(listed):
        for each in _entries(entry, pod, f"{FIELD}[{number}]"):
            key = (each.version, each.address, each.protocol, each.port)
            if key in found:
                raise InvalidConfig(
                    f"{each.field}: host port {each} is asked for twice, by {found[key].field} as well"
                )
            found[key] = each
    return tuple(found.values())


def _entries(entry: Any, pod: Pod, field: str) -> Sequence[HostPort]:
    if not isinstance(entry, Mapping):
        raise InvalidConfig(f"{field}: want an object (it is {entry!r})")
    port = _port(entry, "hostPort", field)
    target_port = _port(entry, "containerPort", field)
    name = fields.lookup(entry, "protocol")
    protocol = PROTOCOLS.get(name.lower()) if isinstance(name, str) else None
    if protocol is None:
        raise InvalidConfig(f"{field}.protocol: want tcp, udp or sctp (it is {name!r})")
    address = _host_ip(fields.lookup(entry, "hostIP", ""), field)
    versions = tuple(pod) if address is None else (address.version,)
    specific = None if address is None or address.is_unspecified else address
    if specific is not None and specific.version not in pod:
        raise InvalidConfig(
            f"{field}.hostIP: the pod has no IPv{specific.version} address (it is {str(address)!r})"
        )
    if specific is not None and specific.version == 6 and specific.is_loopback:
        raise InvalidConfig(f"{field}.hostIP: Linux cannot lead ::1 to a pod (it is {str(address)!r})")
    if not pod:
        raise InvalidConfig(f"{field}: the pod has no address that host port {port} could lead to")
    return [
        HostPort(specific, protocol, port, pod[version].ip, target_port, field)
        for version in versions
        if version in pod
    ]


def _port(entry: Mapping[str, Any], key: str, field: str) -> int:
    value = fields.lookup(entry, key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65536:
        raise InvalidConfig(f"{field}.{key}: want a port from 1 to 65535 (it is {value!r})")
    return value


def _host_ip(value: Any, field: str) -> IPv4Address | IPv6Address | None:
    if value == "":
        return None
    try:
        address = ip_address(value) if isinstance(value, str) and "%" not in value else None
    except ValueError:
        address = None
    if address is None:
        raise InvalidConfig(f"{field}.hostIP: want an IP address (it is {value!r})")
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
