"""Work that comes again and again, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from podwire.agent.counts import Counts


class Periodic:
    """Calls something every few seconds from a thread of its own, until it is closed."""

    def __init__(
        self, name: str, seconds: float, work: Iterable[Callable[[], object]], counts: Counts
    ) -> None:
        self._seconds = seconds
        self._work = tuple(work)
        self._log = counts.log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, with the first call at once."""
        self._thread.start()

    def close(self) -> None:
        """End; waits for a call that runs, some seconds at most."""
        self._stop.set()
        self._thread.join(self._seconds)

    def _run(self) -> None:
        while True:
            for each in self._work:
                try:
                    each()
                except Exception:  # noqa: BLE001 - the next look may find better times
                    self._log.exception("a fault in podwire")
            if self._stop.wait(self._seconds):
                return
