"""What the runtime has of one pod: its sandboxes and containers, as last seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from podwire.kube.objects import Container, Pod
from podwire.runtime.api import ContainerState, ContainerStatus, SandboxState, SandboxStatus


@dataclass(frozen=True, slots=True)
class Observed:
    """The sandboxes and containers of one pod UID, each in the order they were made."""

    sandboxes: tuple[SandboxStatus, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()

    @property
    def sandbox(self) -> SandboxStatus | None:
        """The newest sandbox."""
        return self.sandboxes[-1] if self.sandboxes else None

    @property
    def ready_sandboxes(self) -> tuple[SandboxStatus, ...]:
        """Those that are READY."""
        return tuple(s for s in self.sandboxes if s.state == SandboxState.READY)

    def history(self, name: str) -> list[ContainerStatus]:
        """All containers of that name, oldest first."""
        return [c for c in self.containers if c.metadata.name == name]

    def latest(self, name: str, sandbox_id: str | None = None) -> ContainerStatus | None:
        """The newest container of that name, in one sandbox or in any."""
        for status in reversed(self.containers):
            if status.metadata.name == name and sandbox_id in (None, status.sandbox_id):
                return status
        return None

    @property
    def empty(self) -> bool:
        """Nothing is left."""
        return not self.sandboxes and not self.containers

    @property
    def running(self) -> tuple[ContainerStatus, ...]:
        """The containers that run, or of which nobody knows whether they do."""
        live = (ContainerState.RUNNING, ContainerState.UNKNOWN)
        return tuple(c for c in self.containers if c.state in live)


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes say of one container. ``failed`` is why it must be killed, or empty."""

    started: bool = True
    ready: bool = True
    failed: str = ""
    grace: int | None = None
    """The grace period of the probe that failed, if it sets its own."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a container could not be made or started: a waiting reason and its message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class BackOff:
    """Delay in seconds before the next restart of a container, and when (wall ns) it was set."""

    delay: float
    since: int


@dataclass(frozen=True, slots=True)
class View:
    """All that a decision about one pod rests on, taken at one moment ``now`` (wall ns)."""

    pod: Pod
    observed: Observed
    now: int
    health: dict[str, Health] = field(default_factory=dict)
    """By container ID."""
    back_off: dict[str, BackOff] = field(default_factory=dict)
    """By container name."""
    trouble: dict[str, Trouble] = field(default_factory=dict)
    """By container name."""

    def health_of(self, container: Container, status: ContainerStatus) -> Health:
        """The probes' verdict, or what holds before they have spoken."""
        verdict = self.health.get(status.id)
        if verdict is not None:
            return verdict
        started = container.startup_probe is None
        return Health(started=started, ready=started and container.readiness_probe is None)


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the others (KEP-753)."""
    return container.restart_policy == "Always"
