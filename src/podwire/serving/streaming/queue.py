"""A bounded queue of bytes between two tasks: whoever puts too much waits for whoever gets."""

from __future__ import annotations

import asyncio

LIMIT = 64 << 10


class ByteQueue:
    """Bytes in order, until their end, or a failure."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._ended = False
        self._failure: ConnectionError | None = None
        self._abandoned = False
        self._changed = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Add bytes, and wait while there are more than the limit. What comes after the end is dropped."""
        if not data or self._ended or self._abandoned:
            return
        self._buffer += data
        self._wake()
        while len(self._buffer) > self._limit and not self._abandoned:
            await self._changed.wait()

    def finish(self, failure: ConnectionError | None = None) -> None:
        """No more is put; with a failure, what is still there is lost and ``get`` raises it."""
        if failure is not None:
            self.abandon()
            self._failure = self._failure or failure
        self._ended = True
        self._wake()

    def abandon(self) -> None:
        """Nobody gets any more: what is there and what comes is dropped, and nobody waits."""
        self._abandoned = True
        self._buffer.clear()
        self._wake()

    async def get(self) -> bytes:
        """All bytes that are there, at least one; empty at the end. Raise the failure."""
        while not self._buffer:
            if self._failure is not None:
                raise self._failure
            if self._ended or self._abandoned:
                return b""
            await self._changed.wait()
        data = bytes(self._buffer)
        self._buffer.clear()
        self._wake()
        return data

    def _wake(self) -> None:
        # Whoever waits does so on the old event, and looks again.
        self._changed.set()
        self._changed = asyncio.Event()
