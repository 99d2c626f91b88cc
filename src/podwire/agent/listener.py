"""The agent's socket: in a directory of root's alone, and never open to anybody else for a moment."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

BACKLOG = 1024
"""Callers that may wait to be accepted; the kernel has its own limit, net.core.somaxconn."""


def listen(path: Path) -> socket.socket:
    """Return a listening socket at ``path`` in the place of one that a dead agent left.

    The directory is made if it is missing, and 0700 afterwards. OSError says what is in the way. Only one
    process may do this at a time: whoever calls holds the agent's lock.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileExistsError(17, "is there and is not a socket", str(path))
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(made))
        made.chmod(0o600)
        listener.listen(BACKLOG)
        made.replace(path)
    except BaseException:
        listener.close()
        made.unlink(missing_ok=True)
        raise
    return listener


def remove(path: Path, inode: int) -> None:
    """Remove a socket's file if it still is the one with this inode."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        pass
