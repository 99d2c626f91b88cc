"""How things are printed: plain columns into a pipe or file, the same in colour on a terminal."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence

from podwire.cli.rows import columns, visible

_GOOD = {"Running", "Completed", "Succeeded", "Ready", "Normal"}
_ANSI = {"green": "\x1b[32m", "yellow": "\x1b[33m", "red": "\x1b[31m"}
_WAIT = {"Pending", "ContainerCreating", "PodInitializing", "Terminating", "NotReady", "Unknown"}


def colourful() -> bool:
    """Whether standard output is a terminal whose user wants colour (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style_of(word: str) -> str:
    """The colour of a status word; empty for words that are none."""
    if word in _GOOD:
        return "green"
    if word in _WAIT or word.startswith("Init:"):
        return "yellow"
    return "red"


def print_table(
    headings: Sequence[str], lines: Iterable[Sequence[str]], *, status: str = "STATUS", shown: bool = True
) -> None:
    """Print aligned columns; on a terminal the heading is bold and the column ``status`` coloured.

    ``shown`` False leaves the heading out.
    """
    cells = [tuple(map(visible, line)) for line in lines]
    heading, *text = columns(headings, cells)
    if not colourful():
        print("\n".join([heading, *text] if shown else text), flush=True)
        return
    if shown:
        print(f"\x1b[1m{heading}\x1b[0m")
    at = headings.index(status) if status in headings else None
    start = heading.index(status) if at is not None else 0
    for line, row in zip(text, cells, strict=True):
        if at is None:
            print(line)
        else:
            end = start + len(row[at])
            print(f"{line[:start]}{_ANSI[style_of(row[at])]}{row[at]}\x1b[0m{line[end:]}")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something to the person at the keyboard without mixing it into the answer: on stderr."""
    print(text, file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line of what happens; that the disk of a log is full is no reason to end."""
    try:
        print(text, flush=True)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
