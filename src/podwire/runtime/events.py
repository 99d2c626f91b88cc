"""Events of the runtime to whoever listens."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator

from podwire.runtime.api import ContainerEvent


class EventStream(AsyncIterator[ContainerEvent]):
    """What happens from its making on; ends when it is closed or the runtime is."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ContainerEvent | None] = asyncio.Queue()
        self._ended = False

    async def __anext__(self) -> ContainerEvent:
        event = None if self._ended else await self._queue.get()
        if event is None:
            self._ended = True
            raise StopAsyncIteration
        return event

    def put(self, event: ContainerEvent | None) -> None:
        """Pass an event on; None ends the stream."""
        self._queue.put_nowait(event)

    async def aclose(self) -> None:
        """Listen no more."""
        self.put(None)


class EventHub:
    """Passes each event to all streams that are there; a stream that nobody holds is forgotten."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()

    def subscribe(self) -> EventStream:
        """A new stream."""
        stream = EventStream()
        self._streams.add(stream)
        return stream

    def publish(self, event: ContainerEvent) -> None:
        """Pass an event on."""
        for stream in list(self._streams):
            stream.put(event)

    def close(self) -> None:
        """End all streams."""
        for stream in list(self._streams):
            stream.put(None)
