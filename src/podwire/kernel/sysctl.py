"""Kernel parameters below /proc/sys. Keys have '/' between their parts, since interface names hold dots."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from podwire.kernel.errors import InvalidValue, KernelError

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

_ROOT = "/proc/sys/"
_CHUNK = 65536
_LINE = 256


def read(key: str, netns: Netns | None = None) -> str:
    """The value of e.g. ``net/ipv4/conf/eth0.100/forwarding``, without the newline, in ``netns`` or here."""
    path = _path(key)
    return _read(path, key) if netns is None else netns.run(lambda: _read(path, key))


class Kept:
    """Short parameters of one namespace, read again and again: their files stay open. Thread-safe."""

    def __init__(self, netns: Netns) -> None:
        self._netns = netns
        self._files: dict[str, int] = {}

    def read(self, key: str) -> str:
        """What `read` returns. Raises :class:`KernelError`."""
        fd = self._files.get(key)
        if fd is None:
            fd = self._netns.run(lambda: _open(_path(key), key))
            kept = self._files.setdefault(key, fd)
            if kept != fd:
                os.close(fd)
                fd = kept
        try:
            return os.fsdecode(os.pread(fd, _LINE, 0)).rstrip("\n")
        except OSError as error:
            raise _unread(error, key) from error

    def close(self) -> None:
        """Close the files; more than once does nothing."""
        while self._files:
            os.close(self._files.popitem()[1])


def write(key: str, value: str | int, netns: Netns | None = None) -> None:
    """Set one parameter. Raises :class:`KernelError` naming it: ENOENT if there is none of that name."""
    write_all({key: value}, netns)


def write_all(values: Mapping[str, str | int], netns: Netns | None = None) -> None:
    """Set several parameters in order, entering ``netns`` once; the first refusal ends it."""
    work = [(_path(key), key, str(value)) for key, value in values.items()]

    def run() -> None:
        for path, key, value in work:
            _write(path, key, value)

    if netns is None:
        run()
    else:
        netns.run(run)


def _path(key: str) -> str:
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in key:
        raise InvalidValue(
            f"sysctl {key!r}", "a key has parts with '/' between them, none empty, '.' or '..'"
        )
    return _ROOT + key


def _open(path: str, key: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unread(error, key) from error


def _unread(error: OSError, key: str) -> KernelError:
    return KernelError(error.errno or errno.EIO, "read sysctl", key)


def _read(path: str, key: str) -> str:
    fd = _open(path, key)
    try:
        chunks = []
        while chunk := os.read(fd, _CHUNK):
            chunks.append(chunk)
            if len(chunk) < _CHUNK and chunk.endswith(b"\n"):
                break  # the kernel ends a value by it, and gives as much as there is room for
    except OSError as error:
        raise _unread(error, key) from error
    finally:
        os.close(fd)
    return os.fsdecode(b"".join(chunks)).rstrip("\n")


def _write(path: str, key: str, value: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, os.fsencode(value) + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "write sysctl", f"{key}={value}") from error
