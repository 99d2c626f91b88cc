"""Who waits for whom: requests for one container in order, GC of a network with none of its own beside it.

A container's turn is held from before its plugin begins until it has ended, however long after its deadline
that is. A waiting GC lets others of its network pass, but for a moment now and then, so that one slow pod
delays no other for long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from podwire.cni.errors import TryLater

WAITING_MAX = 16
"""Requests that may wait for one container."""
GATE_SECONDS = 0.5
"""How long a waiting GC keeps new requests of its network back at a time."""
PAUSE_SECONDS = 4.5
"""How long it then lets them pass."""


class Waiter:
    """One request's place in a queue; `abandon` it from any thread when nobody wants it any more."""

    __slots__ = ("_lock", "abandoned")

    def __init__(self) -> None:
        # A lock that is held until somebody wakes: an Event costs ten times that, and few requests wait.
        self._lock = threading.Lock()
        self._lock.acquire()
        self.abandoned = False

    def abandon(self) -> None:
        """Have the wait end, now or when it begins."""
        self.abandoned = True
        self.wake()

    def wake(self) -> None:
        """Have the one that waits look again."""
        with suppress(RuntimeError):  # it was woken already
            self._lock.release()

    def wait(self, until: float) -> bool:
        """Wait until a time.monotonic(); False if it has passed."""
        left = until - time.monotonic()
        if left <= 0 or not self._lock.acquire(timeout=left):
            return False
        if self.abandoned:
            self.wake()
        return True


class Abandoned(Exception):
    """The request left its queue: nobody waits for its answer."""


class _Network:
    __slots__ = ("alone", "gated", "holders", "waiting")

    def __init__(self) -> None:
        self.holders = 0
        self.alone = False
        self.gated = False
        self.waiting: deque[Waiter] = deque()

    @property
    def idle(self) -> bool:
        return not (self.holders or self.waiting or self.gated)


class Turns:
    """The queues of all containers and networks, made when wanted and dropped when idle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._containers: dict[str, tuple[str, deque[Waiter]]] = {}
        self._networks: dict[str, _Network] = {}

    @contextmanager
    def container(
        self, container_id: str, network: str, subject: str, deadline: float, waiter: Waiter
    ) -> Iterator[None]:
        """Have the container's turn, and share the network, for the length of a block.

        TryLater (11) at the deadline says what was waited for; Abandoned if the waiter was.
        """
        self._take_container(container_id, subject, deadline, waiter)
        try:
            self._share(network, subject, deadline, waiter)
            try:
                yield
            finally:
                self._leave(network)
        finally:
            self._next(container_id)

    @contextmanager
    def network(self, network: str, subject: str, deadline: float, waiter: Waiter) -> Iterator[None]:
        """Have a network alone for the length of a block; errors as `container`."""
        self._take_alone(network, subject, deadline, waiter)
        try:
            yield
        finally:
            self._leave(network)

    def holders(self) -> dict[str, tuple[str, int]]:
        """Return, by container ID, what has its turn and how many requests wait for it."""
        with self._lock:
            return {key: (subject, len(queue)) for key, (subject, queue) in self._containers.items()}

    def _take_container(self, key: str, subject: str, deadline: float, waiter: Waiter) -> None:
        with self._lock:
            held = self._containers.get(key)
            if held is None:
                self._containers[key] = (subject, deque())
                return
            holder, queue = held
            if len(queue) >= WAITING_MAX:
                raise TryLater(
                    f"{subject}: {WAITING_MAX} requests wait for this container", f"behind {holder}"
                )
            queue.append(waiter)
        while True:
            woken = waiter.wait(deadline)
            with self._lock:
                holder, queue = self._containers[key]
                if waiter not in queue:  # `_next` took it out: the turn is ours
                    self._containers[key] = (subject, queue)
                    if woken and not waiter.abandoned:
                        return
                    late = False
                else:
                    if woken and not waiter.abandoned:
                        continue
                    queue.remove(waiter)
                    late = True
            if not late:
                self._next(key)
            if waiter.abandoned:
                raise Abandoned
            raise TryLater(f"{subject} waited in vain for its container", f"behind {holder}")

    def _next(self, key: str) -> None:
        with self._lock:
            subject, queue = self._containers[key]
            if not queue:
                del self._containers[key]
                return
            waiter = queue.popleft()
            self._containers[key] = (subject, queue)
            waiter.wake()

    def _share(self, key: str, subject: str, deadline: float, waiter: Waiter) -> None:
        with self._lock:
            network = self._networks.setdefault(key, _Network())
            if not (network.alone or network.gated):
                network.holders += 1
                return
            network.waiting.append(waiter)
        while True:
            woken = waiter.wait(deadline)
            with self._lock:
                if not waiter.abandoned and not (network.alone or network.gated):
                    network.waiting.remove(waiter)
                    network.holders += 1
                    return
                if woken and not waiter.abandoned:
                    continue
                network.waiting.remove(waiter)
                self._forget(key)
            if waiter.abandoned:
                raise Abandoned
            raise TryLater(f"{subject} waited in vain for network {key}", "behind its GC")

    def _take_alone(self, key: str, subject: str, deadline: float, waiter: Waiter) -> None:
        gate_until = time.monotonic() + GATE_SECONDS
        while True:
            with self._lock:
                network = self._networks.setdefault(key, _Network())
                if not network.holders and not network.alone:
                    network.holders, network.alone, network.gated = 1, True, False
                    if waiter in network.waiting:
                        network.waiting.remove(waiter)
                    return
                now = time.monotonic()
                if waiter.abandoned or now >= deadline:
                    if waiter in network.waiting:
                        network.waiting.remove(waiter)
                    self._open(key, network)
                    break
                if waiter not in network.waiting:
                    network.waiting.append(waiter)
                if now < gate_until:
                    network.gated, until = True, gate_until
                else:
                    self._open(key, network)
                    until = gate_until + PAUSE_SECONDS
                    if now >= until:
                        gate_until = now + GATE_SECONDS
                        network.gated, until = True, gate_until
            waiter.wait(min(until, deadline))
        if waiter.abandoned:
            raise Abandoned
        raise TryLater(f"{subject} waited in vain for requests of its network to end", f"network {key}")

    def _open(self, key: str, network: _Network) -> None:
        network.gated = False
        for each in network.waiting:
            each.wake()
        self._forget(key)

    def _leave(self, key: str) -> None:
        with self._lock:
            network = self._networks[key]
            network.holders -= 1
            network.alone = False
            if not network.holders:
                for each in network.waiting:
                    each.wake()
            self._forget(key)

    def _forget(self, key: str) -> None:
        network = self._networks.get(key)
        if network is not None and network.idle:
            del self._networks[key]
