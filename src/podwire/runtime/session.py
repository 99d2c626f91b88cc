"""A program inside a container, or the container's own, with its streams in the caller's hands.

CRI Exec and Attach.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from podwire.runtime import launch, shim, wire
from podwire.runtime.errors import Code, RuntimeFault

CHUNK = 65536
START_SECONDS = 30.0
END_OF_INPUT = b"\x04"
"""What a terminal takes for the end of input."""


class Session:
    """Implements :class:`podwire.runtime.api.ExecSession`.

    Closing its connection kills the program that exec began; one that is attached to goes on.
    """

    def __init__(self, subject: str) -> None:
        self._connection = shim.Connection(subject, self._on_event, self._on_lost)
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._subject = subject
        self._outputs: dict[int, int] = {}
        self._stdin = -1
        self._theirs: list[int] = []
        """The supervisor's ends of the streams, until it has them."""
        self._tty = False
        self._attached = False
        self._blocked: asyncio.Future[None] | None = None

    async def start(
        self,
        directory: Path,
        container_id: str,
        command: tuple[str, ...],
        stdin: bool,
        tty: bool,
        *,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Run ``command``; ``directory`` has the supervisor's socket. Raises RuntimeFault or OSError."""
        request = {"op": "exec", "container": container_id, "command": command}
        await self._begin(directory, request, lambda: self._terminal(size) if tty else self._pipes(stdin))

    async def attach(self, directory: Path, container_id: str, *, stdin: bool) -> None:
        """Join the streams of the container's own program. Raises RuntimeFault or OSError."""
        self._attached = True
        request = {"op": "attach", "container": container_id, "stdin": stdin}
        joined = await self._begin(directory, request, lambda: self._pipes(stdin))
        if not joined["stdin"] and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    async def _begin(self, directory: Path, request: wire.Frame, streams: Callable[[], None]) -> wire.Frame:
        """Ask the supervisor, with its ends of what ``streams`` makes; what it says."""
        sock = shim.connect(directory)
        try:
            streams()
            for fd in (*self._outputs.values(), self._stdin):
                if fd >= 0:
                    os.set_blocking(fd, False)
            number, future = self._connection.expect()
            self._send(sock, wire.encode({"id": number, **request}), self._theirs)
        except OSError:
            sock.close()
            await self.close()
            raise
        finally:
            for fd in self._theirs:
                os.close(fd)
            self._theirs = []
        await self._connection.attach(sock)
        try:
            answer = await self._connection.answer(number, future, str(request["op"]), START_SECONDS)
            if "error" in answer:
                raise shim.fault(self._subject, answer)
        except BaseException:
            await self.close()
            raise
        return wire.Frame(answer["ok"])

    def _terminal(self, size: tuple[int, int] | None) -> None:
        self._tty = True
        master, slave = os.openpty()
        self._theirs = [slave]
        self._outputs = {1: master}
        self._stdin = os.dup(master)
        if size is not None:
            launch.set_size(self._stdin, *size)

    def _pipes(self, stdin: bool) -> None:
        if stdin:
            read, self._stdin = os.pipe2(os.O_CLOEXEC)
        else:
            read = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._theirs = [read]
        for number in (1, 2):
            self._outputs[number], write = os.pipe2(os.O_CLOEXEC)
            self._theirs.append(write)

    @staticmethod
    def _send(sock: socket.socket, request: bytes, fds: list[int]) -> None:
        # A fresh connection takes a request at once; only a command of hundreds of kilobytes would not fit.
        sent = socket.send_fds(sock, [request], fds)
        if sent < len(request):
            sock.setblocking(True)
            sock.settimeout(START_SECONDS)
            sock.sendall(request[sent:])
            sock.setblocking(False)

    def _on_event(self, frame: wire.Frame) -> None:
        if frame["event"] == "exit" and not self._exit.done():
            self._exit.set_result(frame["code"])
            self._unblock()

    def _on_lost(self) -> None:
        if not self._exit.done():
            self._exit.set_exception(
                RuntimeFault(Code.UNAVAILABLE, self._subject, "the sandbox's supervisor has ended")
            )
            self._exit.exception()
            self._unblock()

    def _unblock(self) -> None:
        if self._blocked is not None:
            shim.settle(self._blocked)

    async def write_stdin(self, data: bytes) -> None:
        """Pass bytes to the program; empty closes its stdin. What it no longer reads is dropped."""
        if self._stdin < 0:
            return
        if not data and not self._tty:
            os.close(self._stdin)
            self._stdin = -1
            return
        view = memoryview(data or END_OF_INPUT)
        while view and self._stdin >= 0:
            try:
                try:
                    view = view[os.write(self._stdin, view) :]
                except BlockingIOError:
                    await self._writable()
            except OSError:  # EPIPE, EIO: nobody reads any more
                return

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._stdin, shim.settle, ready)
        try:
            self._blocked = ready
            await ready
        finally:
            self._blocked = None
            if self._stdin >= 0:
                loop.remove_writer(self._stdin)
        if self._exit.done():
            # A child of it may hold the pipe open, but the program reads no more.
            raise BrokenPipeError

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(1, stdout bytes) and (2, stderr bytes) as they come, until all ends of the streams are closed."""
        while self._outputs:
            for number, fd in list(self._outputs.items()):
                try:
                    data = os.read(fd, CHUNK)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: the terminal's other end is closed
                    data = b""
                if data:
                    yield number, data
                elif self._outputs.pop(number, None) is not None:
                    os.close(fd)
            await self._readable()

    async def _readable(self) -> None:
        fds = list(self._outputs.values())
        if not fds:
            return
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        for fd in fds:
            loop.add_reader(fd, shim.settle, ready)
        try:
            await ready
        finally:
            for fd in fds:
                loop.remove_reader(fd)

    async def resize(self, columns: int, rows: int) -> None:
        """Set the terminal's size; nothing without a terminal."""
        if self._attached:
            await self._connection.call("resize", START_SECONDS, columns=columns, rows=rows)
        elif self._tty and self._stdin >= 0:
            launch.set_size(self._stdin, columns, rows)

    async def wait(self) -> int:
        """The exit code, 128 + signal when killed. RuntimeFault UNAVAILABLE if the sandbox ends first."""
        return await asyncio.shield(self._exit)

    async def close(self) -> None:
        """Kill the program, if exec began it and it still runs, and release everything."""
        self._connection.close()
        for fd in (*self._outputs.values(), self._stdin):
            if fd >= 0:
                os.close(fd)
        self._outputs = {}
        self._stdin = -1
