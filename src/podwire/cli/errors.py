"""What a command says when it cannot go on."""

from __future__ import annotations


class CommandError(Exception):
    """A failure told in one line: ``message``, an optional ``hint`` on the next line, and the exit status.

    The status is 1 for a failure and 2 for a command line that makes no sense.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def usage(message: str, *, hint: str = "") -> CommandError:
    """A command line that makes no sense: exit status 2."""
    return CommandError(message, hint=hint, exit_code=2)
