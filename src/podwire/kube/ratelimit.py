"""How fast a client may ask: a token bucket whose queue lets urgent requests go first."""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools

from podwire.kube.clock import Clock, Timer


class Priority(enum.Enum):
    """How long a request gives way to others: seconds by which others may come later and still go first.

    A bound in seconds in place of strict order, so that under a steady load of urgent requests the others are
    late but do not starve.
    """

    URGENT = 0.0
    NORMAL = 2.0
    BULK = 10.0


class TokenBucket:
    """``qps`` requests a second on average, up to ``burst`` at once."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps {qps} and burst {burst}: above 0 and at least 1 are needed")
        self._qps = qps
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock.monotonic()
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timer: Timer | None = None

    def try_take(self) -> bool:
        """Take a token if there is one and nobody waits."""
        self._refill()
        if self._waiting or self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def take(self, priority: Priority = Priority.NORMAL) -> None:
        """Wait for a token."""
        if self.try_take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rank = self._clock.monotonic() + priority.value
        heapq.heappush(self._waiting, (rank, next(self._order), turn))
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._tokens += 1  # it was given one at the same moment: the next may have it
                self._hand_out()
            raise

    @property
    def waiting(self) -> int:
        """How many wait for a token."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
        self._at = now

    def _hand_out(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refill()
        while self._waiting:
            if self._waiting[0][2].done():
                heapq.heappop(self._waiting)
                continue
            # Sums of small floats fall short of 1 by an ulp or two; the timer would fire for nothing.
            if self._tokens < 1 - 1e-9:
                self._timer = self._clock.call_later((1 - self._tokens) / self._qps, self._hand_out)
                return
            self._tokens -= 1
            heapq.heappop(self._waiting)[2].set_result(None)
