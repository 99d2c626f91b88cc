"""The columns of custom objects in tables.

Source: k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor/tableconvertor.go.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from podwire.apiserver.crd.jsonpath import Path
from podwire.apiserver.kind import Column
from podwire.apiserver.patch.fieldset import compact
from podwire.kube import ages

Object = dict[str, Any]

NAME = Column(
    "Name",
    lambda obj, at: obj["metadata"]["name"],
    format="name",
    description="The name of the object, unique among those of its kind in its namespace.",
)
AGE = Column(
    "Age",
    lambda obj, at: ages.since(obj["metadata"].get("creationTimestamp"), at),
    type="date",
    description="How long ago the object was created.",
)


def columns(printed: list[Object]) -> tuple[Column, ...]:
    """The columns of additionalPrinterColumns; without any, name and age."""
    if not printed:
        return (NAME, AGE)
    return (NAME, *(_column(one) for one in printed))


def _column(one: Object) -> Column:
    path, kind = Path(one["jsonPath"]), one["type"]

    def value(obj: Object, at: datetime) -> Any:
        found = path.find(obj)
        return cell(found[0], kind, at) if found else None

    return Column(
        one["name"],
        value,
        type=kind,
        format=one.get("format") or "",
        description=one.get("description") or f"The value at {one['jsonPath']}.",
        priority=one.get("priority") or 0,
    )


def cell(value: Any, kind: str, at: datetime) -> Any:
    """A value as a cell of a column of this type; None where it does not fit."""
    if value is None:
        return None
    match kind:
        case "integer":
            return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "number":
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            try:
                return ages.since(value, at) if isinstance(value, str) else "<invalid>"
            except ValueError:
                return "<invalid>"
    if isinstance(value, str):
        return value
    return compact(value)
