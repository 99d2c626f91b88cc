"""From a YAML tree to a typed object: every wrong type, unknown or missing field is found.

The shape of the fields is read from the msgspec structs, so there is one description of each object.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from podwire.kube.errors import printable
from podwire.kube.metadata import Object
from podwire.kube.yamltree import Mapping, Node, Scalar, Sequence, scalar_value

T = TypeVar("T", bound=Object)

INT64 = range(-(1 << 63), 1 << 63)
_OCTAL = re.compile(r"[-+]?0[oO0-9]")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Fault:
    """A place in the tree, the field's path, the value as written and what is wrong with it."""

    node: Node
    field: str
    value: str
    message: str


def decode(node: Node, cls: type[T], path: str = "") -> tuple[T | None, list[Fault]]:
    """The object, or None and all faults."""
    reader = _Reader()
    value = reader.struct(node, cls, path)
    return (None, reader.faults) if reader.faults else (value, [])


def find(root: Node, path: str) -> Node | None:
    """The node of a field path, or of the nearest field above that is in the text."""
    node: Node | None = root
    for step in _steps(path):
        below = _child(node, step)
        if below is None:
            break
        node = below
    return node


def child(path: str, name: str) -> str:
    """The path of a field below ``path``."""
    return f"{path}.{name}" if path else name


def shown(node: Node) -> str:
    """A value as written, shortened to one line."""
    if isinstance(node, Scalar):
        text = node.text if node.plain else f'"{node.text}"'
        text = printable(text)
        return text if len(text) <= 60 else text[:57] + "..."
    return "a list" if isinstance(node, Sequence) else "a mapping"


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    type: Any
    required: bool


@functools.cache
def _fields(cls: type[Object]) -> dict[str, _Field]:
    return {
        field.encode_name: _Field(field.name, _plain_type(field.type), field.required)
        for field in msgspec.structs.fields(cls)
    }


def _plain_type(declared: Any) -> Any:
    """The declared type without None and UNSET: a field that is null counts as left out."""
    if isinstance(declared, types.UnionType) or typing.get_origin(declared) is typing.Union:
        members = [m for m in typing.get_args(declared) if m not in (types.NoneType, msgspec.UnsetType)]
        return members[0] if len(members) == 1 else tuple(members)
    return declared


class _Reader:
    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, node: Node, path: str, message: str, value: str | None = None) -> Any:
        self.faults.append(Fault(node, path, shown(node) if value is None else value, message))
        return _MISSING

    def struct(self, node: Node, cls: type[T], path: str) -> T:
        fields = _fields(cls)
        values: dict[str, Any] = {}
        present = set()
        for name, key, below in self.entries(node, path):
            field = fields.get(name)
            if field is None:
                self.fault(key, child(path, name), _unknown(name, fields), "")
                continue
            present.add(name)
            if not _is_null(below):
                values[field.attribute] = self.value(below, field.type, child(path, name))
            elif field.required:
                present.discard(name)
        for name, field in fields.items():
            if field.required and name not in present and isinstance(node, Mapping):
                self.fault(node, child(path, name), "this field is required", "")
        if any(value is _MISSING for value in values.values()) or self.faults:
            return typing.cast(T, _MISSING)
        return cls(**values)

    def value(self, node: Node, wanted: Any, path: str) -> Any:
        if wanted is Any:
            return self.any(node, path)
        origin = typing.get_origin(wanted)
        if origin is list:
            return self.items(node, typing.get_args(wanted)[0], path)
        if origin is dict:
            return self.strings(node, path)
        if isinstance(wanted, type) and issubclass(wanted, Object):
            return self.struct(node, wanted, path)
        return self.scalar(node, wanted, path)

    def items(self, node: Node, of: Any, path: str) -> Any:
        if not isinstance(node, Sequence):
            return self.fault(node, path, 'a list is expected here: write its items with "- " before each')
        result = []
        for index, item in enumerate(node.items or ()):
            place = f"{path}[{index}]"
            result.append(
                self.fault(item, place, "an empty item: remove it or give it a value", "")
                if _is_null(item)
                else self.value(item, of, place)
            )
        return result

    def strings(self, node: Node, path: str) -> Any:
        return {
            name: "" if _is_null(below) else self.scalar(below, str, f"{path}[{name}]")
            for name, _, below in self.entries(node, path)
        }

    def any(self, node: Node, path: str) -> Any:
        if isinstance(node, Sequence):
            return [self.any(item, f"{path}[{index}]") for index, item in enumerate(node.items or ())]
        if isinstance(node, Mapping):
            return {name: self.any(below, child(path, name)) for name, _, below in self.entries(node, path)}
        assert isinstance(node, Scalar)
        if "\0" in node.text:
            return self.fault(node, path, "a NUL character is not allowed")
        value = scalar_value(node)
        if isinstance(value, float) and not math.isfinite(value):
            return self.fault(node, path, "not a number that JSON can hold: quote it if it is a string")
        if isinstance(value, int) and value not in INT64:
            return self.fault(node, path, "the number does not fit in 64 bits: quote it if it is a string")
        return value

    def entries(self, node: Node, path: str) -> list[tuple[str, Node, Node]]:
        """Keys with their nodes and values, merge keys resolved; the values of the mapping itself win."""
        if not isinstance(node, Mapping):
            self.fault(node, path, 'a mapping is expected here: write "key: value" lines below it')
            return []
        own: dict[str, tuple[str, Node, Node]] = {}
        merged: dict[str, tuple[str, Node, Node]] = {}
        for key, below in node.entries or ():
            if isinstance(key, Scalar) and key.plain and key.text == "<<":
                for source in (below.items or ()) if isinstance(below, Sequence) else (below,):
                    for entry in self.entries(source, path):
                        merged.setdefault(entry[0], entry)
                continue
            name = self.key(key, path)
            if name is None:
                continue
            if name in own:
                first = own[name][1].line
                self.fault(key, child(path, name), f"this key is here twice, first in line {first}", "")
            else:
                own[name] = (name, key, below)
        return list({**merged, **own}.values())

    def key(self, key: Node, path: str) -> str | None:
        if not isinstance(key, Scalar):
            self.fault(key, path, "a key must be a string")
            return None
        if "\0" in key.text:
            self.fault(key, path, "a NUL character is not allowed")
            return None
        value = scalar_value(key)
        if isinstance(value, str) or (type(value) is int and str(value) == key.text):
            return key.text
        self.fault(key, path, f"this key is read as {_kind(key)}: quote it ({_quoted(key)})")
        return None

    def scalar(self, node: Node, wanted: Any, path: str) -> Any:
        if not isinstance(node, Scalar):
            return self.fault(node, path, f"{_EXPECTED[wanted]} is expected here")
        if "\0" in node.text:
            return self.fault(node, path, "a NUL character is not allowed")
        return _SCALARS[wanted](self, node, path)

    def string(self, node: Scalar, path: str) -> Any:
        if isinstance(scalar_value(node), str):
            return node.text
        return self.fault(
            node, path, f"a string is expected and this is {_kind(node)}: quote it ({_quoted(node)})"
        )

    def integer(self, node: Scalar, path: str) -> Any:
        value = scalar_value(node)
        if type(value) is not int:
            return self.fault(node, path, _not_integer(node, value))
        if value not in INT64:
            return self.fault(node, path, "the number does not fit in 64 bits")
        if _OCTAL.match(node.text):
            return self.fault(
                node, path, f"a leading 0 makes this the octal number {value}: write it in decimal"
            )
        return value

    def boolean(self, node: Scalar, path: str) -> Any:
        value = scalar_value(node)
        if isinstance(value, bool):
            return value
        fix = ": write it without quotes" if node.text in ("true", "false") else ""
        return self.fault(node, path, f"true or false is expected{fix}")

    def number_or_name(self, node: Scalar, path: str) -> Any:
        if isinstance(scalar_value(node), str):
            return node.text
        return self.integer(node, path)


_SCALARS: dict[Any, Callable[[_Reader, Scalar, str], Any]] = {
    str: _Reader.string,
    int: _Reader.integer,
    bool: _Reader.boolean,
    (int, str): _Reader.number_or_name,
}
_EXPECTED: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    (int, str): "a number or a name",
}


def _not_integer(node: Scalar, value: object) -> str:
    if isinstance(value, str) and type(scalar_value(Scalar(0, 0, text=node.text))) is int:
        return "a whole number is expected and this is a string: write it without quotes"
    return "a whole number is expected"


def _kind(node: Scalar) -> str:
    value = scalar_value(node)
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if value is None:
        return "null"
    return f"the number {value}"


def _quoted(node: Scalar) -> str:
    return f'"{node.text}"'


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and scalar_value(node) is None


def _unknown(name: str, fields: dict[str, _Field]) -> str:
    lower = {known.lower(): known for known in fields}
    near = lower.get(name.lower()) or next(
        (lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)), None
    )
    return f'unknown field: did you mean "{near}"?' if near else "unknown field"


def _steps(path: str) -> list[str]:
    steps = []
    rest = path
    while rest:
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            steps.append(inside)
        else:
            rest = rest.removeprefix(".")
            end = min((at for at in (rest.find("."), rest.find("[")) if at >= 0), default=len(rest))
            steps.append(rest[:end])
            rest = rest[end:]
    return steps


def _child(node: Node | None, step: str) -> Node | None:
    if isinstance(node, Sequence):
        items = node.items or []
        known = step.isascii() and step.isdecimal() and len(step) < 9 and int(step) < len(items)
        return items[int(step)] if known else None
    if isinstance(node, Mapping):
        merged = None
        for key, below in node.entries or ():
            if isinstance(key, Scalar) and key.text == step:
                return below
            if isinstance(key, Scalar) and key.plain and key.text == "<<":
                sources = (below.items or ()) if isinstance(below, Sequence) else (below,)
                merged = merged or next((at for s in sources if (at := _child(s, step)) is not None), None)
        return merged
    return None
