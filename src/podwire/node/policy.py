"""Restart policies: whether a container that ended starts again, and how the pod as a whole ended."""

from __future__ import annotations

from podwire.kube.objects import Container, Pod
from podwire.node.clock import SECOND
from podwire.node.observed import Observed, is_sidecar
from podwire.runtime.api import ContainerState


def restarts(pod: Pod, container: Container, exit_code: int) -> bool:
    """Whether a container of ``pod.spec.containers`` that ended with ``exit_code`` is to run again."""
    policy = container.restart_policy or pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def init_restarts(pod: Pod, container: Container, exit_code: int) -> bool:
    """The same for an init container: a plain one is done after exit code 0, whatever the policy."""
    if is_sidecar(container):
        return True
    return exit_code != 0 and (container.restart_policy or pod.spec.restart_policy) != "Never"


def outcome(pod: Pod, observed: Observed) -> str | None:
    """``Succeeded`` or ``Failed`` when no container will ever run again, else None."""
    for container in pod.spec.init_containers:
        status = observed.latest(container.name)
        if (
            status is not None
            and status.state == ContainerState.EXITED
            and status.exit_code != 0
            and not init_restarts(pod, container, status.exit_code)
        ):
            return "Failed"
    failed = False
    for container in pod.spec.containers:
        status = observed.latest(container.name)
        if status is None or status.state != ContainerState.EXITED:
            return None
        if restarts(pod, container, status.exit_code):
            return None
        failed = failed or status.exit_code != 0
    return "Failed" if failed else "Succeeded"


def verdict(pod: Pod, observed: Observed) -> str:
    """``Succeeded`` if all containers of a pod that was stopped ended with exit code 0, else ``Failed``."""
    for container in pod.spec.containers:
        status = observed.latest(container.name)
        if status is None or status.state != ContainerState.EXITED or status.exit_code != 0:
            return "Failed"
    return "Succeeded"


def deadline_left(pod: Pod, started_at: int | None, now: int) -> float | None:
    """Seconds until ``activeDeadlineSeconds`` is over (at most 0 when it is), None without a deadline."""
    if pod.spec.active_deadline_seconds is None or started_at is None:
        return None
    return pod.spec.active_deadline_seconds - (now - started_at) / SECOND
