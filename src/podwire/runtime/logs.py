r"""Container logs in the CRI's format: ``<RFC 3339 time, nanoseconds> <stdout|stderr> <F|P> <text>\n``.

``P`` marks a piece of a line that goes on in the next entry; a line is cut each 16 KiB, as containerd does
it, and what has no newline when the stream ends is a ``P`` too, so that a reader gets back exactly the bytes
that were written. Runs in the supervisor: nothing heavy may be imported here.
"""

from __future__ import annotations

import os
import time
from typing import Final

LINE_LIMIT: Final = 16384
"""Longest text of one entry, in bytes."""
SIZE_LIMIT: Final = 10 << 20
"""Size at which a log file is rotated, in bytes (the kubelet's containerLogMaxSize)."""
FILES: Final = 5
"""Log files kept for one container: the current one, and ``.1`` (newest) to ``.4``."""


class LogFile:
    """A log file that is rotated when it has grown. Writing never fails: what is lost is counted."""

    def __init__(self, path: str, limit: int = SIZE_LIMIT, files: int = FILES) -> None:
        """Open for appending, with missing parents made; OSError."""
        self.path = path
        self.lost = 0
        """Bytes that could not be written."""
        self.error = ""
        """Why the last of them could not."""
        self._limit = limit
        self._files = files
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, entries: bytes) -> None:
        """Append whole entries."""
        done = 0
        try:
            if self._size and self._size + len(entries) > self._limit:
                self._rotate()
            while done < len(entries):
                done += os.write(self._fd, entries[done:])
        except OSError as error:
            self.lost += len(entries) - done
            self.error = str(error)
        self._size += done

    def _rotate(self) -> None:
        for number in range(self._files - 2, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):  # noqa: PTH110
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")  # noqa: PTH105
        os.replace(self.path, f"{self.path}.1")  # noqa: PTH105
        fresh = self._open()
        os.close(self._fd)
        self._fd = fresh
        self._size = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Stream:
    """One stream of a container on its way into the log."""

    def __init__(self, name: str, log: LogFile) -> None:
        """``name``: stdout or stderr."""
        self._name = name.encode()
        self._log = log
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what the program wrote."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        head = stamp(time.time_ns()).encode() + b" " + self._name
        out: list[bytes] = []
        for line in lines:
            whole = _cut(line, head, out)
            out.append(head + b" F " + whole + b"\n")
        if len(self._rest) > LINE_LIMIT:
            self._rest = _cut(self._rest, head, out)
        if out:
            self._log.write(b"".join(out))

    def end(self) -> None:
        """The stream has ended: write what came without a newline."""
        if self._rest:
            head = stamp(time.time_ns()).encode() + b" " + self._name
            self._log.write(head + b" P " + self._rest + b"\n")
            self._rest = b""


def _cut(line: bytes, head: bytes, out: list[bytes]) -> bytes:
    """Move full pieces of ``line`` into ``out``; returns the last piece, at most ``LINE_LIMIT`` bytes."""
    start = 0
    while len(line) - start > LINE_LIMIT:
        out.append(head + b" P " + line[start : start + LINE_LIMIT] + b"\n")
        start += LINE_LIMIT
    return line[start:]


def stamp(nanoseconds: int) -> str:
    """A time since the epoch as RFC 3339 with nine digits, in UTC."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09}Z"
