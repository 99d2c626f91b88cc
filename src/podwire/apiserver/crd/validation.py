"""Custom objects against their schema: what is wrong with them, in the words of kube-apiserver.

Source: k8s.io/kube-openapi/pkg/validation (validate, errors) and
k8s.io/apiextensions-apiserver/pkg/apiserver/validation/validation.go, schema/listtype.
"""

from __future__ import annotations

from typing import Any

from podwire.apiserver.crd.formats import FORMATS, INTEGERS
from podwire.apiserver.crd.schema import ABSENT, Schema
from podwire.apiserver.patch.fieldset import compact
from podwire.apiserver.patch.jsonpatch import equal
from podwire.serving import status
from podwire.serving.status import Cause

_TOP = ("apiVersion", "kind", "metadata")


def validate(
    value: Any, schema: Schema, path: str = "", *, resource: bool = False, old: Any = ABSENT
) -> list[Cause]:
    """What is wrong with a value; ``resource``: it is an object with apiVersion, kind and metadata.

    Parts that are as in ``old`` are not looked at: a definition that became stricter does not stand in the
    way of changes elsewhere. Source: KEP 4008 (validation ratcheting).
    """
    causes: list[Cause] = []
    _check(value, schema, path, causes, old, resource=resource)
    return causes


def _check(
    value: Any, schema: Schema, path: str, causes: list[Cause], old: Any, *, resource: bool = False
) -> None:
    if (value is None and schema.nullable) or (old is not ABSENT and equal(value, old)):
        return
    if not _type_fits(value, schema):
        wanted = "integer,string" if schema.int_or_string else schema.type
        found = type_name(value)
        told = f"{path} in body must be of type {wanted}: {status.quoted(found)}"
        causes.append(status.type_invalid(path, found, told))
        return
    rules = schema.rules
    if "enum" in rules and not any(equal(value, one) for one in rules["enum"]):
        known = [one if isinstance(one, str) else compact(one) for one in rules["enum"]]
        causes.append(status.not_supported(path, value, known))
    if isinstance(value, str):
        _check_text(value, schema, path, causes)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(value, schema, path, causes)
    elif isinstance(value, list):
        _check_list(value, schema, path, causes, old)
    elif isinstance(value, dict):
        _check_object(value, schema, path, causes, old, resource=resource)
    if schema.branches:
        _check_branches(value, schema, path, causes, old)


