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
    if isinstance(error, CommandError):
        _say(f"error: {error.message}")
        if error.hint:
            _say(error.hint)
        return error.exit_code
    if isinstance(error, OSError):
        _say(f"error: {_os_error(error)}")
        return 1
    if type(error).__module__.startswith("podwire."):
        _say(f"error: {error}")
        return 1
    _say(f"error: a fault in podwire: {type(error).__name__}: {error}")
    _say("Run it again with PODWIRE_DEBUG=1 to see where, and report that.")
    return 1


def _os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except BrokenPipeError:
        pass
