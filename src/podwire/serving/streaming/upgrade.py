"""From an HTTP request to the bare connection under it: the upgrade to SPDY, and frames inside a WebSocket.

Source: k8s.io/apimachinery/pkg/util/httpstream (spdy/upgrade.go, httpstream.go), k8s.io/apimachinery
pkg/util/portforward (tunnelling).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import WSMsgType, hdrs, web
from multidict import CIMultiDict

from podwire.serving import status
from podwire.serving.answers import failed

SPDY = "SPDY/3.1"
VERSION_HEADER = "X-Stream-Protocol-Version"
ACCEPTED_HEADER = "X-Accepted-Stream-Protocol-Versions"
CHUNK = 64 << 10
CLOSING = 600.0
"""Seconds that the client of a WebSocket has to close it, too; it may be slow to read what is left."""
LARGEST_MESSAGE = 32 << 20
"""Bytes of a WebSocket message; what kube-apiserver takes, too."""


def wants(request: web.Request) -> str:
    """``websocket``, ``spdy``, or empty: what the client wants the connection to become."""
    if "upgrade" not in request.headers.get(hdrs.CONNECTION, "").lower():
        return ""
    upgrade = request.headers.get(hdrs.UPGRADE, "").strip().lower()
    return {"websocket": "websocket", SPDY.lower(): "spdy"}.get(upgrade, "")


def offered(request: web.Request, header: str) -> list[str]:
    """The protocols of a header that may be there several times, each with several values."""
    values = ",".join(request.headers.getall(header, [])).split(",")
    return [value.strip() for value in values if value.strip()]


def chosen(offers: Sequence[str], known: Sequence[str]) -> str | None:
    """The first protocol of the client's that is known; None: no one is."""
    return next((offer for offer in offers if offer in known), None)


def unknown_protocol(offers: Sequence[str], known: Sequence[str]) -> web.Response:
    """403: the answer to a client that speaks nothing that is known."""
    message = (
        f"unable to upgrade: unable to negotiate protocol: client supports [{' '.join(offers)}],"
        f" server accepts [{' '.join(known)}]"
    )
    response = failed(status.Failure(403, "Forbidden", message))
    for protocol in known:
        response.headers.add(ACCEPTED_HEADER, protocol)
    return response


def no_upgrade() -> status.Failure:
    """400: the answer to a client that wants no upgrade."""
    return status.bad_request(f"unable to upgrade: an upgrade to {SPDY} or websocket is needed")


class _Taken(asyncio.StreamReaderProtocol):
    """Follows aiohttp's protocol on the connection, which still has to know when it ends."""

    def __init__(self, reader: asyncio.StreamReader, before: asyncio.BaseProtocol) -> None:
        super().__init__(reader)
        self._before = before

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(self._before, asyncio.Protocol):
            self._before.connection_lost(exc)


class SocketCarrier:
    """The connection itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Some bytes; empty when the peer has closed or is gone."""
        try:
            return await self._reader.read(CHUNK)
        except (ConnectionError, TimeoutError):
            return b""

    async def send(self, data: bytes) -> None:
        """See :class:`podwire.serving.streaming.spdy.connection.Carrier`."""
        if self._writer.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class WebSocketCarrier:
    """Binary messages whose bytes, one after the other, are the connection."""

    def __init__(self, web_socket: web.WebSocketResponse) -> None:
        self._web_socket = web_socket

    async def read(self) -> bytes:
        """Some bytes; empty when the peer has closed or is gone."""
        while True:
            message = await self._web_socket.receive()
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                return b""
            if message.data:
                data: bytes | str = message.data
                return data if isinstance(data, bytes) else data.encode()

    async def send(self, data: bytes) -> None:
        """See :class:`podwire.serving.streaming.spdy.connection.Carrier`."""
        await self._web_socket.send_bytes(data)

    def close(self) -> None:
        """Nothing: whoever made the WebSocket closes it."""


async def to_spdy(request: web.Request, protocol: str) -> tuple[web.StreamResponse, SocketCarrier]:
    """Answer 101 and speak SPDY on the connection. The response is what the handler has to return."""
    headers = CIMultiDict({hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: SPDY, VERSION_HEADER: protocol})
    return await taken(request, headers)


async def taken(request: web.Request, headers: CIMultiDict[str]) -> tuple[web.StreamResponse, SocketCarrier]:
    """Answer 101 and take the connection from aiohttp. The response is what the handler has to return."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    response = web.StreamResponse(status=101, headers=headers)
    response.force_close()
    reader = asyncio.StreamReader(limit=CHUNK)
    protocol = _Taken(reader, transport.get_protocol())
    # Before the answer: nothing that follows it may reach the parser of HTTP.
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    await response.prepare(request)
    await response.write_eof()
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return response, SocketCarrier(reader, writer)


async def to_web_socket(request: web.Request, protocol: str | None) -> web.WebSocketResponse:
    """Answer 101 and speak WebSocket with this subprotocol; None: without one."""
    # The pongs of a client are behind its data, which may rightly be left unread for long: no heartbeat here.
    web_socket = web.WebSocketResponse(
        protocols=(protocol,) if protocol else (),
        max_msg_size=LARGEST_MESSAGE,
        timeout=CLOSING,
        compress=False,
    )
    await web_socket.prepare(request)
    return web_socket
