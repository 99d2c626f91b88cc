"""What a check found: problems, each with what was done and what was seen instead of what was expected."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.StrEnum):
    """How much a problem weighs, the heaviest first."""

    VIOLATION = "violation"
    """The specification is broken, or a resource is lost: a runtime or a node will suffer."""
    WEAKNESS = "weakness"
    """Less than the specification recommends ("should"), or than an operator needs."""
    NOTE = "note"
    """Different from the letter of the specification, and no runtime is known to care."""


class Status(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it should be: what was done, and what was seen."""

    did: str
    observed: str
    severity: Severity | None = None
    """None: the severity of the check."""


class Outcome(msgspec.Struct, frozen=True):
    """One check of one plugin. ``section`` is the specification's; ``seconds`` is how long it took."""

    plugin: str
    check: str
    title: str
    section: str
    severity: Severity
    expected: str
    status: Status
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    @property
    def weight(self) -> Severity:
        """The worst severity of its problems."""
        order = list(Severity)
        return min((one.severity or self.severity for one in self.problems), key=order.index)

    def weighs(self, least: Severity) -> bool:
        """Whether it found a problem that weighs ``least`` or more."""
        order = list(Severity)
        return self.status is Status.FAILED and order.index(self.weight) <= order.index(least)

    @property
    def violated(self) -> bool:
        """Whether it found a violation."""
        return self.status is Status.FAILED and self.weight is Severity.VIOLATION


class Skip(Exception):
    """A check does not apply, or cannot be done here; ``str()`` is the reason."""


class NotTestable(Exception):
    """The plugin, its configuration or this machine does not allow a run at all; ``str()`` says why."""
