"""Events: what happened to an object, for people to read.

Source: k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

from podwire.kube.metadata import Object, ObjectMeta, ObjectReference


class EventSource(Object, frozen=True, kw_only=True):
    """core/v1 EventSource."""

    component: str = ""
    host: str = ""


class Event(Object, frozen=True, kw_only=True, omit_defaults=False):
    """core/v1 Event; ``type`` is Normal or Warning."""

    api_version: str = "v1"
    kind: str = "Event"
    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 1
    type: str = "Normal"
    reporting_component: str = ""
    reporting_instance: str = ""
