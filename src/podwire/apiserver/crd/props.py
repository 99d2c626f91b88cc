"""JSONSchemaProps as they are written in a definition: their members and the types of those.

Source: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1/types_jsonschema.go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Object = dict[str, Any]

_TEXT, _FLAG, _WHOLE, _NUMBER, _TEXTS, _ANY = "string", "bool", "int64", "float64", "[]string", "any"
_PROPS, _MAP, _LIST, _EITHER = "props", "map of props", "list of props", "props or bool"

_MEMBERS = {
    **dict.fromkeys(("id", "$schema", "$ref", "description", "type", "format", "title", "pattern"), _TEXT),
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), _TEXT),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable"), _FLAG),
    **dict.fromkeys(
        (
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-embedded-resource",
            "x-kubernetes-int-or-string",
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _WHOLE
    ),
    **dict.fromkeys(("maximum", "minimum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), _TEXTS),
    **dict.fromkeys(("default", "example", "externalDocs", "x-kubernetes-validations", "dependencies"), _ANY),
    **dict.fromkeys(("properties", "patternProperties", "definitions"), _MAP),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _LIST),
    **dict.fromkeys(("additionalProperties", "additionalItems"), _EITHER),
    "enum": "[]any",
    "not": _PROPS,
    "items": "props or list",
}
_CHECKS: dict[str, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str),
    _FLAG: lambda value: isinstance(value, bool),
    _WHOLE: lambda value: type(value) is int,
    _NUMBER: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    _TEXTS: lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    _ANY: lambda value: True,
    "[]any": lambda value: isinstance(value, list),
    _PROPS: lambda value: isinstance(value, dict),
    _MAP: lambda value: isinstance(value, dict),
    _LIST: lambda value: isinstance(value, list),
    _EITHER: lambda value: isinstance(value, dict | bool),
    "props or list": lambda value: isinstance(value, dict | list),
}
DEPTH_AT_MOST = 100


class WrongType(ValueError):
    """A member that cannot be read; the text names it and the type it should have."""


def prune(props: Any, path: str, depth: int = 0) -> list[str]:
    """Remove unknown members and nulls; the paths of the unknown ones. Raise WrongType."""
    if not isinstance(props, dict):
        raise WrongType(f"{path}: an object is expected")
    if depth > DEPTH_AT_MOST:
        raise WrongType(f"{path}: more than {DEPTH_AT_MOST} levels deep")
    unknown = []
    for name in list(props):
        value, below = props[name], f"{path}.{name}"
        kind = _MEMBERS.get(name)
        if kind is None:
            unknown.append(below)
            del props[name]
            continue
        if value is None:
            # A default of null is a default.
            if name != "default":
                del props[name]
            continue
        if not _CHECKS[kind](value):
            raise WrongType(f"{below}: {kind} is expected")
        for inner, one in _inner(kind, value, below):
            unknown.extend(prune(one, inner, depth + 1))
    return unknown


def _inner(kind: str, value: Any, path: str) -> list[tuple[str, Any]]:
    if kind == _MAP:
        return [(f"{path}.{name}", one) for name, one in value.items()]
    if kind in (_PROPS, _EITHER, "props or list", _LIST):
        if isinstance(value, list):
            return [(f"{path}[{index}]", one) for index, one in enumerate(value)]
        if isinstance(value, dict):
            return [(path, value)]
    return []
