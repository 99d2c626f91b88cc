"""What all workers of a node share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from podwire.node.admission import HostPorts
from podwire.node.board import Board
from podwire.node.cache import RuntimeCache
from podwire.node.clock import Clock
from podwire.node.dns import Resolver
from podwire.node.events import Events
from podwire.node.volumes import Volumes
from podwire.runtime.api import RuntimeCondition, RuntimeService
from podwire.runtime.errors import RuntimeFault

NETWORK_STATUS_AGE = 1.0
"""Seconds for which an answer about the network's readiness is good."""


class NetworkGate:
    """Whether the runtime's network is ready, asked at most once a second."""

    def __init__(self, runtime: RuntimeService, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._asked = float("-inf")
        self._answer = RuntimeCondition("NetworkReady", True)

    async def condition(self) -> RuntimeCondition:
        """The NetworkReady condition; False with the fault when the runtime does not answer."""
        now = self._clock.monotonic()
        if now - self._asked >= NETWORK_STATUS_AGE:
            self._asked = now
            try:
                found = {c.type: c for c in await self._runtime.status()}
            except RuntimeFault as fault:
                found = {"NetworkReady": RuntimeCondition("NetworkReady", False, fault.code, str(fault))}
            self._answer = found.get("NetworkReady", RuntimeCondition("NetworkReady", True))
        return self._answer


@dataclass(frozen=True, slots=True)
class Context:
    """The node's parts, as its workers use them; ``host_ips`` has the first family first."""

    runtime: RuntimeService
    cache: RuntimeCache
    clock: Clock
    events: Events
    board: Board
    ports: HostPorts
    volumes: Volumes
    network: NetworkGate
    resolver: Resolver
    root: Path
    host_ips: tuple[str, ...] = ()
    runtime_name: str = "podwire"
