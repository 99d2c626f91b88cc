"""What is wrong with a manifest: each fault names file, line, field, value and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def printable(text: str) -> str:
    """The text on one line, what cannot be shown as escapes."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault. ``field`` is a path such as ``spec.containers[0].image``, empty for the whole file.

    ``line`` and ``column`` count from 1; None where the text has no such place. ``value`` is the value as
    written, shortened, empty where there is none.
    """

    file: str
    line: int | None
    column: int | None
    field: str
    value: str
    message: str

    def __post_init__(self) -> None:
        for name in ("field", "value", "message"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part not in (None, ""))
        return ": ".join(part for part in (place, self.text) if part)

    @property
    def text(self) -> str:
        """Field, value and message, without the place."""
        return ": ".join(part for part in (self.field, self.value, self.message) if part)


class ManifestError(Exception):
    """A manifest that cannot be used. ``errors`` holds every fault found, in the order of the text.

    ``reason`` is FailedParse (not YAML, not a Pod) or FailedValidation (a Pod that breaks a rule).
    """

    def __init__(self, reason: str, errors: Sequence[FieldError], pod: str = "") -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.reason = reason
        self.errors = tuple(errors)
        self.pod = pod

    @property
    def file(self) -> str:
        """The file, as it was named to the reader."""
        return self.errors[0].file

    @property
    def line(self) -> int | None:
        """The line of the first fault."""
        return self.errors[0].line
