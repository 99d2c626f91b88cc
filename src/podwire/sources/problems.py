"""What is wrong with a source now, for a person to see: listed while it lasts, gone when it is cured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """What kind of problem it is; these are the reasons of the events made of them."""

    FAILED_PARSE = "FailedParse"
    FAILED_VALIDATION = "FailedValidation"
    FAILED_READ = "FailedRead"
    AMBIGUOUS_PORT = "AmbiguousHostPort"
    DUPLICATE_NAME = "DuplicateName"
    IGNORED_FILE = "IgnoredFile"
    MISSING_PATH = "MissingPath"
    FAILED_WATCH = "FailedWatch"
    FAILED_REGISTRATION = "FailedRegistration"


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """One problem. ``subject`` is the file, ``pod`` the namespace/name it concerns, as far as known.

    ``line`` is where in the file; ``message`` tells field, value and what is expected. ``kept`` says that the
    last good pod of the file still runs.
    """

    source: str
    subject: str
    line: int | None
    reason: Reason
    message: str
    pod: str = ""
    kept: bool = False

    @property
    def type(self) -> str:
        """The event type: Normal for what may well be meant so, else Warning."""
        return "Normal" if self.reason in (Reason.IGNORED_FILE, Reason.MISSING_PATH) else "Warning"

    def __str__(self) -> str:
        place = self.subject if self.line is None else f"{self.subject}:{self.line}"
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} (the last good pod is kept)" if self.kept else text


@dataclass(frozen=True, slots=True)
class ProblemChange:
    """What a new list of problems brought and took away."""

    appeared: tuple[SourceProblem, ...]
    cured: tuple[SourceProblem, ...]


class Problems:
    """The problems of all sources. A source gives its whole list each time; listeners hear the difference."""

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[SourceProblem, ...]] = {}
        self._listeners: list[Callable[[ProblemChange], None]] = []

    def replace(self, key: str, problems: Iterable[SourceProblem]) -> ProblemChange:
        """Put ``problems`` in the place of what ``key`` had before."""
        before, now = self._by_key.get(key, ()), tuple(dict.fromkeys(problems))
        self._by_key[key] = now
        change = ProblemChange(
            tuple(p for p in now if p not in before), tuple(p for p in before if p not in now)
        )
        if change.appeared or change.cured:
            for listener in tuple(self._listeners):
                listener(change)
        return change

    def current(self) -> tuple[SourceProblem, ...]:
        """All problems there are now."""
        return tuple(problem for problems in self._by_key.values() for problem in problems)

    def subscribe(self, listener: Callable[[ProblemChange], None]) -> Callable[[], None]:
        """Call ``listener`` with each change from now on; the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
