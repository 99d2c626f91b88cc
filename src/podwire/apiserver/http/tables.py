"""Objects as tables and as their metadata alone.

Source: k8s.io/apiserver/pkg/endpoints/handlers/response.go.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from podwire.apiserver.http.negotiation import TABLE, Form
from podwire.apiserver.kind import Column, Kind
from podwire.kube import ages

Object = dict[str, Any]

_CREATED = "CreationTimestamp is a timestamp representing the server time when this object was created."
DEFAULT_COLUMNS = (
    Column("Name", lambda obj, at: obj["metadata"]["name"], format="name", description="The object's name."),
    Column(
        "Created At",
        lambda obj, at: obj["metadata"].get("creationTimestamp"),
        type="date",
        description=_CREATED,
    ),
)
AGE = Column(
    "Age", lambda obj, at: ages.since(obj["metadata"].get("creationTimestamp"), at), description=_CREATED
)
NAME = DEFAULT_COLUMNS[0]


def definitions(kind: Kind) -> list[Object]:
    """The columns as a Table defines them."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in kind.columns or DEFAULT_COLUMNS
    ]


def row(kind: Kind, obj: Object, at: datetime, include: str, version: str) -> Object:
    """One row; ``include`` is None, Metadata or Object."""
    cells = [column.value(obj, at) for column in kind.columns or DEFAULT_COLUMNS]
    if include == "None":
        return {"cells": cells}
    return {"cells": cells, "object": obj if include == "Object" else partial(obj, version)}


def table(
    kind: Kind, objects: list[Object], meta: Object, form: Form, *, include: str, headings: bool = True
) -> Object:
    """A table of objects, as of now."""
    at = datetime.now(UTC)
    return {
        "kind": TABLE,
        "apiVersion": f"meta.k8s.io/{form.version}",
        "metadata": meta,
        "columnDefinitions": definitions(kind) if headings else None,
        "rows": [row(kind, obj, at, include, form.version) for obj in objects],
    }


def partial(obj: Object, version: str = "v1") -> Object:
    """The object's metadata alone."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def partial_list(objects: list[Object], meta: Object, form: Form) -> Object:
    """A list of metadata."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{form.version}",
        "metadata": meta,
        "items": [partial(obj, form.version) for obj in objects],
    }
