"""Events: what happened to pods, told so that a person can read it (core/v1 Event).

The same thing said again about the same object counts up instead of adding an event (client-go
record/events_cache.go); the oldest go when there are too many.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

from msgspec.structs import replace

from podwire.kube.objects import Event, EventSource, ObjectMeta, ObjectReference, Pod
from podwire.node.clock import Clock, timestamp

NORMAL = "Normal"
WARNING = "Warning"
COMPONENT = "podwire"

_Key = tuple[str, str, str, str, str, str, str]


def pod_reference(pod: Pod, container: str = "") -> ObjectReference:
    """The pod, or one container of it, as an event's object."""
    kind = "initContainers" if any(c.name == container for c in pod.spec.init_containers) else "containers"
    return ObjectReference(
        kind="Pod",
        api_version="v1",
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        field_path=f"spec.{kind}{{{container}}}" if container else "",
    )


class Events:
    """The events of one node, at most ``limit`` of them."""

    def __init__(self, clock: Clock, node_name: str, *, limit: int = 2000) -> None:
        self._clock = clock
        self._source = EventSource(component=COMPONENT, host=node_name)
        self._limit = limit
        self._serial = itertools.count(1)
        self._events: OrderedDict[_Key, Event] = OrderedDict()
        self._listeners: list[Callable[[str, Event], None]] = []

    def subscribe(self, listener: Callable[[str, Event], None]) -> None:
        """Call ``listener`` with ADDED or MODIFIED and the event, each time that something happens."""
        self._listeners.append(listener)

    def pod(self, pod: Pod, kind: str, reason: str, message: str, *, container: str = "") -> None:
        """Something happened to a pod; ``kind`` is Normal or Warning."""
        self.about(pod_reference(pod, container), kind, reason, message)

    def about(self, subject: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Something happened to any object."""
        key = (
            subject.kind,
            subject.namespace,
            subject.name,
            subject.uid,
            subject.field_path,
            reason,
            message,
        )
        now = timestamp(self._clock.wall())
        known = self._events.pop(key, None)
        serial = next(self._serial)
        if known is None:
            event = Event(
                metadata=ObjectMeta(
                    name=f"{subject.name}.{serial:016x}",
                    namespace=subject.namespace or "default",
                    uid=f"{subject.uid or subject.name}-{serial}",
                    creation_timestamp=now,
                    resource_version=str(serial),
                ),
                involved_object=subject,
                reason=reason,
                message=message,
                source=self._source,
                first_timestamp=now,
                last_timestamp=now,
                type=kind,
                reporting_component=COMPONENT,
                reporting_instance=self._source.host,
            )
        else:
            event = replace(
                known,
                metadata=replace(known.metadata, resource_version=str(serial)),
                last_timestamp=now,
                count=known.count + 1,
                type=kind,
            )
        self._events[key] = event
        while len(self._events) > self._limit:
            self._events.popitem(last=False)
        for listener in self._listeners:
            listener("ADDED" if known is None else "MODIFIED", event)

    def list(self, namespace: str = "", name: str = "", uid: str = "") -> list[Event]:
        """The events, the one that happened last at the end; of one namespace, name or UID if given.

        Events of objects without a namespace, as the node, are in ``default``, as in Kubernetes.
        """
        return [
            event
            for event in self._events.values()
            if namespace in ("", event.metadata.namespace)
            and name in ("", event.involved_object.name)
            and uid in ("", event.involved_object.uid)
        ]
