"""Network namespaces: open, make, enter for a moment, remove.

A namespace is a file on nsfs (namespaces(7)): a bind mount such as /run/netns/NAME, or /proc/PID/ns/net.
Every function leaves the thread that calls it in the namespace where it was.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast

from podwire.kernel import links
from podwire.kernel.errors import KernelError, NetnsError, NetnsMissing, NotANetns
from podwire.kernel.netlink import RouteSocket

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703
_MS_BIND = 0x1000
_MNT_DETACH = 0x2
_UMOUNT_NOFOLLOW = 0x8
_CURRENT = "/proc/thread-self/ns/net"
_SYS_OPENAT2 = 437  # the same on every architecture
_OPEN_HOW = struct.Struct("=QQQ")
_RESOLVE_IN_ROOT = 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_thread_local = threading.local()


class Netns:
    """An open network namespace: ``path`` where it was found and ``fd``, which keeps it alive. Close it."""

    __slots__ = ("_identity", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._identity: tuple[int, int] | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the namespace: equal for two paths to the same one."""
        if self._identity is None:
            status = os.fstat(self.fd)
            self._identity = status.st_dev, status.st_ino
        return self._identity

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` with the calling thread in the namespace, and return to where the thread was.

        Sockets and files of /proc/sys/net that it opens belong to the namespace for good.
        """
        if self.fd < 0:
            raise NetnsError(errno.EBADF, "enter network namespace", self.path, "it is closed")
        home: Netns | None = getattr(_thread_local, "home", None)
        if home is None:
            with current() as home:
                return self._visit(home, function)
        _thread_local.home = self  # from here a nested visit returns to
        try:
            return self._visit(home, function)
        finally:
            _thread_local.home = home

    def _visit(self, home: Netns, function: Callable[[], T]) -> T:
        if home.identity == self.identity:
            return function()
        # The thread itself goes, not a helper: waiting for another thread to be scheduled costs 0.2 ms on an
        # idle machine and many times that on a busy one.
        _call("enter network namespace", self.path, _libc.setns(self.fd, CLONE_NEWNET))
        try:
            return function()
        finally:
            if _libc.setns(home.fd, CLONE_NEWNET) != 0:
                _lost(home)

    def close(self) -> None:
        """Let go of the namespace; more than once does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __repr__(self) -> str:
        return f"Netns({self.path!r}, fd={self.fd})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def seen_from(root: int | None) -> Iterator[None]:
    """Have the calling thread `open` namespaces as a process sees them whose root directory is ``root``.

    ``root`` is a file descriptor, as of /proc/PID/root; ``None`` changes nothing. Symbolic links stay below
    it (openat2(2), RESOLVE_IN_ROOT). Paths in /proc are this process's own: with one PID namespace for both
    they mean the same, and the kernel resolves no magic links below another root.
    """
    before, _thread_local.root = getattr(_thread_local, "root", None), root
    try:
        yield
    finally:
        _thread_local.root = before


@contextmanager
def settled() -> Iterator[None]:
    """Have the calling thread leave its namespace for the length of a block by `Netns.run` alone.

    So the namespace is looked up once, and not for each visit to another.
    """
    try:
        home = current()
    except NetnsError:  # no descriptors left: then it is looked up when it is wanted
        yield
        return
    with home:
        before, _thread_local.home = getattr(_thread_local, "home", None), home
        try:
            yield
        finally:
            _thread_local.home = before


def view() -> int | None:
    """Return the root directory from which the calling thread opens namespaces (`seen_from`), if any."""
    root: int | None = getattr(_thread_local, "root", None)
    return root


def open(path: str | os.PathLike[str]) -> Netns:
    """Open the namespace at ``path``, which another process may have named (`seen_from`).

    Raises :class:`NetnsMissing` if nothing is there, :class:`NotANetns` if it is something else (a plain
    file, a directory, a mount that lost its namespace, another kind of namespace), else :class:`NetnsError`.
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise NetnsMissing(errno.ENOENT, "open network namespace", repr(text), "no path")
    try:
        fd = _open(text, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:
        raise NetnsMissing(error.errno or errno.ENOENT, "open network namespace", text) from error
    except OSError as error:
        number = error.errno or errno.EIO
        kind = NotANetns if number in {errno.ENXIO, errno.ENODEV} else NetnsError
        raise kind(number, "open network namespace", text) from error
    try:
        _check(fd, text)
    except BaseException:
        os.close(fd)
        raise
    return Netns(text, fd)


def current() -> Netns:
    """Open the namespace of the calling thread; its path names the thread, not the namespace."""
    try:
        # In a /proc there is nothing else of this name: no need to look what it is.
        return Netns(_CURRENT, os.open(_CURRENT, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise NetnsError(error.errno or errno.EIO, "open network namespace", _CURRENT) from error


def create(path: str | os.PathLike[str]) -> None:
    """Make a new namespace, its loopback up, and pin it at ``path`` (parents are made, the file must be new).

    All or nothing. Raises :class:`NetnsError`.
    """
    text = os.fspath(path)
    try:
        Path(text).parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(text, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    except OSError as error:
        raise NetnsError(error.errno or errno.EIO, "create network namespace", text) from error

    def make() -> None:
        _call("create network namespace", text, _libc.unshare(CLONE_NEWNET))
        with RouteSocket.open() as sock:
            sock.send(links.configure("lo", up=True))
        source = os.fsencode(_CURRENT)
        _call("pin network namespace", text, _libc.mount(source, os.fsencode(text), None, _MS_BIND, None))

    try:
        _in_thread(make)
    except BaseException:
        os.unlink(text)  # noqa: PTH108
        raise


def remove(path: str | os.PathLike[str]) -> None:
    """Unpin the namespace at ``path`` and delete the file; what is gone already is fine.

    A file with contents is not ours to delete: :class:`NotANetns`.
    """
    text = os.fspath(path)
    raw = os.fsencode(text)
    while _libc.umount2(raw, _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        pass
    number = ctypes.get_errno()
    if number not in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
        raise NetnsError(number, "unmount network namespace", text)
    try:
        status = os.lstat(text)
        if not stat.S_ISREG(status.st_mode) or status.st_size:
            raise NotANetns(errno.EINVAL, "remove network namespace", text, "it is no empty file")
        os.unlink(text)  # noqa: PTH108
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise NetnsError(error.errno or errno.EIO, "remove network namespace", text) from error


def _open(path: str, flags: int) -> int:
    root = getattr(_thread_local, "root", None)
    if root is None or path.startswith("/proc/"):
        return os.open(path, flags)
    how = _OPEN_HOW.pack(flags, 0, _RESOLVE_IN_ROOT)
    fd: int = _libc.syscall(_SYS_OPENAT2, root, os.fsencode(path), how, len(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


def _check(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise NotANetns(errno.EINVAL, "open network namespace", path, "it is no regular file")
    try:
        kind = fcntl.ioctl(fd, _NS_GET_NSTYPE)
    except OSError as error:
        raise NotANetns(errno.EINVAL, "open network namespace", path, "it is not on nsfs") from error
    if kind != CLONE_NEWNET:
        raise NotANetns(errno.EINVAL, "open network namespace", path, "it is a namespace of another kind")


def _call(operation: str, path: str, result: int) -> None:
    if result != 0:
        raise NetnsError(ctypes.get_errno(), operation, path)


def _lost(home: Netns) -> NoReturn:
    """End the process: a thread that cannot go home would do all its further work in a pod's namespace."""
    reason = os.strerror(ctypes.get_errno())
    os.write(2, f"podwire: cannot return to network namespace {home.path}: {reason}\n".encode())
    os.abort()


def _in_thread(function: Callable[[], T]) -> T:
    """Call ``function`` in a thread of its own; a bare one costs a third of what threading.Thread does."""
    outcome: list[Any] = [None, None]
    ended = _thread.allocate_lock()
    ended.acquire()

    def body() -> None:
        try:
            outcome[0] = function()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            outcome[1] = error
        finally:
            ended.release()

    try:
        _thread.start_new_thread(body, ())
    except RuntimeError as error:
        raise KernelError(errno.EAGAIN, "start", "a thread to enter a network namespace") from error
    with ended:
        pass
    if outcome[1] is not None:
        raise outcome[1]
    return cast(T, outcome[0])
