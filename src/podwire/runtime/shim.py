"""The runtime's side of a supervisor: a connection that carries requests, answers and events."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from podwire.runtime import wire
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.supervisor import SOCKET

HELLO_SECONDS = 15.0


def connect(directory: Path) -> socket.socket:
    """A socket connected to the supervisor in that run directory; OSError if none listens.

    The path may be longer than sun_path's 108 bytes, so it goes through /proc/self/fd.
    """
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(f"/proc/self/fd/{fd}/{SOCKET}")
    except OSError:
        sock.close()
        raise
    finally:
        os.close(fd)
    sock.setblocking(False)
    return sock


class Connection(asyncio.Protocol):
    """Frames over one socket. ``on_event`` gets what is no answer; ``on_lost`` is called once, at its end."""

    def __init__(
        self, subject: str, on_event: Callable[[wire.Frame], None], on_lost: Callable[[], None]
    ) -> None:
        self.subject = subject
        self.lost = False
        self._on_event = on_event
        self._on_lost = on_lost
        self._decoder = wire.Decoder()
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[wire.Frame]] = {}
        self._hello: asyncio.Future[wire.Frame] = asyncio.get_running_loop().create_future()

    async def attach(self, sock: socket.socket) -> None:
        """Speak over ``sock``, which is owned from now on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    async def hello(self) -> wire.Frame:
        """The supervisor's greeting: its ``pid``, ``start_time`` and ``containers``. Raises RuntimeFault."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                return await asyncio.shield(self._hello)
        except TimeoutError:
            raise RuntimeFault(
                Code.DEADLINE_EXCEEDED, self.subject, f"its supervisor did not answer in {HELLO_SECONDS:g} s"
            ) from None

    def expect(self) -> tuple[int, asyncio.Future[wire.Frame]]:
        """The number for a request that is sent past :meth:`call`, and its answer to come."""
        self._number += 1
        future: asyncio.Future[wire.Frame] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = future
        if self.lost:
            future.set_exception(self._gone())
        return self._number, future

    async def call(self, operation: str, timeout: float, **fields: Any) -> wire.Frame:
        """Send a request and return the whole answer, which has ``ok`` or ``error``.

        Raises RuntimeFault: UNAVAILABLE if the supervisor ends, DEADLINE_EXCEEDED after ``timeout`` seconds.
        """
        number, future = self.expect()
        if self._transport is not None and not self.lost:
            self._transport.write(wire.encode({"id": number, "op": operation, **fields}))
        return await self.answer(number, future, operation, timeout)

    async def answer(
        self, number: int, future: asyncio.Future[wire.Frame], operation: str, timeout: float
    ) -> wire.Frame:
        """Wait for the answer to a request."""
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise RuntimeFault(
                Code.DEADLINE_EXCEEDED,
                self.subject,
                f"its supervisor did not {operation} it in {timeout:g} s",
            ) from None
        finally:
            self._waiting.pop(number, None)

    def _gone(self) -> RuntimeFault:
        return RuntimeFault(Code.UNAVAILABLE, self.subject, "the sandbox's supervisor has ended")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except wire.Broken:
            self.close()

    def _take(self, frame: wire.Frame) -> None:
        event = frame.get("event")
        if event in ("hello", "failed") and not self._hello.done():
            if event == "hello":
                self._hello.set_result(frame)
            else:
                self._hello.set_exception(
                    RuntimeFault(Code.INTERNAL, self.subject, str(frame.get("message")))
                )
        elif event is not None:
            self._on_event(frame)
        else:
            future = self._waiting.get(frame.get("id", 0))
            if future is not None and not future.done():
                future.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        self.lost = True
        for future in (*self._waiting.values(), self._hello):
            if not future.done():
                future.set_exception(self._gone())
        self._hello.exception()  # it may be that nobody asks for it
        self._on_lost()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()


def settle(future: asyncio.Future[None]) -> None:
    """Mark a future as done, unless it is."""
    if not future.done():
        future.set_result(None)


def fault(subject: str, answer: wire.Frame) -> RuntimeFault:
    """The error in an answer."""
    error = answer["error"]
    return RuntimeFault(Code(error["code"]), subject, error["message"])


class Process:
    """The supervisor as a process, by a descriptor that cannot come to mean another one."""

    def __init__(self, pid: int) -> None:
        """OSError if it has ended."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    async def ended(self, timeout: float) -> bool:
        """Wait until it has ended; False after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._fd, settle, done)
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._fd)
        return True

    def kill(self) -> None:
        """KILL it, and with it its containers."""
        try:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
