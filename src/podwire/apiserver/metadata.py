"""What the server does to metadata: it gives a new object its identity and keeps it in every update.

Source: k8s.io/apiserver/pkg/registry/rest/create.go, update.go, delete.go.
"""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from typing import Any

from podwire.apiserver import naming
from podwire.apiserver.kind import Kind
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

IMMUTABLE = "field is immutable"
_ORDER = ("kind", "apiVersion", "metadata", "spec", "data", "status")


def now() -> str:
    """The time in whole seconds, as RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta_of(obj: Object) -> Object:
    """The object's metadata, made if it has none. Raise Failure 400 if it is no mapping."""
    meta = obj.get("metadata")
    if meta is None:
        meta = obj["metadata"] = {}
    if not isinstance(meta, dict):
        raise status.bad_request("metadata: an object is expected")
    return meta


def begin(kind: Kind, namespace: str, obj: Object, time: str) -> Object:
    """A new object: the given one with uid, creation time, name and what else only the server sets."""
    meta = meta_of(obj)
    put_namespace(kind, namespace, meta)
    if meta.get("resourceVersion"):
        raise status.Failure(500, "", "resourceVersion should not be set on objects to be created")
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = naming.generated(meta["generateName"])
    for unset in (
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "resourceVersion",
        "generation",
    ):
        meta.pop(unset, None)
    meta["uid"] = str(uuid.UUID(int=random.getrandbits(128), version=4))
    meta["creationTimestamp"] = time
    if kind.generation:
        meta["generation"] = 1
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind
    _drop_empty(meta)
    if kind.has_status and not kind.keep_status:
        obj.pop("status", None)
    kind.defaults(obj)
    kind.prepare_create(obj)
    return ordered(obj)


def put_namespace(kind: Kind, namespace: str, meta: Object) -> None:
    """Set the namespace of the request. Raise Failure 400 if the object names another."""
    given = meta.get("namespace") or ""
    if kind.namespaced:
        if given and given != namespace:
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        meta["namespace"] = namespace
    elif not given:
        meta.pop("namespace", None)


def check_place(meta: Object, namespace: str, name: str) -> None:
    """Raise Failure 400 if an object says that it is in another place than that of the request."""
    if (meta.get("namespace") or namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if meta.get("name") != name:
        raise status.bad_request(
            f"the name of the object ({meta.get('name')}) does not match the name on the URL ({name})"
        )


def check_new(kind: Kind, obj: Object) -> list[Cause]:
    """What is wrong with a new object."""
    causes = naming.check_metadata(
        obj["metadata"],
        namespaced=kind.namespaced,
        check_name=kind.check_name,
        standard_finalizers=not kind.free_finalizers,
    )
    return causes + kind.validate(obj)


def follow(kind: Kind, new: Object, old: Object, *, subresource: str) -> Object:
    """The next state of ``old``: ``new`` with what an update may not change, or changes of itself."""
    meta, before = meta_of(new), old["metadata"]
    for kept in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if meta.get(kept) is None and kept in before:
            meta[kept] = before[kept]
    for kept in ("generation", "selfLink", "generateName", "namespace"):
        if kept in before:
            meta[kept] = before[kept]
        else:
            meta.pop(kept, None)
    meta["resourceVersion"] = before.get("resourceVersion", "")
    _drop_empty(meta)
    new["apiVersion"], new["kind"] = kind.api_version, kind.kind
    if not subresource:
        if kind.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        kind.prepare_update(new, old)
        kind.defaults(new)
    if kind.generation and _substance(new) != _substance(old):
        meta["generation"] = before.get("generation", 0) + 1
    return ordered(new)


def check_next(kind: Kind, new: Object, old: Object, *, subresource: str) -> list[Cause]:
    """What is wrong with an update."""
    meta, before = new["metadata"], old["metadata"]
    causes = naming.check_metadata(
        meta,
        namespaced=kind.namespaced,
        check_name=lambda name: "",
        standard_finalizers=not kind.free_finalizers,
    )
    for kept in ("name", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if meta.get(kept) != before.get(kept):
            causes.append(status.invalid_value(f"metadata.{kept}", meta.get(kept), IMMUTABLE))
    if before.get("deletionTimestamp"):
        added = [f for f in meta.get("finalizers") or [] if f not in (before.get("finalizers") or [])]
        if added:
            listed = ", ".join(status.quoted(one) for one in added)
            causes.append(
                status.forbidden_field(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted, found new finalizers"
                    f" []string{{{listed}}}",
                )
            )
    if subresource:
        return causes + kind.validate_status(new, old)
    return causes + kind.validate_update(new, old)


def check_version(kind: Kind, new: Object, old: Object) -> None:
    """Raise Failure 409 unless the update was made for this state of this object."""
    meta, before = meta_of(new), old["metadata"]
    name = before["name"]
    if meta.get("uid") and meta["uid"] != before["uid"]:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
        raise status.conflict(kind.group, kind.plural, name, why)
    given = meta.get("resourceVersion") or ""
    if given in ("", "0"):
        if not kind.unconditional_update:
            cause = status.invalid_value(
                "metadata.resourceVersion", 0 if given == "0" else "", "must be specified for an update"
            )
            raise status.invalid(kind.group, kind.kind, name, [cause])
    elif given != before.get("resourceVersion"):
        raise status.conflict(kind.group, kind.plural, name)


def ordered(obj: Object) -> Object:
    """The object with its top-level fields in the customary order."""
    first = {name: obj[name] for name in _ORDER if name in obj}
    return {**first, **{name: value for name, value in obj.items() if name not in first}}


def _substance(obj: Object) -> Object:
    return {k: v for k, v in obj.items() if k not in ("metadata", "status", "apiVersion", "kind")}


def _drop_empty(meta: Object) -> None:
    for name in [name for name, value in meta.items() if value is None or value in ("", {}, [])]:
        del meta[name]
