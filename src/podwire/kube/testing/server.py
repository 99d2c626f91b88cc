"""An API server for tests that does on demand what no server should do.

By itself it is honest: a :class:`~podwire.kube.testing.World` holds the objects and the log of their
changes, and lists and watches are answered from it as kube-apiserver does. A test puts behaviours in front
of that, each for one request; they have the connection in their hands, so they can stall, break off in the
middle of a line, or reset it. It speaks plain HTTP/1.1 on a loopback port, with an own reader of requests
for the same reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from podwire.kube.clock import Clock, SystemClock
from podwire.kube.config import Config
from podwire.kube.testing.world import Object, World


@dataclass(slots=True)
class Request:
    """What was asked, and when by the server's clock."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def verb(self) -> str:
        """list, watch, get, ping (of /version), or the method in lower case."""
        if self.path == "/version":
            return "ping"
        if self.method != "GET":
            return self.method.lower()
        if self.params.get("watch"):
            return "watch"
        return "list" if self.path.rsplit("/", 1)[-1].endswith("s") else "get"


class Exchange:
    """One request and its connection."""

    def __init__(
        self, request: Request, writer: asyncio.StreamWriter, clock: Clock, running: asyncio.Event
    ) -> None:
        self.request = request
        self.clock = clock
        self._running = running
        self._writer = writer
        self.gone = asyncio.Event()
        """Set when the test wants the connection to end, or the client has left."""
        self.keep = False

    async def send(self, data: bytes) -> None:
        """Bytes as they are, once the server is not frozen."""
        if not self._running.is_set():
            await _first(self.clock, None, self._running, self.gone)
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def answer(
        self,
        code: int,
        body: object,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        """A whole answer; ``body`` is encoded as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        lines = [f"HTTP/1.1 {code} X", f"Content-Type: {content_type}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.keep = True
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def status(
        self, code: int, reason: str, *, causes: tuple[str, ...] = (), headers: dict[str, str] | None = None
    ) -> None:
        """An answer that is a Status of failure."""
        await self.answer(code, failure(code, reason, causes=causes), headers=headers)

    async def begin(self, content_type: str = "application/json") -> None:
        """The head of a stream."""
        await self.send(
            f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        """A part of a stream."""
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, kind: str, found: Object) -> None:
        """An event of a watch, in a chunk of its own."""
        await self.chunk(event_line(kind, found))

    async def finish(self) -> None:
        """The proper end of a stream."""
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """End the connection by RST."""
        if self._writer.is_closing():
            return  # the client has left
        found = self._writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def half_close(self) -> None:
        """End our direction and go on to listen."""
        await self._writer.drain()
        self._writer.write_eof()

    def freeze(self) -> None:
        """Send nothing more on this connection, and keep it."""
        self._running = asyncio.Event()

    async def stall(self) -> None:
        """Do nothing until the client leaves."""
        await self.gone.wait()


Behaviour = Callable[[Exchange], Awaitable[None]]


def failure(code: int, reason: str, *, causes: tuple[str, ...] = (), message: str = "scripted") -> Object:
    """A Status of failure."""
    details = {"causes": [{"reason": each} for each in causes]} if causes else {}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


def event_line(kind: str, found: Object) -> bytes:
    """An event as a line."""
    return msgspec.json.encode({"type": kind, "object": found}) + b"\n"


@dataclass(slots=True)
class Abilities:
    """What the honest server can do."""

    watch_list: bool = True
    """Answers sendInitialEvents; else 422, as servers without the feature do."""
    ignores_initial_events: bool = False
    """Takes sendInitialEvents for nothing, as servers from before the feature do."""
    pages: bool = True
    bookmark_every: float = 60.0
    watch_seconds: float | None = None
    """How long a watch is kept; None for as long as the client asks."""
    lag: int = 0
    """A server that is behind: the number of its latest versions that it does not know yet."""


@dataclass(slots=True)
class Script:
    """Behaviours for the next requests of each verb, and for the next of any."""

    by_verb: dict[str, deque[Behaviour]] = field(default_factory=dict)

    def add(self, verb: str, *behaviours: Behaviour) -> None:
        """Put behaviours at the end of a verb's queue; "any" is asked before the verb."""
        self.by_verb.setdefault(verb, deque()).extend(behaviours)

    def take(self, verb: str) -> Behaviour | None:
        """The next behaviour for a request of that verb."""
        for each in ("any", verb):
            if self.by_verb.get(each):
                return self.by_verb[each].popleft()
        return None

    @property
    def done(self) -> bool:
        """Whether all behaviours were used."""
        return not any(self.by_verb.values())


class ScriptedServer:
    """The server. Use it as an async context manager; ``requests`` tells what was asked."""

    def __init__(self, world: World, clock: Clock | None = None) -> None:
        self.world = world
        self.clock = clock or SystemClock()
        self.abilities = Abilities()
        self.script = Script()
        self.requests: list[Request] = []
        self.connections = 0
        """How many connections were taken."""
        self.tls: ssl.SSLContext | None = None
        self.mute = False
        """Whether watches pass over what happens, as if it had not."""
        self._running = asyncio.Event()
        self._running.set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._exchanges: set[Exchange] = set()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port that was had before if there was one."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and close all connections: the next are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def config(self) -> Config:
        """How a client reaches it."""
        return Config(server=f"http://127.0.0.1:{self.port}")

    def count(self, verb: str = "") -> int:
        """How many requests came, of that verb or in all."""
        return sum(not verb or each.verb == verb for each in self.requests)

    def of(self, verb: str) -> list[Request]:
        """The requests of a verb."""
        return [each for each in self.requests if each.verb == verb]

    @property
    def open_watches(self) -> int:
        """Watches that are being answered now."""
        return sum(each.request.verb == "watch" for each in self._exchanges)

    def end_watches(self) -> None:
        """Let all watches end properly."""
        for each in list(self._exchanges):
            if each.request.verb == "watch":
                each.gone.set()

    def reset_watches(self) -> None:
        """End all watches by RST."""
        for each in list(self._exchanges):
            if each.request.verb == "watch":
                each.reset()

    def freeze(self) -> None:
        """Take connections and answer nothing, as after SIGSTOP."""
        self._running.clear()

    def thaw(self) -> None:
        """Go on, with all that has waited."""
        self._running.set()

    def freeze_watches(self) -> None:
        """Let the watches that are open now send nothing more."""
        for each in self._exchanges:
            if each.request.verb == "watch":
                each.freeze()

    async def say(self, data: bytes) -> None:
        """Send a chunk in all open watches."""
        for each in list(self._exchanges):
            if each.request.verb == "watch":
                await each.chunk(data)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        request = Request(
            method, parts.path, dict(parse_qsl(parts.query)), headers, body, self.clock.monotonic()
        )
        self.requests.append(request)
        exchange = Exchange(request, writer, self.clock, self._running)
        self._exchanges.add(exchange)
        watcher = asyncio.ensure_future(_until_closed(reader, exchange))
        try:
            behaviour = self.script.take(request.verb) or self.honest
            await behaviour(exchange)
        finally:
            self._exchanges.discard(exchange)
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        return exchange.keep and headers.get("connection", "") != "close"

    async def honest(self, exchange: Exchange) -> None:
        """What a server should do."""
        request = exchange.request
        if request.verb == "ping":
            await exchange.answer(200, {"major": "1", "minor": "33"})
        elif request.verb == "list":
            await self.list(exchange)
        elif request.verb == "watch":
            await self.watch(exchange)
        else:
            await exchange.status(404, "NotFound")

    def latest(self) -> int:
        """The last version that this server knows."""
        return self.world.version - self.abilities.lag

    def state(self, version: int) -> list[Object]:
        """The objects as of a version, as far back as the log goes."""
        found = dict(self.world.objects)
        for change in reversed(self.world.log):
            if change.version <= version:
                break
            key = f"{change.object['metadata']['namespace']}/{change.object['metadata']['name']}"
            found.pop(key, None)
            before = [
                each
                for each in self.world.log
                if each.version < change.version
                and each.object["metadata"]["name"] == change.object["metadata"]["name"]
                and each.object["metadata"]["namespace"] == change.object["metadata"]["namespace"]
            ]
            if before and before[-1].type != "DELETED":
                found[key] = before[-1].object
        return [found[key] for key in sorted(found)]

    async def list(self, exchange: Exchange) -> None:
        """A list, in pages if asked; tokens are ``version:offset``."""
        params = exchange.request.params
        asked = params.get("resourceVersion", "")
        version, offset = self.latest(), 0
        if params.get("continue"):
            at, _, skip = params["continue"].partition(":")
            if not (at.isdecimal() and skip.isdecimal()):
                await exchange.status(400, "BadRequest")
                return
            version, offset = int(at), int(skip)
            if version < self.world.compacted:
                await exchange.status(410, "Expired")
                return
        elif asked and int(asked) > version:
            await exchange.status(504, "Timeout", causes=("ResourceVersionTooLarge",))
            return
        elif asked and params.get("resourceVersionMatch") == "Exact" and int(asked) < self.world.compacted:
            await exchange.status(410, "Expired")
            return
        await exchange.answer(200, self.page(version, offset, int(params.get("limit", "0"))))

    def page(self, version: int, offset: int = 0, limit: int = 0) -> Object:
        """The body of a list."""
        found = self.state(version)[offset:]
        meta: Object = {"resourceVersion": str(version)}
        if limit and len(found) > limit and self.abilities.pages:
            meta["continue"] = f"{version}:{offset + limit}"
            meta["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        items = [{name: each[name] for name in each if name not in ("kind", "apiVersion")} for each in found]
        return {
            "kind": f"{self.world.kind}List",
            "apiVersion": self.world.api_version,
            "metadata": meta,
            "items": items,
        }

    def bookmark(self, version: int, *, end: bool = False) -> Object:
        """The object of a bookmark."""
        meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": self.world.kind, "apiVersion": self.world.api_version, "metadata": meta}

    async def watch(self, exchange: Exchange) -> None:
        """A watch, with initial events and bookmarks if asked, until its time is over."""
        params = exchange.request.params
        asked = params.get("resourceVersion", "")
        initial = params.get("sendInitialEvents") == "true" and not self.abilities.ignores_initial_events
        if initial and not self.abilities.watch_list:
            await exchange.status(422, "Invalid")
            return
        if asked and int(asked) > self.latest():
            if initial:
                await exchange.status(504, "Timeout", causes=("ResourceVersionTooLarge",))
                return
            await exchange.begin()
            await self.follow(exchange, int(asked))
            return
        if not initial and asked not in ("", "0") and int(asked) < self.world.compacted:
            await exchange.begin()
            await exchange.event("ERROR", failure(410, "Expired"))
            await exchange.finish()
            return
        await exchange.begin()
        since = int(asked or "0")
        if initial or asked in ("", "0"):
            since = self.latest()
            for each in self.state(since):
                await exchange.event("ADDED", each)
        if initial:
            await exchange.event("BOOKMARK", self.bookmark(since, end=True))
        await self.follow(exchange, since)

    async def follow(self, exchange: Exchange, since: int) -> None:
        """The events after a version, until the stream's time is over or the test ends it."""
        seconds = self.abilities.watch_seconds
        ends = self.clock.monotonic() + (
            seconds or float(exchange.request.params.get("timeoutSeconds", "300"))
        )
        next_bookmark = self.clock.monotonic() + self.abilities.bookmark_every
        while not exchange.gone.is_set():
            changed = self.world.changed
            for each in [each for each in self.world.log if since < each.version <= self.latest()]:
                since = each.version
                if not self.mute:
                    await exchange.event(each.type, each.object)
            now = self.clock.monotonic()
            if now >= ends:
                break
            if now >= next_bookmark:
                if exchange.request.params.get("allowWatchBookmarks") == "true":
                    await exchange.event("BOOKMARK", self.bookmark(max(since, self.latest())))
                next_bookmark = now + self.abilities.bookmark_every
            if changed is self.world.changed:
                await _first(self.clock, min(ends, next_bookmark) - now, changed, exchange.gone)
        await exchange.finish()


async def _first(clock: Clock, seconds: float | None, *events: asyncio.Event) -> None:
    """Wait for one of the events, but no longer than that."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    if seconds is not None:
        waits.append(asyncio.ensure_future(_sleep(clock, seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _sleep(clock: Clock, seconds: float) -> Literal[True]:
    await clock.sleep(seconds)
    return True


async def _until_closed(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    """Note that the client has left; it sends nothing before its answer is there."""
    while not reader.at_eof():
        if reader._buffer:  # type: ignore[attr-defined]
            return
        await reader._wait_for_data("watch")  # type: ignore[attr-defined]
    exchange.gone.set()
