"""A SPDY client that does exactly what a test says, over a bare socket."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from urllib.parse import urlencode

from podwire.serving.streaming.spdy.frames import (
    Data,
    Decoder,
    Frame,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
    WindowUpdate,
)
from podwire.serving.streaming.spdy.headers import Compressor, Decompressor

BASE = "/api/v1/namespaces/default/pods/web"


class SpdyClient:
    """``status`` and ``headers`` are of the answer; then what comes is sorted by stream as it is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, list[str]] = {}
        self.replies: set[int] = set()
        self.data: dict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.pings: list[int] = []
        self.widened: dict[int, int] = defaultdict(int)
        self.away: GoAway | None = None
        self._decoder = Decoder()
        self._compressor = Compressor()
        self._decompressor = Decompressor()
        self._next = 1

    @classmethod
    async def connect(
        cls,
        port: int,
        subresource: str,
        *protocols: str,
        upgrade: str = "SPDY/3.1",
        **query: str | list[str],
    ) -> SpdyClient:
        """Ask for the upgrade, whatever the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = cls(reader, writer)
        lines = [
            f"POST {BASE}/{subresource}?{urlencode(query, doseq=True)} HTTP/1.1",
            "Host: here",
            "Content-Length: 0",
            *(["Connection: Upgrade", f"Upgrade: {upgrade}"] if upgrade else []),
            *(f"X-Stream-Protocol-Version: {protocol}" for protocol in protocols),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        client.status = int(head[0].split(" ")[1])
        for line in filter(None, head[1:]):
            name, _, value = line.partition(": ")
            client.headers.setdefault(name.lower(), []).append(value)
        return client

    async def body(self) -> bytes:
        """The answer's, when there was no upgrade."""
        return await self.reader.readexactly(int(self.headers["content-length"][0]))

    def send(self, *frames: Frame) -> None:
        self.writer.write(b"".join(frame.encode() for frame in frames))

    def open(self, *, fin: bool = False, **headers: str) -> int:
        """Open a stream; its number."""
        number = self._next
        self._next += 2
        self.send(SynStream(number, self._compressor.block(headers), fin=fin))
        return number

    def roles(self, *roles: str) -> tuple[int, ...]:
        """Open a stream for each role of exec."""
        return tuple(self.open(streamType=role) for role in roles)

    async def step(self) -> bool:
        """Read once; False at the end of the connection."""
        try:
            piece = await self.reader.read(65536)
        except ConnectionError:
            return False
        for frame in self._decoder.feed(piece):
            match frame:
                case Data(stream, data, fin):
                    self.data[stream] += data
                    if fin:
                        self.ended.add(stream)
                case SynReply(stream, block):
                    self._decompressor.headers(block)
                    self.replies.add(stream)
                case RstStream(stream, code):
                    self.resets[stream] = code
                case Ping(number):
                    self.pings.append(number)
                case WindowUpdate(stream, delta):
                    self.widened[stream] += delta
                case GoAway():
                    self.away = frame
        return bool(piece)

    async def to_end(self) -> None:
        """Read until the server says good-bye, and close."""
        while self.away is None and await self.step():
            pass
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass
