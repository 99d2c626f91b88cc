"""Messages of several channels over one WebSocket.

The first byte of a message is its channel. In the base64 protocols messages are text: the character
that is so many after 0, then the bytes in base64.

Source: k8s.io/apimachinery pkg/util/httpstream/wsstream/conn.go.
"""

from __future__ import annotations

import base64

from aiohttp import web

_ZERO = ord("0")


class Messages:
    """``text``: the base64 form."""

    def __init__(self, web_socket: web.WebSocketResponse, *, text: bool) -> None:
        self._web_socket = web_socket
        self._text = text

    async def send(self, channel: int, data: bytes) -> None:
        """Send bytes on a channel. Raise ConnectionError."""
        if self._text:
            await self._web_socket.send_str(chr(_ZERO + channel) + base64.b64encode(data).decode())
        else:
            await self._web_socket.send_bytes(bytes((channel,)) + data)

    def split(self, received: bytes | str) -> tuple[int, bytes]:
        """Channel and bytes of a message; the channel is -1 if it is none."""
        if self._text:
            try:
                text = received if isinstance(received, str) else received.decode("ascii")
                return ord(text[:1]) - _ZERO, base64.b64decode(text[1:], validate=True)
            except (ValueError, TypeError):
                return -1, b""
        binary = received if isinstance(received, bytes) else received.encode()
        return (binary[0], binary[1:]) if binary else (-1, b"")
