"""The frames of SPDY/3 and the bytes that they are.

A control frame: a bit 1, version (15 bits), type (16), flags (8), length (24), payload. A data frame: a bit
0, stream (31 bits), flags (8), length (24), data. All numbers are big-endian.

Source: SPDY Protocol - Draft 3.1, sections 2.2 and 2.6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import ClassVar

import msgspec

VERSION = 3
FIN = 0x01
"""The flag of the last frame of a direction of a stream."""
UNIDIRECTIONAL = 0x02
LARGEST_CONTROL = 64 << 10
"""Bytes of a control frame's payload; larger ones are refused."""
LARGEST_DATA = (1 << 24) - 1
WINDOW = 64 << 10
"""Bytes that may be sent on a stream before the peer has said more."""
INITIAL_WINDOW_SIZE = 7
"""The entry of SETTINGS that changes WINDOW."""

PROTOCOL_ERROR = 1
INVALID_STREAM = 2
REFUSED_STREAM = 3
CANCEL = 5
FLOW_CONTROL_ERROR = 7
STREAM_ALREADY_CLOSED = 9

_MASK = 0x7FFFFFFF
_HEAD = struct.Struct(">II")


class ProtocolError(Exception):
    """The peer broke the protocol; the connection cannot go on."""


class _Frame(msgspec.Struct, frozen=True):
    TYPE: ClassVar[int] = 0

    def encode(self) -> bytes:
        """The frame's bytes."""
        payload = self._payload()
        return (
            _HEAD.pack(0x80000000 | VERSION << 16 | self.TYPE, self._flags() << 24 | len(payload)) + payload
        )

    def _payload(self) -> bytes:
        raise NotImplementedError

    def _flags(self) -> int:
        return 0


class SynStream(_Frame, frozen=True):
    """A new stream; ``block`` is its compressed headers."""

    TYPE: ClassVar[int] = 1
    stream: int
    block: bytes
    associated: int = 0
    priority: int = 0
    fin: bool = False
    unidirectional: bool = False

    def _payload(self) -> bytes:
        return struct.pack(">IIBB", self.stream, self.associated, self.priority << 5, 0) + self.block

    def _flags(self) -> int:
        return FIN * self.fin | UNIDIRECTIONAL * self.unidirectional


class _HeaderBlock(_Frame, frozen=True):
    stream: int
    block: bytes
    fin: bool = False

    def _payload(self) -> bytes:
        return struct.pack(">I", self.stream) + self.block

    def _flags(self) -> int:
        return FIN * self.fin


class SynReply(_HeaderBlock, frozen=True):
    """A stream is accepted."""

    TYPE: ClassVar[int] = 2


class RstStream(_Frame, frozen=True):
    """A stream ends at once, both directions."""

    TYPE: ClassVar[int] = 3
    stream: int
    code: int

    def _payload(self) -> bytes:
        return struct.pack(">II", self.stream, self.code)


class Settings(_Frame, frozen=True):
    """Parameters of the connection: (id, value)."""

    TYPE: ClassVar[int] = 4
    entries: tuple[tuple[int, int], ...]

    def _payload(self) -> bytes:
        return struct.pack(">I", len(self.entries)) + b"".join(
            struct.pack(">II", *one) for one in self.entries
        )


class Ping(_Frame, frozen=True):
    """To be answered with the same; a client's are odd, a server's even."""

    TYPE: ClassVar[int] = 6
    id: int

    def _payload(self) -> bytes:
        return struct.pack(">I", self.id)


class GoAway(_Frame, frozen=True):
    """No more streams after ``last`` are taken."""

    TYPE: ClassVar[int] = 7
    last: int
    code: int = 0

    def _payload(self) -> bytes:
        return struct.pack(">II", self.last, self.code)


class Headers(_HeaderBlock, frozen=True):
    """More headers of a stream."""

    TYPE: ClassVar[int] = 8


class WindowUpdate(_Frame, frozen=True):
    """So many bytes more may be sent on the stream; on the connection if ``stream`` is 0."""

    TYPE: ClassVar[int] = 9
    stream: int
    delta: int

    def _payload(self) -> bytes:
        return struct.pack(">II", self.stream, self.delta)


class Data(_Frame, frozen=True):
    """Bytes of a stream. The decoder gives a frame's bytes in pieces, as they come."""

    stream: int
    data: bytes
    fin: bool = False

    def encode(self) -> bytes:
        """The frame's bytes."""
        return _HEAD.pack(self.stream, (FIN * self.fin) << 24 | len(self.data)) + self.data


