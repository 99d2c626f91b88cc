"""From loose JSON objects to typed structs: keys of any case, null as absent, errors that name the field.

Go's decoder matches keys whatever their case, and configurations in the field rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


class _Plan:
    """Which keys a value of a type has, and which of them go deeper."""

    __slots__ = ("fields", "item", "names")

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.fields: dict[str, _Plan | None] = {}
        self.item: _Plan | None = None


@lru_cache(maxsize=256)
def _plan(target: Any) -> _Plan | None:
    return _planned(inspect.type_info(target), {})


def _planned(info: inspect.Type, seen: dict[Any, _Plan]) -> _Plan | None:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return seen[cls]
            plan = seen[cls] = _Plan()
            for field in fields:
                name = str(field.encode_name)
                plan.names[name.lower()] = name
                plan.fields[name] = _planned(field.type, seen)
            return plan
        case (
            inspect.ListType(item_type=item)
            | inspect.VarTupleType(item_type=item)
            | inspect.DictType(value_type=item)
        ):
            deeper = _planned(item, seen)
            if deeper is None:
                return None
            plan = _Plan()
            plan.item = deeper
            return plan
        case inspect.UnionType(types=types):
            return next((plan for plan in (_planned(each, seen) for each in types) if plan), None)
        case _:
            return None


def _folded(value: Any, plan: _Plan | None) -> Any:
    if plan is None:
        return value
    if isinstance(value, (dict, Mapping)):  # the class that it mostly is first: the other's check is slow
        if plan.item is not None:
            return {key: _folded(each, plan.item) for key, each in value.items()}
        folded: dict[str, Any] = {}
        key: str
        for key, each in value.items():
            if each is None:
                continue
            name = key if key in plan.fields else plan.names.get(key.lower(), key)
            folded[name] = _folded(each, plan.fields.get(name))
        return folded
    if isinstance(value, (list, tuple)) and plan.item is not None:
        return [_folded(each, plan.item) for each in value]
    return value


def lookup(values: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value of a key whatever its case; where several match, the last one, as in Go."""
    found = default
    for name in _alike(tuple(values)).get(key.lower(), ()):
        value = values[name]
        if value is not None:
            found = value
    return found


@lru_cache(maxsize=256)
def _alike(names: tuple[str, ...]) -> dict[str, list[str]]:
    """The keys of an object by their lower case: the configurations of a network have the same ones."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.lower(), []).append(name)
    return found


class FieldError(ValueError):
    """A value that does not fit: ``path`` of the field (``ranges[0].subnet``; empty: the whole) and why."""

    def __init__(self, path: str, reason: str, value: str) -> None:
        shown = f" (it is {value})" if value else ""
        super().__init__(f"{path}: {reason}{shown}" if path else f"{reason}{shown}")
        self.path = path
        self.reason = reason
        self.value = value


_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")
_SHOWN = 80


def _value_at(value: Any, path: str) -> str:
    for key, index in _STEP.findall(path):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, (list, tuple)) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            return ""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, UnicodeError, RecursionError):
        # A caller's object need not be JSON.
        text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def convert(values: Any, target: type[T]) -> T:
    """Return ``values`` (parsed JSON) as a struct of type ``target``; FieldError where they do not fit."""
    shape: Any = target
    folded = _folded(values, _plan(shape))
    try:
        return msgspec.convert(folded, target)
    except msgspec.ValidationError as error:
        # msgspec tells the place only in its text: "<reason> - at `$.ranges[0].subnet`".
        reason, _, place = str(error).rpartition(" - at `$")
        if not reason:
            raise FieldError("", str(error), "") from None
        path = place.rstrip("`")
        raise FieldError(path.removeprefix("."), reason, _value_at(folded, path)) from None
    except UnicodeError:
        raise FieldError("", "it holds text that is no UTF-8", "") from None
    except RecursionError:
        raise FieldError("", "nested too deeply", "") from None
