"""From an exception to the words on stderr."""

from __future__ import annotations

import os
import sys

from podwire.cli.errors import CommandError


def report(error: Exception) -> int:
    """Say on stderr what went wrong and return the exit status.

    Errors of Podwire's own packages say what the user needs in ``str()``; an error of another kind is a fault
    in Podwire, and the report says how to see where.
    """
    if os.environ.get("PODWIRE_DEBUG", "0") not in {"", "0"}:
        import traceback

        traceback.print_exception(error)
    message, hint, status = words(error)
    _say(f"error: {message}")
    if hint:
        _say(hint)
    return status


def words(error: Exception) -> tuple[str, str, int]:
    """What to say about ``error``: a message, a hint or an empty text, and the exit status."""
    while isinstance(error, ExceptionGroup):
        # Tasks that ran side by side: the first one's trouble is the cause.
        error = error.exceptions[0]
    if isinstance(error, CommandError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return (f"{error.filename}: {reason}" if error.filename else reason), "", 1
    if type(error).__module__.startswith("podwire."):
        return str(error), "", 1
    return (
        f"a fault in podwire: {type(error).__name__}: {error}",
        "Run it again with PODWIRE_DEBUG=1 to see where, and report that.",
        1,
    )


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except BrokenPipeError:
        pass
