"""From Kubernetes objects to the words of kubectl's tables.

The rules of the STATUS and READY columns are those of k8s.io/kubernetes/pkg/printers (printPod).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from podwire.kube import ages
from podwire.kube.objects import Container, ContainerStatus, Event, Pod

POD_HEADINGS = ("NAME", "READY", "STATUS", "RESTARTS", "AGE")
POD_HEADINGS_WIDE = (*POD_HEADINGS, "IP", "NODE")
EVENT_HEADINGS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
NODE_HEADINGS = ("NAME", "STATUS", "AGE", "VERSION")
NONE = "<none>"


def now() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


def is_sidecar(container: Container) -> bool:
    """Whether an init container goes on running beside the others."""
    return container.restart_policy == "Always"


def ready(pod: Pod) -> str:
    """Ready containers out of all, sidecars among them: ``1/2``."""
    sidecars = {container.name for container in pod.spec.init_containers if is_sidecar(container)}
    statuses = list(pod.status.container_statuses)
    statuses += [status for status in pod.status.init_container_statuses if status.name in sidecars]
    total = len(pod.spec.containers) + len(sidecars)
    return f"{sum(status.ready for status in statuses)}/{total}"


def restarts(pod: Pod) -> int:
    """How often containers were started again: the init containers' while they run, then the others'."""
    sidecars = {container.name for container in pod.spec.init_containers if is_sidecar(container)}
    if _initialising(pod):
        return sum(status.restart_count for status in pod.status.init_container_statuses)
    return sum(status.restart_count for status in pod.status.container_statuses) + sum(
        status.restart_count for status in pod.status.init_container_statuses if status.name in sidecars
    )


def status(pod: Pod) -> str:
    """The STATUS column: the phase, or what holds the pod up."""
    if pod.metadata.deletion_timestamp:
        return "Terminating"
    initialising = _initialising(pod)
    if initialising:
        return initialising
    word = pod.status.reason or pod.status.phase or "Unknown"
    running = False
    for container in reversed(pod.status.container_statuses):
        state = container.state
        if state.waiting is not None and state.waiting.reason:
            word = state.waiting.reason
        elif state.terminated is not None:
            word = _ended(container)
        elif state.running is not None and container.ready:
            running = True
    if word == "Completed" and running:
        return "Running" if _is_ready(pod) else "NotReady"
    return word


def reason(pod: Pod) -> str:
    """Why the pod is not as it should be, in words; empty if all is well."""
    if pod.status.message:
        return pod.status.message
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        state = container.state
        if state.waiting is not None and state.waiting.message:
            return f"{container.name}: {state.waiting.message}"
        if state.terminated is not None and state.terminated.exit_code != 0:
            message = state.terminated.message
            return f"{container.name}: " + (
                message if isinstance(message, str) and message else f"exit code {state.terminated.exit_code}"
            )
    for condition in pod.status.conditions:
        if condition.status == "False" and isinstance(condition.message, str) and condition.message:
            return condition.message
    return ""


def addresses(pod: Pod) -> tuple[str, ...]:
    """The pod's addresses, the primary one first."""
    found = tuple(entry.ip for entry in pod.status.pod_ips)
    return found or ((pod.status.pod_ip,) if pod.status.pod_ip else ())


def pod_row(pod: Pod, at: datetime, *, wide: bool = False, namespace: bool = False) -> tuple[str, ...]:
    """One line of ``get pods``."""
    row: tuple[str, ...] = (
        pod.metadata.name,
        ready(pod),
        status(pod),
        str(restarts(pod)),
        ages.since(pod.metadata.creation_timestamp or pod.status.start_time, at),
    )
    if wide:
        row += (",".join(addresses(pod)) or NONE, pod.spec.node_name or NONE)
    return (pod.metadata.namespace, *row) if namespace else row


def pod_headings(*, wide: bool = False, namespace: bool = False) -> tuple[str, ...]:
    """The headings that fit :func:`pod_row`."""
    headings = POD_HEADINGS_WIDE if wide else POD_HEADINGS
    return ("NAMESPACE", *headings) if namespace else headings


def event_headings(*, namespace: bool = False) -> tuple[str, ...]:
    """The headings that fit :func:`event_row`."""
    return ("NAMESPACE", *EVENT_HEADINGS) if namespace else EVENT_HEADINGS


def event_row(event: Event, at: datetime, *, namespace: bool = False) -> tuple[str, ...]:
    """One line of ``get events``."""
    seen = event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp
    about = event.involved_object
    row = (
        ages.since(seen, at),
        event.type,
        event.reason,
        f"{about.kind.lower()}/{about.name}",
        event.message + (f" (x{event.count})" if event.count > 1 else ""),
    )
    return (about.namespace or event.metadata.namespace, *row) if namespace else row


def visible(text: str) -> str:
    """``text`` with what a terminal would obey, and line ends, written as escapes.

    Containers write the messages of their ends themselves.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def columns(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Plain columns under their headings, three spaces apart, as kubectl prints them."""
    table = [tuple(headings), *(tuple(map(visible, line)) for line in lines)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def node_headings(*, wide: bool = False) -> tuple[str, ...]:
    """The headings that fit :func:`node_row`."""
    return (*NODE_HEADINGS, "INTERNAL-IP", "POD-CIDRS") if wide else NODE_HEADINGS


def node_row(node: Mapping[str, Any], at: datetime, *, wide: bool = False) -> tuple[str, ...]:
    """One line of ``get nodes``; ``node`` is a core/v1 Node as JSON gives it."""
    metadata, found = node["metadata"], node.get("status", {})
    is_ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in found.get("conditions", ())
    )
    row: tuple[str, ...] = (
        metadata["name"],
        "Ready" if is_ready else "NotReady",
        ages.since(metadata.get("creationTimestamp"), at),
        found.get("nodeInfo", {}).get("kubeletVersion", ""),
    )
    if wide:
        internal = [entry["address"] for entry in found.get("addresses", ()) if entry["type"] == "InternalIP"]
        row += (",".join(internal) or NONE, ",".join(node.get("spec", {}).get("podCIDRs", ())) or NONE)
    return row


def labels(values: Mapping[str, str]) -> str:
    """Labels in one cell."""
    return ",".join(f"{key}={value}" for key, value in values.items()) or NONE


def _initialising(pod: Pod) -> str:
    """``Init:0/2`` and its like while init containers hold the pod up, else empty."""
    by_name = {container.name: container for container in pod.spec.init_containers}
    for index, container in enumerate(pod.status.init_container_statuses):
        state = container.state
        spec = by_name.get(container.name)
        if state.terminated is not None and state.terminated.exit_code == 0:
            continue
        if spec is not None and is_sidecar(spec) and container.started is True:
            continue
        if state.terminated is not None:
            return f"Init:{_ended(container)}"
        if state.waiting is not None and state.waiting.reason not in {"", "PodInitializing"}:
            return f"Init:{state.waiting.reason}"
        return f"Init:{index}/{len(pod.spec.init_containers)}"
    return ""


def _ended(container: ContainerStatus) -> str:
    terminated = container.state.terminated
    if terminated is None:
        return ""
    if isinstance(terminated.reason, str) and terminated.reason:
        return terminated.reason
    if isinstance(terminated.signal, int) and terminated.signal:
        return f"Signal:{terminated.signal}"
    return f"ExitCode:{terminated.exit_code}"


def _is_ready(pod: Pod) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions
    )
