"""Host ports: which ones exclude each other, in one pod and between the pods of a node.

Two host ports are the same when address, port and protocol are equal. ``0.0.0.0`` stands for every IPv4
address, ``::`` for every IPv6 address, and no address for both.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from podwire.kube.objects import ContainerPort, Pod

NO_FREE_PORTS = "node(s) didn't have free ports for the requested pod ports"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the host and where it is written in the pod; ``ip`` is empty for all addresses."""

    ip: str
    port: int
    protocol: str
    field: str = ""

    @classmethod
    def of(cls, port: ContainerPort, host_network: bool, field: str = "") -> HostPort | None:
        """The host port of a container port, None if it has none."""
        number = port.host_port or (port.container_port if host_network else 0)
        return cls(port.host_ip, number, port.protocol or "TCP", field) if number else None

    def __str__(self) -> str:
        return f"{self.protocol} port {self.port} of {self.ip or 'all addresses'}"

    def same(self, other: HostPort) -> bool:
        """Whether both claim the same addresses, so that neither is more specific."""
        if not self._comparable(other):
            return False
        mine, theirs = _address(self.ip), _address(other.ip)
        both_wild = (mine is None or mine.is_unspecified) and (theirs is None or theirs.is_unspecified)
        return mine == theirs or (both_wild and None in (mine, theirs))

    def overlaps(self, other: HostPort) -> bool:
        """Whether there is an address that both claim."""
        if not self._comparable(other):
            return False
        mine, theirs = _address(self.ip), _address(other.ip)
        if mine is None or theirs is None:
            return True
        return mine == theirs or (
            mine.version == theirs.version and (mine.is_unspecified or theirs.is_unspecified)
        )

    def _comparable(self, other: HostPort) -> bool:
        return self.port == other.port and self.protocol == other.protocol


def host_ports(pod: Pod) -> list[HostPort]:
    """All host ports of a pod; with hostNetwork every container port is one."""
    found = []
    for kind, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
    ):
        for index, container in enumerate(containers):
            if kind == "initContainers" and container.restart_policy != "Always":
                continue
            for at, port in enumerate(container.ports):
                field = f"spec.{kind}[{index}].ports[{at}].hostPort"
                host_port = HostPort.of(port, pod.spec.host_network, field)
                if host_port is not None:
                    found.append(host_port)
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    return ipaddress.ip_address(text) if text else None
