"""A client joined to the streams of a container's own program (CRI Attach), on the supervisor's side.

The program writes to the log and to each client. A client that is slow holds the program up, as with other
runtimes, and is let go when it takes nothing for long. Source: containerd's internal/cri/io/container_io.go.
"""

from __future__ import annotations

import functools
import os
import selectors
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from podwire.runtime.loop import Loop, Timer

CHUNK: Final = 65536
STALLED_SECONDS: Final = 30.0
"""How long a client may take nothing of what is there for it, unless the runtime says otherwise."""


class Program(Protocol):
    """The container, as its clients see it."""

    @property
    def stdin(self) -> int:
        """The descriptor that leads to its stdin; -1 if it has none, or none any more."""

    def input_ended(self) -> None:
        """A client's input has ended, by its will or because it has gone."""

    def resume(self) -> None:
        """A client has taken what held the program up."""

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal; nothing without one."""


class Attached:
    """One such client. ``gone`` is called when it is to be dropped."""

    def __init__(
        self,
        program: Program,
        streams: Sequence[int],
        *,
        stdin: bool,
        stall: float,
        loop: Loop,
        ended: Callable[[int], None],
        gone: Callable[[], None],
    ) -> None:
        """``streams``: what it sends, and where stdout and stderr go; they are copied. OSError.

        ``ended`` is called with the exit code at the program's end, or 0 when the client's input has ended.
        """
        self._program = program
        self._stall = stall
        self._loop = loop
        self._tell_ended = ended
        self._gone = gone
        self._sinks = {number: os.dup(streams[number]) for number in (1, 2)}
        self._waiting: dict[int, bytes] = {}
        self._stalled: Timer | None = None
        self._over = False
        self._source, self._target, self._unwritten = -1, -1, b""
        for fd in self._sinks.values():
            os.set_blocking(fd, False)
        if stdin and program.stdin >= 0:
            self._source, self._target = os.dup(streams[0]), os.dup(program.stdin)
            os.set_blocking(self._source, False)
            loop.watch(self._source, self._take_input)

    @property
    def behind(self) -> bool:
        """Whether there is something that it has not taken yet."""
        return bool(self._waiting)

    def resize(self, columns: int, rows: int) -> None:
        """The client's terminal has that size."""
        self._program.resize(columns, rows)

    def give(self, number: int, data: bytes) -> None:
        """The program has written to stdout (1) or stderr (2)."""
        if number not in self._sinks:
            return
        if number in self._waiting:
            self._waiting[number] += data
        elif left := self._written(number, data):
            self._waiting[number] = left
            self._loop.watch(
                self._sinks[number], functools.partial(self._flush, number), selectors.EVENT_WRITE
            )
            self._expect()

    def end(self, code: int) -> None:
        """The program has ended, or the client's input: what is left is sent, and then the streams end."""
        if self._over:
            return
        self._over = True
        self._close_input()
        self._tell_ended(code)
        self._close_done()

    def close(self) -> None:
        """The client has gone: let go of everything."""
        self._over = True
        had_input = self._source >= 0
        self._close_input()
        if had_input:
            self._program.input_ended()
        for number in list(self._sinks):
            self._close_sink(number)
        if self._stalled is not None:
            self._stalled.cancel()
        self._program.resume()

    def _written(self, number: int, data: bytes) -> bytes:
        """Write as much as goes; what is left. A client that reads no more gets nothing more."""
        try:
            while data:
                data = data[os.write(self._sinks[number], data) :]
        except BlockingIOError:
            return data
        except OSError:
            self._close_sink(number)
        return b""

    def _flush(self, number: int) -> None:
        left = self._written(number, self._waiting[number])
        self._expect()
        if left:
            self._waiting[number] = left
            return
        if number in self._sinks:
            self._loop.forget(self._sinks[number])
            del self._waiting[number]
        if self._over:
            self._close_done()
        if not self._waiting:
            self._program.resume()

    def _expect(self) -> None:
        """Something was taken or has begun to wait: the time for the next begins."""
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = self._loop.after(self._stall, self._let_go) if self._waiting else None

    def _let_go(self) -> None:
        if self._waiting:
            self._gone()

    def _close_done(self) -> None:
        for number in list(self._sinks):
            if number not in self._waiting:
                self._close_sink(number)

    def _close_sink(self, number: int) -> None:
        fd = self._sinks.pop(number)
        if self._waiting.pop(number, None) is not None:
            self._loop.forget(fd)
        os.close(fd)

    def _take_input(self) -> None:
        try:
            data = os.read(self._source, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._unwritten = data
            self._loop.forget(self._source)
            self._loop.watch(self._target, self._pass_on, selectors.EVENT_WRITE)
            self._pass_on()
            return
        self._close_input()
        self._program.input_ended()
        if self._program.stdin >= 0:
            # The program goes on to wait for the next client's input: this one's part is over.
            self.end(0)

    def _pass_on(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._target, self._unwritten) :]
        except BlockingIOError:
            return
        except OSError:  # the program reads no more
            self._close_input()
            return
        self._loop.forget(self._target)
        self._loop.watch(self._source, self._take_input)

    def _close_input(self) -> None:
        if self._source < 0:
            return
        self._loop.forget(self._target if self._unwritten else self._source)
        os.close(self._source)
        os.close(self._target)
        self._source = self._target = -1
