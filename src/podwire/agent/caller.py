"""Who calls: the process at the other end of a unix socket, and how it sees the files of the host."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

_CREDENTIALS = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """A process as the kernel tells it (SO_PEERCRED, unix(7)); ``pid`` 0: it is in no namespace of ours."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return who has connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def mount_namespace(pid: int | str = "self") -> int:
    """Return the inode of a process's mount namespace; 0 if it cannot be told."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino  # noqa: PTH116 - once per request
    except OSError:
        return 0


@contextmanager
def root_of(namespace: int, pid: int, own: int) -> Iterator[int | None]:
    """Open the root directory of a process in a mount namespace other than ``own``; None there, or unknown.

    The descriptor keeps the view, also when the process has ended.
    """
    if namespace in (0, own):
        yield None
        return
    try:
        fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
