"""Strategic merge patch: a merge patch that knows which lists are maps by a key.

Source: k8s.io/apimachinery/pkg/util/strategicpatch/patch.go (MergeParallelList and IgnoreUnmatchedNulls set,
as kube-apiserver does). Directives: ``$patch``, ``$retainKeys``, ``$setElementOrder/<list>``,
``$deleteFromPrimitiveList/<list>``.
"""

from __future__ import annotations

import copy
from typing import Any

from podwire.apiserver.patch.jsonpatch import equal
from podwire.apiserver.patch.shape import Shape

Object = dict[str, Any]

PATCH = "$patch"
RETAIN = "$retainKeys"
ORDER = "$setElementOrder/"
DELETE = "$deleteFromPrimitiveList/"


class BadPatch(ValueError):
    """A directive is malformed: the request is bad."""


class BadDirective(ValueError):
    """An unknown ``$patch``, or a list of lists: the patch cannot be processed."""


class MergeFault(ValueError):
    """The patch does not fit the type: an item without its merge key."""


def merge(original: Object, patch: Object, shape: Shape) -> Object:
    """``original`` with the patch in it; neither is changed. Raise BadPatch, BadDirective, MergeFault."""
    return _merge_map(copy.deepcopy(original), copy.deepcopy(patch), shape)


def _merge_map(original: Object, patch: Object, shape: Shape) -> Object:
    if PATCH in patch:
        return _directed(patch)
    _retain(original, patch)
    _order_lists(original, patch, shape)
    for given, value in patch.items():
        deleting = given.startswith(DELETE)
        name = given.removeprefix(DELETE)
        if deleting:
            if not isinstance(value, list):
                raise BadPatch("invalid patch format of primitive list")
            held = original.get(name)
            if isinstance(held, list):
                original[name] = [one for one in held if not _among(one, value)]
        elif value is None:
            original.pop(name, None)
        elif name in original:
            original[name] = _merge_value(original[name], value, shape.member(name))
        else:
            original[name] = _taken(value)
    return original


def _merge_value(held: Any, value: Any, shape: Shape) -> Any:
    if isinstance(held, dict) and isinstance(value, dict):
        return _merge_map(held, value, shape)
    if isinstance(held, list) and isinstance(value, list):
        return _merge_list(held, value, shape) if shape.merged else _taken(value)
    return _taken(value)


def _directed(patch: Object) -> Object:
    directive = patch.pop(PATCH)
    if directive == "replace":
        return patch
    if directive == "delete":
        return {}
    raise BadDirective(f"unknown patch type: {directive} in map: {patch}")


def _retain(original: Object, patch: Object) -> None:
    if RETAIN not in patch:
        return
    kept = patch.pop(RETAIN)
    if not isinstance(kept, list):
        raise BadPatch("invalid patch format of retainKeys")
    for name, value in patch.items():
        if value is not None and not name.startswith("$") and name not in kept:
            raise BadPatch("invalid patch format of retainKeys")
    for name in [name for name in original if name not in kept]:
        del original[name]


def _taken(value: Any) -> Any:
    """What a patch sets where nothing was: without its nulls and directives."""
    if isinstance(value, dict):
        if value.get(PATCH) == "delete":
            return {}
        return {
            name: _taken(one)
            for name, one in value.items()
            if one is not None and not (name in (PATCH, RETAIN) or name.startswith((ORDER, DELETE)))
        }
    if isinstance(value, list):
        dropped = [one for one in value if not (isinstance(one, dict) and one.get(PATCH) == "delete")]
        kept = [one for one in dropped if not (isinstance(one, dict) and set(one) == {PATCH})]
        return [_taken(one) for one in kept]
    return value


def _order_lists(original: Object, patch: Object, shape: Shape) -> None:
    """Merge the lists that come with their order, and take both out of the patch."""
    for marker in [name for name in patch if name.startswith(ORDER)]:
        name = marker.removeprefix(ORDER)
        order = patch.pop(marker)
        if not isinstance(order, list):
            raise BadPatch("invalid patch format of setElementOrder list")
        held, given = original.get(name), patch.get(name)
        inner = shape.member(name)
        deleting = patch.pop(DELETE + name, None)
        if isinstance(held, list) and isinstance(deleting, list):
            held = original[name] = [one for one in held if not _among(one, deleting)]
        if name in patch and not isinstance(given, list):
            continue
        _check_order(order, given or [], inner.merge_key)
        if not isinstance(held, list):
            if isinstance(given, list):
                original[name] = _taken(given)
                del patch[name]
            continue
        merged = held
        if isinstance(given, list):
            merged = _merge_list(held, given, inner) if inner.merged else _taken(given)
            del patch[name]
        original[name] = _ordered(merged, order, held, inner.merge_key)


