"""What all calls of a run say together: stdout holds the protocol alone, every call ends, stderr is quiet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from podwire.conformance.catalogue import ALL, Check
from podwire.conformance.findings import Problem, Severity
from podwire.conformance.invocation import Ran, shorten

_SHOWN = 5
_SILENT = ("CHECK", "DEL", "GC", "STATUS")


class Overall(msgspec.Struct, frozen=True):
    """A check of every call: ``fault`` tells what is wrong with one, or an empty text."""

    row: Check
    fault: Callable[[Ran], str]

    def judge(self, calls: Sequence[Ran]) -> list[Problem]:
        """Return the problems of all calls, the first few in full."""
        found = [Problem(ran.label, text) for ran in calls if (text := self.fault(ran))]
        more = len(found) - _SHOWN
        return found[:_SHOWN] + ([Problem("other calls", f"{more} more of the kind")] if more > 0 else [])


def _not_protocol(ran: Ran) -> str:
    if ran.hung or not ran.command or ran.status != 0:
        return ""
    if ran.command in _SILENT:
        wrong = bool(ran.stdout.strip())
    else:
        wrong = not isinstance(ran.said, dict) or ran.error is not None
    return ran.describe() if wrong else ""


def _no_error(ran: Ran) -> str:
    return ran.describe() if ran.status != 0 and not ran.hung and ran.error is None else ""


def _late(ran: Ran) -> str:
    return ran.describe() if ran.hung else ""


def _noise(ran: Ran) -> str:
    text = ran.stderr.decode(errors="replace")
    return f"stderr: {shorten(text)}" if ran.status == 0 and ran.command and text.strip() else ""


def _row(id: str, section: str, title: str, expected: str, severity: Severity = Severity.VIOLATION) -> Check:
    return Check(id, section, severity, title, expected, ALL, lambda _case: ())


OVERALL = (
    Overall(
        _row(
            "stdout",
            "2 Execution protocol",
            "Stdout of every call that succeeded",
            "one JSON object for ADD and VERSION, nothing for the other commands",
        ),
        _not_protocol,
    ),
    Overall(
        _row("failures", "5 Error", "Stdout of every call that failed", "an error of the protocol"), _no_error
    ),
    Overall(
        _row("deadline", "2 Execution protocol", "The end of every call", "an answer within the deadline"),
        _late,
    ),
    Overall(
        _row(
            "stderr",
            "2 Execution protocol",
            "Stderr of every call that succeeded",
            "nothing: runtimes keep it for failures",
            Severity.NOTE,
        ),
        _noise,
    ),
)
"""The rows of `podwire.conformance.catalogue` that need no host of their own."""
