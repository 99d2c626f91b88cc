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


def read(key: str, netns: Netns | None = None) -> str:
    """The value of e.g. ``net/ipv4/conf/eth0.100/forwarding``, without the newline, in ``netns`` or here."""
    path = _path(key)
    return _read(path, key) if netns is None else netns.run(lambda: _read(path, key))


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


def _read(path: str, key: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = []
            while chunk := os.read(fd, _CHUNK):
                chunks.append(chunk)
                if len(chunk) < _CHUNK and chunk.endswith(b"\n"):
                    break  # the kernel ends a value by it, and gives as much as there is room for
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "read sysctl", key) from error
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
