"""Kernel parameters below /proc/sys/net of the calling thread's network namespace, and of no other.

For parameters whose names come from a configuration: a name is walked directory by directory from
/proc/sys/net, no symbolic link is followed, and no part may lead up. The kernel picks the namespace of the
thread that looks a name up (net/sysctl_net.c), so use this inside :meth:`~podwire.kernel.netns.Netns.run`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from podwire.kernel.errors import InvalidValue, KernelError

_ROOT = "/proc/sys/net"
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read(parts: Sequence[str]) -> str:
    """Return the value of the parameter ``net/`` + parts, without the newline at its end.

    Raises :class:`KernelError`: ENOENT if there is none, ELOOP or ENOTDIR for what is no plain directory on
    the way, EACCES for one that can only be written.
    """
    try:
        fd = _open(parts, os.O_RDONLY)
        try:
            chunks = []
            while chunk := os.read(fd, 65536):
                chunks.append(chunk)
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "read sysctl", _name(parts)) from error
    return os.fsdecode(b"".join(chunks)).removesuffix("\n")


def write(parts: Sequence[str], value: str) -> None:
    """Set the parameter ``net/`` + parts. Raises :class:`KernelError` as `read` does, and what it refuses."""
    try:
        fd = _open(parts, os.O_WRONLY)
        try:
            os.write(fd, os.fsencode(value))
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "write sysctl", f"{_name(parts)}={value}") from error


def exists(parts: Sequence[str]) -> bool:
    """Tell whether there is such a parameter, without reading it."""
    try:
        os.close(_open(parts, os.O_PATH))
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return False
        raise KernelError(error.errno or errno.EIO, "look up sysctl", _name(parts)) from error
    return True


def _name(parts: Sequence[str]) -> str:
    return "/".join(("net", *parts))


def _open(parts: Sequence[str], flags: int) -> int:
    if not parts or any(part in {"", ".", ".."} or "/" in part or "\0" in part for part in parts):
        raise InvalidValue(f"sysctl {_name(parts)!r}", "a part is empty, '.', '..' or holds '/'")
    directory = os.open(_ROOT, _STEP)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _STEP, dir_fd=directory)
            os.close(directory)
            directory = inner
        return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
