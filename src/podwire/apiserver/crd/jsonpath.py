r"""The JSONPath of printer columns and scale: fields, indexes, all items, and filters that compare.

``.spec.replicas``, ``.metadata.labels['a.b/c']``, ``.metadata.labels.a\.b``, ``.spec.ports[0].port``,
``.status.conditions[?(@.type=="Ready")].status``, ``.spec.items[*].name``, ``.spec.list[0:2]``.
Source: k8s.io/client-go/util/jsonpath.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], list[Any]]

_NAME = re.compile(r"\.((?:[^.\[\]\\\s'\"*]|\\.)+)")
_QUOTED = re.compile(r"\[\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")\s*\]")
_INDEX = re.compile(r"\[\s*(-?\d+)\s*\]")
_SLICE = re.compile(r"\[\s*(-?\d*)\s*:\s*(-?\d*)\s*\]")
_ALL = re.compile(r"\[\s*\*\s*\]|\.\*")
_FILTER = re.compile(
    r"\[\?\(\s*@((?:[^=!<>()'\"]|'[^']*'|\"[^\"]*\")*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.*?))?\s*\)\]"
)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class BadPath(ValueError):
    """A path that cannot be read."""


class Path:
    """A path, read once. Raise BadPath."""

    def __init__(self, text: str) -> None:
        if not text.startswith("."):
            raise BadPath("must be a simple json path starting with .")
        self._steps = _steps(text, text)

    def find(self, value: Any) -> list[Any]:
        """All values there; none is no error."""
        found = [value]
        for step in self._steps:
            found = [one for value in found for one in step(value)]
        return found

    def first(self, value: Any) -> Any:
        """The first value there, None if there is none."""
        found = self.find(value)
        return found[0] if found else None


def fields(text: str) -> list[str] | None:
    """The names of a path of fields only, such as ``.spec.replicas``; None for any other."""
    names = []
    at = 0
    while at < len(text):
        match = _NAME.match(text, at)
        if match is None:
            return None
        names.append(_plain(match[1]))
        at = match.end()
    return names or None


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _steps(text: str, whole: str) -> list[Step]:
    steps: list[Step] = []
    at = 0
    while at < len(text):
        if match := _ALL.match(text, at):
            steps.append(_all)
        elif match := _NAME.match(text, at):
            steps.append(_member(_plain(match[1])))
        elif match := _QUOTED.match(text, at):
            steps.append(_member(_plain(match[1] if match[1] is not None else match[2])))
        elif match := _INDEX.match(text, at):
            index = int(match[1])
            steps.append(_slice(slice(index, index + 1 or None)))
        elif match := _SLICE.match(text, at):
            first, last = (int(part) if part else None for part in match.groups())
            steps.append(_slice(slice(first, last)))
        elif match := _FILTER.match(text, at):
            steps.append(_filter(match, whole))
        else:
            raise BadPath(f"is an invalid path: {text[at:]!r} cannot be read in {whole!r}")
        at = match.end()
    return steps


def _member(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _slice(part: slice) -> Step:
    return lambda value: value[part] if isinstance(value, list) else []


def _all(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _filter(match: re.Match[str], whole: str) -> Step:
    left = _steps(match[1].strip(), whole)
    compare = _OPERATORS.get(match[2] or "")
    right: Any = _literal(match[3], whole) if compare is not None else None

    def holds(item: Any) -> bool:
        found = [item]
        for step in left:
            found = [one for value in found for one in step(value)]
        if compare is None:
            return bool(found)
        try:
            return bool(found) and bool(compare(found[0], right))
        except TypeError:
            return False

    return lambda value: [item for item in value if holds(item)] if isinstance(value, list) else []


def _literal(text: str, whole: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        raise BadPath(f"is an invalid path: {text!r} is no value, in {whole!r}") from None
