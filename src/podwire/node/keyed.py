"""Work by key: one thing at a time for each key, several keys side by side, failures tried again later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from podwire.kube.errors import KubeError
from podwire.node.clock import Clock

FIRST_DELAY = 0.5
LAST_DELAY = 30.0


class KeyedWork:
    """Calls ``work`` for each key that is marked; marks that come meanwhile are one more call.

    A KubeError is told to ``failed`` and followed by another try after a delay that doubles from 0.5 to 30 s;
    a mark does not cut it short. Two calls for a key begin at least ``spacing`` seconds apart. At most
    ``parallel`` calls run at once.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        clock: Clock,
        *,
        failed: Callable[[str, KubeError, int], None] = lambda key, error, failures: None,
        spacing: float = 0.0,
        parallel: int = 8,
    ) -> None:
        self._work = work
        self._clock = clock
        self._failed = failed
        self._spacing = spacing
        self._limit = asyncio.Semaphore(parallel)
        self._dirty: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def mark(self, key: str) -> None:
        """There is something to do for ``key``."""
        self._dirty.add(key)
        if key not in self._tasks:
            self._idle.clear()
            self._tasks[key] = asyncio.create_task(self._serve(key), name=f"work {key}")

    async def idle(self) -> None:
        """Wait until nothing is marked, under way or waiting for its next try."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stop all work."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, key: str) -> None:
        failures = 0
        try:
            while key in self._dirty:
                self._dirty.discard(key)
                began = self._clock.monotonic()
                try:
                    async with self._limit:
                        await self._work(key)
                    failures = 0
                except KubeError as error:
                    failures += 1
                    self._failed(key, error, failures)
                    self._dirty.add(key)
                    await self._clock.sleep(min(FIRST_DELAY * 2 ** min(failures - 1, 10), LAST_DELAY))
                    continue
                left = began + self._spacing - self._clock.monotonic()
                if key in self._dirty and left > 0:
                    await self._clock.sleep(left)
        finally:
            del self._tasks[key]
            self._dirty.discard(key)
            if not self._tasks:
                self._idle.set()
