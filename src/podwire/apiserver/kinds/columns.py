"""Columns that many tables have."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from podwire.apiserver.kind import Column
from podwire.kube import ages

Object = dict[str, Any]

NONE = "<none>"

NAME = Column(
    "Name", lambda obj, at: obj["metadata"]["name"], format="name", description="The name of the object."
)
AGE = Column(
    "Age",
    lambda obj, at: ages.since(obj["metadata"].get("creationTimestamp"), at),
    description="How long ago the object was created.",
)


def field(obj: Object, path: str, default: Any = None) -> Any:
    """The value of a dotted path; the default if it is not there or null."""
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return default if value is None else value


def plain(name: str, path: str, default: Any = NONE, *, priority: int = 0, description: str = "") -> Column:
    """A column that shows a field."""

    def value(obj: Object, at: datetime) -> Any:
        return field(obj, path, default) or default

    return Column(name, value, priority=priority, description=description)


def labels(selected: Object | None) -> str:
    """Labels as ``a=b,c=d``."""
    return ",".join(f"{key}={value}" for key, value in sorted((selected or {}).items())) or NONE


def selector(value: Object | None) -> str:
    """A metav1.LabelSelector as text."""
    parts = [f"{key}={one}" for key, one in sorted(((value or {}).get("matchLabels") or {}).items())]
    for term in (value or {}).get("matchExpressions") or []:
        values = ",".join(sorted(term.get("values") or []))
        match term.get("operator"):
            case "In":
                parts.append(f"{term['key']} in ({values})")
            case "NotIn":
                parts.append(f"{term['key']} notin ({values})")
            case "Exists":
                parts.append(term["key"])
            case _:
                parts.append(f"!{term['key']}")
    return ",".join(parts) or NONE
