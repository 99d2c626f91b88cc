"""What of a pod may be changed.

Source: k8s.io/kubernetes/pkg/apis/core/validation/validation.go (ValidatePodUpdate).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

_ONLY = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate(new: Object, old: Object) -> list[Cause]:
    """What of a pod that runs was changed and may not be."""
    if new["spec"] == old["spec"]:
        return []
    allowed = copy.deepcopy(new["spec"])
    before = old["spec"]
    for part in ("containers", "initContainers"):
        ours, theirs = allowed.get(part) or [], before.get(part) or []
        if len(ours) != len(theirs):
            return [status.forbidden_field("spec." + part, "pod updates may not add or remove containers")]
        for one, other in zip(ours, theirs, strict=True):
            if not one.get("image"):
                return [status.required(f"spec.{part}[0].image")]
            one["image"] = other.get("image")
    causes = []
    deadline, previous = allowed.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if deadline != previous:
        if deadline is None or (previous is not None and deadline > previous):
            detail = "must be less than or equal to previous value"
            causes.append(status.invalid_value("spec.activeDeadlineSeconds", deadline, detail))
        _put(allowed, "activeDeadlineSeconds", previous)
    tolerations = allowed.get("tolerations") or []
    if all(one in tolerations for one in before.get("tolerations") or []):
        _put(allowed, "tolerations", before.get("tolerations"))
    if (before.get("terminationGracePeriodSeconds") or 0) < 0:
        allowed["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    gates = before.get("schedulingGates") or []
    if gates and all(gate in gates for gate in allowed.get("schedulingGates") or []):
        _put(allowed, "schedulingGates", gates)
    if allowed != before:
        changed = "".join(f"\n{line}" for line in differences(before, allowed, "spec"))
        causes.append(status.forbidden_field("spec", _ONLY + changed))
    return causes


def _put(spec: Object, name: str, value: Any) -> None:
    if value is None:
        spec.pop(name, None)
    else:
        spec[name] = value


def prepare(new: Object, old: Object) -> None:
    """What defaulting would not restore: a replace may leave out what admission or binding added."""
    spec, before = new.setdefault("spec", {}), old["spec"]
    for name in ("tolerations", "nodeName", "serviceAccountName", "priority"):
        if name not in spec and name in before:
            spec[name] = copy.deepcopy(before[name])


def differences(before: Any, after: Any, path: str) -> Iterator[str]:
    """What was taken away and what was put there, each a line with the path and the value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name), after.get(name), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif before != after:
        for sign, value in (("-", before), ("+", after)):
            if value is not None:
                yield f"{sign} {path}: {json.dumps(value)}"
