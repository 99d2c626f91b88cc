"""A pod's status: a pure function from what is seen to core/v1 PodStatus.

Rules: the kubelet's convertToAPIContainerStatuses, getPhase (kubelet_pods.go) and status/generate.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from podwire.kube import objects
from podwire.kube.defaults import qos_class
from podwire.kube.objects import (
    Container,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateUnion,
    ContainerStateWaiting,
    PodCondition,
    PodIP,
    PodStatus,
)
from podwire.node import backoff, policy
from podwire.node.clock import timestamp
from podwire.node.observed import Observed, View, is_sidecar
from podwire.runtime.api import ContainerState, ContainerStatus, SandboxState

TERMINAL = ("Succeeded", "Failed")


def one_per_family(addresses: Iterable[str], first: str = "") -> list[str]:
    """The first address of each family; the family of ``first`` (an address) leads, if there is one."""
    by_family: dict[bool, str] = {}
    for address in addresses:
        by_family.setdefault(":" in address, address)
    order = sorted(by_family, key=lambda v6: v6 != (":" in first)) if first else list(by_family)
    return [by_family[family] for family in order]


def pending(pod: objects.Pod, reason: str = "", message: str = "", *, now: int) -> PodStatus:
    """The status of a pod of which nothing was made yet."""
    view = View(pod, observed=Observed(), now=now)
    return replace(build(view), reason=reason, message=message)


def refused(pod: objects.Pod, reason: str, message: str, *, now: int) -> PodStatus:
    """The status of a pod that the node will not run (kubelet: rejectPod)."""
    status = pending(pod, now=now)
    return replace(status, phase="Failed", reason=reason, message=message, container_statuses=[])


def build(
    view: View,
    *,
    host_ips: Sequence[str] = (),
    runtime_name: str = "podwire",
    ended: str | None = None,
    reason: str = "",
    message: str = "",
) -> PodStatus:
    """The status of ``view.pod``; ``view.pod.status`` is the one before, for times and terminal phases.

    ``ended`` gives the phase of a pod that will not run again; ``reason`` and ``message`` are the pod's own.
    """
    pod, before = view.pod, view.pod.status
    statuses = _Containers(view, runtime_name, final=ended is not None or before.phase in TERMINAL)
    init = [statuses.one(c, init=True) for c in pod.spec.init_containers]
    apps = [statuses.one(c, init=False) for c in pod.spec.containers]
    phase = ended or _phase(pod, init, apps)
    if before.phase in TERMINAL:
        phase, reason, message = before.phase, reason or before.reason, message or before.message
    sandbox = view.observed.sandbox
    ready = sandbox is not None and sandbox.state == SandboxState.READY
    leading = host_ips[0] if host_ips else ""
    if pod.spec.host_network:
        ips = one_per_family(host_ips, leading) if sandbox is not None else []
    else:
        ips = one_per_family(sandbox.ips if sandbox is not None and ready else (), leading)
    started = before.start_time or timestamp(
        view.observed.sandboxes[0].created_at if view.observed.sandboxes else view.now
    )
    hosts = one_per_family(host_ips, leading)
    return PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        conditions=_conditions(view, phase, init, apps, network=ready and bool(ips)),
        host_ip=hosts[0] if hosts else "",
        host_ips=[PodIP(ip=ip) for ip in hosts],
        pod_ip=ips[0] if ips else "",
        pod_ips=[PodIP(ip=ip) for ip in ips],
        start_time=started,
        init_container_statuses=init,
        container_statuses=apps,
        qos_class=qos_class(pod),
        observed_generation=pod.metadata.generation,
    )


class _Containers:
    """The statuses of the containers of one pod."""

    def __init__(self, view: View, runtime_name: str, *, final: bool) -> None:
        self.view = view
        self.runtime_name = runtime_name
        self.final = final
        before = view.pod.status
        self.known = {s.name: s for s in (*before.init_container_statuses, *before.container_statuses)}

    def one(self, container: Container, *, init: bool) -> objects.ContainerStatus:
        view = self.view
        history = view.observed.history(container.name)
        latest = history[-1] if history else None
        if latest is None and self.final and container.name in self.known:
            return self.known[container.name]
        trouble = view.trouble.get(container.name)
        state, last = ContainerStateUnion(), ContainerStateUnion()
        if len(history) > 1 and history[-2].state == ContainerState.EXITED:
            last = ContainerStateUnion(terminated=self._terminated(history[-2]))
        if latest is None or latest.state == ContainerState.CREATED:
            state = self._waiting(container, init=init)
        elif latest.state == ContainerState.RUNNING:
            state = ContainerStateUnion(
                running=ContainerStateRunning(started_at=timestamp(latest.started_at))
            )
        elif latest.state == ContainerState.EXITED:
            ended = ContainerStateUnion(terminated=self._terminated(latest))
            loop = self._crash_loop(container, latest, init=init)
            if loop is not None:
                state, last = loop, ended
            elif trouble is not None and not self.final:
                state, last = _waits(trouble.reason, trouble.message), ended
            else:
                state = ended
        else:
            state = _waits("ContainerStatusUnknown", "the runtime does not know the container's state")
        health = view.health_of(container, latest) if latest is not None else None
        running = latest is not None and latest.state == ContainerState.RUNNING
        if init and not is_sidecar(container):
            ready = latest is not None and latest.state == ContainerState.EXITED and latest.exit_code == 0
        else:
            ready = running and health is not None and health.started and health.ready
        return objects.ContainerStatus(
            name=container.name,
            state=state,
            last_state=last,
            ready=ready,
            restart_count=latest.metadata.attempt if latest is not None else 0,
            image=container.image,
            container_id=self._id(latest) if latest is not None else UNSET,
            started=running and health is not None and health.started,
        )

    def _id(self, status: ContainerStatus) -> str:
        return f"{self.runtime_name}://{status.id}"

    def _waiting(self, container: Container, *, init: bool) -> ContainerStateUnion:
        trouble = self.view.trouble.get(container.name)
        if trouble is not None:
            return _waits(trouble.reason, trouble.message)
        inits = self.view.pod.spec.init_containers
        blocked = bool(inits) and (not init or inits[0].name != container.name)
        return _waits("PodInitializing" if blocked else "ContainerCreating")

    def _terminated(self, status: ContainerStatus) -> ContainerStateTerminated:
        return ContainerStateTerminated(
            exit_code=status.exit_code,
            signal=status.signal or UNSET,
            reason=status.reason or ("Completed" if status.exit_code == 0 else "Error"),
            message=status.message or UNSET,
            started_at=timestamp(status.started_at) if status.started_at else None,
            finished_at=timestamp(status.finished_at) if status.finished_at else None,
            container_id=self._id(status),
        )

    def _crash_loop(
        self, container: Container, status: ContainerStatus, *, init: bool
    ) -> ContainerStateUnion | None:
        pod, entry = self.view.pod, self.view.back_off.get(container.name)
        again = policy.init_restarts if init else policy.restarts
        if self.final or entry is None or not again(pod, container, status.exit_code):
            return None
        if backoff.remaining(entry, status.finished_at, self.view.now) <= 0:
            return None
        text = (
            f"back-off {entry.delay:g}s restarting failed container={container.name} "
            f"pod={pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})"
        )
        return _waits("CrashLoopBackOff", text)


def _waits(reason: str, message: str = "") -> ContainerStateUnion:
    return ContainerStateUnion(waiting=ContainerStateWaiting(reason=reason, message=message))


def _initialized(container: Container, status: objects.ContainerStatus) -> bool:
    if is_sidecar(container):
        return status.started is True
    ended = status.state.terminated
    return ended is not None and ended.exit_code == 0


def _phase(pod: objects.Pod, init: list[objects.ContainerStatus], apps: list[objects.ContainerStatus]) -> str:
    ran = any(s.state.running or s.state.terminated or s.last_state.terminated for s in apps)
    if not ran and not all(_initialized(c, s) for c, s in zip(pod.spec.init_containers, init, strict=True)):
        return "Pending"
    if any(s.state.waiting and not s.last_state.terminated for s in apps):
        return "Pending"
    return "Running"


def _conditions(
    view: View,
    phase: str,
    init: list[objects.ContainerStatus],
    apps: list[objects.ContainerStatus],
    *,
    network: bool,
) -> list[PodCondition]:
    """The five conditions, each keeping the time of its last change."""
    spec = view.pod.spec
    incomplete = [c.name for c, s in zip(spec.init_containers, init, strict=True) if not _initialized(c, s)]
    started = any(s.state.running or s.last_state.terminated or s.state.terminated for s in apps)
    sidecars = [s for c, s in zip(spec.init_containers, init, strict=True) if is_sidecar(c)]
    unready = [s.name for s in [*sidecars, *apps] if not s.ready]
    ready: tuple[str, str, str]
    initialized = ("True", "", "")
    if phase in TERMINAL:
        ready = ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
        initialized = ("True", "PodCompleted" if phase == "Succeeded" else "", "")
    elif unready:
        ready = ("False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        ready = ("True", "", "")
    if incomplete and not started and phase != "Succeeded":
        text = f"containers with incomplete status: [{' '.join(incomplete)}]"
        initialized = ("False", "ContainersNotInitialized", text)
    wanted = [
        ("PodReadyToStartContainers", "True" if network else "False", "", ""),
        ("Initialized", *initialized),
        ("Ready", *ready),
        ("ContainersReady", *ready),
        ("PodScheduled", "True", "", ""),
    ]
    before = {c.type: c for c in view.pod.status.conditions}
    now = timestamp(view.now)
    result = []
    for kind, value, reason, message in wanted:
        old = before.get(kind)
        changed = old.last_transition_time if old is not None and old.status == value else now
        result.append(
            PodCondition(
                type=kind,
                status=value,
                last_transition_time=changed,
                reason=reason or UNSET,
                message=message or UNSET,
            )
        )
    return result
