"""Removing links without waiting for the kernel's bookkeeping.

The answer to RTM_DELLINK takes 17 to 25 ms, since it waits for RCU callbacks, but the link and its peer are
gone for every observer when RTM_DELLINK is announced, after 1 ms. So helper threads send the requests and
wait for the answers, while the caller waits for the announcement alone. Links that are to go while another
deletion holds the kernel's lock go together: they are put into one link group, and the group is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from podwire.kernel import links, netns
from podwire.kernel.errors import KernelError
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.kernel.notifications import GoneLinks

_HELPERS = 8
_OPERATION = "delete link"


class _Waiter:
    """One caller: how many of its links are still there, and what went wrong."""

    __slots__ = ("errors", "event", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.errors: list[KernelError] = []
        self.event = threading.Event()


class _Removal:
    """One link on its way out, and who waits for it."""

    __slots__ = ("done", "link", "sent", "waiters")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sent = False
        self.done = False
        self.waiters: list[_Waiter] = []


class LinkRemover:
    """Removes links of one namespace. Thread-safe; a context manager that ends its threads."""

    def __init__(self, host: Netns | None = None) -> None:
        self._netns = netns.current() if host is None else host
        self._owned = self._netns if host is None else None
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: list[_Removal] = []
        self._pending: dict[int, _Removal] = {}
        self._announcing = 0
        self._ready = 0
        self._helpers: list[threading.Thread] = []
        self._listener: threading.Thread | None = None
        self._closed = False
        self._lookup_lock = threading.Lock()
        with contextlib.ExitStack() as undo:
            if self._owned is not None:
                undo.enter_context(self._owned)
            self._lookup = undo.enter_context(RouteSocket.open(self._netns))
            self._gone = GoneLinks(self._netns)
            undo.pop_all()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)

    def remove(self, *targets: int | str | Link, timeout: float = 15.0) -> None:
        """Delete links by name or index, or as just read; return when every one is announced or was gone.

        ``timeout`` is in seconds. Raises :class:`KernelError` of the first link that the kernel refused (the
        others' as notes on it), with ETIMEDOUT for links that are still there at the end, with ESHUTDOWN once
        this is closed.
        """
        end = time.monotonic() + timeout
        found = self._resolve(targets)
        waiter = _Waiter(len(found))
        with self._lock:
            if self._closed:
                raise KernelError(errno.ESHUTDOWN, _OPERATION, ", ".join(map(_name, targets)), "closed")
            for link in found.values():
                removal = self._pending.get(link.index)
                if removal is None:
                    removal = self._pending[link.index] = _Removal(link)
                    self._queue.append(removal)
                removal.waiters.append(waiter)
            if self._queue:
                self._start_threads()
                self._work.notify()
        if not found:
            return
        if not waiter.event.wait(max(0.0, end - time.monotonic())):
            with self._lock:
                names = [link.name for link in found.values() if link.index in self._pending]
            if names:
                subject = ", ".join(names)
                raise KernelError(errno.ETIMEDOUT, _OPERATION, subject, f"not gone after {timeout:g} s")
        if waiter.errors:
            # Callers that waited for one link share its error, so each raises a copy.
            raised = KernelError(*waiter.errors[0].args)
            for other in waiter.errors[1:]:
                raised.add_note(str(other))
            raise raised

    def close(self) -> None:
        """Refuse new work, wait for what is under way and for the threads; more than once does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._work.notify_all()
            helpers, listener = list(self._helpers), self._listener
        for helper in helpers:
            helper.join()
        os.eventfd_write(self._stop, 1)
        if listener is not None:
            listener.join()
        os.close(self._stop)
        self._gone.close()
        with self._lookup_lock:
            self._lookup.close()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resolve(self, targets: Iterable[int | str | Link]) -> dict[int, Link]:
        # A name may be given to a new link as soon as the old one is gone, so only indexes are waited for.
        found = {}
        for target in targets:
            if isinstance(target, Link):
                found[target.index] = target
                continue
            with self._lookup_lock:
                link = links.get(self._lookup, target, details=False)
            if link is not None:
                found[link.index] = link
        return found

    def _start_threads(self) -> None:
        try:
            if self._ready == 0 and len(self._helpers) < _HELPERS:
                self._helpers.append(_start(self._help, "podwire-link-remover"))
                self._ready += 1
            if self._listener is None:
                self._listener = _start(self._listen, "podwire-gone-links")
        except RuntimeError as error:
            # Without a listener the answers alone end a removal; without a helper nothing does.
            if not self._helpers:
                for removal in self._queue:
                    name = removal.link.name
                    self._finish(removal, KernelError(errno.EAGAIN, _OPERATION, name, str(error)))
                self._queue.clear()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._gone.fileno(), select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while all(fd != self._stop for fd, _ in poll.poll()):
            try:
                indexes = self._gone.read()
            except KernelError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                indexes = self._missed()
            with self._lock:
                for index in indexes:
                    removal = self._pending.get(index)
                    if removal is not None:
                        self._finish(removal)

    def _missed(self) -> list[int]:
        """Which of the awaited links are gone, after announcements were lost."""
        with self._lock:
            indexes = list(self._pending)
        with self._lookup_lock:
            return [index for index in indexes if links.get(self._lookup, index, details=False) is None]

    def _help(self) -> None:
        sock: RouteSocket | None = None
        group = 0
        try:
            while batch := self._take():
                try:
                    if sock is None:
                        sock = RouteSocket.open(self._netns)
                    if len(batch) > 1:
                        group = group or _unused_group(sock)
                        _delete_group(sock, batch, group)
                    for removal in batch:
                        # Done already, once its announcement was read.
                        if not removal.done:
                            self._end([removal], _delete(sock, removal.link))
                except KernelError as error:
                    self._end(batch, error)
                with self._lock:
                    self._ready += 1
        finally:
            if sock is not None:
                sock.close()

    def _take(self) -> list[_Removal]:
        """Wait for work; none means the end.

        While announcements are outstanding the kernel's lock is held, and what comes meanwhile is gathered.
        """
        with self._lock:
            while True:
                while not self._queue or self._announcing:
                    if self._closed and not self._queue:
                        return []
                    self._work.wait()
                batch = [removal for removal in self._queue if not removal.done]
                self._queue.clear()
                if batch:
                    break
            for removal in batch:
                removal.sent = True
            self._announcing += len(batch)
            self._ready -= 1
            return batch

    def _end(self, batch: list[_Removal], error: KernelError | None) -> None:
        with self._lock:
            for removal in batch:
                self._finish(removal, error)

    def _finish(self, removal: _Removal, error: KernelError | None = None) -> None:
        """Tell those who wait for one link; with the lock held."""
        if removal.done:
            return
        removal.done = True
        del self._pending[removal.link.index]
        for waiter in removal.waiters:
            waiter.left -= 1
            if error is not None:
                waiter.errors.append(error)
            if waiter.left == 0:
                waiter.event.set()
        if removal.sent:
            self._announcing -= 1
            if self._announcing == 0:
                self._work.notify_all()


def _start(body: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


def _delete(sock: RouteSocket, link: Link) -> KernelError | None:
    try:
        sock.send(links.delete(link.index))
    except KernelError as error:
        if error.errno != errno.ENODEV:
            return KernelError(error.errno, _OPERATION, link.name, error.detail)
    return None


def _unused_group(sock: RouteSocket) -> int:
    taken = {link.group for link in links.list_links(sock)}
    while True:
        group = 1 << 30 | int.from_bytes(os.urandom(4), "big") >> 2
        if group not in taken:
            return group


def _delete_group(sock: RouteSocket, batch: list[_Removal], group: int) -> None:
    """Delete what can be deleted together; what is left is for the caller to try, and to report, singly."""
    with contextlib.suppress(KernelError):
        sock.send(*(links.configure(removal.link.index, group=group) for removal in batch))
    try:
        sock.send(links.delete_group(group))
    except KernelError:
        with contextlib.suppress(KernelError):
            sock.send(*(links.configure(removal.link.index, group=removal.link.group) for removal in batch))


def _name(target: int | str | Link) -> str:
    return target.name if isinstance(target, Link) else str(target)
