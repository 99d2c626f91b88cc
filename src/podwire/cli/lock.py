"""One node for each place: whoever holds the lock is it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NodeRunning(Exception):
    """The lock is held; ``pid`` is the node's process ID, 0 if it did not say."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path}: held by process {pid}")
        self.path = path
        self.pid = pid


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Be the node as long as the context lasts; :class:`NodeRunning` if another one is.

    The kernel lets go of the lock when the process ends, however it ends.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeRunning(path, _pid(fd)) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def holder(path: Path) -> int | None:
    """The process ID of the node that holds the lock; None if nobody does."""
    try:
        with hold_shared(path):
            return None
    except FileNotFoundError:
        return None
    except NodeRunning as running:
        return running.pid


@contextmanager
def hold_shared(path: Path) -> Iterator[None]:
    """Look at the lock without taking it for oneself."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeRunning(path, _pid(fd)) from error
        yield
    finally:
        os.close(fd)


def _pid(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0
