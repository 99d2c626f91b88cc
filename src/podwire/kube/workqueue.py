"""Work to do by key: each key once, its newest value, by one worker at a time.

After k8s.io/client-go/util/workqueue. A key that is added while it is being worked on comes again when that
is done. Keys wait in groups (their namespace, for instance) which take turns, so that one group with
thousands of keys does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from podwire.kube.clock import Clock, SystemClock, Timer
from podwire.kube.ratelimit import TokenBucket

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ShutDown(Exception):
    """The queue takes and gives no more."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long a key waits after it has failed: ``initial`` seconds doubling to ``maximum``, plus jitter.

    ``jitter`` is the part of the delay that chance may add. After ``give_up`` seconds of failing (None:
    never) the key is dropped.
    """

    initial: float = 0.005
    maximum: float = 60.0
    jitter: float = 0.2
    give_up: float | None = None


@dataclass(slots=True)
class _Failing:
    times: int
    since: float


class WorkQueue(Generic[K, V]):
    """Keys with values. ``add`` never waits; ``get`` waits for work and must be followed by ``done``."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        delays: Delays | None = None,
        qps: float | None = None,
        burst: int = 100,
        group: Callable[[K], Hashable] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``qps`` and ``burst`` limit how fast failed keys come again, all of them together."""
        self._clock = clock or SystemClock()
        self._delays = delays or Delays()
        self._bucket = TokenBucket(qps, burst, self._clock) if qps is not None else None
        self._group = group or (lambda key: None)
        self._random = rng or random.Random()
        self._values: dict[K, V] = {}
        """Every key that is to be worked on, with its newest value."""
        self._waiting: OrderedDict[Hashable, deque[K]] = OrderedDict()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._later: dict[K, tuple[float, Timer]] = {}
        self._later_values: dict[K, V] = {}
        """The newest value of each key that is due later or waits for its turn to be."""
        self._failing: dict[K, _Failing] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._limited: dict[K, asyncio.Task[None]] = {}
        """Keys that have failed and wait for their turn under the common limit."""
        self._shut = False

    def __len__(self) -> int:
        """Keys that wait for a worker, without those that are due later."""
        return sum(key in self._values for key in self._queued)  # others were dropped

    def __contains__(self, key: K) -> bool:
        """Whether something is still to be done for the key, now or later, or is being done."""
        return key in self._values or key in self._working or key in self._later_values

    def add(self, key: K, value: V) -> None:
        """There is work for the key; ``value`` takes the place of one that still waits."""
        if self._shut:
            return
        self._values[key] = value
        if key in self._later_values:
            self._later_values[key] = value  # nothing older comes after this
        self._idle.clear()
        if key not in self._working and key not in self._queued:
            self._enqueue(key)

    def add_after(self, key: K, value: V, seconds: float) -> None:
        """Add the key later. If it is due already it stays due at the sooner time, with the newer value."""
        if self._shut:
            return
        if seconds <= 0:
            self.add(key, value)
            return
        self._later_values[key] = value
        self._schedule(key, seconds)

    def again(self, key: K, value: V, seconds: float) -> None:
        """Add later a key that was worked on with ``value``; a value that was added since then stays."""
        if self._shut or key in self._values:
            return
        self._later_values.setdefault(key, value)
        self._schedule(key, seconds)

    def _schedule(self, key: K, seconds: float) -> None:
        due = self._clock.monotonic() + max(seconds, 0.0)
        known = self._later.get(key)
        if known is not None:
            if known[0] <= due:
                return
            known[1].cancel()
        self._idle.clear()
        self._later[key] = due, self._clock.call_later(max(seconds, 0.0), lambda: self._due(key))

    def retry(self, key: K, value: V) -> float | None:
        """The key has failed: add it after the delay for that, as ``again`` does.

        Returns the delay, None if the key was given up.
        """
        now = self._clock.monotonic()
        failing = self._failing.setdefault(key, _Failing(0, now))
        give_up = self._delays.give_up
        if give_up is not None and now - failing.since >= give_up:
            self.forget(key)
            return None
        delay = min(self._delays.initial * float(2 ** min(failing.times, 60)), self._delays.maximum)
        delay *= 1 + self._delays.jitter * self._random.random()
        failing.times += 1
        if self._bucket is None:
            self.again(key, value, delay)
        elif not self._shut and key not in self._values:
            self._later_values.setdefault(key, value)
            if key not in self._limited:
                self._idle.clear()
                again = self._again_in_turn(self._bucket, key, delay)
                self._limited[key] = asyncio.get_running_loop().create_task(again)
        return delay

    def forget(self, key: K) -> None:
        """The key has succeeded, or is of no more interest: its failures count no more."""
        self._failing.pop(key, None)

    def drop(self, key: K) -> None:
        """Forget the key and all that still waits for it."""
        self.forget(key)
        self._values.pop(key, None)
        self._later_values.pop(key, None)
        later = self._later.pop(key, None)
        if later is not None:
            later[1].cancel()
        limited = self._limited.pop(key, None)
        if limited is not None:
            limited.cancel()
        self._check_idle()

    def failures(self, key: K) -> int:
        """How many times in a row the key has failed."""
        failing = self._failing.get(key)
        return failing.times if failing is not None else 0

    async def get(self) -> tuple[K, V]:
        """The next key and its newest value. Raises ShutDown when there is no more and never will be."""
        while True:
            key = self._pop()
            if key is not None:
                self._working.add(key)
                return key, self._values.pop(key)
            if self._shut:
                raise ShutDown
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()
                raise
            finally:
                if turn in self._getters:
                    self._getters.remove(turn)

    def done(self, key: K) -> None:
        """The key's work is done, well or not; it comes again if it was added in the meantime."""
        self._working.discard(key)
        if key in self._values:
            self._enqueue(key)
        self._check_idle()

    def shut_down(self) -> None:
        """Take no more. Workers get what waits now; what was due later is dropped."""
        self._shut = True
        for _, timer in self._later.values():
            timer.cancel()
        self._later.clear()
        self._later_values.clear()
        for task in self._limited.values():
            task.cancel()
        self._limited.clear()
        while self._getters:
            self._wake()
        self._check_idle()

    async def drained(self) -> None:
        """Return when nothing waits, is due later or is being worked on."""
        await self._idle.wait()

    def _due(self, key: K) -> None:
        del self._later[key]
        self.add(key, self._later_values.pop(key))

    async def _again_in_turn(self, bucket: TokenBucket, key: K, delay: float) -> None:
        began = self._clock.monotonic()
        await bucket.take()
        del self._limited[key]
        if key in self._later_values:  # else it has come meanwhile, for another reason
            self._schedule(key, delay - (self._clock.monotonic() - began))
        self._check_idle()

    def _enqueue(self, key: K) -> None:
        group = self._group(key)
        self._queued.add(key)
        self._waiting.setdefault(group, deque()).append(key)
        self._wake()

    def _pop(self) -> K | None:
        while self._waiting:
            group, keys = self._waiting.popitem(last=False)
            key = keys.popleft()
            if keys:
                self._waiting[group] = keys  # at the end: the other groups come first
            self._queued.discard(key)
            if key in self._values:  # else it was dropped
                return key
        return None

    def _wake(self) -> None:
        while self._getters:
            turn = self._getters.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _check_idle(self) -> None:
        if not (self._values or self._working or self._later_values or self._limited):
            self._idle.set()


async def work(
    queue: WorkQueue[K, V],
    do: Callable[[K, V], Awaitable[float | None]],
    *,
    workers: int = 4,
    problem: Callable[[K, Exception, float | None], None] | None = None,
    fatal: tuple[type[BaseException], ...] = (),
) -> None:
    """Work on the queue until it is shut down.

    ``do`` returns None when all is done, or the seconds after which it wants the key again. An exception is a
    failure: the key is tried again after its delay, and ``problem`` is told key, error and delay (None: given
    up). Exceptions in ``fatal`` are raised, and end all workers.
    """

    async def worker() -> None:
        while True:
            try:
                key, value = await queue.get()
            except ShutDown:
                return
            try:
                again = await do(key, value)
            except fatal:
                raise
            except Exception as error:  # noqa: BLE001 (others' code; told to `problem`)
                delay = queue.retry(key, value)
                if problem is not None:
                    problem(key, error, delay)
            else:
                queue.forget(key)
                if again is not None:
                    queue.again(key, value, again)
            finally:
                queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
