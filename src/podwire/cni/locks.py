"""Who waits for whom: one operation a container, a network's GC with nothing beside it (spec section 2).

Within a process the locks are queues, first come first served; between processes they are ranges of one
file (`podwire.cni.filelock`), taken while anybody here holds the lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from podwire.cni.errors import TryLater
from podwire.cni.filelock import FileLocks

if TYPE_CHECKING:
    # asyncio takes longer to load than all of this package; whoever calls in has a loop, and so has it.
    import asyncio

Want: TypeAlias = tuple[tuple[str, str], bool]
"""A lock's kind and name, and whether it must be held alone."""

# The kernel wakes nobody who could also stop waiting at a deadline, so another process's end is polled.
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.02


class _Shared:
    """A lock held by many or by one alone, first come first served."""

    def __init__(self) -> None:
        self.holders = 0
        self.alone = False
        self.queue: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @property
    def idle(self) -> bool:
        return not self.holders and not self.queue

    def try_acquire(self, alone: bool) -> bool:
        if self.queue or not self._free_for(alone):
            return False
        self._take(alone)
        return True

    async def acquire(self, alone: bool) -> None:
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (alone, future)
        self.queue.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release()
            else:
                self.queue.remove(entry)
                self._admit()
            raise

    def release(self) -> None:
        self.holders -= 1
        self.alone = False
        self._admit()

    def _free_for(self, alone: bool) -> bool:
        return not self.holders or not (alone or self.alone)

    def _take(self, alone: bool) -> None:
        self.holders += 1
        self.alone = alone

    def _admit(self) -> None:
        while self.queue and self._free_for(self.queue[0][0]):
            alone, future = self.queue.popleft()
            if not future.cancelled():
                self._take(alone)
                future.set_result(None)


class Locks:
    """The locks of a runtime, made when wanted and dropped when idle.

    ``files`` holds them against other processes as well.
    """

    def __init__(self, files: FileLocks) -> None:
        self._locks: dict[tuple[str, str], _Shared] = {}
        self._holders: dict[tuple[str, str], str] = {}
        self._files = files

    async def take(self, wanted: Sequence[Want], subject: str, deadline: float) -> None:
        """Take locks in order, all or none; TryLater (11) at the deadline says what was waited for."""
        for done, (key, alone) in enumerate(wanted):
            try:
                await self._take(key, alone, subject, deadline)
            except BaseException:
                self.release(wanted[:done])
                raise

    def release(self, wanted: Sequence[Want]) -> None:
        """Give back what `take` took."""
        for key, _ in reversed(wanted):
            self._files.release(key)
            self._locks[key].release()
            self._forget(key)

    async def _take(self, key: tuple[str, str], alone: bool, subject: str, deadline: float) -> None:
        lock = self._locks.setdefault(key, _Shared())
        if not lock.try_acquire(alone):
            import asyncio

            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await lock.acquire(alone)
            except TimeoutError:
                holder = self._holders.get(key, "another request")
                raise _in_vain(key, subject, holder) from None
            finally:
                self._forget(key)
        try:
            if not self._files.try_acquire(key, alone):
                await self._wait_for_others(key, alone, subject, deadline)
        except BaseException:
            lock.release()
            self._forget(key)
            raise
        self._holders[key] = subject

    async def _wait_for_others(
        self, key: tuple[str, str], alone: bool, subject: str, deadline: float
    ) -> None:
        import asyncio

        pause = _FIRST_PAUSE
        with self._files.queued(key, alone):
            while not self._files.try_acquire(key, alone):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _in_vain(key, subject, "another process")
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _forget(self, key: tuple[str, str]) -> None:
        lock = self._locks.get(key)
        if lock is not None and lock.idle:
            del self._locks[key]
            self._holders.pop(key, None)


def _in_vain(key: tuple[str, str], subject: str, holder: str) -> TryLater:
    return TryLater(f"{subject} waited in vain for {key[0]} {key[1]}", f"held by {holder}")
