"""What a deletion makes of an object: gone, or kept with a deletionTimestamp until others are done with it.

Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go (deletionFinalizersForGarbageCollection) and
pkg/registry/rest/delete.go (BeforeDelete).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from podwire.apiserver.kind import Kind
from podwire.serving import status

Object = dict[str, Any]

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_POLICIES = ("Orphan", "Background", "Foreground")


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    """metav1.DeleteOptions; ``grace`` in seconds, None for the object's own."""

    grace: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    orphan_dependents: bool | None = None
    dry_run: bool = False

    @classmethod
    def of(cls, body: Object) -> DeleteOptions:
        """Options from JSON. Raise Failure 400 or 422."""
        conditions = body.get("preconditions") or {}
        policy = body.get("propagationPolicy") or ""
        orphan = body.get("orphanDependents")
        causes = []
        if policy and policy not in _POLICIES:
            causes.append(status.not_supported("propagationPolicy", policy, [*sorted(_POLICIES), "nil"]))
        if policy and orphan is not None:
            detail = "orphanDependents and deletionPropagation cannot be both set"
            causes.append(status.invalid_value("propagationPolicy", policy, detail))
        dry_run = body.get("dryRun") or []
        if any(one != "All" for one in dry_run):
            causes.append(status.not_supported("dryRun", dry_run, ["All"]))
        if causes:
            raise status.invalid("meta.k8s.io", "DeleteOptions", "", causes)
        grace = body.get("gracePeriodSeconds")
        if grace is not None and type(grace) is not int:
            raise status.bad_request("gracePeriodSeconds: a whole number is expected")
        return cls(
            grace=grace,
            uid=conditions.get("uid") or "",
            resource_version=conditions.get("resourceVersion") or "",
            propagation=policy,
            orphan_dependents=orphan,
            dry_run=bool(dry_run),
        )


def check_preconditions(kind: Kind, obj: Object, options: DeleteOptions) -> None:
    """Raise Failure 409 if the object is not the one that is meant."""
    meta = obj["metadata"]
    for given, held, label in (
        (options.uid, meta["uid"], "UID"),
        (options.resource_version, meta["resourceVersion"], "ResourceVersion"),
    ):
        if given and given != held:
            why = f"Precondition failed: {label} in precondition: {given}, {label} in object meta: {held}"
            raise status.conflict(kind.group, kind.plural, meta["name"], why)


def begin_deletion(kind: Kind, obj: Object, options: DeleteOptions) -> Object | None:
    """The object as it is after a DELETE: None if it is gone at once, itself if nothing changes."""
    meta = obj["metadata"]
    finalizers = _finalizers(meta.get("finalizers") or [], options)
    grace = (kind.grace(obj, options.grace) or 0) if kind.grace is not None else 0
    deleting = meta.get("deletionTimestamp")
    running: int = meta.get("deletionGracePeriodSeconds") or 0
    if deleting and finalizers == (meta.get("finalizers") or []):
        held = bool(finalizers) or kind.holds(obj)
        if not grace and not held:
            return None
        # A running grace period can only become shorter, and only when a shorter one is asked for.
        if options.grace is None or grace >= running:
            return obj if held or running else None
    if not finalizers and not grace and not kind.holds(obj):
        return None
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if not deleting or (grace < running and options.grace is not None):
        started = datetime.now(UTC)
        if deleting:
            started = datetime.fromisoformat(deleting) - timedelta(seconds=running)
        meta["deletionTimestamp"] = (started + timedelta(seconds=grace)).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta["deletionGracePeriodSeconds"] = grace
        if not deleting and meta.get("generation"):
            meta["generation"] += 1
        kind.begin_delete(obj)
    return obj


def last_state(kind: Kind, obj: Object) -> Object | None:
    """An object that goes at once, as those who watch it are told before: it has no time left.

    None if it needed none, or they know. A node ends the programs of such a pod (store.go, Delete).
    """
    meta = obj["metadata"]
    if kind.grace is None or not kind.grace(obj, None):
        return None
    if meta.get("deletionTimestamp") and not meta.get("deletionGracePeriodSeconds"):
        return None
    meta["deletionTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta["deletionGracePeriodSeconds"] = 0
    return obj


def finished(kind: Kind, obj: Object) -> bool:
    """Whether an object that is being deleted waits for nothing any more."""
    meta = obj["metadata"]
    return bool(
        meta.get("deletionTimestamp")
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not kind.holds(obj)
    )


def _finalizers(present: list[str], options: DeleteOptions) -> list[str]:
    orphan, foreground = ORPHAN in present, FOREGROUND in present
    if options.orphan_dependents is not None:
        orphan, foreground = options.orphan_dependents, False
    elif options.propagation:
        orphan, foreground = options.propagation == "Orphan", options.propagation == "Foreground"
    kept = [name for name in present if (name != ORPHAN or orphan) and (name != FOREGROUND or foreground)]
    if orphan and ORPHAN not in kept:
        kept.append(ORPHAN)
    if foreground and FOREGROUND not in kept:
        kept.append(FOREGROUND)
    return kept
