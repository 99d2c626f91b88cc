"""A SPDY connection over anything that carries bytes, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from podwire.serving.streaming.queue import ByteQueue
from podwire.serving.streaming.spdy import frames
from podwire.serving.streaming.spdy.frames import ProtocolError
from podwire.serving.streaming.spdy.session import GoingAway, Opened, Received, Reset, Session, Widened

PIECE = 32 << 10
"""Bytes of a data frame at most."""


class Carrier(Protocol):
    """What the frames travel over."""

    async def read(self) -> bytes:
        """Some bytes; empty when the peer has closed or is gone."""

    async def send(self, data: bytes) -> None:
        """Send bytes in the order of the calls, waiting while too much is on its way.

        Raise ConnectionError.
        """

    def close(self) -> None:
        """End it; what was sent may still go."""


class Stream:
    """One stream that the client opened; ``headers`` by their names in lower case."""

    def __init__(self, connection: Connection, number: int, headers: dict[str, str]) -> None:
        self.number = number
        self.headers = headers
        self.incoming = ByteQueue()
        self.widened = asyncio.Event()
        self.broken = asyncio.Event()
        """Set when the stream did not end by both sides having finished."""
        self._connection = connection

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raise ConnectionError when the stream or connection broke."""
        data = await self.incoming.get()
        if data:
            self._connection.consumed(self, len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, waiting as long as the client is slow. Raise ConnectionError."""
        await self._connection.write(self, data)

    async def finish(self) -> None:
        """Send no more; nothing if the stream is over."""
        with contextlib.suppress(ConnectionError):
            await self._connection.finish(self)

    async def reset(self, code: int = frames.CANCEL) -> None:
        """End the stream at once; nothing if it is over."""
        with contextlib.suppress(ConnectionError):
            await self._connection.reset(self, code)

    def abandon(self) -> None:
        """What the client still sends is dropped."""
        self.incoming.abandon()


class Connection:
    """The server's end. ``accept`` is called with each new stream: whether to take it."""

    def __init__(self, carrier: Carrier, accept: Callable[[Stream], bool]) -> None:
        self.last_active = asyncio.get_running_loop().time()
        """When a stream was opened or carried something last, by the loop's clock."""
        self._carrier = carrier
        self._accept = accept
        self._session = Session()
        self._streams: dict[int, Stream] = {}
        self._gone = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Take what comes until the client has gone; never raises for what the client does."""
        failure = ConnectionResetError("the client has gone")
        try:
            while data := await self._carrier.read():
                await self._take(data)
        except ProtocolError as error:
            failure = ConnectionResetError(str(error))
            self._session.go_away(frames.PROTOCOL_ERROR)
            with contextlib.suppress(ConnectionError):
                await self._flush()
        except ConnectionError:
            pass
        finally:
            for stream in list(self._streams.values()):
                self._end(stream, failure)
            self._gone.set()

    async def close(self, linger: float) -> None:
        """Say good-bye, let the client close first for ``linger`` seconds, and close.

        A socket closed with unread bytes in it takes those with it that the client has not read yet.
        """
        for stream in list(self._streams.values()):
            stream.abandon()
        self._session.go_away()
        try:
            async with asyncio.timeout(linger):
                await self._flush()
                await self._gone.wait()
        except (ConnectionError, TimeoutError):
            pass
        finally:
            if self._flushing is not None:
                self._flushing.cancel()
            self._carrier.close()

    async def ping(self) -> None:
        """Send a PING, so that a broken connection is noticed. Raise ConnectionError."""
        self._session.ping()
        await self._flush()

    def consumed(self, stream: Stream, size: int) -> None:
        """Bytes of the stream were used."""
        self._session.consumed(stream.number, size)
        self._flush_soon()

    async def write(self, stream: Stream, data: bytes) -> None:
        """See :meth:`Stream.write`."""
        view = memoryview(data)
        while view:
            stream.widened.clear()
            room = min(self._session.room(stream.number), PIECE)
            if not room:
                await stream.widened.wait()
                continue
            self._touch()
            self._session.send(stream.number, bytes(view[:room]))
            view = view[room:]
            await self._flush()

    async def finish(self, stream: Stream) -> None:
        """See :meth:`Stream.finish`."""
        self._session.send(stream.number, b"", fin=True)
        self._forget_closed(stream)
        await self._flush()

    async def reset(self, stream: Stream, code: int) -> None:
        """See :meth:`Stream.reset`."""
        self._session.reset(stream.number, code)
        self._end(stream, ConnectionResetError("the stream was ended"))
        await self._flush()

    async def _take(self, data: bytes) -> None:
        for event in self._session.receive(data):
            match event:
                case Received(number, piece, fin):
                    self._touch()
                    stream = self._streams.get(number)
                    if stream is None:
                        continue
                    await stream.incoming.put(piece)
                    if fin:
                        stream.incoming.finish()
                        self._forget_closed(stream)
                case Opened(number, headers, fin):
                    self._touch()
                    self._open(number, headers, fin=fin)
                case Reset(number):
                    if stream := self._streams.get(number):
                        self._end(stream, ConnectionResetError("the client ended the stream"))
                case Widened(number):
                    for stream in [self._streams.get(number)] if number else list(self._streams.values()):
                        if stream is not None:
                            stream.widened.set()
                case GoingAway():
                    pass
        # Answers are sent aside, as a client that is slow to read may be waiting for what it writes to be
        # taken; but one that only asks and never reads is made to wait.
        if len(self._session.outgoing) > PIECE:
            await self._flush()
        self._flush_soon()

    def _open(self, number: int, headers: dict[str, str], *, fin: bool) -> None:
        stream = Stream(self, number, headers)
        # The client ignores data that comes before the reply; all goes out in the order of the session.
        self._session.reply(number)
        if fin:
            stream.incoming.finish()
        self._streams[number] = stream
        if not self._accept(stream):
            self._session.reset(number, frames.REFUSED_STREAM)
            self._end(stream, ConnectionResetError("the stream was refused"))

    def _end(self, stream: Stream, failure: ConnectionError) -> None:
        self._session.reset(stream.number, frames.CANCEL)
        self._streams.pop(stream.number, None)
        stream.incoming.finish(failure)
        stream.widened.set()
        stream.broken.set()

    def _forget_closed(self, stream: Stream) -> None:
        if not self._session.is_open(stream.number):
            self._streams.pop(stream.number, None)

    def _touch(self) -> None:
        self.last_active = asyncio.get_running_loop().time()

    async def _flush(self) -> None:
        if self._session.outgoing:
            data = bytes(self._session.outgoing)
            self._session.outgoing.clear()
            await self._carrier.send(data)

    def _flush_soon(self) -> None:
        if self._session.outgoing and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self._session.outgoing:
                await self._flush()
