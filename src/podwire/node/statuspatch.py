"""From the status that the API server has to the one that the node sees: the smallest patch."""

from __future__ import annotations

from typing import Any

from podwire.kube.objects import Pod, PodStatus
from podwire.kube.printing import to_builtins
from podwire.node.status import TERMINAL

_OWNED = (
    "phase",
    "reason",
    "message",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "initContainerStatuses",
    "containerStatuses",
    "qosClass",
    "observedGeneration",
)
"""What the node writes of a status; other fields, and conditions of other types, are others'."""


def status_patch(there: Pod, wanted: PodStatus) -> dict[str, Any] | None:
    """A JSON merge patch (RFC 7386) for the status subresource of ``there``; None if there is no change.

    The UID makes sure that it is this pod and not another of its name. Conditions are a list that others
    write as well: a patch that touches it holds for the version that it was made from only, and is refused
    with Conflict otherwise. A phase that is terminal stays.
    """
    before, after = to_builtins(there.status), to_builtins(wanted)
    if there.status.phase in TERMINAL and wanted.phase != there.status.phase:
        after["phase"] = there.status.phase
    status = {name: after.get(name) for name in _OWNED if after.get(name) != before.get(name)}
    metadata: dict[str, Any] = {"uid": there.metadata.uid}
    conditions = _conditions(before.get("conditions", []), after.get("conditions", []))
    if conditions != before.get("conditions", []):
        status["conditions"] = conditions
        metadata["resourceVersion"] = there.metadata.resource_version
    return {"metadata": metadata, "status": status} if status else None


def _conditions(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of ``after`` in the places that they have in ``before``, then new ones; others' stay."""
    ours = {condition["type"]: condition for condition in after}
    kept = [ours.pop(condition["type"], condition) for condition in before]
    return [*kept, *ours.values()]
