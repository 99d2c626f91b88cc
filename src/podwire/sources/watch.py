"""Waiting for changes of files by inotify, through every symbolic link and directory that leads to them.

Each round a source names the (directory, name) pairs that matter to it; a directory that was removed and made
again is a new inode and gets a new watch by the next round, because its parent is watched too. What is being
written (modified, not yet closed) is known, so that nobody reads half a file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from asyncinotify import Event, Inotify, Mask

ENTRIES = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
CONTENT = ENTRIES | Mask.MODIFY | Mask.CLOSE_WRITE | Mask.ATTRIB
_NO_LONGER_WRITTEN = Mask.CLOSE_WRITE | Mask.MOVE | Mask.DELETE

QUIET = 0.004
SETTLE = 0.015
SETTLE_IN_BURST = 0.035
BURST = 0.2

HOLD = 1.0
HOLD_AT_MOST = 10.0


class Watcher:
    """Watches for one source; used from one task or from the thread that the task waits for."""

    def __init__(self) -> None:
        self.failure = ""
        self._names: dict[int, set[str] | None] = {}
        self._round: dict[int, set[str] | None] = {}
        self._writing: dict[tuple[int, str], tuple[float, float]] = {}
        self._created: set[tuple[int, str]] = set()
        self._pending = False
        self._last_change = float("-inf")
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify(cache_size=64, sync_timeout=0)
        except OSError as error:
            self.failure = _explain(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all watches."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def begin(self) -> None:
        """Start a round: what is not named in it is no longer watched after ``end``."""
        self._round = {}
        self.failure = self.failure if self._inotify is None else ""

    def end(self) -> None:
        """End a round; changes that came during it make the next ``changed`` return at once."""
        if self._inotify is None:
            return
        for watch in self._inotify.watches:
            if watch.wd not in self._round:
                try:
                    self._inotify.rm_watch(watch)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
        self._names = self._round
        self._pending = self._drain() or self._pending

    def follow(self, path: str, *, content: bool) -> None:
        """Watch all that ``path`` depends on: each component, each symbolic link, and the file itself."""
        for directory, name, last in trail(path):
            self.need(directory, name, CONTENT if last and content else ENTRIES)

    def need(self, directory: str, name: str | None = None, mask: Mask = CONTENT) -> int | None:
        """Watch ``directory`` for changes of ``name``, or of any name; its watch number, None without one."""
        if self._inotify is None:
            return None
        try:
            number = self._inotify.add_watch(directory, mask | Mask.MASK_ADD).wd
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self.failure = f"{directory}: {_explain(error)}"
            return None
        names = self._round.setdefault(number, set())
        if name is None or names is None:
            self._round[number] = None
        else:
            names.add(name)
        self._names[number] = self._round[number]
        return number

    def held(self, number: int | None, name: str, size: int) -> float | None:
        """Until when (time.monotonic) a file that is being written should be left alone; None: read it."""
        if number is None:
            return None
        self._pending = self._drain() or self._pending
        times = self._writing.get((number, name))
        if times is None or (size and (number, name) in self._created):
            return None
        first, last = times
        until = min(last + HOLD, first + HOLD_AT_MOST)
        if until > time.monotonic():
            return until
        del self._writing[number, name]
        return None

    async def changed(self, timeout: float) -> None:
        """Return after a change has settled, at the latest after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self._pending:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await self._readable(left)
            self._pending = self._drain()
        now = time.monotonic()
        burst = now - self._last_change < BURST
        end = now + (SETTLE_IN_BURST if burst else SETTLE)
        while (left := end - time.monotonic()) > 0:
            # In a burst a pause of the writer does not end the wait: it would wake the reader for each file.
            if await self._readable(left if burst else min(QUIET, left)):
                self._drain()
            elif not burst:
                break
        self._last_change = time.monotonic()
        self._pending = False

    async def _readable(self, timeout: float) -> bool:
        if self._inotify is None:
            await asyncio.sleep(timeout)
            return False
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._inotify.fd, ready.set)
        try:
            async with asyncio.timeout(timeout):
                await ready.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._inotify.fd)
        return True

    def _drain(self) -> bool:
        relevant = False
        while self._inotify is not None and (event := self._inotify.sync_get()) is not None:
            relevant = self._note(event) or relevant
        return relevant

    def _note(self, event: Event) -> bool:
        watch = event.watch
        if watch is None:
            return Mask.Q_OVERFLOW in event.mask
        if event.name is None:
            return watch.wd in self._names
        key = (watch.wd, os.fspath(event.name))
        if event.mask & _NO_LONGER_WRITTEN:
            self._writing.pop(key, None)
            self._created.discard(key)
        elif event.mask & (Mask.MODIFY | Mask.CREATE) and not event.mask & Mask.ISDIR:
            now = time.monotonic()
            self._writing[key] = (self._writing.get(key, (now, now))[0], now)
            if event.mask & Mask.CREATE:
                self._created.add(key)
            else:
                self._created.discard(key)
        if watch.wd not in self._names:
            return False
        names = self._names[watch.wd]
        return names is None or key[1] in names


def trail(path: str) -> Iterator[tuple[str, str, bool]]:
    """Each (directory, name, whether it is the last) on the way to ``path``, symbolic links followed.

    A link is read after its pair was given, so that a watch set by then misses no change of it.
    """
    pending, current, hops = path.split("/"), "/", 0
    while pending:
        name = pending.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)  # noqa: PTH120 (Path is slow where every file passes)
            continue
        yield current, name, not any(pending)
        try:
            target = os.readlink(f"{current}/{name}")  # noqa: PTH115
        except OSError:
            current = f"{current.rstrip('/')}/{name}"
            continue
        hops += 1
        if hops > 40:
            return
        pending = [*target.split("/"), *pending]
        current = "/" if target.startswith("/") else current


def _explain(error: OSError) -> str:
    text = os.strerror(error.errno) if error.errno else str(error)
    setting = {
        errno.ENOSPC: "fs.inotify.max_user_watches",
        errno.EMFILE: "fs.inotify.max_user_instances",
    }.get(error.errno or 0)
    return f"{text}: raise the sysctl {setting}" if setting else text
