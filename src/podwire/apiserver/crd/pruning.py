"""Custom objects against their schema: unknown fields are removed, defaults are put in.

Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/{pruning,defaulting,objectmeta}.
"""

from __future__ import annotations

import copy
from typing import Any

from podwire.apiserver.crd.schema import ABSENT, Schema
from podwire.apiserver.schemas import checking

Object = dict[str, Any]

_TOP = ("apiVersion", "kind", "metadata")


def metadata(obj: Object) -> list[str]:
    """Remove unknown fields of an object's metadata; their paths. Raise WrongType."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        raise checking.WrongType("metadata: an object is expected")
    return [f"metadata.{path}" for path in checking.prune("meta.ObjectMeta", meta)]


def prune(obj: Object, schema: Schema) -> list[str]:
    """Remove fields that the schema does not know from a custom object; their paths."""
    unknown: list[str] = []
    _prune(obj, schema, "", unknown, resource=True)
    return unknown


def _prune(value: Any, schema: Schema, path: str, unknown: list[str], *, resource: bool = False) -> None:
    if isinstance(value, list):
        if schema.items is not None:
            for index, item in enumerate(value):
                _prune(item, schema.items, f"{path}[{index}]", unknown, resource=schema.items.embedded)
        return
    if not isinstance(value, dict):
        return
    for name in list(value):
        if resource and name in _TOP:
            continue
        below = f"{path}.{name}" if path else name
        member = schema.member(name)
        if member is not None:
            _prune(value[name], member, below, unknown, resource=member.embedded)
        elif not schema.preserve and not schema.open and schema.entries is None:
            unknown.append(below)
            del value[name]


def fill(value: Any, schema: Schema) -> None:
    """Put in defaults; a null where null is not allowed gives way to one."""
    if isinstance(value, list):
        if schema.items is not None:
            for item in value:
                fill(item, schema.items)
        return
    if not isinstance(value, dict):
        return
    for name, member in schema.properties.items():
        if member.default is ABSENT:
            continue
        if name not in value or (value[name] is None and not member.nullable):
            value[name] = copy.deepcopy(member.default)
    for name, below in value.items():
        found = schema.member(name)
        if found is not None:
            fill(below, found)
