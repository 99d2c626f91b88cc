"""Sets of fields, as metadata.managedFields names them.

A path is a tuple of elements as fieldsV1 writes them: ``f:<name>`` a field, ``k:<keys as JSON>`` an item of a
list by its keys, ``v:<value as JSON>`` a value of a set. Source: sigs.k8s.io/structured-merge-diff/v6,
fieldpath (serialize-pe.go, set.go) and typed (tofieldset.go, compare.go, remove.go, merge.go).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from podwire.apiserver.patch.shape import Shape

Path = tuple[str, ...]
Fields = frozenset[Path]
NOTHING: Fields = frozenset()

_encode = msgspec.json.Encoder(order="sorted").encode


class DuplicateItem(ValueError):
    """Two items of a list have the same keys; ``path`` is that of the item."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{shown(path[:-1])}: duplicate entries for key {element_shown(path[-1])}")
        self.path = path


class NamelessItem(ValueError):
    """An item of a list lacks its keys, or is no mapping; ``path`` is that of the list."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{shown(path)}: {why}")
        self.path = path


def compact(value: Any) -> str:
    """JSON without blanks, keys sorted."""
    return _encode(value).decode()


def encode(fields: Iterable[Path]) -> dict[str, Any]:
    """The set as fieldsV1, sorted; not to be changed. A member that leads to members has a dot."""
    return _encoded(frozenset(fields))


# Objects of one kind tend to have the same fields, and few writes change who manages what.
@functools.lru_cache(1024)
def _encoded(fields: Fields) -> dict[str, Any]:
    root: dict[str, Any] = {}
    before: Path = ()
    nodes = [root]
    member = False
    # In this order a path comes right before those that it leads to.
    for path in sorted(fields):
        depth = 0
        for one, other in zip(path, before, strict=False):
            if one != other:
                break
            depth += 1
        if member and depth == len(before):
            nodes[depth]["."] = {}
        del nodes[depth + 1 :]
        for element in path[depth:]:
            below: dict[str, Any] = {}
            nodes[-1][element] = below
            nodes.append(below)
        before, member = path, True
    return root


def among(tree: Any, fields: Iterable[Path]) -> bool:
    """Whether a set in fieldsV1 has one of the paths."""
    for path in fields:
        node = tree
        for element in path:
            node = node.get(element)
            if node is None:
                break
        else:
            if not node or "." in node:
                return True
    return False


def decode(tree: Any) -> Fields:
    """The set in fieldsV1. Raise ValueError."""
    return _decoded(_encode(tree))


@functools.lru_cache(1024)
def _decoded(text: bytes) -> Fields:
    tree = msgspec.json.decode(text)
    found: set[Path] = set()

    def walk(node: Any, path: Path) -> None:
        if not isinstance(node, dict):
            raise ValueError("fieldsV1 must be an object")
        if not node and path:
            found.add(path)
        for element, below in node.items():
            if element == ".":
                found.add(path)
            elif element[:2] in ("f:", "k:", "v:", "i:"):
                walk(below, (*path, element))
            else:
                raise ValueError(f"fieldsV1: unknown path element {element!r}")

    walk(tree or {}, ())
    return frozenset(found)


def element_of(item: Any, shape: Shape, path: Path) -> str:
    """The element that names an item of a list. Raise NamelessItem."""
    if shape.unique:
        if isinstance(item, (dict, list)):
            raise NamelessItem(path, "associative list with set type: an item must be a plain value")
        return "v:" + compact(item)
    if not isinstance(item, dict):
        raise NamelessItem(path, "associative list with keys may not have non-map elements")
    keys = {}
    for key in shape.keys:
        if item.get(key) is not None:
            keys[key] = item[key]
        elif key in shape.key_defaults:
            keys[key] = shape.key_defaults[key]
    if not keys:
        listed = ", ".join(f'"{key}"' for key in shape.keys)
        raise NamelessItem(
            path, f"element: associative list with keys has an element that omits key field {listed}"
        )
    return "k:" + compact(keys)


def named_items(items: list[Any], shape: Shape, path: Path, *, strict: bool = False) -> dict[str, Any]:
    """The items by their elements. With ``strict`` raise DuplicateItem; else the last one counts."""
    found: dict[str, Any] = {}
    for item in items:
        element = element_of(item, shape, path)
        if strict and element in found:
            raise DuplicateItem((*path, element))
        found[element] = item
    return found


def fields_of(value: Any, shape: Shape, *, strict: bool = False) -> Fields:
    """All fields that a value sets. Raise NamelessItem, and with ``strict`` DuplicateItem."""
    found: set[Path] = set()

    def walk(value: Any, shape: Shape, path: Path) -> None:
        if isinstance(value, dict) and not shape.atomic:
            for name, below in value.items():
                inner = (*path, f"f:{name}")
                walk(below, shape.member(name), inner)
                if below is None or below == {} or shape.entries:
                    found.add(inner)
        elif isinstance(value, list) and not shape.whole:
            for element, item in named_items(value, shape, path, strict=strict).items():
                walk(item, shape.item, (*path, element))
                found.add((*path, element))
        elif path and value is not None:
            found.add(path)

    walk(value, shape, ())
    return frozenset(found)


_ABSENT = object()


def compare(before: Any, after: Any, shape: Shape) -> tuple[Fields, Fields]:
    """What was added or modified, and what was removed. Raise NamelessItem."""
    changed: set[Path] = set()
    removed: set[Path] = set()

    def walk(old: Any, new: Any, shape: Shape, path: Path) -> None:
        if old == new:
            return
        if old is _ABSENT:
            _all_of(new, shape, path, changed)
            return
        mappings = _all_empty_or(dict, old, new)
        lists = _all_empty_or(list, old, new)
        if (
            mappings
            and not shape.atomic
            and (old not in (_ABSENT, None, {}) or new not in (_ABSENT, None, {}))
        ):
            left, right = _or_empty(old), _or_empty(new)
            for name in {**left, **right}:
                walk(
                    left.get(name, _ABSENT),
                    right.get(name, _ABSENT),
                    shape.member(name),
                    (*path, f"f:{name}"),
                )
        elif lists and not shape.whole and (old not in (_ABSENT, None, []) or new not in (_ABSENT, None, [])):
            held = named_items(_or_empty(old) or [], shape, path)
            given = named_items(_or_empty(new) or [], shape, path)
            for element in {**held, **given}:
                walk(held.get(element, _ABSENT), given.get(element, _ABSENT), shape.item, (*path, element))
        elif old is not _ABSENT and new is not _ABSENT:
            changed.add(path)
        if new is _ABSENT:
            removed.add(path)

    walk(before, after, shape, ())
    changed.discard(())
    return frozenset(changed), frozenset(removed)


def _all_of(value: Any, shape: Shape, path: Path, found: set[Path]) -> None:
    """All fields of a value that was not there: those of mappings and lists themselves, too."""
    if isinstance(value, dict):
        if not shape.atomic:
            for name, below in value.items():
                _all_of(below, shape.member(name), (*path, f"f:{name}"), found)
    elif isinstance(value, list) and not shape.whole:
        for element, item in named_items(value, shape, path).items():
            _all_of(item, shape.item, (*path, element), found)
    found.add(path)


def _all_empty_or(kind: type, old: Any, new: Any) -> bool:
    return (old is _ABSENT or old is None or isinstance(old, kind)) and (
        new is _ABSENT or new is None or isinstance(new, kind)
    )


def _or_empty(value: Any) -> Any:
    return {} if value is _ABSENT or value is None else value


def with_parents(fields: Fields, shape: Shape) -> Fields:
    """The set with all fields of types above its members: not entries of maps, not items of lists."""
    found = set(fields)
    for path in fields:
        inner = shape
        for depth, element in enumerate(path[:-1], 1):
            if element.startswith("f:"):
                if not inner.entries:
                    found.add(path[:depth])
                inner = inner.member(element[2:])
            else:
                inner = inner.item
    return frozenset(found)


def without(value: Any, fields: Fields, shape: Shape) -> Any:
    """The value without these fields; mappings and lists that lose all they had are None."""
    if not fields:
        return value
    tree: dict[str, Any] = {}
    for path in fields:
        node = tree
        for element in path:
            node = node.setdefault(element, {})
    members = fields

    def walk(value: Any, node: dict[str, Any], shape: Shape, path: Path) -> Any:
        if not node:
            return value
        if isinstance(value, dict):
            if shape.atomic:
                return None
            kept = {}
            for name, below in value.items():
                inner = (*path, f"f:{name}")
                if inner in members:
                    continue
                remaining = walk(below, node.get(inner[-1], {}), shape.member(name), inner)
                if remaining is not None or below is None:
                    kept[name] = remaining
            return kept or None
        if isinstance(value, list) and not shape.whole:
            items = []
            for item in value:
                inner = (*path, element_of(item, shape, path))
                if inner not in members:
                    items.append(walk(item, node.get(inner[-1], {}), shape.item, inner))
            return items or None
        return value if not isinstance(value, list) else None

    return walk(value, tree, shape, ())


def merge(live: Any, config: Any, shape: Shape, path: Path = ()) -> Any:
    """The live value with the applied one in it; items keep the order of the applied list."""
    if isinstance(live, dict) and isinstance(config, dict) and not shape.atomic:
        merged = dict(live)
        for name, value in config.items():
            inner = (*path, f"f:{name}")
            merged[name] = merge(live[name], value, shape.member(name), inner) if name in live else value
        return merged
    if isinstance(live, list) and isinstance(config, list) and not shape.whole:
        return _merge_items(live, config, shape, path)
    if config is None and isinstance(live, (dict, list)) and live and not shape.atomic:
        return live
    return config


def _merge_items(live: list[Any], config: list[Any], shape: Shape, path: Path) -> list[Any]:
    left = [(element_of(item, shape, path), item) for item in live]
    right = [(element_of(item, shape, path), item) for item in config]
    held, given = dict(left), dict(right)
    shared = [element for element, _ in right if element in held]
    done: set[str] = set()
    out: list[Any] = []
    i = j = 0

    def put(element: str) -> None:
        done.add(element)
        value = given[element]
        if element in held:
            value = merge(held[element], value, shape.item, (*path, element))
        out.append(value)
        if shared and shared[0] == element:
            shared.pop(0)

    while i < len(left) or j < len(right):
        if i < len(left) and j < len(right):
            element = left[i][0]
            if element == right[j][0]:
                put(element)
                i += 1
                j += 1
                continue
            if element in given and shared and shared[0] != element:
                # Shared, but not the next of those in the applied order: its turn comes with that.
                i += 1
                continue
        if i < len(left):
            element, item = left[i]
            if element not in given:
                out.append(item)
                i += 1
                continue
            if element in done or j >= len(right):
                i += 1
                continue
        if j < len(right):
            element = right[j][0]
            if element not in done:
                put(element)
            j += 1
    return out


def shown(path: Path) -> str:
    """The path as messages show it: ``.spec.containers[name="a"].image``."""
    return "".join(f".{one[2:]}" if one.startswith("f:") else element_shown(one) for one in path)


def element_shown(element: str) -> str:
    """An item as messages show it: ``[name="a"]``, ``[="value"]``."""
    value = json.loads(element[2:])
    if element.startswith("v:"):
        return f"[={compact(value)}]"
    if not isinstance(value, dict):
        return f"[{compact(value)}]"
    return "[" + ",".join(f"{key}={compact(one)}" for key, one in value.items()) + "]"
