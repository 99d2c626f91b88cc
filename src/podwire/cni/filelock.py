"""Locks between processes: ranges of one empty file beside the result cache, held by the open file.

They are open file description locks (fcntl(2), ``F_OFD_SETLK``): a name is a place in the file, so that any
number of locks needs one file and leaves nothing behind, and the kernel frees what a killed process held.
Two openings of the file exclude each other, be they in two processes or in one.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from podwire.cni.errors import IOFailure

NAME = "podwire.lock"
_FLOCK = struct.Struct("hhqqi4x")
_PLACES = (1 << 61) - 1


class FileLocks:
    """The locks below one directory, which is made when the first is taken.

    Not for several threads at once. IOFailure (5) where the file cannot be opened or locked.
    """

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{NAME}"
        self._directory = directory
        self._file: int | None = None
        self._held: dict[tuple[str, str], int] = {}

    def try_acquire(self, key: tuple[str, str], alone: bool) -> bool:
        """Take a lock if no other opening of the file has it, or waits to have it alone.

        Shared locks are counted: each `release` gives one back. A lock held here is never taken alone.
        """
        held = self._held.get(key, 0)
        if not held:
            gate = _place(key)
            if not alone and not self._set(fcntl.F_RDLCK, gate):
                return False
            taken = self._set(fcntl.F_WRLCK if alone else fcntl.F_RDLCK, gate + 1)
            if not alone:
                self._set(fcntl.F_UNLCK, gate)
            if not taken:
                return False
        self._held[key] = held + 1
        return True

    @contextmanager
    def queued(self, key: tuple[str, str], alone: bool) -> Iterator[None]:
        """Keep new sharers out for the length of a block, where the lock is wanted alone."""
        mine = alone and self._set(fcntl.F_WRLCK, _place(key))
        try:
            yield
        finally:
            if mine:
                self._set(fcntl.F_UNLCK, _place(key))

    def release(self, key: tuple[str, str]) -> None:
        """Give a lock back."""
        left = self._held.pop(key) - 1
        if left:
            self._held[key] = left
        else:
            self._set(fcntl.F_UNLCK, _place(key) + 1)

    def close(self) -> None:
        """Close the file, and with it free what is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._held.clear()

    def _set(self, kind: int, place: int) -> bool:
        file = self._opened()
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._refused(error) from error
        return True

    def _opened(self) -> int:
        # Whoever deletes the cache directory deletes the file that others would lock.
        if self._file is not None and not self._held and not os.fstat(self._file).st_nlink:
            self.close()
        if self._file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            try:
                try:
                    self._file = os.open(self.path, flags, 0o600)
                except FileNotFoundError:
                    os.makedirs(self._directory, mode=0o700, exist_ok=True)  # noqa: PTH103
                    self._file = os.open(self.path, flags, 0o600)
            except OSError as error:
                raise self._refused(error) from error
        return self._file

    def _refused(self, error: OSError) -> IOFailure:
        return IOFailure(f"cannot lock the result cache in {self._directory}: {error.strerror}")

    def __del__(self) -> None:
        self.close()


def number_of(parts: tuple[str, ...]) -> int:
    """Return a number below 2^61 for a name of several parts: the same in every process."""
    return int.from_bytes("\0".join(parts).encode(errors="surrogatepass"), "big") % _PLACES


def _place(key: tuple[str, str]) -> int:
    """Return the even place of a lock's gate; the lock itself is behind it."""
    return 2 * number_of(key)
