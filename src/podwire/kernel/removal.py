"""Removing links without waiting for the kernel's bookkeeping.

The answer to RTM_DELLINK takes 17 to 25 ms, since it waits for RCU callbacks, but the link and its peer are
gone for every observer when RTM_DELLINK is announced, after 1 ms. So helper threads send the requests and
wait for the answers, while the caller waits for the announcement alone. Links that are to go while another
deletion holds the kernel's lock go together: they are looked at in one system call, put into one link group,
and the group is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from podwire.kernel import links, netns
from podwire.kernel.closing import ClosedAtEnd
from podwire.kernel.errors import KernelError
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.kernel.notifications import GoneLinks

_HELPERS = 8
_OPERATION = "delete link"


class Candidate(msgspec.Struct, frozen=True):
    """A link to be removed if ``ours`` says so of it, as it is just before; else it stays, which is success.

    ``ours`` must be quick: no other removal goes on meanwhile. The link that it sees is without details.
    """

    index: int
    name: str
    ours: Callable[[Link], bool]


Target = int | str | Link | Candidate


class _Waiter:
    """One caller: how many of its links are still there, and what went wrong."""

    __slots__ = ("_done", "errors", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.errors: list[KernelError] = []
        self._done = threading.Lock()
        self._done.acquire()

    def end(self) -> None:
        """Let the caller go on; once."""
        self._done.release()

    def wait(self, seconds: float) -> bool:
        """Wait for `end`; False if it took longer."""
        return self._done.acquire(timeout=seconds)


class _Removal:
    """One link on its way out, who waits for it, and what must be true of it (any of ``conditions``)."""

    __slots__ = ("conditions", "done", "group", "index", "name", "sent", "waiters")

    def __init__(self, link: Link | Candidate) -> None:
        self.index = link.index
        self.name = link.name
        self.group = 0 if isinstance(link, Candidate) else link.group
        self.conditions: list[Callable[[Link], bool]] | None = [] if isinstance(link, Candidate) else None
        self.sent = False
        self.done = False
        self.waiters: list[_Waiter] = []

    def join(self, link: Link | Candidate, waiter: _Waiter) -> None:
        """One more caller; with the remover's lock held."""
        self.waiters.append(waiter)
        if not isinstance(link, Candidate):
            self.conditions = None
        elif self.conditions is not None:
            self.conditions.append(link.ours)

    def wanted(self, link: Link) -> bool:
        """Whether any caller wants it gone as it is now; with the remover's lock held."""
        return self.conditions is None or any(ours(link) for ours in self.conditions)


class LinkRemover(ClosedAtEnd):
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
        self._group = 0
        self._lookup_lock = threading.Lock()
        with contextlib.ExitStack() as undo:
            if self._owned is not None:
                undo.enter_context(self._owned)
            self._lookup = undo.enter_context(RouteSocket.open(self._netns))
            self._gone = GoneLinks(self._netns)
            undo.pop_all()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)

    def remove(self, *targets: Target, timeout: float = 15.0) -> None:
        """Delete links by name or index, as just read, or as `Candidate`.

        Returns when every one is announced, or was gone, or is not to be removed.

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
                removal.join(link, waiter)
            if self._queue:
                self._start_threads()
                if not self._announcing:
                    self._work.notify()
        if not found:
            return
        if not waiter.wait(max(0.0, end - time.monotonic())):
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

    def _resolve(self, targets: Iterable[Target]) -> dict[int, Link | Candidate]:
        # A name may be given to a new link as soon as the old one is gone, so only indexes are waited for.
        found: dict[int, Link | Candidate] = {}
        for target in targets:
            if isinstance(target, Link | Candidate):
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
                    self._finish(removal, KernelError(errno.EAGAIN, _OPERATION, removal.name, str(error)))
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
                    left = self._examined(sock, batch)
                    if len(left) > 1:
                        group = group or self._unused_group(sock)
                        _delete_group(sock, left, group)
                    for removal in left:
                        # Done already, once its announcement was read.
                        if not removal.done:
                            self._end([removal], _delete(sock, removal))
                except KernelError as error:
                    self._end(batch, error)
                with self._lock:
                    self._ready += 1
        finally:
            if sock is not None:
                sock.close()

    def _examined(self, sock: RouteSocket, batch: list[_Removal]) -> list[_Removal]:
        """Those that are to be removed; the others are done."""
        unsure = [removal for removal in batch if removal.conditions is not None]
        if not unsure:
            return batch
        found = links.get_all(sock, [removal.index for removal in unsure])
        with self._lock:
            for removal, link in zip(unsure, found, strict=True):
                if link is None or not removal.wanted(link):
                    self._finish(removal)
                else:
                    removal.group = link.group
        return [removal for removal in batch if not removal.done]

    def _unused_group(self, sock: RouteSocket) -> int:
        """A group of links for one helper, and nobody's so far."""
        with self._lookup_lock:
            if not self._group:
                self._group = _unused_groups(sock)
            self._group += 1
            return self._group

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
        del self._pending[removal.index]
        for waiter in removal.waiters:
            waiter.left -= 1
            if error is not None:
                waiter.errors.append(error)
            if waiter.left == 0:
                waiter.end()
        if removal.sent:
            self._announcing -= 1
            if self._announcing == 0:
                if self._closed:
                    self._work.notify_all()
                elif self._queue:
                    self._work.notify()


def _start(body: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


def _delete(sock: RouteSocket, removal: _Removal) -> KernelError | None:
    try:
        sock.send(links.delete(removal.index))
    except KernelError as error:
        if error.errno != errno.ENODEV:
            return KernelError(error.errno, _OPERATION, removal.name, error.detail)
    return None


def _unused_groups(sock: RouteSocket) -> int:
    """The number before `_HELPERS` successive groups that no link is in."""
    taken = {link.group for link in links.list_links(sock)}
    while True:
        before = 1 << 30 | int.from_bytes(os.urandom(4), "big") >> 2
        if taken.isdisjoint(range(before + 1, before + 1 + _HELPERS)):
            return before


def _delete_group(sock: RouteSocket, batch: Sequence[_Removal], group: int) -> None:
    """Delete what can be deleted together; what is left is for the caller to try, and to report, singly."""
    try:
        sock.send(
            *(links.configure(removal.index, group=group) for removal in batch), links.delete_group(group)
        )
    except KernelError:
        with contextlib.suppress(KernelError):
            sock.send(*(links.configure(removal.index, group=removal.group) for removal in batch))


def _name(target: Target) -> str:
    return target.name if isinstance(target, Link | Candidate) else str(target)
