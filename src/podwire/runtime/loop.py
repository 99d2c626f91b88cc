"""The supervisor's event loop: descriptors, timers and signals, in one thread and few imports."""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import time
from collections.abc import Callable


class Timer:
    """A call to be made later; :meth:`cancel` forgets it."""

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Do not call."""
        self.action = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Calls back when a descriptor is readable, a time has come, or a signal has arrived."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._signals: dict[int, Callable[[], None]] = {}
        self._stopped = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.watch(self._wake, self._on_signal)

    def watch(self, fd: int, action: Callable[[], object], events: int = selectors.EVENT_READ) -> None:
        """Call ``action`` whenever ``fd`` is readable (or what ``events`` says)."""
        self._selector.register(fd, events, action)

    def change(self, fd: int, events: int) -> None:
        """Watch ``fd`` for other events with the same action."""
        self._selector.modify(fd, events, self._selector.get_key(fd).data)

    def forget(self, fd: int) -> None:
        """Watch ``fd`` no more."""
        self._selector.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Call ``action`` once, later."""
        timer = Timer(time.monotonic() + seconds, action)
        heapq.heappush(self._timers, timer)
        return timer

    def on_signal(self, number: int, action: Callable[[], None]) -> None:
        """Call ``action`` from the loop when the signal has come, once for any number of them."""
        self._signals[number] = action
        signal.signal(number, lambda _number, _frame: None)

    def _on_signal(self) -> None:
        try:
            seen = set(os.read(self._wake, 4096))
        except BlockingIOError:
            return
        for number in seen & self._signals.keys():
            self._signals[number]()

    def stop(self) -> None:
        """Return from :meth:`run` when the current action has ended."""
        self._stopped = True

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        while not self._stopped:
            timeout = None
            while self._timers and self._timers[0].action is None:
                heapq.heappop(self._timers)
            if self._timers:
                timeout = max(0.0, self._timers[0].when - time.monotonic())
            for key, _ in self._selector.select(timeout):
                current = self._selector.get_map().get(key.fd)
                # An earlier action of this round may have closed it, and its number may be another's now.
                if current is not None and current.data == key.data:
                    key.data()
            now = time.monotonic()
            while self._timers and self._timers[0].when <= now:
                action = heapq.heappop(self._timers).action
                if action is not None:
                    action()
