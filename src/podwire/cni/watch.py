"""A directory of networks that is followed: each change, also deletion and return, gives a new `Directory`.

inotify tells of changes (inotify(7), by ctypes: no other library is needed), and the directory is read again
every few seconds in any case. Before each reading all watches are made anew, on the directory, on those in
it, and on the ones above it for the day that it is replaced; what changes while it is read is seen then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from podwire.cni.config import Directory, load_directory

POLL_SECONDS = 5.0
"""How long a change may go unseen where inotify does not tell of it, e.g. through a symbolic link."""
_SETTLE_SECONDS = 0.05
_SETTLE_TRIES = 20

# <linux/inotify.h>
_CLOSE_WRITE, _ATTRIB, _MOVED_FROM, _MOVED_TO = 0x8, 0x4, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_Q_OVERFLOW = 0x4000
_INSIDE = _CLOSE_WRITE | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_ABOVE = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_HEAD = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


async def watch_directory(
    directory: Path | str, *, poll_interval: float = POLL_SECONDS
) -> AsyncIterator[Directory]:
    """Yield what a directory holds, at once and whenever its networks or problems have changed.

    A directory that is not there, or no longer, has no networks; when it comes back they are seen again. A
    change is told once it has lasted a moment, so that no file is seen half written. ``poll_interval`` is in
    seconds.
    """
    path = Path(directory).absolute()
    last: Directory | None = None
    while True:
        with _Watches(path) as watches:
            found = await asyncio.to_thread(load_directory, path)
            for _ in range(_SETTLE_TRIES):
                if last is None or found == last:
                    break
                await asyncio.sleep(_SETTLE_SECONDS)
                seen, found = found, await asyncio.to_thread(load_directory, path)
                if found == seen:
                    break
            if found != last:
                last = found
                yield found
            await watches.changed(poll_interval)


class _Watches:
    """inotify watches on a directory, and where it would come back; without inotify they tell nothing."""

    def __init__(self, path: Path) -> None:
        self._file: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names: dict[int, bytes | None] = {}
        self._told = asyncio.Event()
        if self._file < 0:
            return
        for above, name in _above(path):
            self._add(above, _ABOVE, os.fsencode(name))
        self._add(path, _INSIDE, None)
        for inside in _directories(path):
            self._add(inside, _INSIDE, None)
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)

    async def changed(self, timeout: float) -> None:
        """Wait for a change, at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._told.wait()

    def _add(self, path: Path, mask: int, name: bytes | None) -> None:
        number = _libc.inotify_add_watch(self._file, os.fsencode(path), mask)
        if number >= 0:
            self._names[number] = name

    def _read(self) -> None:
        try:
            events = os.read(self._file, 1 << 16)
        except BlockingIOError:
            return
        place = 0
        while place < len(events):
            number, mask, _, length = _HEAD.unpack_from(events, place)
            place += _HEAD.size + length
            name = events[place - length : place].rstrip(b"\0")
            wanted = self._names.get(number)
            if mask & _Q_OVERFLOW or wanted is None or name == wanted:
                self._told.set()


def _above(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the directory above, and those up to the first that is there, each with the name in it."""
    for above, below in zip(path.parents, (path, *path.parents), strict=False):
        yield above, below.name
        if above.is_dir():
            return


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
