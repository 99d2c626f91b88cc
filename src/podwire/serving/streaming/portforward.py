"""Port-forward: for each TCP connection a stream for its bytes and one for what went wrong with it.

The client opens both with the headers ``streamType`` (data, error), ``port`` and ``requestID``, which is the
same for the two.

Source: k8s.io/kubelet/pkg/cri/streaming/portforward/httpstream.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from podwire.serving.status import Failure
from podwire.serving.streaming.program import Limits, watch
from podwire.serving.streaming.spdy.connection import Carrier, Connection, Stream
from podwire.serving.streaming.tasks import cancelled, unless

log = logging.getLogger(__name__)

PROTOCOL = "portforward.k8s.io"
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
CREATION = 30.0
"""Seconds that the client has to open the other stream of a pair."""
LINGER = 5.0
CHUNK = 64 << 10

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Duplex(Protocol):
    """The client's end of one connection."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raise ConnectionError."""

    async def write(self, data: bytes) -> None:
        """Send bytes. Raise ConnectionError."""

    def abandon(self) -> None:
        """What still comes is dropped."""


class Forwarder:
    """The connections of one client to one pod; ``what`` names the pod in messages."""

    def __init__(self, carrier: Carrier, connect: Connect, limits: Limits, what: str) -> None:
        self._connection = Connection(carrier, self._accept)
        self._connect = connect
        self._limits = limits
        self._what = what
        self._pairs: dict[str, _Pair] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Forward until the client has gone or was idle for too long."""
        serving = asyncio.create_task(self._connection.serve())
        try:
            await unless(serving, watch(self._connection, self._limits))
        finally:
            await cancelled(*self._tasks)
            try:
                await self._connection.close(LINGER)
            finally:
                await cancelled(serving)

    def _accept(self, stream: Stream) -> bool:
        role, port = stream.headers.get("streamtype"), stream.headers.get("port", "")
        if role not in ("data", "error") or not is_port(port):
            return False
        # Old clients send no requestID; of theirs, the data stream is the one after the error stream.
        request = stream.headers.get("requestid") or str(stream.number - (2 if role == "data" else 0))
        pair = self._pairs.get(request)
        if pair is None:
            pair = self._pairs[request] = _Pair(int(port))
            self._spawn(self._forward(request, pair))
        return pair.add(role, stream)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, request: str, pair: _Pair) -> None:
        try:
            try:
                async with asyncio.timeout(CREATION):
                    await pair.complete.wait()
            except TimeoutError:
                for stream in pair.streams.values():
                    await stream.reset()
                return
            data, error = pair.streams["data"], pair.streams["error"]
            error.abandon()
            broken = asyncio.create_task(data.broken.wait())
            try:
                await unless(broken, self._carry(pair.port, data, error))
            finally:
                await cancelled(broken)
                await data.finish()
                await error.finish()
        except ConnectionError:
            pass
        finally:
            del self._pairs[request]

    async def _carry(self, port: int, data: Stream, error: Stream) -> None:
        try:
            reader, writer = await self._connect(port)
        except (Failure, OSError) as failure:
            data.abandon()
            await self._failed(error, port, failure)
            return
        sending = asyncio.create_task(up(data, writer))
        try:
            failed = await down(data, reader)
            if failed is not None:
                await self._failed(error, port, failed)
                return
            # kubectl waits for the end of the error stream before it closes its own end of the connection;
            # one that is only listened to in the pod may still take what comes until then.
            await data.finish()
            await error.finish()
            await sending
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            # At once, whatever the pod has not read yet; nothing if all was said.
            writer.transport.abort()
            await cancelled(sending)

    async def _failed(self, error: Stream, port: int, failure: Exception) -> None:
        log.info("port %d of %s: %s", port, self._what, failure)
        await error.write(told(port, self._what, failure))


class _Pair:
    """The two streams of a connection, as they come."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: dict[str, Stream] = {}
        self.complete = asyncio.Event()

    def add(self, role: str, stream: Stream) -> bool:
        """Take a stream; False if there is one in its place."""
        if role in self.streams:
            return False
        self.streams[role] = stream
        if len(self.streams) == 2:
            self.complete.set()
        return True


async def up(data: Duplex, writer: asyncio.StreamWriter) -> None:
    """To the pod. The client ending its direction ends only that, as in TCP."""
    while piece := await data.read():
        try:
            writer.write(piece)
            await writer.drain()
        except OSError:
            # There may still be something to be read from the pod; reading tells what is wrong, too.
            data.abandon()
            return
    with contextlib.suppress(OSError):
        writer.write_eof()


async def down(data: Duplex, reader: asyncio.StreamReader) -> OSError | None:
    """From the pod; returns what broke on its side. Raise ConnectionError when the client's side broke."""
    while True:
        try:
            piece = await reader.read(CHUNK)
        except OSError as error:
            return error
        if not piece:
            return None
        await data.write(piece)


def told(port: int, what: str, failure: Exception) -> bytes:
    """What the client is told of a connection to a pod that failed."""
    why = getattr(failure, "strerror", None) or failure
    return f"error forwarding port {port} to {what}: {why}".encode()


def is_port(text: str) -> bool:
    """Whether the text is the number of a TCP port."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16
