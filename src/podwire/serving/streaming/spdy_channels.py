"""Exec and attach over SPDY: a stream each for error, stdin, stdout, stderr and resize."""

from __future__ import annotations

import asyncio

from podwire.serving import status
from podwire.serving.streaming.backend import ExecOptions, TerminalSize
from podwire.serving.streaming.channels import Object, Sizes, message
from podwire.serving.streaming.spdy.connection import Carrier, Connection, Stream

# The first version has no name.
PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
CREATION = 30.0
"""Seconds that the client has to open its streams."""
LINGER = 600.0
"""Seconds that the client has to close the connection when all is said; it may be slow to read the rest."""
_LARGEST_SIZE_MESSAGE = 4096


class SpdyChannels:
    """See :class:`podwire.serving.streaming.channels.Channels`."""

    def __init__(self, carrier: Carrier, protocol: str, options: ExecOptions) -> None:
        self._connection = Connection(carrier, self._accept)
        self._json = protocol == PROTOCOLS[0]
        wanted = {
            "error": True,
            "stdin": options.stdin,
            "stdout": options.stdout,
            "stderr": options.stderr,
            "resize": options.tty and protocol in PROTOCOLS[:2],
        }
        self._wanted = {role for role, there in wanted.items() if there}
        self._streams: dict[str, Stream] = {}
        self._complete = asyncio.Event()
        self._sizes = Sizes()

    @property
    def last_active(self) -> float:
        """See Channels."""
        return self._connection.last_active

    async def serve(self) -> None:
        """See Channels."""
        sizes = asyncio.create_task(self._read_sizes())
        try:
            await self._connection.serve()
        finally:
            sizes.cancel()

    async def ready(self) -> None:
        """See Channels."""
        try:
            async with asyncio.timeout(CREATION):
                await self._complete.wait()
        except TimeoutError:
            missing = ", ".join(sorted(self._wanted - set(self._streams)))
            raise status.Failure(
                408, "Timeout", f"timed out waiting for client to create streams: {missing}"
            ) from None

    async def read_stdin(self) -> bytes:
        """See Channels."""
        return await self._streams["stdin"].read()

    def drop_stdin(self) -> None:
        """See Channels."""
        self._streams["stdin"].abandon()

    async def read_size(self) -> TerminalSize:
        """See Channels."""
        return await self._sizes.read()

    async def write(self, stream: int, data: bytes) -> None:
        """See Channels."""
        taker = self._streams.get("stdout" if stream == 1 else "stderr")
        if taker is not None:
            await taker.write(data)

    async def finish(self, status: Object) -> None:
        """See Channels."""
        try:
            if error := self._streams.get("error"):
                await error.write(message(status, as_json=self._json))
            for role, stream in self._streams.items():
                # kubectl that still sends stdin complains of its end; it ends with the connection.
                if role != "stdin":
                    await stream.finish()
        except ConnectionError:
            pass
        finally:
            await self._connection.close(LINGER)

    async def ping(self) -> None:
        """See Channels."""
        await self._connection.ping()

    def _accept(self, stream: Stream) -> bool:
        role = stream.headers.get("streamtype", "")
        if role not in self._wanted or role in self._streams:
            return False
        self._streams[role] = stream
        if len(self._streams) == len(self._wanted):
            self._complete.set()
        return True

    async def _read_sizes(self) -> None:
        await self._complete.wait()
        stream = self._streams.get("resize")
        rest = b""
        try:
            while stream is not None and (data := await stream.read()):
                *messages, rest = (rest + data).split(b"\n")
                for one in messages:
                    self._sizes.tell(one)
                if len(rest) > _LARGEST_SIZE_MESSAGE:
                    stream.abandon()
        except ConnectionError:
            pass
