"""Frames between the runtime and a supervisor: a length of 4 bytes, big-endian, then one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

LIMIT: Final = 1 << 24
"""Longest frame that is taken, in bytes."""

Frame = dict[str, Any]


class Broken(Exception):
    """The other side does not speak this protocol."""


def encode(frame: Frame) -> bytes:
    """One frame as bytes."""
    body = json.dumps(frame, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


class Decoder:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes as they came from the socket; yields whole frames. Raises :class:`Broken`."""
        self._buffer += data
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > LIMIT:
                raise Broken(f"frame of {length} bytes")
            if len(self._buffer) < 4 + length:
                return
            body = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            try:
                frame = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise Broken(f"not JSON: {error}") from error
            if not isinstance(frame, dict):
                raise Broken("not an object")
            yield frame
