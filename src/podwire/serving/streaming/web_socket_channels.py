"""Exec and attach over a WebSocket.

Channel 0 is stdin, 1 stdout, 2 stderr, 3 error, 4 resize; in version 5, 255 and a channel mean that it ends.

Source: k8s.io/apimachinery/pkg/util/remotecommand/constants.go; KEP-4006.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import WSMsgType, web

from podwire.serving.streaming.backend import ExecOptions, TerminalSize
from podwire.serving.streaming.channels import Object, Sizes, message
from podwire.serving.streaming.queue import ByteQueue
from podwire.serving.streaming.tasks import cancelled
from podwire.serving.streaming.web_socket_messages import Messages

_BINARY = (
    "channel.k8s.io",
    "v2.channel.k8s.io",
    "v3.channel.k8s.io",
    "v4.channel.k8s.io",
    "v5.channel.k8s.io",
)
_BASE64 = ("base64.channel.k8s.io", "v4.base64.channel.k8s.io")
PROTOCOLS = (*_BINARY[::-1], *_BASE64[::-1])
_STDIN, _STDOUT, _ERROR, _RESIZE, _CLOSE = 0, 1, 3, 4, 255
PIECE = 32 << 10
"""Bytes of a message at most."""


class WebSocketChannels:
    """See :class:`podwire.serving.streaming.channels.Channels`."""

    def __init__(self, web_socket: web.WebSocketResponse, protocol: str, options: ExecOptions) -> None:
        self.last_active = asyncio.get_running_loop().time()
        self._web_socket = web_socket
        self._messages = Messages(web_socket, text=protocol in _BASE64)
        self._json = protocol.startswith(("v4.", "v5."))
        self._ends = protocol.startswith("v5.")
        self._taken = {1: options.stdout, 2: options.stderr}
        self._stdin = ByteQueue()
        if not options.stdin:
            self._stdin.abandon()
        self._sizes = Sizes()
        self._serving: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """See Channels."""
        self._serving = asyncio.current_task()
        try:
            while True:
                received = await self._web_socket.receive()
                if received.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                    return
                await self._take(received.data)
        finally:
            self._stdin.finish(ConnectionResetError("the client has gone"))

    async def ready(self) -> None:
        """See Channels."""
        # An empty message tells clients that the connection stands.
        with contextlib.suppress(ConnectionError):
            await self._messages.send(_STDOUT if self._taken[1] else _ERROR, b"")

    async def read_stdin(self) -> bytes:
        """See Channels."""
        return await self._stdin.get()

    def drop_stdin(self) -> None:
        """See Channels."""
        self._stdin.abandon()

    async def read_size(self) -> TerminalSize:
        """See Channels."""
        return await self._sizes.read()

    async def write(self, stream: int, data: bytes) -> None:
        """See Channels."""
        if self._taken[stream]:
            for start in range(0, len(data), PIECE):
                self._touch()
                await self._messages.send(stream, data[start : start + PIECE])

    async def finish(self, status: Object) -> None:
        """See Channels."""
        self._stdin.abandon()
        with contextlib.suppress(ConnectionError):
            if told := message(status, as_json=self._json):
                await self._messages.send(_ERROR, told)
        if self._serving is not None:
            # Closed while another task receives, it would be cut off at once, with all that the client has
            # not read yet.
            await cancelled(self._serving)
        await self._web_socket.close()

    async def ping(self) -> None:
        """See Channels."""
        await self._web_socket.ping()

    async def _take(self, received: bytes | str) -> None:
        channel, data = self._messages.split(received)
        self._touch()
        if channel == _STDIN:
            await self._stdin.put(data)
        elif channel == _RESIZE:
            self._sizes.tell(data)
        elif channel == _CLOSE and self._ends and data == bytes((_STDIN,)):
            self._stdin.finish()

    def _touch(self) -> None:
        self.last_active = asyncio.get_running_loop().time()
