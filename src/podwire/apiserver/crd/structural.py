"""Whether a schema is structural: every field has a type, and what checks does not also define.

Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/validation.go and
pkg/apis/apiextensions/validation/validation.go, whose words are used.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from podwire.apiserver.crd import pruning, validation
from podwire.apiserver.crd.expressions import compiled
from podwire.apiserver.crd.schema import read
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_UNSUPPORTED = {
    "$ref": "$ref is not supported",
    "$schema": "",
    "id": "id is not supported",
    "patternProperties": "patternProperties is not supported",
    "definitions": "definitions is not supported",
    "dependencies": "dependencies is not supported",
    "additionalItems": "additionalItems is not supported",
}
_DEFINING = {
    "description": "must be empty to be structural",
    "type": "must be empty to be structural",
    "title": "must be empty to be structural",
    "default": "must be undefined to be structural",
    "additionalProperties": "must be undefined to be structural",
    "nullable": "must be false to be structural",
    "x-kubernetes-preserve-unknown-fields": "must be false to be structural",
    "x-kubernetes-embedded-resource": "must be false to be structural",
    "x-kubernetes-int-or-string": "must be false to be structural",
    "x-kubernetes-list-type": "must be undefined to be structural",
    "x-kubernetes-list-map-keys": "must be empty to be structural",
    "x-kubernetes-map-type": "must be undefined to be structural",
}
_LISTS = ("atomic", "map", "set")
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def check(props: Any, path: str) -> list[Cause]:
    """What is wrong with the schema of a version; ``path`` is that of its openAPIV3Schema."""
    causes: list[Cause] = []
    if not isinstance(props, dict):
        return [status.invalid_value(path, props, "must be an object")]
    _level(props, path, causes, where="at the root")
    if not causes and props.get("type") != "object":
        causes.append(status.invalid_value(f"{path}.type", props.get("type"), "must be object at the root"))
    if not causes:
        _defaults(props, path, causes)
    return causes


def _level(props: Object, path: str, causes: list[Cause], *, where: str) -> None:
    kind = props.get("type") or ""
    flexible = props.get("x-kubernetes-int-or-string") or props.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not flexible:
        causes.append(status.required(f"{path}.type", f"must not be empty {where}"))
    elif kind and kind not in _TYPES:
        causes.append(status.not_supported(f"{path}.type", kind, _TYPES))
    if kind and props.get("x-kubernetes-int-or-string"):
        causes.append(
            status.invalid_value(f"{path}.type", kind, "must be empty if x-kubernetes-int-or-string is true")
        )
    for name, told in _UNSUPPORTED.items():
        if told and props.get(name):
            causes.append(status.forbidden_field(f"{path}.{name}", told))
    if props.get("uniqueItems"):
        told = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        causes.append(status.forbidden_field(f"{path}.uniqueItems", told))
    _pattern(props, path, causes)
    _lists(props, path, causes)
    properties = _mapping(props, "properties", path, causes)
    additional = props.get("additionalProperties")
    if additional is False:
        told = "additionalProperties cannot be set to false"
        causes.append(status.forbidden_field(f"{path}.additionalProperties", told))
    if properties and additional is not None:
        told = "additionalProperties and properties are mutual exclusive"
        causes.append(status.forbidden_field(f"{path}.additionalProperties", told))
    for name, below in properties.items():
        inner = f"{path}.properties[{name}]"
        if where == "at the root" and name == "metadata":
            _metadata(below, inner, causes)
        if _is_object(below, inner, causes):
            _level(below, inner, causes, where="for specified object fields")
    if isinstance(additional, dict):
        _level(additional, f"{path}.additionalProperties", causes, where="for specified object fields")
    items = props.get("items")
    if kind == "array" and items is None:
        causes.append(status.required(f"{path}.items", "must be specified"))
    if isinstance(items, list):
        told = "items must be a schema object and not an array"
        causes.append(status.forbidden_field(f"{path}.items", told))
    elif items is not None and _is_object(items, f"{path}.items", causes):
        _level(items, f"{path}.items", causes, where="for specified array items")
    _branches(props, path, causes, props)


def _is_object(value: Any, path: str, causes: list[Cause]) -> bool:
    if not isinstance(value, dict):
        causes.append(status.invalid_value(path, value, "must be an object"))
        return False
    return True


def _mapping(props: Object, name: str, path: str, causes: list[Cause]) -> Object:
    value = props.get(name)
    if value is None:
        return {}
    return value if _is_object(value, f"{path}.{name}", causes) else {}


def _metadata(props: Any, path: str, causes: list[Cause]) -> None:
    properties = props.get("properties") if isinstance(props, dict) else None
    allowed = {"name", "generateName"}
    for name in set(properties or ()) - allowed:
        told = (
            "must not specify anything other than name and generateName, but metadata is implicitly specified"
        )
        causes.append(status.forbidden_field(f"{path}.properties[{name}]", told))


def _pattern(props: Object, path: str, causes: list[Cause]) -> None:
    pattern = props.get("pattern")
    if not pattern:
        return
    try:
        compiled(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        told = f"must be a valid regular expression, but isn't: {error}"
        causes.append(status.invalid_value(f"{path}.pattern", pattern, told))


def _lists(props: Object, path: str, causes: list[Cause]) -> None:
    list_type, keys = props.get("x-kubernetes-list-type"), props.get("x-kubernetes-list-map-keys") or []
    if list_type is None:
        if keys:
            told = "must be map if x-kubernetes-list-map-keys is non-empty"
            causes.append(status.required(f"{path}.x-kubernetes-list-type", told))
        return
    if props.get("type") != "array":
        told = "must be array if x-kubernetes-list-type is specified"
        causes.append(status.invalid_value(f"{path}.type", props.get("type") or "", told))
    if list_type not in _LISTS:
        causes.append(status.not_supported(f"{path}.x-kubernetes-list-type", list_type, _LISTS))
    if list_type != "map":
        return
    if not keys:
        told = "must not be empty if x-kubernetes-list-type is map"
        causes.append(status.required(f"{path}.x-kubernetes-list-map-keys", told))
    items = props.get("items")
    fields = (items.get("properties") or {}) if isinstance(items, dict) else {}
    required = (items.get("required") or []) if isinstance(items, dict) else []
    for index, key in enumerate(keys):
        if key not in fields:
            causes.append(
                status.invalid_value(
                    f"{path}.x-kubernetes-list-map-keys[{index}]",
                    key,
                    "entries must all be names of item properties",
                )
            )
        elif key not in required and "default" not in fields[key]:
            told = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required"
                " property"
            )
            causes.append(status.required(f"{path}.items.properties[{key}].default", told))


def _branches(props: Object, path: str, causes: list[Cause], owner: Object) -> None:
    """What checks may only name fields that ``owner`` defines, and not define any."""
    for name in ("allOf", "anyOf", "oneOf"):
        branches = props.get(name) or []
        if owner.get("x-kubernetes-int-or-string") and name == "anyOf" and branches == _INT_OR_STRING:
            continue
        for index, branch in enumerate(branches):
            if owner.get("x-kubernetes-int-or-string") and (branch.get("anyOf") == _INT_OR_STRING):
                continue
            _branch(branch, f"{path}.{name}[{index}]", causes, owner)
    if props.get("not"):
        _branch(props["not"], f"{path}.not", causes, owner)


def _branch(props: Any, path: str, causes: list[Cause], owner: Object) -> None:
    if not _is_object(props, path, causes):
        return
    for name, told in _DEFINING.items():
        if props.get(name):
            causes.append(status.forbidden_field(f"{path}.{name}", told))
    _pattern(props, path, causes)
    properties = owner.get("properties") or {}
    for name, below in (props.get("properties") or {}).items():
        inner = properties.get(name) or owner.get("additionalProperties")
        if not isinstance(inner, dict):
            if not owner.get("x-kubernetes-preserve-unknown-fields"):
                told = f"because it is defined in {path}.properties[{name}]"
                causes.append(status.required(f"{path.rpartition('.')[0]}.properties[{name}]", told))
            inner = {}
        _branch(below, f"{path}.properties[{name}]", causes, inner)
    if isinstance(props.get("items"), dict):
        items = owner.get("items")
        _branch(props["items"], f"{path}.items", causes, items if isinstance(items, dict) else {})
    _branches(props, path, causes, owner)


def _defaults(props: Object, path: str, causes: list[Cause]) -> None:
    if props.get("default") is not None:
        schema, value = read(props), props["default"]
        unknown = pruning.prune(copy.deepcopy(value), schema) if isinstance(value, dict) else []
        if unknown and not schema.embedded:
            told = "must not have unknown fields"
            causes.append(status.invalid_value(f"{path}.default", value, told))
        causes.extend(validation.validate(value, schema, f"{path}.default"))
    for name, below in (props.get("properties") or {}).items():
        _defaults(below, f"{path}.properties[{name}]", causes)
    for name in ("items", "additionalProperties"):
        if isinstance(props.get(name), dict):
            _defaults(props[name], f"{path}.{name}", causes)
