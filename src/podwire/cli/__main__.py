"""The entry point: runs a command and turns whatever goes wrong into a few clear words and an exit status.

0 is success, 1 a failure, 2 a command line that makes no sense, 130 an interrupt. A command that runs another
program (``exec``) passes that program's status on. PODWIRE_DEBUG=1 shows the traceback of an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return the exit status."""
    import typer

    from podwire.cli.app import app
    from podwire.cli.report import report

    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        status = app(args=arguments, prog_name="podwire", standalone_mode=False)
        sys.stdout.flush()
    except usage_error as error:
        return _usage(error, _named(app, arguments))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read the output has enough of it; what is still buffered must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last stop: whatever it is, the user gets words, not a trace
        return report(error)
    return status if isinstance(status, int) else 0


def _named(app: typer.Typer, arguments: Sequence[str]) -> str:
    """The command that the line names: an error in the middle of it does not say."""
    import typer

    names, command = ["podwire"], typer.main.get_command(app)
    for word in arguments:
        inner = getattr(command, "commands", {}).get(word)
        if inner is not None:
            names.append(word)
            command = inner
    return " ".join(names)


def _usage(error: Exception, command: str) -> int:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return 2
    print(f"error: {message}{_value(error)}", file=sys.stderr)
    print(f"see: {command} --help", file=sys.stderr)
    return 2


def _value(error: BaseException) -> str:
    """The refused value, where the message leaves it out: typer's validator keeps it in the cause."""
    details = getattr(error.__cause__, "errors", None)
    if not callable(details):
        return ""
    return f" (it is {details()[0].get('input')!r})"


if __name__ == "__main__":
    sys.exit(main())
