"""Objects against their shape: unknown fields are found and removed, wrong types are refused.

Source: k8s.io/apimachinery/pkg/util/json and sigs.k8s.io/json, whose words are used.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from podwire.apiserver import schemas
from podwire.apiserver.schemas import TOP_LEVEL, Field, Message, Type
from podwire.serving import status

Object = dict[str, Any]

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(m|u|n|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_INTEGERS = {"int32": 1 << 31, "int64": 1 << 63}
_GO = {
    "string": "string",
    "bool": "bool",
    "int32": "int32",
    "int64": "int64",
    "double": "float64",
    "bytes": "[]uint8",
    "time": "string",
    "microtime": "string",
    "quantity": "resource.Quantity",
    "intorstring": "intstr.IntOrString",
}


_NO_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class WrongType(Exception):
    """A value that cannot be read as its field's type; the text is that of Go's decoder."""


def prune(name: str, obj: Object, old: Object | None = None) -> list[str]:
    """Remove unknown fields and nulls from an object of the message; the paths of the unknown ones.

    What is as in ``old``, which was pruned before, is not looked at. Raise WrongType.
    """
    unknown: list[str] = []
    _message(schemas.message(name), obj, "", unknown, old=old, top=True)
    return unknown


def _message(
    shape: Message, obj: Object, path: str, unknown: list[str], *, old: Any = None, top: bool = False
) -> None:
    fields = shape.fields
    drop = []
    for key, value in obj.items():
        if old and key in old and old[key] == value:
            continue
        field = fields.get(key)
        if field is None:
            if top and key in TOP_LEVEL:
                continue
            unknown.append(f"{path}.{key}" if path else key)
            drop.append(key)
        elif value is None:
            drop.append(key)
        else:
            below = f"{path}.{key}" if path else key
            if field.type.form:
                _many(shape, field, value, below, unknown)
            elif (wrong := _value(field.type, value, below, unknown)) is not None:
                raise WrongType(_refusal(wrong, shape, path, field))
            elif field.type.name == "quantity" and not isinstance(value, str):
                obj[key] = str(value)
    for key in drop:
        del obj[key]


def _many(shape: Message, field: Field, value: Any, path: str, unknown: list[str]) -> None:
    kind = field.type
    items: Any
    if kind.form == "list":
        if not isinstance(value, list):
            raise WrongType(_refusal(_word(value), shape, path.rpartition(".")[0], field))
        items = enumerate(value)
    else:
        if not isinstance(value, dict):
            raise WrongType(_refusal(_word(value), shape, path.rpartition(".")[0], field))
        items = list(value.items())
    for key, given in items:
        item = given
        if item is None:
            item = value[key] = "" if kind.scalar else {}
        wrong = _value(kind, item, f"{path}[{key}]" if kind.form == "list" else f"{path}.{key}", unknown)
        if wrong is not None:
            raise WrongType(_refusal(wrong, shape, path.rpartition(".")[0], field, item=True))
        if kind.name == "quantity" and not isinstance(item, str):
            value[key] = str(item)


def _value(kind: Type, value: Any, path: str, unknown: list[str]) -> str | None:
    """None, or the word for what the value is and should not be."""
    name = kind.name
    if not kind.scalar:
        if not isinstance(value, dict):
            return _word(value)
        _message(schemas.message(name), value, path, unknown)
        return None
    if name == "string":
        return None if isinstance(value, str) else _word(value)
    if name in _INTEGERS:
        if type(value) is not int:
            return f"number {value}" if isinstance(value, float) else _word(value)
        limit = _INTEGERS[name]
        return None if -limit <= value < limit else f"number {value}"
    if name == "bool":
        return None if isinstance(value, bool) else _word(value)
    return _special(name, value)


def _special(name: str, value: Any) -> str | None:
    match name:
        case "quantity":
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                return _word(value)
            if not _QUANTITY.fullmatch(str(value)):
                raise WrongType(_NO_QUANTITY)
        case "intorstring":
            return None if isinstance(value, str) or type(value) is int else _word(value)
        case "bytes":
            if not isinstance(value, str):
                return _word(value)
            try:
                base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise WrongType("illegal base64 data at input byte 0") from None
        case "time" | "microtime":
            if not isinstance(value, str):
                return _word(value)
            if not _TIME.fullmatch(value):
                raise WrongType(
                    f'parsing time {status.quoted(value)} as "2006-01-02T15:04:05Z07:00": cannot parse'
                    f' {status.quoted(value)} as "2006"'
                )
        case "double":
            return None if isinstance(value, int | float) and not isinstance(value, bool) else _word(value)
        case "fields":
            return None
    return None


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _refusal(word: str, shape: Message, path: str, field: Field, *, item: bool = False) -> str:
    owner = shape.name.rpartition(".")[2]
    place = re.sub(r"\[\d+\]", "", f"{path}.{field.name}" if path else field.name)
    kind = field.type
    base = _GO.get(kind.name) or f"v1.{kind.name.rpartition('.')[2]}"
    whole = base if item else {"": base, "list": f"[]{base}", "map": f"map[string]{base}"}[kind.form]
    return f"json: cannot unmarshal {word} into Go struct field {owner}.{place} of type {whole}"
