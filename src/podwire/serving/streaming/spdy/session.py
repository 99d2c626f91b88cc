"""The state of a SPDY/3.1 connection, the server's end, without I/O: bytes to events, calls to bytes.

Kubernetes' clients know no windows: they send what they have, never send WINDOW_UPDATE, and rely on TCP to
be slowed down. So the windows of a peer count only after it has spoken of them, and what arrives is never
refused for being too much; that it is not read any faster than it is used is up to the connection.

Source: SPDY Protocol - Draft 3.1, sections 2.2 to 2.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from podwire.serving.streaming.spdy import frames
from podwire.serving.streaming.spdy.frames import (
    WINDOW,
    Data,
    Decoder,
    Frame,
    GoAway,
    Headers,
    Ping,
    ProtocolError,
    RstStream,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)
from podwire.serving.streaming.spdy.headers import Compressor, Decompressor

MOST_STREAMS = 1024
"""Streams of one connection at once; more are refused."""
_LARGEST_WINDOW = 0x7FFFFFFF


class Opened(msgspec.Struct, frozen=True):
    """The client opened a stream; to be answered by ``Session.reply`` or ``Session.reset``."""

    stream: int
    headers: dict[str, str]
    fin: bool


class Received(msgspec.Struct, frozen=True):
    """Bytes of a stream; ``fin``: the client sends no more."""

    stream: int
    data: bytes
    fin: bool


class Reset(msgspec.Struct, frozen=True):
    """The client ended a stream."""

    stream: int
    code: int


class Widened(msgspec.Struct, frozen=True):
    """More may be sent on the stream; on any stream if it is 0."""

    stream: int


class GoingAway(msgspec.Struct, frozen=True):
    """The client opens no more streams."""


Event = Opened | Received | Reset | Widened | GoingAway


class _Stream:
    __slots__ = ("local_open", "remote_open", "unacknowledged", "window")

    def __init__(self, window: int, *, remote_open: bool, local_open: bool) -> None:
        self.local_open = local_open
        self.remote_open = remote_open
        self.window = window
        self.unacknowledged = 0


class Session:
    """One connection. What is to be sent collects in ``outgoing``, which the caller empties."""

    def __init__(self, most_streams: int = MOST_STREAMS) -> None:
        self.outgoing = bytearray()
        self._most = most_streams
        self._decoder = Decoder()
        self._compressor = Compressor()
        self._decompressor = Decompressor()
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        self._initial = WINDOW
        self._window = WINDOW
        self._windows = False
        self._whole_window = False
        self._ping = 0

    def receive(self, data: bytes) -> Iterator[Event]:
        """What these bytes mean; to be used up before the next call. Raise ProtocolError."""
        for frame in self._decoder.feed(data):
            yield from self._received(frame)

    def is_open(self, stream: int) -> bool:
        """Whether the stream may still carry anything in either direction."""
        return stream in self._streams

    def reply(self, stream: int, headers: Mapping[str, str] | None = None) -> None:
        """Accept a stream."""
        self._send(SynReply(stream, self._compressor.block(headers or {})))

    def room(self, stream: int) -> int:
        """How many bytes may be sent on the stream now. Raise ConnectionResetError if it is over."""
        state = self._streams.get(stream)
        if state is None or not state.local_open:
            raise ConnectionResetError(f"stream {stream} is closed")
        room = frames.LARGEST_DATA
        if self._windows:
            room = min(room, state.window)
        if self._whole_window:
            room = min(room, self._window)
        return max(room, 0)

    def send(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        """Bytes of a stream, no more than ``room``; ``fin``: the last.

        Raise ConnectionResetError if it is over.
        """
        state = self._streams.get(stream)
        if state is None or not state.local_open:
            raise ConnectionResetError(f"stream {stream} is closed")
        state.window -= len(data)
        self._window -= len(data)
        self._send(Data(stream, data, fin))
        if fin:
            state.local_open = False
            self._forget_closed(stream, state)

    def consumed(self, stream: int, size: int) -> None:
        """So many bytes of the stream were used; the client may send as many more."""
        state = self._streams.get(stream)
        if state is None or not state.remote_open:
            return
        state.unacknowledged += size
        if state.unacknowledged >= WINDOW // 2:
            self._send(WindowUpdate(stream, state.unacknowledged))
            state.unacknowledged = 0

    def reset(self, stream: int, code: int) -> None:
        """End a stream at once; nothing if it is over."""
        if self._streams.pop(stream, None) is not None:
            self._send(RstStream(stream, code))

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._ping = self._ping % 0x7FFFFFFE + 2
        self._send(Ping(self._ping))

    def go_away(self, code: int = 0) -> None:
        """Say that no more streams are taken."""
        self._send(GoAway(self._last, code))

    def _send(self, frame: Frame) -> None:
        self.outgoing += frame.encode()

    def _forget_closed(self, stream: int, state: _Stream) -> None:
        if not state.local_open and not state.remote_open:
            self._streams.pop(stream, None)

    def _received(self, frame: Frame) -> Iterator[Event]:
        match frame:
            case Data():
                yield from self._data(frame)
            case SynStream():
                yield from self._syn_stream(frame)
            case RstStream(stream, code):
                if self._streams.pop(stream, None) is not None:
                    yield Reset(stream, code)
            case WindowUpdate():
                yield from self._window_update(frame)
            case Settings(entries):
                yield from self._settings(entries)
            case Ping(number):
                if number % 2:
                    self._send(Ping(number))
            case Headers(stream, block, fin):
                # Its headers mean nothing here, but the decompressor has to see them.
                self._decompressor.headers(block)
                state = self._streams.get(stream)
                if fin and state is not None and state.remote_open:
                    yield from self._data(Data(stream, b"", fin))
            case GoAway():
                yield GoingAway()
            case SynReply():
                raise ProtocolError("SYN_REPLY to a stream that was never opened")

    def _syn_stream(self, frame: SynStream) -> Iterator[Event]:
        headers = self._decompressor.headers(frame.block)
        if not frame.stream % 2 or frame.stream <= self._last:
            raise ProtocolError(f"a new stream with the number {frame.stream} after {self._last}")
        self._last = frame.stream
        if len(self._streams) >= self._most:
            self._send(RstStream(frame.stream, frames.REFUSED_STREAM))
            return
        state = _Stream(self._initial, remote_open=not frame.fin, local_open=not frame.unidirectional)
        self._streams[frame.stream] = state
        self._forget_closed(frame.stream, state)
        yield Opened(frame.stream, headers, frame.fin)

    def _data(self, frame: Data) -> Iterator[Event]:
        state = self._streams.get(frame.stream)
        if state is None:
            # Frames on their way when a stream was ended here are no fault of the client's.
            if not frame.stream % 2 or frame.stream > self._last:
                self._send(RstStream(frame.stream, frames.INVALID_STREAM))
            return
        if not state.remote_open:
            self._streams.pop(frame.stream)
            self._send(RstStream(frame.stream, frames.STREAM_ALREADY_CLOSED))
            yield Reset(frame.stream, frames.STREAM_ALREADY_CLOSED)
            return
        if frame.fin:
            state.remote_open = False
            self._forget_closed(frame.stream, state)
        yield Received(frame.stream, frame.data, frame.fin)

    def _window_update(self, frame: WindowUpdate) -> Iterator[Event]:
        if not frame.stream:
            self._whole_window = True
            self._window += frame.delta
            if self._window > _LARGEST_WINDOW:
                raise ProtocolError("the connection's window is too large")
            yield Widened(0)
            return
        self._windows = True
        state = self._streams.get(frame.stream)
        if state is None:
            return
        state.window += frame.delta
        if state.window > _LARGEST_WINDOW:
            self.reset(frame.stream, frames.FLOW_CONTROL_ERROR)
            yield Reset(frame.stream, frames.FLOW_CONTROL_ERROR)
            return
        yield Widened(frame.stream)

    def _settings(self, entries: tuple[tuple[int, int], ...]) -> Iterator[Event]:
        for key, value in entries:
            if key != frames.INITIAL_WINDOW_SIZE:
                continue
            if value > _LARGEST_WINDOW:
                raise ProtocolError(f"an initial window of {value} bytes")
            self._windows = True
            for state in self._streams.values():
                state.window += value - self._initial
            self._initial = value
            yield Widened(0)
