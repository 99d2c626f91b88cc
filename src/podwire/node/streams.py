"""The long answers of the node's API: logs that are followed, and programs run inside containers."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from aiohttp import WSMsgType, web

from podwire.kube.objects import Pod
from podwire.node import podstreams
from podwire.node.api import EXEC_PROTOCOL, Channel, exit_status, failure
from podwire.node.clock import SECOND, timestamp
from podwire.node.request import ApiFailure, container_name, flag, number
from podwire.node.service import Node
from podwire.runtime.api import ExecSession
from podwire.runtime.errors import RuntimeFault

_LARGEST = 0xFFFF


async def serve_log(node: Node, pod: Pod, request: web.Request) -> web.StreamResponse:
    """The container's log as text."""
    since = number(request, "sinceSeconds")
    query = podstreams.LogQuery(
        follow=flag(request, "follow"),
        previous=flag(request, "previous"),
        timestamps=flag(request, "timestamps"),
        since=timestamp(node.clock.wall() - since * SECOND) if since is not None else "",
        tail=number(request, "tailLines"),
    )
    pieces = await podstreams.logs(node, pod, container_name(pod, request), query)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            await response.write(piece)
    await response.write_eof()
    return response


async def serve_exec(node: Node, pod: Pod, request: web.Request) -> web.StreamResponse:
    """Run a program in the container, its streams over a WebSocket (:mod:`podwire.node.api`)."""
    command = tuple(request.query.getall("command", []))
    if not command:
        raise ApiFailure(400, "command: you must specify at least one command for the container")
    name = container_name(pod, request)
    status = podstreams.running(node, pod, name)
    stdin, tty = flag(request, "stdin"), flag(request, "tty")
    size = _size(request) if tty else None
    web_socket = web.WebSocketResponse(protocols=(EXEC_PROTOCOL,), max_msg_size=1 << 20)
    if not web_socket.can_prepare(request):
        raise ApiFailure(400, f"exec needs a WebSocket with the subprotocol {EXEC_PROTOCOL}")
    # The program is started before the answer, so that what is wrong with it is an ordinary error.
    session = await node.runtime.exec(status.id, command, stdin=stdin, tty=tty, size=size)
    try:
        await web_socket.prepare(request)
        await _attend(web_socket, session)
    finally:
        await session.close()
    await web_socket.close()
    return web_socket


def _size(request: web.Request) -> tuple[int, int] | None:
    """The terminal's size at the start; a program may look at it before any message can tell."""
    columns, rows = number(request, "columns"), number(request, "rows")
    if columns is None or rows is None:
        return None
    if max(columns, rows) > _LARGEST:
        raise ApiFailure(400, f"columns, rows: {columns} x {rows} is no size of a terminal")
    return columns, rows


async def _attend(web_socket: web.WebSocketResponse, session: ExecSession) -> None:
    """Carry the streams until the program ends or the client goes away."""
    incoming = asyncio.create_task(_incoming(web_socket, session))
    outgoing = asyncio.create_task(_outgoing(web_socket, session))
    try:
        await asyncio.wait((incoming, outgoing), return_when=asyncio.FIRST_COMPLETED)
        if outgoing.done():
            await outgoing
    except ConnectionError:
        return
    finally:
        incoming.cancel()
        outgoing.cancel()
        await asyncio.gather(incoming, outgoing, return_exceptions=True)


async def _incoming(web_socket: web.WebSocketResponse, session: ExecSession) -> None:
    """Returns when the client has gone."""
    async for message in web_socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        with contextlib.suppress(RuntimeFault):
            if channel == Channel.STDIN and data:
                await session.write_stdin(data)
            elif channel == Channel.CLOSE and data == bytes([Channel.STDIN]):
                await session.write_stdin(b"")
            elif channel == Channel.RESIZE:
                await _resize(session, data)


async def _resize(session: ExecSession, data: bytes) -> None:
    with contextlib.suppress(msgspec.MsgspecError, KeyError):
        size = msgspec.json.decode(data, type=dict[str, int])
        await session.resize(size["Width"], size["Height"])


async def _outgoing(web_socket: web.WebSocketResponse, session: ExecSession) -> None:
    try:
        async for stream, data in session.output():
            await web_socket.send_bytes(bytes([stream]) + data)
        status = exit_status(await session.wait())
    except RuntimeFault as fault:
        status = failure(500, str(fault), reason=fault.code)
    await web_socket.send_bytes(bytes([Channel.STATUS]) + msgspec.json.encode(status))
