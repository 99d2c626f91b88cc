"""Progress of work that takes a while: a bar on a terminal, one line anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[], None]]:
    """Show ``text`` and how far it is; the function that it gives counts one of ``total`` as done."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as shown:
        task = shown.add_task(text, total=total)
        yield lambda: shown.advance(task)
