"""Tasks and generators that end when they are told, with nothing left of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def unless(ending: asyncio.Task[Any], work: Coroutine[Any, Any, _T]) -> _T | None:
    """What the work returns; None if the other ends first, and then the work is cancelled."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, ending), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        await cancelled(task)


@contextlib.asynccontextmanager
async def closing(pieces: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """A generator is ended here and not when it is collected as garbage; other iterators need no end."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    # Not gather: cancelled itself, it would cancel the tasks again in the middle of their clearing up.
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
