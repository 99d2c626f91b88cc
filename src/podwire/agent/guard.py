"""Watches the callers whose requests run: one that leaves is cancelled, one that waits too long is answered.

One thread for all of them. It wakes when a caller goes away, and looks at the clock once a second.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from podwire.agent.client import Client
from podwire.agent.counts import Counts
from podwire.cni import process
from podwire.cni.errors import TryLater

_TICK = 1.0


class Guard:
    """The clients that wait for an answer. Thread-safe; `close` ends its thread."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._lock = threading.Lock()
        self._clients: dict[int, Client] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._next = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="agent-guard", daemon=True)
        self._thread.start()

    def watch(self, client: Client) -> None:
        """Watch a client from here on."""
        fd = client.connection.fileno()
        with self._lock:
            self._clients[fd] = client
            # Once closed, the numbers of the descriptors may be another's.
            if self._closed:
                return
            self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
            client.watched = True
            if client.give_up_at < self._next:
                os.eventfd_write(self._wake, 1)

    def forget(self, client: Client) -> None:
        """Watch it no longer; before its connection is closed."""
        fd = client.connection.fileno()
        with self._lock:
            if self._clients.pop(fd, None) is not None:
                self._unwatch(client)

    def answers(self, client: Client) -> None:
        """Let a client leave unnoticed: it is about to get its answer, and that wakes nobody here."""
        with self._lock:
            self._unwatch(client)

    def _unwatch(self, client: Client) -> None:
        if client.watched and not self._closed:
            client.watched = False
            self._epoll.unregister(client.connection.fileno())

    def waiting(self) -> list[Client]:
        """Return the clients that are watched."""
        with self._lock:
            return list(self._clients.values())

    def hanging(self) -> int:
        """Return how many requests go on past their deadline."""
        return sum(client.late for client in self.waiting())

    def close(self) -> None:
        """End the watching."""
        with self._lock:
            self._closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closed:
            now = time.monotonic()
            self._next = min((c.give_up_at for c in self.waiting() if not c.late), default=now + _TICK)
            self._next = min(self._next, now + _TICK)
            for fd, _ in self._epoll.poll(max(0.0, self._next - now)):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    self._hung_up(fd)
            self._look_at_the_clock()

    def _hung_up(self, fd: int) -> None:
        with self._lock:
            client = self._clients.get(fd)
            if client is None or client.answered or not client.watched:
                return
            # The descriptor may be another connection's by now.
            if not _at_end(client.connection):
                self._epoll.modify(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
                return
        client.leave()

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for client in self.waiting():
            if client.give_up_at > now or client.late:
                continue
            client.late = True
            told = TryLater(
                f"{client.subject}: not done in time",
                "it goes on in the background; until it ends, other requests for the container wait",
            )
            if client.give_up(process.refusal(told)):
                self._counts.given_up += 1
                self._counts.log.warning("%s: given up at its deadline; it still runs", client.subject)


def _at_end(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
