"""What to do next for a pod: a pure function from what is wanted and what is seen to actions.

Rules: the kubelet's computePodActions (kuberuntime_manager.go, kuberuntime_container.go), with a sandbox made
again also when what its network was made from (host ports, DNS, host name) was changed under the same UID.
"""

from __future__ import annotations

from dataclasses import dataclass

from podwire.kube.objects import Container
from podwire.node import backoff, policy
from podwire.node.hashes import CONTAINER_HASH, SANDBOX_HASH, container_hash, sandbox_hash
from podwire.node.observed import Observed, View, is_sidecar
from podwire.runtime.api import ContainerState, ContainerStatus, NetworkMode, SandboxState, SandboxStatus


@dataclass(frozen=True, slots=True)
class Start:
    """Make and start a container; ``attempt`` is its restart count."""

    container: Container
    attempt: int
    finished_at: int | None = None
    """When the container that it replaces ended (wall ns); None for a first start."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop a running container; the next plan starts it again if its policy says so."""

    status: ContainerStatus
    reason: str
    grace: int | None = None
    """Seconds, where not the pod's own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in the order of the fields; ``requeue`` seconds later there will be more to do."""

    stop_sandboxes: tuple[SandboxStatus, ...] = ()
    create_sandbox: int | None = None
    """The attempt number of the sandbox to make."""
    sandbox_reason: str = ""
    """Why a sandbox is replaced; empty for the first."""
    kill: tuple[Kill, ...] = ()
    remove_containers: tuple[ContainerStatus, ...] = ()
    start: tuple[Start, ...] = ()
    remove_sandboxes: tuple[SandboxStatus, ...] = ()
    backing_off: tuple[ContainerStatus, ...] = ()
    """Ended containers that wait before they start again."""
    requeue: float | None = None
    ended: str | None = None
    """Succeeded or Failed: nothing will run again, and what is left is to be stopped."""
    ended_reason: str = ""

    @property
    def idle(self) -> bool:
        """Nothing is to be done now."""
        return not (
            self.stop_sandboxes
            or self.create_sandbox is not None
            or self.kill
            or self.remove_containers
            or self.start
            or self.remove_sandboxes
            or self.ended
        )


def sandbox_fault(view: View) -> str | None:
    """Why the pod needs a new sandbox; ``""`` when it has none yet, None when the newest will do."""
    newest = view.observed.sandbox
    if newest is None:
        return ""
    if len(view.observed.ready_sandboxes) > 1:
        return "more than one sandbox is ready"
    if newest.state != SandboxState.READY:
        return newest.reason or "the sandbox is not ready"
    host = view.pod.spec.host_network
    if (newest.network == NetworkMode.NODE) != host:
        return "the network mode was changed"
    if not host and not newest.ips:
        return "the sandbox has no address"
    recorded = newest.annotations.get(SANDBOX_HASH)
    if recorded is not None and recorded != sandbox_hash(view.pod):
        return "the pod's network settings were changed"
    return None


def make(view: View) -> Plan:
    """The next actions for the pod."""
    ended = policy.outcome(view.pod, view.observed)
    if ended is not None:
        return Plan(ended=ended)
    left = policy.deadline_left(view.pod, started_at(view.observed), view.now)
    if left is not None and left <= 0:
        return Plan(ended="Failed", ended_reason="DeadlineExceeded")
    fault = sandbox_fault(view)
    if fault is not None:
        attempts = [s.metadata.attempt for s in view.observed.sandboxes]
        return Plan(
            # Those that are not ready too: one that died still has its address and its host ports.
            stop_sandboxes=view.observed.sandboxes,
            create_sandbox=max(attempts, default=-1) + 1,
            sandbox_reason=fault,
            requeue=left,
        )
    sandbox = view.observed.sandbox
    assert sandbox is not None
    return _Containers(view, sandbox, left).plan()


def started_at(observed: Observed) -> int | None:
    """When the pod's first sandbox that is still known was made (wall ns)."""
    return observed.sandboxes[0].created_at if observed.sandboxes else None