Frame = SynStream | SynReply | RstStream | Settings | Ping | GoAway | Headers | WindowUpdate | Data


class Decoder:
    """Bytes in any pieces to frames, never holding more than LARGEST_CONTROL bytes beside what it was fed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._stream = 0
        self._fin = False
        self._left = 0
        self._skip = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes; to be used up before the next call.

        Frames of unknown types are left out, as section 2.2.1 asks. Raise ProtocolError.
        """
        self._buffer += data
        while True:
            if self._skip:
                skipped = min(self._skip, len(self._buffer))
                del self._buffer[:skipped]
                self._skip -= skipped
            if self._left:
                if not self._buffer:
                    return
                yield self._piece()
                continue
            if self._skip or len(self._buffer) < _HEAD.size:
                return
            first, second = _HEAD.unpack_from(self._buffer)
            flags, length = second >> 24, second & 0xFFFFFF
            if not first >> 31:
                if not first:
                    raise ProtocolError("a data frame of stream 0")
                del self._buffer[: _HEAD.size]
                self._stream, self._fin, self._left = first, bool(flags & FIN), length
                if not length:
                    yield Data(first, b"", self._fin)
                continue
            version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
            if version != VERSION:
                raise ProtocolError(f"a control frame of version {version}")
            if kind not in _PARSERS:
                del self._buffer[: _HEAD.size]
                self._skip = length
                continue
            if length > LARGEST_CONTROL:
                raise ProtocolError(f"a control frame of type {kind} with {length} bytes")
            if len(self._buffer) < _HEAD.size + length:
                return
            payload = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            try:
                yield _PARSERS[kind](flags, payload)
            except struct.error as error:
                raise ProtocolError(f"a control frame of type {kind} with {length} bytes") from error

    def _piece(self) -> Data:
        size = min(self._left, len(self._buffer))
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._left -= size
        return Data(self._stream, piece, self._fin and not self._left)


def _syn_stream(flags: int, payload: bytes) -> SynStream:
    stream, associated, priority, _ = struct.unpack_from(">IIBB", payload)
    return SynStream(
        _stream(stream),
        payload[10:],
        associated & _MASK,
        priority >> 5,
        bool(flags & FIN),
        bool(flags & UNIDIRECTIONAL),
    )


def _syn_reply(flags: int, payload: bytes) -> SynReply:
    return SynReply(_stream(*struct.unpack_from(">I", payload)), payload[4:], bool(flags & FIN))


def _rst_stream(_: int, payload: bytes) -> RstStream:
    stream, code = struct.unpack(">II", payload)
    return RstStream(_stream(stream), code)


def _settings(_: int, payload: bytes) -> Settings:
    (count,) = struct.unpack_from(">I", payload)
    if len(payload) != 4 + 8 * count:
        raise ProtocolError(f"SETTINGS of {count} entries in {len(payload)} bytes")
    # An entry begins with eight flags about keeping it for later connections.
    return Settings(tuple((key & 0xFFFFFF, value) for key, value in struct.iter_unpack(">II", payload[4:])))


def _ping(_: int, payload: bytes) -> Ping:
    return Ping(*struct.unpack(">I", payload))


def _go_away(_: int, payload: bytes) -> GoAway:
    last, code = struct.unpack(">II", payload)
    return GoAway(last & _MASK, code)


def _headers(flags: int, payload: bytes) -> Headers:
    return Headers(_stream(*struct.unpack_from(">I", payload)), payload[4:], bool(flags & FIN))


def _window_update(_: int, payload: bytes) -> WindowUpdate:
    stream, delta = struct.unpack(">II", payload)
    if not delta & _MASK:
        raise ProtocolError("a WINDOW_UPDATE of 0")
    return WindowUpdate(stream & _MASK, delta & _MASK)


def _stream(number: int) -> int:
    if not number & _MASK:
        raise ProtocolError("stream 0 in a frame about one stream")
    return number & _MASK


_PARSERS: dict[int, Callable[[int, bytes], Frame]] = {
    SynStream.TYPE: _syn_stream,
    SynReply.TYPE: _syn_reply,
    RstStream.TYPE: _rst_stream,
    Settings.TYPE: _settings,
    Ping.TYPE: _ping,
    GoAway.TYPE: _go_away,
    Headers.TYPE: _headers,
    WindowUpdate.TYPE: _window_update,
}
