"""Ways in which a server misbehaves, one request each, for :class:`~podwire.kube.testing.ScriptedServer`."""

from __future__ import annotations

import asyncio

import msgspec

from podwire.kube.testing.server import Behaviour, Exchange, ScriptedServer, event_line, failure
from podwire.kube.testing.world import Object


def status(code: int, reason: str, *, causes: tuple[str, ...] = (), **headers: str) -> Behaviour:
    """An answer of failure; headers by name with underscores for hyphens."""

    async def behave(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.status(code, reason, causes=causes, headers=named)

    return behave


async def stalls(exchange: Exchange) -> None:
    """No answer at all."""
    await exchange.stall()


async def resets(exchange: Exchange) -> None:
    """RST in place of an answer."""
    exchange.reset()


async def closes(exchange: Exchange) -> None:
    """A closed connection in place of an answer."""
    exchange.keep = False


def answers(body: bytes, content_type: str = "application/json", code: int = 200) -> Behaviour:
    """A whole answer, as it is given."""

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(code, body, content_type=content_type)

    return behave


def cut_off(body: bytes) -> Behaviour:
    """Half of an answer, and the end of the connection."""

    async def behave(exchange: Exchange) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await exchange.send(head.encode() + body[: len(body) // 2])

    return behave


def page(server: ScriptedServer, **changes: object) -> Behaviour:
    """The honest list with members changed: ``metadata`` is merged, others are put in."""

    async def behave(exchange: Exchange) -> None:
        body = server.page(server.latest())
        for name, value in changes.items():
            body[name] = {**body[name], **value} if isinstance(value, dict) else value
        await exchange.answer(200, body)

    return behave


def stream(*parts: bytes, then: str = "finish", content_type: str = "application/json") -> Behaviour:
    """A watch of these chunks. ``then``: finish, reset, close (no last chunk), half-close, stall."""

    async def behave(exchange: Exchange) -> None:
        await exchange.begin(content_type)
        for part in parts:
            await exchange.chunk(part)
        if then == "finish":
            await exchange.finish()
        elif then == "reset":
            exchange.reset()
        elif then == "half-close":
            await exchange.half_close()
            await exchange.stall()
        elif then == "stall":
            await exchange.stall()

    return behave


def error(code: int, reason: str, *, causes: tuple[str, ...] = ()) -> bytes:
    """An ERROR event."""
    return event_line("ERROR", failure(code, reason, causes=causes))


def initial(server: ScriptedServer, *parts: bytes) -> Behaviour:
    """Initial events as they are given; what follows them is honest."""

    async def behave(exchange: Exchange) -> None:
        version = server.latest()
        await exchange.begin()
        for part in parts:
            await exchange.chunk(part)
        await exchange.event("BOOKMARK", server.bookmark(version, end=True))
        await server.follow(exchange, version)

    return behave


def lasting(server: ScriptedServer, seconds: float, *parts: bytes, then: str = "finish") -> Behaviour:
    """A watch that is honest for some seconds, and then sends these chunks and ends."""

    async def behave(exchange: Exchange) -> None:
        await exchange.begin()
        since = int(exchange.request.params.get("resourceVersion", "0"))
        following = asyncio.ensure_future(server.follow(exchange, since))
        try:
            await server.clock.sleep(seconds)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        for part in parts:
            await exchange.chunk(part)
        if then == "reset":
            exchange.reset()
        elif then == "finish":
            await exchange.finish()

    return behave


def split(data: bytes, size: int) -> list[bytes]:
    """The data in chunks of that size, which know nothing of lines."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def changed(found: Object, **metadata: object) -> Object:
    """A copy of an object with members of its metadata changed."""
    copied: Object = msgspec.json.decode(msgspec.json.encode(found))
    copied["metadata"].update(metadata)
    return copied