class _Containers:
    """The part of the plan that is about containers, given a sandbox that will do."""

    def __init__(self, view: View, sandbox: SandboxStatus, deadline: float | None) -> None:
        self.view = view
        self.sandbox = sandbox
        self.start: list[Start] = []
        self.kill: list[Kill] = []
        self.remove: list[ContainerStatus] = []
        self.held: list[ContainerStatus] = []
        self.waits: list[float] = [] if deadline is None else [deadline]

    def plan(self) -> Plan:
        if self._initialized():
            for container in self.view.pod.spec.containers:
                self._app(container)
        self._leftovers()
        return Plan(
            kill=tuple(self.kill),
            remove_containers=tuple(self.remove),
            start=tuple(self.start),
            remove_sandboxes=self._old_sandboxes(),
            backing_off=tuple(self.held),
            requeue=min(self.waits, default=None),
        )

    def _current(self, container: Container) -> ContainerStatus | None:
        return self.view.observed.latest(container.name, self.sandbox.id)

    def _initialized(self) -> bool:
        """Take init containers as far as they go; whether the app containers may start."""
        spec = self.view.pod.spec
        past = any(self._current(c) is not None for c in spec.containers)
        for container in spec.init_containers:
            status = self._current(container)
            if is_sidecar(container):
                running = status is not None and self._keeps(container, status)
                if not running:
                    self._restart(container)
                started = running and status is not None and self.view.health_of(container, status).started
                if not started and not past:
                    return False
            elif past:
                continue
            elif status is not None and self._keeps(container, status):
                return False
            elif status is None or status.state != ContainerState.EXITED or status.exit_code != 0:
                self._restart(container)
                return False
        return True

    def _app(self, container: Container) -> None:
        status = self._current(container)
        if status is None:
            # A container that ended for good in an earlier sandbox is not run again in this one.
            before = self.view.observed.latest(container.name)
            if (
                before is not None
                and before.state == ContainerState.EXITED
                and not policy.restarts(self.view.pod, container, before.exit_code)
            ):
                return
        if status is not None and self._keeps(container, status):
            return
        if (
            status is not None
            and status.state == ContainerState.EXITED
            and not policy.restarts(self.view.pod, container, status.exit_code)
        ):
            return
        self._restart(container)

    def _keeps(self, container: Container, status: ContainerStatus) -> bool:
        """Whether the container runs; orders its end if it must not go on."""
        if status.state == ContainerState.UNKNOWN:
            self.kill.append(Kill(status, f"Container {container.name} is in an unknown state"))
            return True
        if status.state != ContainerState.RUNNING:
            return False
        recorded = status.annotations.get(CONTAINER_HASH)
        health = self.view.health_of(container, status)
        if recorded is not None and recorded != container_hash(container):
            self.kill.append(
                Kill(status, f"Container {container.name} definition changed, will be restarted")
            )
        elif health.failed:
            self.kill.append(Kill(status, health.failed, health.grace))
        return True

    def _restart(self, container: Container) -> None:
        before = self.view.observed.latest(container.name)
        if before is None:
            self.start.append(Start(container, 0))
            return
        if before.state == ContainerState.CREATED:
            # Left by a start that was cut short: it never ran, so it does not count as a restart.
            self.remove.append(before)
            self.start.append(Start(container, before.metadata.attempt))
            return
        entry = self.view.back_off.get(container.name)
        wait = backoff.remaining(entry, before.finished_at, self.view.now)
        if wait > 0:
            self.waits.append(wait)
            self.held.append(before)
            return
        self.start.append(Start(container, before.metadata.attempt + 1, before.finished_at))

    def _leftovers(self) -> None:
        """Ended containers other than the last two of each name: the last and what ``lastState`` tells."""
        gone = {status.id for status in self.remove}
        starting = {start.container.name for start in self.start}
        by_name: dict[str, list[ContainerStatus]] = {}
        for status in self.view.observed.containers:
            if status.id not in gone:
                by_name.setdefault(status.metadata.name, []).append(status)
        for name, history in by_name.items():
            keep = 1 if name in starting else 2
            self.remove.extend(s for s in history[:-keep] if s.state == ContainerState.EXITED)

    def _old_sandboxes(self) -> tuple[SandboxStatus, ...]:
        """Dead sandboxes that hold no container whose restart count or last state is still needed."""
        observed = self.view.observed
        needed = {
            latest.sandbox_id
            for name in {c.metadata.name for c in observed.containers}
            if (latest := observed.latest(name)) is not None
        }
        return tuple(
            s for s in observed.sandboxes if s.id != self.sandbox.id and s.id not in needed and not self.start
        )
