"""How long programs may take to end, which may become less while they are being stopped.

Source: k8s.io/kubernetes pkg/kubelet/pod_workers.go, calculateEffectiveGracePeriod: a grace period can only
decrease, and a kill that is under way begins anew with what is left of it.
"""

from __future__ import annotations

import asyncio
import math
from weakref import WeakSet

from podwire.node.clock import Clock


class Grace:
    """A moment until which programs may go on. It may come nearer, and never moves away."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.at_once = seconds <= 0
        """No time at all was given: programs are killed without a word."""
        self._clock = clock
        self._until = clock.monotonic() + seconds
        self._shortened = asyncio.Event()

    @property
    def left(self) -> float:
        """Seconds from now on, at least 0."""
        return max(0.0, self._until - self._clock.monotonic())

    def shorten(self, seconds: float) -> None:
        """Allow so many seconds from now on, if that is less."""
        until = self._clock.monotonic() + seconds
        if until < self._until:
            self._until = until
            self.at_once = self.at_once or seconds <= 0
            self._shortened.set()
            self._shortened = asyncio.Event()

    async def done_or_shortened(self, work: asyncio.Future[None]) -> bool:
        """Wait for ``work``; False if it has less time now than when this was called."""
        return await _done_or(self._shortened, work)

    async def done_or_cut_short(self, work: asyncio.Future[None]) -> bool:
        """Wait for ``work``, which keeps by itself to the time that is left now.

        False if it was given less meanwhile and that is over.
        """
        if await self.done_or_shortened(work):
            return True
        while not work.done() and self.left > 0:
            over = asyncio.ensure_future(self._clock.sleep(self.left))
            shorter = asyncio.ensure_future(self.done_or_shortened(work))
            try:
                await asyncio.wait((over, shorter), return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                shorter.cancel()
        return work.done()


class Graces:
    """The grace periods of one pod's programs that run now: all are shortened together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most = math.inf
        self._running: WeakSet[Grace] = WeakSet()
        self._ending = asyncio.Event()

    def begin(self, seconds: float) -> Grace:
        """So many seconds from now on, or fewer if no more are allowed."""
        made = Grace(self._clock, min(seconds, self._most))
        self._running.add(made)
        return made

    async def done_or_ending(self, work: asyncio.Future[None]) -> bool:
        """Wait for ``work``; False if the pod has to end first."""
        return await _done_or(self._ending, work)

    def allow(self, seconds: float) -> None:
        """Allow no more than so many seconds from now on, whatever was begun."""
        self._most = min(seconds, self._most)
        self._ending.set()
        for grace in self._running:
            grace.shorten(seconds)


async def _done_or(event: asyncio.Event, work: asyncio.Future[None]) -> bool:
    """Wait for either; whether ``work`` is done."""
    happened = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, happened), return_when=asyncio.FIRST_COMPLETED)
    finally:
        happened.cancel()
    return work.done()
