"""JSON patch. Source: RFC 6902, and RFC 6901 for pointers.

As in kube-apiserver (evanphx/json-patch) a negative index counts from the end of a list.
"""

from __future__ import annotations

import copy
import re
from typing import Any

OPERATIONS_AT_MOST = 10_000

_INDEX = re.compile(r"-?(0|[1-9][0-9]*)")


class BadPatch(ValueError):
    """The patch itself is wrong, whatever it is applied to."""


class PatchFailed(ValueError):
    """The patch does not fit: a path leads nowhere, or a test did not hold."""


def apply(document: Any, patch: Any) -> Any:
    """``document`` with all operations done on a copy. Raise BadPatch, PatchFailed."""
    if not isinstance(patch, list):
        raise BadPatch("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in patch:
        _check(operation)
    document = copy.deepcopy(document)
    for operation in patch:
        document = _operate(document, operation)
    return document


def equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: booleans are no numbers, 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def _check(operation: Any) -> None:
    if not isinstance(operation, dict):
        raise BadPatch("json: an operation of a patch must be an object")
    name = operation.get("op")
    if name not in ("add", "remove", "replace", "move", "copy", "test"):
        raise PatchFailed(f"Unexpected kind: {name}")
    if "value" not in operation and name in ("add", "replace", "test"):
        raise PatchFailed(f"{name} operation: value is missing")
    for member in ("path", "from") if name in ("move", "copy") else ("path",):
        if not isinstance(operation.get(member), str):
            raise PatchFailed(f"{name} operation: {member} is missing")


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    name, path = operation["op"], _pointer(operation["path"])
    match name:
        case "add":
            return _add(document, path, copy.deepcopy(operation["value"]))
        case "remove":
            return _remove(document, path)[0]
        case "replace":
            return _replace(document, path, copy.deepcopy(operation["value"]))
        case "test":
            found = _get(document, path)
            if not equal(found, operation["value"]):
                raise PatchFailed(f"testing value {operation['path']} failed: test failed")
            return document
    source = _pointer(operation["from"])
    if name == "copy":
        return _add(document, path, copy.deepcopy(_get(document, source)))
    if path[: len(source)] == source and path != source:
        raise PatchFailed(f"move operation: {operation['path']} is inside of {operation['from']}")
    document, value = _remove(document, source)
    return _add(document, path, value)


def _pointer(text: str) -> list[str]:
    if not text:
        return []
    if not text.startswith("/"):
        raise PatchFailed(f"path {text!r} does not begin with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _get(document: Any, path: list[str]) -> Any:
    for depth, part in enumerate(path):
        missing = PatchFailed(f"missing path: /{'/'.join(path[: depth + 1])}")
        if isinstance(document, dict):
            if part not in document:
                raise missing
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(part, len(document) - 1, len(document))]
        else:
            raise missing
    return document


def _index(part: str, last: int, size: int) -> int:
    if not _INDEX.fullmatch(part):
        raise PatchFailed(f"{part!r} is no index of a list")
    index = int(part)
    if index < 0:
        index += size
    if not 0 <= index <= last:
        raise PatchFailed(f"Unable to access invalid index: {part}: invalid index referenced")
    return index


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent, name = _get(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[name] = value
    elif isinstance(parent, list):
        size = len(parent)
        # From the end, an index counts the places where a value can be put, of which there is one more.
        parent.insert(size if name == "-" else _index(name, size, size + 1), value)
    else:
        raise PatchFailed(f"missing container: /{'/'.join(path[:-1])}")
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    _get(document, path)
    parent, name = _get(document, path[:-1]), path[-1]
    parent[name if isinstance(parent, dict) else _index(name, len(parent) - 1, len(parent))] = value
    return document


def _remove(document: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        return None, document
    value = _get(document, path)
    parent, name = _get(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        del parent[name]
    else:
        del parent[_index(name, len(parent) - 1, len(parent))]
    return document, value
