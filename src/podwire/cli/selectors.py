"""Label selectors as kubectl's ``-l`` takes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from podwire.cli.errors import usage

_KEY = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term: ``key`` has one of ``values`` (``wanted``) or none of them; no values: the key is there."""

    key: str
    wanted: bool
    values: tuple[str, ...] | None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with ``labels`` is meant."""
        if self.values is None:
            return (self.key in labels) == self.wanted
        return (labels.get(self.key) in self.values) == self.wanted


@dataclass(frozen=True, slots=True)
class Selector:
    """All of the requirements; none: everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with ``labels`` is meant."""
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse(text: str) -> Selector:
    """Read ``text``; a term that is none of the forms is an error that shows it."""
    return Selector(tuple(_requirement(term.strip(), text) for term in _terms(text)))


def _terms(text: str) -> list[str]:
    return re.split(r",(?![^(]*\))", text) if text.strip() else []


def _requirement(term: str, text: str) -> Requirement:
    if match := _EQUALITY.fullmatch(term):
        return Requirement(match[1], match[2] != "!=", (match[3],))
    if match := _SET.fullmatch(term):
        values = tuple(value.strip() for value in match[3].split(","))
        if all(re.fullmatch(_VALUE, value) for value in values):
            return Requirement(match[1], match[2] == "in", values)
    if match := _EXISTS.fullmatch(term):
        return Requirement(match[2], not match[1], None)
    raise usage(
        f"--selector {text!r}: {term!r} is not a label requirement",
        hint="Write k=v, k!=v, k, !k, 'k in (a,b)' or 'k notin (a,b)', joined by commas.",
    )
