"""Server-side apply, and who manages what after other writes.

Source: sigs.k8s.io/structured-merge-diff/v6/merge/update.go and k8s.io/apimachinery/pkg/util/managedfields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from podwire.apiserver.patch import fieldset
from podwire.apiserver.patch.fieldset import Fields, Path
from podwire.apiserver.patch.managers import APPLY, UPDATE, Managed, Manager
from podwire.apiserver.patch.shape import Shape

Object = dict[str, Any]

BEFORE_FIRST = "before-first-apply"


@dataclass(frozen=True)
class Conflict:
    """A field that another manages and that is to get another value."""

    manager: Manager
    path: Path


class Conflicts(Exception):
    """An apply that needs force."""

    def __init__(self, conflicts: list[Conflict]) -> None:
        super().__init__(message(conflicts))
        self.conflicts = conflicts

    def beside(self, allowed: Fields) -> list[Conflict]:
        """Those that are not about these fields."""
        return [one for one in self.conflicts if one.path not in allowed]


def message(conflicts: list[Conflict]) -> str:
    """Conflicts as kube-apiserver tells them."""
    if len(conflicts) == 1:
        one = conflicts[0]
        return f"Apply failed with 1 conflict: conflict with {one.manager}: {fieldset.shown(one.path)}"
    by_manager: dict[str, list[str]] = {}
    for one in conflicts:
        by_manager.setdefault(str(one.manager), []).append(fieldset.shown(one.path))
    told = [
        f"conflicts with {manager}:\n" + "\n".join(f"- {path}" for path in by_manager[manager])
        for manager in sorted(by_manager)
    ]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(told)


def apply(
    live: Object,
    config: Object,
    shape: Shape,
    managed: Managed,
    *,
    manager: Manager,
    time: str,
    force: bool,
) -> Object:
    """The live object with the configuration applied; ``managed`` is brought up to date.

    Neither object holds metadata.managedFields. Raise Conflicts, and then ``managed`` is to be thrown away;
    DuplicateItem, NamelessItem.
    """
    applied = fieldset.fields_of(config, shape, strict=True)
    last = managed.fields(manager)
    previous = managed.entries.get(manager.identity)
    merged = fieldset.merge(live, config, shape)
    managed.put(manager, applied, previous.time if previous else time)
    result: Object = _prune(merged, shape, managed, last, manager)
    changed, removed = fieldset.compare(live, result, shape)
    _hand_over(managed, manager, changed, removed, force=force)
    managed.strip()
    if changed or removed or managed.fields(manager) != last:
        managed.put(manager, managed.fields(manager), time)
    return result


def _prune(merged: Object, shape: Shape, managed: Managed, last: Fields, manager: Manager) -> Object:
    """Remove what the manager applied last time, does not apply now, and nobody else manages."""
    if last <= managed.fields(manager):
        return merged
    named = fieldset.with_parents(last, shape)
    pruned = fieldset.without(merged, named, shape) or {}
    owned: Fields = fieldset.NOTHING
    for entry in managed.entries.values():
        owned |= entry.fields
    in_merged = fieldset.with_parents(fieldset.fields_of(merged, shape), shape)
    left = fieldset.with_parents(fieldset.fields_of(pruned, shape), shape)
    gone = in_merged - (left | fieldset.with_parents(owned, shape))
    # What was never its own stays, whoever set it.
    kept = fieldset.without(merged, gone, shape) or {}
    after = fieldset.with_parents(fieldset.fields_of(kept, shape), shape)
    return fieldset.without(merged, (in_merged - after) & named, shape) or {}


def _hand_over(managed: Managed, manager: Manager, changed: Fields, removed: Fields, *, force: bool) -> None:
    others = managed.others(manager)
    if not force:
        conflicts = [
            Conflict(entry.manager, path)
            for entry in others
            if entry.has(changed)
            for path in sorted(entry.fields & changed)
        ]
        if conflicts:
            raise Conflicts(conflicts)
    for entry in others:
        managed.take(entry, changed | removed)


def update(
    before: Object,
    after: Object,
    shape: Shape,
    managed: Managed,
    *,
    manager: Manager,
    time: str,
) -> None:
    """Bring ``managed`` up to date with a write: who writes manages what it changed, and nothing it removed.

    Raise NamelessItem.
    """
    changed, removed = fieldset.compare(before, after, shape)
    if not changed and not removed:
        return
    held = managed.fields(manager)
    _hand_over(managed, manager, changed, removed, force=True)
    now = (held - removed) | changed
    if changed:
        managed.put(manager, now, time)
    elif now != held:
        managed.put(manager, now, managed.entries[manager.identity].time)
    managed.strip()
    managed.cap()


def adopt(live: Object, empty: Object, shape: Shape, managed: Managed, *, version: str, time: str) -> None:
    """Before the first apply to an object of which nobody knows who manages what: one stands for all."""
    if not managed.entries:
        manager = Manager(BEFORE_FIRST, UPDATE, version, "")
        update(empty, live, shape, managed, manager=manager, time=time)


__all__ = ["APPLY", "UPDATE", "Conflict", "Conflicts", "adopt", "apply", "update"]
