"""YAML in the body of a request, read as the JSON that Kubernetes makes of it."""

from __future__ import annotations

import math
from typing import Any

from podwire.kube import yamltree


def load(raw: bytes) -> Any:
    """The one document in ``raw``, None if there is none: no dates, no tags, no key twice.

    Raise ValueError telling line and column.
    """
    try:
        documents = yamltree.parse(yamltree.decode_text(raw))
        if len(documents) > 1:
            raise yamltree.TreeError(
                "there is more than one document", documents[1].line, documents[1].column
            )
        return _value(documents[0]) if documents else None
    except yamltree.TreeError as error:
        raise ValueError(f"line {error.line}, column {error.column}: {error.message}") from error


def _value(node: yamltree.Node) -> Any:
    match node:
        case yamltree.Scalar():
            found = yamltree.scalar_value(node)
            if isinstance(found, float) and not math.isfinite(found):
                raise yamltree.TreeError("JSON has no infinity and no NaN", node.line, node.column)
            return found
        case yamltree.Sequence():
            return [_value(item) for item in node.items or ()]
        case yamltree.Mapping():
            entries: dict[str, Any] = {}
            for key, value in node.entries or ():
                if not isinstance(key, yamltree.Scalar):
                    raise yamltree.TreeError("a key must be a plain value", key.line, key.column)
                if key.text in entries:
                    raise yamltree.TreeError(f"key {key.text!r} is there twice", key.line, key.column)
                entries[key.text] = _value(value)
            return entries
    raise AssertionError(node)
