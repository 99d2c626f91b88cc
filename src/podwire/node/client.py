"""How a command speaks with the node that runs on this machine (:mod:`podwire.node.server`)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from podwire.kube.objects import Event, Pod
from podwire.node.api import EXEC_PROTOCOL, STATUS_HEADER, Channel, exit_code

T = TypeVar("T")


class ClientError(Exception):
    """The root of what can go wrong between a command and the node."""


class NotRunning(ClientError):
    """No node answers on ``socket``."""

    def __init__(self, socket: Path) -> None:
        super().__init__(f"no node answers on {socket}")
        self.socket = socket


class Disconnected(ClientError):
    """The node went away while it answered."""


class ApiError(ClientError):
    """The node said no: HTTP ``code``, the Status' ``reason`` (NotFound, BadRequest, ...) and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


class _List(msgspec.Struct):
    items: list[Any]


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


class NodeClient:
    """A connection to the node on ``socket``; an async context manager."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> NodeClient:
        self._session = aiohttp.ClientSession(
            "http://node",
            connector=aiohttp.UnixConnector(str(self._socket)),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=1 << 20,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def pods(self, namespace: str | None = None) -> list[Pod]:
        """The pods of one namespace, or of all."""
        return msgspec.convert(await self._items(_path(namespace, "pods")), list[Pod])

    async def pod(self, namespace: str, name: str) -> Pod:
        """One pod; :class:`ApiError` NotFound if there is none."""
        return msgspec.convert(await self._get(_path(namespace, "pods", name)), Pod)

    async def events(self, namespace: str | None = None) -> list[Event]:
        """The events of one namespace, or of all, the latest last."""
        return msgspec.convert(await self._items(_path(namespace, "events")), list[Event])

    async def nodes(self) -> list[dict[str, Any]]:
        """The nodes: this one, as a core/v1 Node."""
        return await self._items("/api/v1/nodes")

    def watch_pods(self, namespace: str | None = None) -> AsyncIterator[tuple[str, Pod]]:
        """(ADDED, MODIFIED or DELETED, pod): what is there, then each change."""
        return self._watch(_path(namespace, "pods"), Pod)

    def watch_events(self, namespace: str | None = None) -> AsyncIterator[tuple[str, Event]]:
        """(ADDED or MODIFIED, event): what is there, then each change."""
        return self._watch(_path(namespace, "events"), Event)

    async def info(self) -> dict[str, Any]:
        """What the node is: nodeName, version, pid, root, startedAt, hostIPs, runtime, pods."""
        found: dict[str, Any] = await self._get("/podwire/v1/info")
        return found

    async def problems(self) -> list[dict[str, Any]]:
        """What is wrong with the sources: source, subject, line, reason, message, pod, kept, type, text."""
        return await self._items("/podwire/v1/problems")

    async def log(
        self,
        namespace: str,
        name: str,
        *,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        previous: bool = False,
        since_seconds: int | None = None,
    ) -> AsyncIterator[bytes]:
        """A container's log in pieces; ``follow`` goes on until the container ends."""
        query = _query(
            container=container,
            follow=follow,
            tailLines=tail,
            timestamps=timestamps,
            previous=previous,
            sinceSeconds=since_seconds,
        )
        async with self._request("GET", _path(namespace, "pods", name, "log"), query) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    async def exec(
        self,
        namespace: str,
        name: str,
        command: Sequence[str],
        *,
        container: str = "",
        stdin: bool = False,
        tty: bool = False,
        size: tuple[int, int] | None = None,
    ) -> ExecStream:
        """Run a program in a container; the result is a :class:`podwire.runtime.api.ExecSession`."""
        columns, rows = size or (None, None)
        query = [*_query(container=container, stdin=stdin, tty=tty, columns=columns, rows=rows).items()]
        query += [("command", word) for word in command]
        path = _path(namespace, "pods", name, "exec")
        session = self._open_session()
        try:
            web_socket = await session.ws_connect(
                path, params=query, protocols=(EXEC_PROTOCOL,), max_msg_size=0, autoping=True
            )
        except aiohttp.WSServerHandshakeError as error:
            text = error.headers.get(STATUS_HEADER, "") if error.headers is not None else ""
            raise _api_error(error.status, text.encode(), error.message) from error
        except aiohttp.ClientConnectorError as error:
            raise NotRunning(self._socket) from error
        except aiohttp.ClientError as error:
            raise Disconnected(f"the node on {self._socket} went away: {error}") from error
        return ExecStream(web_socket)

    async def shutdown(self, *, remove: bool, grace: float | None = None) -> AsyncIterator[tuple[str, ...]]:
        """End the node; with ``remove`` its pods first, yielding those that are left (namespace/name)."""
        query = _query(remove=remove, gracePeriodSeconds=None if grace is None else int(grace))
        async with self._request("POST", "/podwire/v1/shutdown", query) as response:
            async for line in _lines(response):
                yield tuple(msgspec.json.decode(line)["remaining"])

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("NodeClient is used outside its async with")
        return self._session

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._open_session().request(method, path, params=query) as response:
                if response.status >= 400:
                    raise _api_error(response.status, await response.read())
                yield response
        except aiohttp.ClientConnectorError as error:
            raise NotRunning(self._socket) from error
        except aiohttp.ClientError as error:
            raise Disconnected(f"the node on {self._socket} went away: {error}") from error

    async def _get(self, path: str) -> Any:
        async with self._request("GET", path) as response:
            return msgspec.json.decode(await response.read())

    async def _items(self, path: str) -> list[Any]:
        return msgspec.convert(await self._get(path), _List).items

    async def _watch(self, path: str, kind: type[T]) -> AsyncIterator[tuple[str, T]]:
        async with self._request("GET", path, {"watch": "true"}) as response:
            async for line in _lines(response):
                change = msgspec.json.decode(line, type=_Change)
                if change.type == "ERROR":
                    raise _api_error(410, bytes(change.object))
                yield change.type, msgspec.json.decode(change.object, type=kind)


