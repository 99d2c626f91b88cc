"""How the validation rules are written: a list of faults, and checks that add to it."""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

INT32_MAX = (1 << 31) - 1


class Reason(enum.Enum):
    """How a value is wrong, for those who act on it; the values are those of metav1.CauseType."""

    INVALID = "FieldValueInvalid"
    REQUIRED = "FieldValueRequired"
    NOT_SUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    NOT_FOUND = "FieldValueNotFound"


@dataclass(frozen=True, slots=True)
class Invalid:
    """A field that breaks a rule, its value as JSON (empty if there is none), and the rule."""

    field: str
    value: str
    message: str
    reason: Reason = Reason.INVALID


class Rules:
    """The faults of one object, in the order in which they were found."""

    def __init__(self) -> None:
        self.invalid: list[Invalid] = []

    def add(self, field: str, value: object, message: str, reason: Reason = Reason.INVALID) -> None:
        """Note that ``value`` in ``field`` is wrong; None for a value that is not there."""
        text = "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
        self.invalid.append(Invalid(field, text if len(text) <= 80 else text[:77] + "...", message, reason))

    def required(self, field: str, value: object) -> bool:
        """Whether there is a value; a fault if not."""
        if not value:
            self.add(field, None, "this field is required", Reason.REQUIRED)
        return bool(value)

    def syntax(
        self, field: str, text: str, check: Callable[[str], str], reason: Reason = Reason.INVALID
    ) -> None:
        """``check`` gives what is wrong with the text, or nothing."""
        if wrong := check(text):
            self.add(field, text, wrong, reason)

    def one_of(self, field: str, text: str, allowed: Collection[str]) -> None:
        """The text is one of a few, or left out."""
        if not text or text in allowed:
            return
        names = list(allowed)
        near = [n for n in names if n.lower() == text.lower()] or difflib.get_close_matches(text, names, n=1)
        hint = f': did you mean "{near[0]}"?' if near else ""
        self.add(field, text, f"one of {', '.join(names)} is expected{hint}", Reason.NOT_SUPPORTED)

    def between(
        self,
        field: str,
        number: int | None,
        low: int,
        high: int | None = None,
        *,
        reason: Reason = Reason.INVALID,
    ) -> None:
        """The number is in the range, both ends included, or left out; without ``high`` it is an int32."""
        if number is None or low <= number <= (INT32_MAX if high is None else high):
            return
        limit = f"{low} or more" if high is None and number < low else f"{low} to {high or INT32_MAX}"
        self.add(field, number, f"{limit} is expected", reason)

    def exactly_one(self, field: str, present: Iterable[str], choices: str) -> None:
        """Exactly one of several fields is set."""
        names = list(present)
        if not names:
            self.add(field, None, f"one of {choices} is required", Reason.REQUIRED)
        elif len(names) > 1:
            self.add(field, None, f"only one is allowed, and here are {' and '.join(names)}")

    def unique(self, fields: Iterable[tuple[str, object]], what: str) -> None:
        """No two of the values are equal."""
        first: dict[object, str] = {}
        for field, value in fields:
            if value in first:
                told = f"{what} is here twice, first in {first[value]}"
                self.add(field, value, told, Reason.DUPLICATE)
            else:
                first[value] = field
