"""Time as a parameter, so that back-off and deadlines are tested without waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol

SECOND = 1_000_000_000
"""Nanoseconds in a second: wall times are nanoseconds, as in the CRI."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Call it off; nothing happens if it was made already."""


class Clock(Protocol):
    """What is asked of time."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def wall(self) -> int:
        """Nanoseconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """True once ``event`` is set, False when ``timeout`` seconds pass first."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the running loop when ``seconds`` have passed."""


class SystemClock:
    """The machine's own time."""

    def monotonic(self) -> float:
        """``time.monotonic``."""
        return time.monotonic()

    def wall(self) -> int:
        """``time.time_ns``."""
        return time.time_ns()

    async def sleep(self, seconds: float) -> None:
        """``asyncio.sleep``."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """See :class:`Clock`."""
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """``loop.call_later``."""
        return asyncio.get_running_loop().call_later(seconds, callback)


class VirtualClock:
    """Time that stands still until :meth:`advance` moves it; for tests and simulations."""

    def __init__(self, start: int = 1_750_000_000) -> None:
        self._start = start * SECOND
        self._now = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def wall(self) -> int:
        """The start plus what was advanced."""
        return self._start + int(self._now * SECOND)

    async def sleep(self, seconds: float) -> None:
        """Return when the clock was advanced that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """See :class:`Clock`."""
        if timeout is None or event.is_set():
            await event.wait()
            return True
        racers = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.sleep(timeout))]
        try:
            await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for racer in racers:
                racer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*racers, return_exceptions=True)
        return event.is_set()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """See :class:`Clock`."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due.add_done_callback(lambda future: None if future.cancelled() else callback())
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), due))
        return _Due(due)

    def next_due(self) -> float | None:
        """Seconds until something that waits is due; None when nothing waits."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return max(0.0, self._sleepers[0][0] - self._now) if self._sleepers else None

    async def advance(self, seconds: float) -> None:
        """Move time on, waking each sleeper at its own moment and letting the woken run before the next."""
        target = self._now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            at, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = max(self._now, at)
            future.set_result(None)
            await self.settle()
        self._now = target
        await self.settle()

    async def settle(self, rounds: int = 60) -> None:
        """Let every task that can run without time passing do so."""
        for _ in range(rounds):
            await asyncio.sleep(0)


class _Due:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def cancel(self) -> None:
        self._future.cancel()


@asynccontextmanager
async def deadline(clock: Clock, seconds: float | None) -> AsyncIterator[None]:
    """``asyncio.timeout`` by ``clock``: TimeoutError when the block is not left after ``seconds``."""
    async with asyncio.timeout(None) as timeout:
        if seconds is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timer = clock.call_later(seconds, lambda: timeout.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC with whole seconds, as the Kubernetes API writes times."""
    return datetime.fromtimestamp(nanoseconds // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC with microseconds: metav1.MicroTime."""
    return datetime.fromtimestamp(nanoseconds / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
