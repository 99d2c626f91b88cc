"""``podwire describe``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from podwire.cli import get, nodeapi, rows
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations
from podwire.kube import ages
from podwire.kube.objects import Container, ContainerStateUnion, ContainerStatus, Event, Pod

if TYPE_CHECKING:
    from podwire.node.client import NodeClient

_WIDTH = 20


def run(kind: str, name: str, namespace: str | None, places: Locations) -> int:
    """Print all that is known about a pod or the node."""
    kind, name = get.kind_of(kind, name)
    if kind == "events":
        raise usage("describe goes with pods and nodes", hint=f"Try: podwire get events{places.flags}")
    if kind == "pods" and not name:
        raise usage("describe pod: which one?", hint="Write: podwire describe pod NAME")

    async def show(client: NodeClient) -> int:
        if kind == "nodes":
            nodes = [node for node in await client.nodes() if name in {"", node["metadata"]["name"]}]
            if not nodes:
                raise CommandError(f'node "{name}" not found')
            node = nodes[0]
            pods = await client.pods(None)
            about = [
                event for event in await client.events("default") if event.involved_object.kind == "Node"
            ]
            print("\n".join(map(rows.visible, node_lines(node, pods, about, rows.now()))))
            return 0
        pod = await nodeapi.find_pod(client, name, namespace)
        events = [
            event
            for event in await client.events(pod.metadata.namespace)
            if event.involved_object.name == pod.metadata.name
            and event.involved_object.uid in {"", pod.metadata.uid}
        ]
        print("\n".join(map(rows.visible, pod_lines(pod, events, rows.now()))))
        return 0

    return nodeapi.ask(places, show)


def pod_lines(pod: Pod, events: Sequence[Event], at: datetime) -> Iterator[str]:
    """The sections of ``kubectl describe pod``."""
    meta, spec, found = pod.metadata, pod.spec, pod.status
    yield _field("Name", meta.name)
    yield _field("Namespace", meta.namespace)
    yield _field("Node", spec.node_name + (f"/{found.host_ip}" if found.host_ip else ""))
    yield _field("Start Time", found.start_time or rows.NONE)
    yield from _pairs("Labels", meta.labels)
    yield from _pairs("Annotations", meta.annotations)
    yield _field("Status", rows.status(pod))
    if found.reason:
        yield _field("Reason", found.reason)
    if found.message:
        yield _field("Message", found.message)
    yield _field("IP", found.pod_ip or rows.NONE)
    yield "IPs:"
    yield from (f"  IP:  {address}" for address in rows.addresses(pod) or (rows.NONE,))
    if spec.host_network:
        yield _field("Host Network", "true")
    statuses = {status.name: status for status in (*found.init_container_statuses, *found.container_statuses)}
    if spec.init_containers:
        yield "Init Containers:"
        for container in spec.init_containers:
            yield from _container(container, statuses.get(container.name))
    yield "Containers:"
    for container in spec.containers:
        yield from _container(container, statuses.get(container.name))
    yield "Conditions:"
    yield from _indent(
        rows.columns(
            ("Type", "Status", "Message"),
            [
                (entry.type, entry.status, entry.message if isinstance(entry.message, str) else "")
                for entry in found.conditions
            ],
        )
    )
    if spec.volumes:
        yield "Volumes:"
        for volume in spec.volumes:
            if volume.host_path is not None:
                yield f"  {volume.name}: hostPath {volume.host_path.path}"
            elif volume.empty_dir is not None:
                yield f"  {volume.name}: emptyDir"
            else:
                yield f"  {volume.name}"
    yield from _events(events, at)


def _events(events: Sequence[Event], at: datetime) -> Iterator[str]:
    if not events:
        yield _field("Events", rows.NONE)
        return
    yield "Events:"
    yield from _indent(
        rows.columns(
            ("Type", "Reason", "Age", "From", "Message"),
            [
                (event.type, event.reason, _event_age(event, at), event.source.component, event.message)
                for event in events
            ],
        )
    )


def node_lines(
    node: Mapping[str, Any], pods: Sequence[Pod], events: Sequence[Event], at: datetime
) -> Iterator[str]:
    """The sections of ``kubectl describe node``, as far as this node has them."""
    found = node.get("status", {})
    yield _field("Name", node["metadata"]["name"])
    yield from _pairs("Labels", node["metadata"].get("labels", {}))
    yield _field("Start Time", node["metadata"].get("creationTimestamp") or rows.NONE)
    yield "Addresses:"
    yield from (f"  {entry['type']}:  {entry['address']}" for entry in found.get("addresses", ()))
    yield _field("PodCIDRs", ",".join(node.get("spec", {}).get("podCIDRs", ())) or rows.NONE)
    yield "Conditions:"
    yield from _indent(
        rows.columns(
            ("Type", "Status", "Reason", "Message"),
            [
                (entry["type"], entry["status"], entry.get("reason", ""), entry.get("message", ""))
                for entry in found.get("conditions", ())
            ],
        )
    )
    yield "Capacity:"
    yield from (f"  {key}:  {value}" for key, value in found.get("capacity", {}).items())
    yield "System Info:"
    yield from (f"  {key}:  {value}" for key, value in found.get("nodeInfo", {}).items() if value)
    yield f"Pods: ({len(pods)} in total)"
    yield from _indent(
        rows.columns(
            rows.pod_headings(wide=True, namespace=True)[:-1],
            [rows.pod_row(pod, at, wide=True, namespace=True)[:-1] for pod in pods],
        )
        if pods
        else ()
    )
    yield from _events(events, at)


def _container(container: Container, status: ContainerStatus | None) -> Iterator[str]:
    yield f"  {container.name}:"
    if container.image:
        yield _field("Image", container.image, 4)
    if status is not None and isinstance(status.container_id, str) and status.container_id:
        yield _field("Container ID", status.container_id, 4)
    ports = ", ".join(f"{port.container_port}/{port.protocol}" for port in container.ports)
    yield _field("Ports", ports or rows.NONE, 4)
    host_ports = ", ".join(
        f"{port.host_ip + ':' if port.host_ip else ''}{port.host_port}/{port.protocol}"
        for port in container.ports
        if port.host_port
    )
    if host_ports:
        yield _field("Host Ports", host_ports, 4)
    for heading, words in (("Command", container.command), ("Args", container.args)):
        if words:
            yield f"    {heading}:"
            yield from (f"      {word}" for word in words)
    if status is not None:
        yield from _state("State", status.state)
        if status.last_state != ContainerStateUnion():
            yield from _state("Last State", status.last_state)
        yield _field("Ready", str(status.ready), 4)
        yield _field("Restart Count", str(status.restart_count), 4)
    if container.env:
        yield "    Environment:"
        yield from (
            f"      {entry.name}:  "
            + (
                f"({entry.value_from.field_ref.field_path})"
                if entry.value_from is not None and entry.value_from.field_ref is not None
                else entry.value
            )
            for entry in container.env
        )
    if container.volume_mounts:
        yield "    Mounts:"
        yield from (
            f"      {mount.mount_path} from {mount.name} ({'ro' if mount.read_only else 'rw'})"
            for mount in container.volume_mounts
        )


def _state(heading: str, state: ContainerStateUnion) -> Iterator[str]:
    if state.running is not None:
        yield _field(heading, "Running", 4)
        yield _field("Started", state.running.started_at or "", 6)
    elif state.terminated is not None:
        ended = state.terminated
        yield _field(heading, "Terminated", 4)
        if isinstance(ended.reason, str):
            yield _field("Reason", ended.reason, 6)
        if isinstance(ended.message, str):
            yield _field("Message", ended.message, 6)
        yield _field("Exit Code", str(ended.exit_code), 6)
        if isinstance(ended.signal, int) and ended.signal:
            yield _field("Signal", str(ended.signal), 6)
        yield _field("Started", ended.started_at or "", 6)
        yield _field("Finished", ended.finished_at or "", 6)
    else:
        yield _field(heading, "Waiting", 4)
        if state.waiting is not None:
            yield _field("Reason", state.waiting.reason, 6)
            if state.waiting.message:
                yield _field("Message", state.waiting.message, 6)


def _event_age(event: Event, at: datetime) -> str:
    last = ages.since(event.last_timestamp, at)
    if event.count > 1:
        return f"{last} (x{event.count} over {ages.since(event.first_timestamp, at)})"
    return last


def _field(heading: str, value: str, indent: int = 0) -> str:
    return f"{' ' * indent}{heading + ':':<{_WIDTH - indent}}{value}".rstrip()


def _pairs(heading: str, values: Mapping[str, str]) -> Iterator[str]:
    entries = [
        f"{key}: {value}" if heading == "Annotations" else f"{key}={value}" for key, value in values.items()
    ]
    for index, entry in enumerate(entries or [rows.NONE]):
        yield _field(heading, entry) if index == 0 else f"{' ' * _WIDTH}{entry}"


def _indent(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