class ExecStream:
    """A program in a container, its streams in the caller's hands."""

    def __init__(self, web_socket: aiohttp.ClientWebSocketResponse) -> None:
        self._web_socket = web_socket
        self._code: int | None = None

    async def write_stdin(self, data: bytes) -> None:
        """Pass bytes to the program; empty closes its stdin."""
        if data:
            await self._send(Channel.STDIN, data)
        else:
            await self._send(Channel.CLOSE, bytes([Channel.STDIN]))

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(1, stdout bytes) and (2, stderr bytes) until the program ends."""
        async for message in self._web_socket:
            if message.type != aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == Channel.STATUS:
                status = msgspec.json.decode(data)
                self._code = exit_code(status)
                if self._code is None:
                    raise ApiError(500, status.get("reason", ""), status.get("message", ""))
                return
            if channel in (Channel.STDOUT, Channel.STDERR):
                yield channel, data

    async def resize(self, columns: int, rows: int) -> None:
        """Set the terminal's size."""
        await self._send(Channel.RESIZE, msgspec.json.encode({"Width": columns, "Height": rows}))

    async def wait(self) -> int:
        """The exit code, known when ``output`` has ended."""
        if self._code is None:
            async for _ in self.output():
                continue
        if self._code is None:
            raise Disconnected("the node went away before the program ended")
        return self._code

    async def close(self) -> None:
        """Let go; a program that still runs is killed."""
        await self._web_socket.close()

    async def _send(self, channel: Channel, data: bytes) -> None:
        try:
            await self._web_socket.send_bytes(bytes([channel]) + data)
        except ConnectionError as error:
            raise Disconnected("the node went away") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of an answer, however long."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _path(namespace: str | None, *parts: str) -> str:
    scope = ["namespaces", namespace] if namespace else []
    return "/".join(("/api/v1", *scope, *parts))


def _query(**values: str | int | bool | None) -> dict[str, str]:
    """Query parameters as the API writes them; what is None, False or empty is left out."""
    return {
        key: "true" if value is True else str(value)
        for key, value in values.items()
        if value is not None and value is not False and value != ""
    }


def _api_error(code: int, body: bytes, fallback: str = "") -> ApiError:
    try:
        status = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return ApiError(code, "", fallback or body.decode(errors="replace")[:500])
    return ApiError(code, str(status.get("reason", "")), str(status.get("message", "")) or fallback)
