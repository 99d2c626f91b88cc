"""What is measured: the same chain of plugins for us and for the peer, in networks of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """A chain of plugins. ``ports``: host ports that each pod asks for, from ``port_base`` up."""

    name: str
    masquerade: bool = False
    ports: int = 0

    def chain(
        self, bridge: str, subnet: str, data_dir: Path, mappings: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The plugins of the list, with what a runtime would inject for one pod."""
        plugins: list[dict[str, Any]] = [
            {
                "type": "bridge",
                "bridge": bridge,
                "isGateway": True,
                "isDefaultGateway": True,
                "ipMasq": self.masquerade,
                "ipam": {"type": "host-local", "dataDir": str(data_dir), "ranges": [[{"subnet": subnet}]]},
            }
        ]
        if self.ports:
            plugins.append(
                {
                    "type": "portmap",
                    "capabilities": {"portMappings": True},
                    "runtimeConfig": {"portMappings": mappings},
                }
            )
        return plugins

    def mappings(self, base: int) -> list[dict[str, Any]]:
        """Port mappings of one pod; ``base`` keeps pods apart."""
        return [
            {"hostPort": base + number, "containerPort": 80 + number, "protocol": "tcp"}
            for number in range(self.ports)
        ]


CASES = (
    Case("bridge + host-local"),
    Case("bridge + host-local, ipMasq", masquerade=True),
    Case("bridge + host-local, ipMasq + portmap (2 ports)", masquerade=True, ports=2),
)
