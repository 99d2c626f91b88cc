"""JSON merge patch. Source: RFC 7386, section 2."""

from __future__ import annotations

from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """``target`` with the patch in it: null removes a member, what is no object replaces.

    Neither is changed.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def diff(before: Any, after: Any) -> Any:
    """A merge patch that makes ``after`` of ``before``; members of ``after`` must not be null (RFC 7386)."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    patch = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif before[name] != value or type(before[name]) is not type(value):
            patch[name] = diff(before[name], value)
    return patch