def _check_order(order: list[Any], given: list[Any], key: str) -> None:
    wanted = [_identity(one, key) for one in order]
    at = 0
    for item in given:
        if isinstance(item, dict) and item.get(PATCH):
            continue
        identity = _identity(item, key)
        while at < len(wanted) and not equal(wanted[at], identity):
            at += 1
        if at == len(wanted):
            raise BadPatch(
                f"The order in patch list:\n{given}\n doesn't match $setElementOrder list:\n{order}\n"
            )


def _identity(item: Any, key: str) -> Any:
    if not isinstance(item, dict):
        return item
    if key not in item:
        raise MergeFault(f"map: {item} does not contain declared merge key: {key}")
    return item[key]


def _merge_list(held: list[Any], given: list[Any], shape: Shape) -> list[Any]:
    if not held and not given:
        return held
    everything = held + given
    if not any(isinstance(one, dict) for one in everything):
        if any(isinstance(one, list) for one in everything):
            raise BadDirective("lists of lists are not supported")
        merged: list[Any] = []
        for one in everything:
            if not _among(one, merged):
                merged.append(one)
        return _ordered(merged, given, held, "")
    if not all(isinstance(one, dict) for one in everything):
        raise BadDirective("slice element types are not the same")
    key = shape.merge_key
    if not key:
        raise MergeFault("cannot merge lists without merge key")
    held, given = _special_items(held, given, key)
    merged = list(held)
    for item in given:
        identity = _identity(item, key)
        at = next((i for i, one in enumerate(merged) if equal(one.get(key), identity)), -1)
        if at < 0:
            merged.append(_taken(item))
        else:
            merged[at] = _merge_map(merged[at], item, shape.item)
    return _ordered(merged, given, held, key)


def _special_items(held: list[Any], given: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """The list with what ``$patch`` items ask for done, and the other items of the patch."""
    plain = []
    replace = False
    for item in given:
        directive = item.get(PATCH)
        if directive is None:
            plain.append(item)
        elif directive == "delete":
            identity = _identity(item, key)
            held = [one for one in held if not equal(one.get(key), identity)]
        elif directive == "replace":
            replace = True
        elif directive == "merge":
            raise BadPatch("merging lists cannot yet be specified in the patch")
        else:
            raise BadDirective(f"unknown patch type: {directive} in map: {item}")
    return (_taken(plain), []) if replace else (held, plain)


def _ordered(merged: list[Any], order: list[Any], server: list[Any], key: str) -> list[Any]:
    """Items named in ``order`` in that order, all others as they were, put together as the server does."""
    wanted = _places(order, key)
    places = _places(server, key)
    named = sorted(
        (one for one in merged if _place(one, key) in wanted), key=lambda x: wanted[_place(x, key)]
    )
    others = sorted(
        (one for one in merged if _place(one, key) not in wanted),
        key=lambda x: places.get(_place(x, key), len(places)),
    )
    result = []
    i = j = 0
    while i < len(named) and j < len(others):
        left, right = places.get(_place(named[i], key)), places.get(_place(others[j], key))
        if left is not None and right is not None and left < right:
            result.append(named[i])
            i += 1
        else:
            result.append(others[j])
            j += 1
    return result + named[i:] + others[j:]


def _places(items: list[Any], key: str) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for index, item in enumerate(items):
        found.setdefault(_place(item, key), index)
    return found


def _place(item: Any, key: str) -> Any:
    """Something to compare by: the type counts, for True is 1 to Python."""
    value = _identity(item, key)
    kind = bool if isinstance(value, bool) else str if isinstance(value, str) else float
    return kind, repr(value) if isinstance(value, (dict, list)) else value


def _among(value: Any, values: list[Any]) -> bool:
    return any(equal(value, one) for one in values)
