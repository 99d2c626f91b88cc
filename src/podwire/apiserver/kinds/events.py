"""Events: stored as core/v1 Event, and shown as events.k8s.io/v1 too.

Source: k8s.io/kubernetes/pkg/apis/events/v1/conversion.go and
pkg/printers/internalversion/printers.go (printEvent).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from podwire.apiserver import naming
from podwire.apiserver.kind import Column, Kind
from podwire.apiserver.kinds.columns import NAME, field, plain
from podwire.kube import ages
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

_NEW = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_OLD = {new: old for old, new in _NEW.items()}


def to_new(event: Object) -> Object:
    """A core/v1 Event as events.k8s.io/v1."""
    renamed = {_NEW.get(name, name): value for name, value in event.items()}
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


def to_old(event: Object) -> Object:
    """An events.k8s.io/v1 Event as core/v1."""
    renamed = {_OLD.get(name, name): value for name, value in event.items()}
    return {**renamed, "apiVersion": "v1"}


def _check(event: Object) -> list[Cause]:
    causes = []
    namespace = field(event, "involvedObject.namespace", "")
    given = event["metadata"].get("namespace")
    if namespace and namespace != given:
        detail = "does not match event.namespace"
        causes.append(status.invalid_value("involvedObject.namespace", namespace, detail))
    elif not namespace and given not in ("default", "kube-system"):
        detail = "does not match event.namespace"
        causes.append(status.invalid_value("involvedObject.namespace", "", detail))
    return causes


def _check_new(event: Object) -> list[Cause]:
    causes = [
        status.required(name)
        for name in ("eventTime", "reportingController", "reportingInstance", "action")
        if not event.get(name)
    ]
    if not event.get("reason"):
        causes.append(status.required("reason"))
    if len(event.get("note", "")) > 1024:
        causes.append(status.invalid_value("message", "", "can have at most 1024 characters"))
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(status.invalid_value("type", event.get("type", ""), "has invalid value: "))
    return causes + _check(to_old(event))


def _last(event: Object) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def _first(event: Object) -> str:
    return str(event.get("firstTimestamp") or event.get("eventTime") or "")


def _object(event: Object, at: datetime) -> str:
    about = event.get("involvedObject") or {}
    kind = str(about.get("kind", "")).lower()
    return f"{kind}/{about['name']}" if about.get("name") else kind


def _source(event: Object, at: datetime) -> str:
    source = event.get("source") or {}
    parts = [source.get("component") or event.get("reportingComponent"), source.get("host")]
    return ", ".join(part for part in parts if part)


def _columns(read: Any) -> tuple[Column, ...]:
    def shown(value: Any) -> Any:
        return lambda event, at: value(read(event), at)

    def count(event: Object, at: datetime) -> int:
        return int((event.get("series") or {}).get("count") or event.get("count") or 1)

    return (
        Column("Last Seen", shown(lambda e, at: ages.since(_last(e), at)), description="How long ago, last."),
        plain("Type", "type", "", description="Normal or Warning."),
        plain("Reason", "reason", "", description="In one word, why."),
        Column("Object", shown(_object), description="What it is about."),
        Column(
            "Subobject",
            shown(lambda e, at: field(e, "involvedObject.fieldPath", "")),
            priority=1,
            description="The part of the object.",
        ),
        Column("Source", shown(_source), priority=1, description="Who tells it."),
        Column(
            "Message", shown(lambda e, at: (e.get("message") or "").strip()), description="What happened."
        ),
        Column(
            "First Seen",
            shown(lambda e, at: ages.since(_first(e), at)),
            priority=1,
            description="How long ago, first.",
        ),
        Column("Count", shown(count), type="integer", priority=1, description="How often."),
        Column(NAME.name, NAME.value, format="name", priority=1, description=NAME.description),
    )


def _same(event: Object) -> Object:
    return event


_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
)


def _reader(path: str) -> Any:
    return lambda event: str(field(event, path, ""))


def _source_name(event: Object) -> str:
    return str(field(event, "source.component", "") or event.get("reportingComponent", ""))


EVENTS = Kind(
    group="",
    version="v1",
    kind="Event",
    plural="events",
    short_names=("ev",),
    message="core.Event",
    check_name=naming.dns_subdomain,
    allow_create_on_update=True,
    validate=_check,
    fields={**{path: _reader(path) for path in _FIELDS}, "source": _source_name},
    columns=_columns(_same),
)

NEW_EVENTS = Kind(
    group="events.k8s.io",
    version="v1",
    kind="Event",
    plural="events",
    short_names=("ev",),
    message="events.Event",
    allow_create_on_update=True,
    validate=_check_new,
    stored_as=("", "events"),
    read=to_new,
    write=to_old,
    fields={
        **{
            path.replace("involvedObject", "regarding"): _reader(path.replace("involvedObject", "regarding"))
            for path in _FIELDS
        },
        "reportingController": _reader("reportingController"),
    },
    columns=_columns(to_old),
)
KINDS = (EVENTS,)
