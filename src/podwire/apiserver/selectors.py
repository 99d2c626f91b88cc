"""Label and field selectors in the grammar of the API.

Source: k8s.io/apimachinery/pkg/labels/selector.go and pkg/fields/selector.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from podwire.kube import names
from podwire.serving.status import bad_request, quoted

Object = dict[str, Any]

_TOKEN = re.compile(r"\s*(==|!=|=|!|<|>|\(|\)|,|[^\s=!<>(),]+)")
_WORD = re.compile(r"[^\s=!<>(),]+")
_OPERATORS = ("=", "==", "!=", "in", "notin", ">", "<")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition; ``operator`` is in, notin, exists, !, > or <."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy it. An absent key satisfies notin and !, nothing else."""
        value = labels.get(self.key)
        if value is None:
            return self.operator in ("notin", "!")
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case "exists":
                return True
            case "!":
                return False
        (bound,) = self.values
        try:
            number = int(value)
        except ValueError:
            return False
        return number > int(bound) if self.operator == ">" else number < int(bound)


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The requirements of a labelSelector, all of which must hold. Raise Failure 400."""
    tokens = _tokens(text)
    found: list[Requirement] = []
    while tokens:
        found.append(_requirement(tokens, text))
        if not tokens:
            break
        if tokens.pop(0) != "," or not tokens:
            raise bad_request(f"unable to parse requirement: found {quoted(text)}, expected: ',' or end")
    return tuple(found)


def _tokens(text: str) -> list[str]:
    tokens = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        assert match is not None
        tokens.append(match[1])
        at = match.end()
    return tokens


def _requirement(tokens: list[str], text: str) -> Requirement:
    absent = tokens[0] == "!"
    if absent:
        tokens.pop(0)
    if not tokens or not _WORD.fullmatch(tokens[0]):
        found = tokens[0] if tokens else ""
        raise bad_request(f"unable to parse requirement: found '{found}', expected: identifier")
    key = tokens.pop(0)
    if wrong := names.qualified_name(key):
        raise bad_request(f"unable to parse requirement: <nil>: Invalid value: {quoted(key)}: {wrong}")
    if absent:
        return Requirement(key, "!")
    if not tokens or tokens[0] == ",":
        return Requirement(key, "exists")
    operator = tokens.pop(0)
    if operator not in _OPERATORS:
        expected = ", ".join(_OPERATORS)
        raise bad_request(f"unable to parse requirement: found '{operator}', expected: {expected}")
    values = _set(tokens) if operator in ("in", "notin") else _single(tokens)
    for value in values:
        if operator in "<>":
            if not re.fullmatch(r"[-+]?\d+", value):
                raise bad_request(
                    f"unable to parse requirement: values[0][{key}]: Invalid value: {quoted(value)}:"
                    f" for 'Gt', 'Lt' operators, the value must be an integer"
                )
        elif wrong := names.label_value(value):
            raise bad_request(
                f"unable to parse requirement: values[0][{key}]: Invalid value: {quoted(value)}: {wrong}"
            )
    operator = {"=": "in", "==": "in", "!=": "notin"}.get(operator, operator)
    return Requirement(key, operator, frozenset(values))


def _single(tokens: list[str]) -> list[str]:
    return [tokens.pop(0)] if tokens and _WORD.fullmatch(tokens[0]) else [""]


def _set(tokens: list[str]) -> list[str]:
    if not tokens or tokens.pop(0) != "(":
        raise bad_request("unable to parse requirement: expected: '('")
    values = [""]
    while tokens:
        token = tokens.pop(0)
        if token == ")":
            return values
        if token == ",":
            values.append("")
        elif values[-1] or not _WORD.fullmatch(token):
            raise bad_request(f"unable to parse requirement: found '{token}', expected: ',', or ')'")
        else:
            values[-1] = token
    raise bad_request("unable to parse requirement: found '', expected: ',' or ')'")


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a fieldSelector."""

    field: str
    value: str
    equal: bool


def parse_fields(text: str) -> tuple[Term, ...]:
    """The terms of a fieldSelector, all of which must hold. Raise Failure 400."""
    terms = []
    for part in _split(text):
        match = re.match(r"((?:[^=!\\]|\\.|!(?!=))*)(==|!=|=)(.*)", part, re.DOTALL)
        if match is None:
            raise bad_request(f"invalid selector: {quoted(text)}; can't understand {quoted(part)}")
        terms.append(Term(match[1], _unescaped(match[3], text), match[2] != "!="))
    return tuple(terms)


def _split(text: str) -> list[str]:
    parts, current, escaped = [], "", False
    for character in text:
        if character == "," and not escaped:
            parts.append(current)
            current = ""
        else:
            current += character
        escaped = character == "\\" and not escaped
    return [part for part in (*parts, current) if part]


def _unescaped(value: str, text: str) -> str:
    result, escaped = "", False
    for character in value:
        if escaped:
            if character not in "\\,=":
                raise bad_request(f"invalid field selector: invalid escape sequence: {quoted(text)}")
            result += character
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in ",=":
            raise bad_request(f"invalid field selector: unescaped character in value: {quoted(text)}")
        else:
            result += character
    if escaped:
        raise bad_request(f"invalid field selector: invalid escape sequence: {quoted(text)}")
    return result


def field_check(
    terms: tuple[Term, ...], known: Mapping[str, Callable[[Object], str]]
) -> list[tuple[Callable[[Object], str], Term]]:
    """The terms with the functions that read their fields. Raise Failure 400 for a field not known."""
    pairs = []
    for term in terms:
        read = known.get(term.field)
        if read is None and len(known) > 2:
            raise bad_request(f"field label not supported: {term.field}")
        if read is None:
            only = ", ".join(quoted(name) for name in known)
            raise bad_request(f"{quoted(term.field)} is not a known field selector: only {only}")
        pairs.append((read, term))
    return pairs