def type_name(value: Any) -> str:
    """The JSON type of a value, as messages name it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _type_fits(value: Any, schema: Schema) -> bool:
    name = type_name(value)
    if schema.int_or_string:
        return name in ("integer", "string")
    if not schema.type:
        return True
    return name == schema.type or (schema.type == "number" and name == "integer")


def _invalid(path: str, value: Any, detail: str) -> Cause:
    return status.invalid_value(path, value, f"{path} in body {detail}")


def _check_text(value: str, schema: Schema, path: str, causes: list[Cause]) -> None:
    rules = schema.rules
    if "maxLength" in rules and len(value) > rules["maxLength"]:
        causes.append(status.too_long(path, rules["maxLength"]))
    if "minLength" in rules and len(value) < rules["minLength"]:
        causes.append(_invalid(path, value, f"should be at least {rules['minLength']} chars long"))
    if schema.pattern is not None and not schema.pattern.search(value):
        causes.append(_invalid(path, value, f"should match '{rules['pattern']}'"))
    check = FORMATS.get(schema.format)
    if check is not None and not check(value):
        causes.append(_invalid(path, value, f"must be of type {schema.format}: {status.quoted(value)}"))


def _check_number(value: float, schema: Schema, path: str, causes: list[Cause]) -> None:
    rules = schema.rules
    if "maximum" in rules:
        exclusive, most = rules.get("exclusiveMaximum"), rules["maximum"]
        if value > most or (exclusive and value == most):
            word = "less than" if exclusive else "less than or equal to"
            causes.append(_invalid(path, value, f"should be {word} {compact(most)}"))
    if "minimum" in rules:
        exclusive, least = rules.get("exclusiveMinimum"), rules["minimum"]
        if value < least or (exclusive and value == least):
            word = "greater than" if exclusive else "greater than or equal to"
            causes.append(_invalid(path, value, f"should be {word} {compact(least)}"))
    if rules.get("multipleOf"):
        quotient = value / rules["multipleOf"]
        if abs(quotient - round(quotient)) > 1e-9:
            causes.append(_invalid(path, value, f"should be a multiple of {compact(rules['multipleOf'])}"))
    limit = INTEGERS.get(schema.format)
    if limit is not None and not -limit <= value < limit:
        causes.append(_invalid(path, value, f"must be of type {schema.format}: {status.quoted(str(value))}"))


def _check_list(value: list[Any], schema: Schema, path: str, causes: list[Cause], old: Any) -> None:
    rules = schema.rules
    if "maxItems" in rules and len(value) > rules["maxItems"]:
        causes.append(status.too_many(path, len(value), rules["maxItems"]))
    if "minItems" in rules and len(value) < rules["minItems"]:
        causes.append(_invalid(path, value, f"should have at least {rules['minItems']} items"))
    if schema.items is not None:
        before = _by_keys(old, schema)
        for index, item in enumerate(value):
            was = before.get(_keys(item, schema), ABSENT) if before else ABSENT
            _check(item, schema.items, f"{path}[{index}]", causes, was, resource=schema.items.embedded)
    if schema.list_type in ("set", "map"):
        _check_unique(value, schema, path, causes)


def _by_keys(items: Any, schema: Schema) -> dict[str, Any]:
    """The items of a list that is a map, by their keys; nothing of another list, which has no such names."""
    if schema.list_type != "map" or not isinstance(items, list):
        return {}
    return {_keys(item, schema): item for item in items}


def _keys(item: Any, schema: Schema) -> str:
    return compact({key: item.get(key) for key in schema.list_keys} if isinstance(item, dict) else item)


def _check_unique(value: list[Any], schema: Schema, path: str, causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, item in enumerate(value):
        name = item
        if schema.list_type == "map":
            if not isinstance(item, dict):
                continue
            name = {key: item[key] for key in schema.list_keys if key in item}
        if (text := compact(name)) in seen:
            causes.append(status.duplicate(f"{path}[{index}]", name))
        seen.add(text)


def _check_object(
    value: dict[str, Any], schema: Schema, path: str, causes: list[Cause], old: Any, *, resource: bool
) -> None:
    rules = schema.rules
    if "maxProperties" in rules and len(value) > rules["maxProperties"]:
        causes.append(status.too_many(path, len(value), rules["maxProperties"]))
    if "minProperties" in rules and len(value) < rules["minProperties"]:
        causes.append(_invalid(path, value, f"should have at least {rules['minProperties']} properties"))
    for name in schema.required:
        if name not in value:
            causes.append(status.required(f"{path}.{name}" if path else name))
    for name, below in value.items():
        if resource and name in _TOP and name != "metadata":
            continue
        member = schema.member(name)
        if member is not None:
            was = old.get(name, ABSENT) if isinstance(old, dict) else ABSENT
            _check(below, member, f"{path}.{name}" if path else name, causes, was, resource=member.embedded)


def _shortest(found: list[list[Cause]]) -> list[Cause]:
    """The causes of the branch that comes closest."""
    return min(found, key=len)


def _check_branches(value: Any, schema: Schema, path: str, causes: list[Cause], old: Any) -> None:
    shown = status.quoted(path)
    blank = "" if isinstance(value, dict | list) else value

    def fail(detail: str) -> None:
        causes.append(status.invalid_value(path, blank, detail))

    for name, branches in schema.branches.items():
        # Which alternative a value is of depends on all of it, changed or not.
        was = old if name == "allOf" else ABSENT
        found = [validate(value, branch, path, old=was) for branch in branches]
        valid = sum(not one for one in found)
        if name == "allOf" and valid < len(found):
            fail(f"{shown} must validate all the schemas (allOf)")
            causes.extend(cause for one in found for cause in one)
        elif name == "anyOf" and not valid:
            fail(f"{shown} must validate at least one schema (anyOf)")
            causes.extend(_shortest(found))
        elif name == "oneOf" and valid != 1:
            told = "none valid" if not valid else f"{valid} valid alternatives"
            fail(f"{shown} must validate one and only one schema (oneOf). Found {told}")
            if not valid:
                causes.extend(_shortest(found))
        elif name == "not" and valid:
            fail(f"{shown} must not validate the schema (not)")
