"""Reading container logs in the CRI's format, over rotation.

An entry is ``<RFC 3339 time> <stdout|stderr> <F|P> <text>``; ``P`` marks a piece of a line that goes on in
the next entry. A log that grows is renamed to ``<path>.1``, that to ``<path>.2``, and so on; a reader stays
with the file that it has open and goes on with the next newer one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

CHUNK = 1 << 20
_ROTATIONS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; ``partial``: the line goes on in the next one."""

    time: bytes
    stream: bytes
    partial: bool
    text: bytes


def parse(line: bytes) -> Entry | None:
    """The entry of a line without its newline; None for what is none."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[1] not in (b"stdout", b"stderr"):
        return None
    # The tag field may hold several tags, separated by colons; the first says F or P.
    return Entry(parts[0], parts[1], parts[2].partition(b":")[0] == b"P", parts[3])


class Renderer:
    """Turns entries into what a person sees; ``since``: earlier entries (RFC 3339, UTC) are left out.

    ``stream`` is ``stdout`` or ``stderr`` for one of them, empty for both.
    """

    def __init__(self, *, timestamps: bool = False, since: bytes = b"", stream: bytes = b"") -> None:
        self._stream = stream
        self._timestamps = timestamps
        self._since = since
        self._middle = False

    def render(self, entries: bytes) -> bytes:
        """The text of whole entries."""
        out = []
        for line in entries.split(b"\n"):
            entry = parse(line)
            if entry is None or entry.time[:19] < self._since[:19]:
                continue
            if self._stream and entry.stream != self._stream:
                continue
            if self._timestamps and not self._middle:
                out.append(entry.time + b" ")
            out.append(entry.text if entry.partial else entry.text + b"\n")
            self._middle = entry.partial
        return b"".join(out)


def files(path: Path) -> list[Path]:
    """The log's files that exist, the oldest first."""
    older = [path.with_name(f"{path.name}.{number}") for number in range(_ROTATIONS, 0, -1)]
    return [file for file in (*older, path) if file.exists()]


class LogReader:
    """Reads a log from its ``tail`` last lines on (None: from its start)."""

    def __init__(self, path: Path, tail: int | None = None) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._rest = b""
        found = files(path)
        if found:
            start, offset = _start(found, tail) if tail is not None else (found[0], 0)
            self._open(start, offset)

    def read(self) -> bytes:
        """The next whole entries, at most about 1 MiB; empty when there are none now."""
        while True:
            if self._file is None:
                if not self._path.exists():
                    return b""
                self._open(files(self._path)[0], 0)
            assert self._file is not None
            data = self._file.read(CHUNK)
            if data:
                whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
                if newline:
                    return whole + newline
                continue
            newer = self._newer()
            if newer is None:
                return b""
            self._open(newer, 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path, offset: int) -> None:
        self.close()
        self._rest = b""
        self._file = FileIO(path)
        self._file.seek(offset)

    def _newer(self) -> Path | None:
        """The file after the open one; None while that is the newest."""
        assert self._file is not None
        own = os.fstat(self._file.fileno())
        found = files(self._path)
        for position, file in enumerate(found):
            there = file.stat()
            if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                return found[position + 1] if position + 1 < len(found) else None
        return found[0] if found else None


def _start(found: list[Path], tail: int) -> tuple[Path, int]:
    """Where the ``tail`` last lines begin."""
    wanted = tail + 1
    for file in reversed(found):
        data = file.read_bytes()
        end = len(data)
        for line in _backwards(data):
            entry = parse(line)
            if entry is not None and not entry.partial:
                wanted -= 1
                if wanted == 0:
                    return file, end
            end -= len(line) + 1
    return found[0], 0


def _backwards(data: bytes) -> Iterator[bytes]:
    """The lines of ``data``, the last first, without their newlines."""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    while end >= 0 and data:
        begin = data.rfind(b"\n", 0, end)
        yield data[begin + 1 : end]
        if begin < 0:
            return
        end = begin
