"""The stream of a watch: bytes to lines to events, and the ways in which it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

import aiohttp

from podwire.kube.clock import Clock, deadline
from podwire.kube.decode import WatchEvent, decode_event
from podwire.kube.errors import BadAnswer, ConnectionDead, ConnectionFailed, KubeError
from podwire.kube.resource import Resource
from podwire.kube.transport import connection_error

T = TypeVar("T")

SILENT = 30.0
"""Seconds without a byte after which the server is pinged. With the ping's own time a dead connection is
found in 40 s, whoever on the way stopped answering."""
PING_TIMEOUT = 10.0
MAX_LINE = 64 << 20
"""Bytes of one event; an object in etcd has at most 1.5 MiB."""


class Watch(Generic[T]):
    """An iterator over the events of a watch; ends when the server closes the stream.

    With ``most_silent`` it also ends after that many seconds without a byte.

    ``open`` sends the request; iterating does so by itself. Use it as an async context manager, or call
    ``close``. Raises ApiError for an answer that is an error and for an ERROR event, BadAnswer for a stream
    that is not of events, ConnectionFailed for one that breaks, ConnectionDead for one that fell silent.
    """

    def __init__(
        self,
        resource: Resource[T],
        clock: Clock,
        connect: Callable[[], AbstractAsyncContextManager[aiohttp.ClientResponse]],
        ping: Callable[[], Awaitable[None]],
        most_silent: float | None = None,
    ) -> None:
        self._resource = resource
        self._clock = clock
        self._connect = connect
        self._ping = ping
        self._most_silent = most_silent
        self._stack = AsyncExitStack()
        self._response: aiohttp.ClientResponse | None = None
        self._rest = bytearray()
        self._events: deque[WatchEvent[T] | KubeError] = deque()
        self._ended = False
        self.truncated = False
        """Whether the stream ended in the middle of an event."""
        self.heard = clock.monotonic()
        """When the last byte came, by the clock."""

    async def open(self) -> None:
        """Send the request and wait for the answer to begin."""
        if self._response is None:
            self._response = await self._stack.enter_async_context(self._connect())
            self.heard = self._clock.monotonic()

    async def close(self) -> None:
        """Close the connection."""
        self._ended = True
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent[T]:
        while not self._events:
            if not await self._fill():
                raise StopAsyncIteration
        first = self._events.popleft()
        if isinstance(first, KubeError):
            self._ended = True
            self._events.clear()
            raise first
        return first

    async def _fill(self) -> bool:
        """Read what has come; False at the end."""
        if self._ended:
            return False
        await self.open()
        try:
            chunk = await self._read()
        except (aiohttp.ClientError, OSError) as error:
            self._ended = True
            raise connection_error(error, f"watch of {self._resource.plural}") from error
        if not chunk:
            self._ended = True
            self.truncated = bool(self._rest.strip())
            return False
        self.heard = self._clock.monotonic()
        begin = len(self._rest)
        self._rest += chunk
        end = self._rest.rfind(b"\n", begin)
        if end >= 0:
            lines = bytes(self._rest[:end]).split(b"\n")
            del self._rest[: end + 1]
            self._decode(lines)
        if len(self._rest) > MAX_LINE:
            self._events.append(
                BadAnswer(f"watch of {self._resource.plural}: an event of over {MAX_LINE >> 20} MiB")
            )
        return True

    def _decode(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                self._events.append(decode_event(self._resource, line))
            except KubeError as error:
                self._events.append(error)
                return

    async def _read(self) -> bytes:
        assert self._response is not None
        while True:
            try:
                async with deadline(self._clock, SILENT):
                    return await self._response.content.readany()
            except TimeoutError:
                silent = self._clock.monotonic() - self.heard
                if self._most_silent is not None and silent >= self._most_silent:
                    return b""
                try:
                    await self._ping()
                except ConnectionFailed as error:
                    self._ended = True
                    raise ConnectionDead(
                        f"watch of {self._resource.plural}: silent for {SILENT:g} s, and no answer to a ping",
                        error,
                    ) from error
