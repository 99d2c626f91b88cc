"""Port-forward as clients without SPDY do it: one WebSocket, one connection to each port of the query.

Channel 2n carries the bytes of the nth port, 2n + 1 what went wrong with it; the first message on each, from
the server, is the port's number (two bytes, little-endian). A direction has no end of its own: what the pod
has ended is over.

Source: k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from aiohttp import WSMsgType, web

from podwire.serving import status
from podwire.serving.status import Failure
from podwire.serving.streaming.portforward import Connect, down, is_port, told, up
from podwire.serving.streaming.program import Limits, watch
from podwire.serving.streaming.queue import ByteQueue
from podwire.serving.streaming.tasks import cancelled, unless
from podwire.serving.streaming.web_socket_messages import Messages

PROTOCOLS = ("v4.channel.k8s.io", "v4.base64.channel.k8s.io")
MOST_PORTS = 32


def ports(request: web.Request, parameter: str) -> list[int]:
    """The ports in a parameter of the query. Raise Failure 400."""
    texts = ",".join(request.query.getall(parameter, [])).split(",")
    if not all(is_port(text) for text in texts) or len(texts) > MOST_PORTS:
        raise status.bad_request(
            f"{parameter}: {','.join(texts)[:200]!r}: up to {MOST_PORTS} numbers of ports are needed"
        )
    return [int(text) for text in texts]


class WebSocketForwarder:
    """The connections of one client to one pod; ``what`` names the pod in messages."""

    def __init__(
        self,
        web_socket: web.WebSocketResponse,
        *,
        protocol: str,
        targets: Sequence[int],
        connect: Connect,
        limits: Limits,
        what: str,
    ) -> None:
        self.last_active = asyncio.get_running_loop().time()
        self._messages = Messages(web_socket, text=protocol == PROTOCOLS[1])
        self._web_socket = web_socket
        self._connect = connect
        self._limits = limits
        self._what = what
        self._channels = [_Channel(self, number, port) for number, port in enumerate(targets)]

    async def run(self) -> None:
        """Forward until the pod has ended all connections or the client has gone or was idle for too long."""
        serving = asyncio.create_task(self._serve())
        watching = asyncio.create_task(watch(self, self._limits))
        forwarding = [asyncio.create_task(self._forward(channel)) for channel in self._channels]
        try:
            await unless(serving, unless(watching, _all(forwarding)))
        finally:
            # A WebSocket that is closed while another task receives is cut off at once, with all that its
            # client has not read yet.
            await cancelled(watching, serving, *forwarding)
            await self._web_socket.close()

    async def ping(self) -> None:
        """Send something. Raise ConnectionError."""
        await self._web_socket.ping()

    async def send(self, channel: int, data: bytes) -> None:
        """Send bytes on a channel. Raise ConnectionError."""
        self.last_active = asyncio.get_running_loop().time()
        await self._messages.send(channel, data)

    async def _serve(self) -> None:
        while True:
            message = await self._web_socket.receive()
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                return
            self.last_active = asyncio.get_running_loop().time()
            number, data = self._messages.split(message.data)
            if number >= 0 and number % 2 == 0 and number // 2 < len(self._channels):
                await self._channels[number // 2].incoming.put(data)

    async def _forward(self, channel: _Channel) -> None:
        with contextlib.suppress(ConnectionError):
            for number in (channel.number, channel.number + 1):
                await self.send(number, channel.port.to_bytes(2, "little"))
            failed = await self._joined(channel)
            if failed is not None:
                await self.send(channel.number + 1, told(channel.port, self._what, failed))
        channel.incoming.abandon()

    async def _joined(self, channel: _Channel) -> Exception | None:
        try:
            reader, writer = await self._connect(channel.port)
        except (Failure, OSError) as failure:
            return failure
        sending = asyncio.create_task(up(channel, writer))
        try:
            return await down(channel, reader)
        finally:
            writer.transport.abort()
            await cancelled(sending)


class _Channel:
    """One port's bytes, as :func:`podwire.serving.streaming.portforward.up` and ``down`` take them."""

    def __init__(self, forwarder: WebSocketForwarder, index: int, port: int) -> None:
        self.number = 2 * index
        self.port = port
        self.incoming = ByteQueue()
        self._forwarder = forwarder

    async def read(self) -> bytes:
        """The next bytes of the client's."""
        return await self.incoming.get()

    async def write(self, data: bytes) -> None:
        """Send bytes. Raise ConnectionError."""
        await self._forwarder.send(self.number, data)

    def abandon(self) -> None:
        """What the client still sends is dropped."""
        self.incoming.abandon()


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
