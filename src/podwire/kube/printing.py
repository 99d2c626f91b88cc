"""Objects as kubectl prints them with ``-o json`` and ``-o yaml``: keys sorted, empty fields left out.

What is left out follows Go's ``omitempty``: a field that may be None is printed when it is set, even to 0;
any other optional field is left out when it is empty, unless its default is something else. Structs declared
with ``omit_defaults=False`` show all their fields.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import msgspec
import yaml
from msgspec import UNSET

from podwire.kube.metadata import Object
from podwire.kube.yamltree import Scalar, scalar_value

_STRING_TAG = "tag:yaml.org,2002:str"


def to_builtins(obj: Object) -> dict[str, Any]:
    """The object as dicts, lists and scalars with the names of the API."""
    result = {}
    for attribute, name, omitted in _plan(type(obj)):
        value = getattr(obj, attribute)
        if value is not UNSET and not (omitted and value == omitted[0]):
            result[name] = _builtin(value)
    return result


def to_json(obj: Object | dict[str, Any]) -> str:
    """JSON with sorted keys and 4 spaces, and a newline at the end."""
    return json.dumps(_document(obj), indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def to_yaml(obj: Object | dict[str, Any]) -> str:
    """YAML with sorted keys; lists are not indented, texts of several lines are written as blocks."""
    text: str = yaml.dump(
        _document(obj), Dumper=_Dumper, allow_unicode=True, default_flow_style=False, width=1 << 20
    )
    return text


def object_list(items: Iterable[Object | dict[str, Any]]) -> dict[str, Any]:
    """The ``kind: List`` that kubectl prints around several objects."""
    return {
        "apiVersion": "v1",
        "items": [_document(item) for item in items],
        "kind": "List",
        "metadata": {"resourceVersion": ""},
    }


@functools.cache
def _plan(cls: type[Object]) -> tuple[tuple[str, str, tuple[object, ...]], ...]:
    """For each field: attribute, name on the wire, and the value, if any, that leaves it out."""
    plan = []
    for field in msgspec.structs.fields(cls):
        empty: tuple[object, ...] = ()
        if cls.__struct_config__.omit_defaults and not field.required:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            empty = () if default is UNSET or default else (default,)
        plan.append((field.name, field.encode_name, empty))
    return tuple(plan)


def _builtin(value: Any) -> Any:
    if isinstance(value, Object):
        return to_builtins(value)
    if isinstance(value, list):
        return [_builtin(item) for item in value]
    if isinstance(value, dict):
        return {key: _builtin(item) for key, item in value.items()}
    return value


def _document(obj: Object | dict[str, Any]) -> dict[str, Any]:
    return to_builtins(obj) if isinstance(obj, Object) else obj


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: Any, text: str) -> Any:
    style = None
    if "\n" in text.rstrip("\n"):
        style = "|"
    elif not isinstance(scalar_value(Scalar(0, 0, text=text)), str) or (
        dumper.resolve(yaml.ScalarNode, text, (True, False)) != _STRING_TAG
    ):
        style = '"'
    return dumper.represent_scalar(_STRING_TAG, text, style=style)


_Dumper.add_representer(str, _string)
