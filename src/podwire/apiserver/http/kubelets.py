"""Nodes in other processes, asked for the logs and streams of their pods at their kubelets' ports.

A request for a stream goes on as it came, under the kubelet's path and names, and then the two connections
carry each other's bytes. The kubelet sees the server's client certificate; its own is not verified, as
kube-apiserver does it without ``--kubelet-certificate-authority``.
Source: k8s.io/kubernetes pkg/registry/core/pod/strategy.go, pkg/kubelet/client.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict

from podwire.apiserver.http.ownnode import command, container
from podwire.serving import status
from podwire.serving.query import flag
from podwire.serving.status import Failure
from podwire.serving.streaming import logs, upgrade
from podwire.serving.streaming.tasks import cancelled

Object = dict[str, Any]
NodeOf = Callable[[str], Object]

CONNECTING = 10.0
ANSWERING = 60.0
"""Seconds that a kubelet has to begin its answer."""
HEAD_AT_MOST = 64 << 10
_ADDRESSES = ("InternalIP", "ExternalIP", "Hostname")
_LOG_OPTIONS = (
    "follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream",
)  # fmt: skip
_PASSED_ON = ("connection", "upgrade", "origin", "user-agent", "x-stream-protocol-version")
"""Headers of a client that go to the kubelet, beside those of WebSocket."""
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}


class Place(NamedTuple):
    """Where a kubelet listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Kubelets:
    """A :class:`podwire.apiserver.http.backend.NodeBackend` for the pods of any node that has a kubelet port.

    ``node_of`` gives a Node by its name, or raises Failure; ``tls`` makes the client's side of connections.
    """

    def __init__(self, node_of: NodeOf, tls: Callable[[], ssl.SSLContext]) -> None:
        self._node_of = node_of
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        logs.log_options(request)
        place, tls = await self._reach(pod)
        path = _path("containerLogs", pod, container(pod, request))
        query = [(name, value) for name in _LOG_OPTIONS if (value := request.query.get(name)) is not None]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=timeout) as session:
            try:
                async with asyncio.timeout(ANSWERING):
                    answer = await session.get(f"https://{place}{path}", params=query)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _unreached(place, error) from error
            async with answer:
                if answer.status != 200:
                    raise _failure(answer.status, await answer.text(errors="replace"))
                return await logs.send(request, _pieces(answer), None)

    async def exec(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        words = [("command", word) for word in command(request)]
        return await self._upgraded(
            request, pod, _path("exec", pod, container(pod, request)), words + _streams(request)
        )

    async def attach(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._upgraded(
            request, pod, _path("attach", pod, container(pod, request)), _streams(request)
        )

    async def port_forward(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        ports = [("port", port) for port in request.query.getall("ports", [])]
        return await self._upgraded(request, pod, _path("portForward", pod), ports)

    async def _reach(self, pod: Object) -> tuple[Place, ssl.SSLContext]:
        """The kubelet of the pod's node. Raise Failure."""
        name = pod["metadata"]["name"]
        node_name = (pod.get("spec") or {}).get("nodeName") or ""
        if not node_name:
            raise status.bad_request(f"pod {name} does not have a host assigned")
        told = self._node_of(node_name).get("status") or {}
        port = ((told.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
        if not port:
            raise status.unavailable(
                f"node {node_name} has no kubelet port, by which its pods' logs and streams are had"
            )
        addresses = {one["type"]: one["address"] for one in reversed(told.get("addresses") or [])}
        host = next((addresses[kind] for kind in _ADDRESSES if kind in addresses), "")
        if not host:
            raise status.unavailable(f"node {node_name} has no address")
        if self._tls is None:
            self._tls = await asyncio.to_thread(self._make_tls)
        return Place(host, port), self._tls

    async def _upgraded(
        self, request: web.Request, pod: Object, path: str, query: Sequence[tuple[str, str]]
    ) -> web.StreamResponse:
        if not upgrade.wants(request):
            raise upgrade.no_upgrade()
        place, tls = await self._reach(pod)
        try:
            async with asyncio.timeout(CONNECTING):
                reader, writer = await asyncio.open_connection(
                    place.host, place.port, ssl=tls, limit=HEAD_AT_MOST
                )
        except OSError as error:
            raise _unreached(place, error) from error
        try:
            writer.write(_head(request, place, f"{path}?{urlencode(query)}" if query else path))
            try:
                async with asyncio.timeout(ANSWERING):
                    code, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
                    if code != 101:
                        return await _refusal(code, headers, reader)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                raise _unreached(place, error) from error
            response, carrier = await upgrade.taken(request, headers)
            await _joined(carrier, reader, writer)
            return response
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _path(what: str, pod: Object, *more: str) -> str:
    metadata = pod["metadata"]
    return "/".join(
        ("", what, *(quote(p, safe="") for p in (metadata["namespace"], metadata["name"], *more)))
    )


def _streams(request: web.Request) -> list[tuple[str, str]]:
    """The kubelet's names for the streams that are wanted (k8s.io/api/core/v1, ExecStdinParam and so on)."""
    names = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
    return [(name, "1") for asked, name in names.items() if flag(request, asked)]


def _head(request: web.Request, place: Place, target: str) -> bytes:
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {place}", "Content-Length: 0"]
    for name, value in request.headers.items():
        if name.lower() in _PASSED_ON or name.lower().startswith("sec-websocket-"):
            lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")


def _parsed(head: bytes) -> tuple[int, CIMultiDict[str]]:
    """The status and the headers of an answer. Raise OSError if it is none."""
    first, *lines = head.decode("utf-8", "surrogateescape").rstrip("\r\n").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise OSError(f"not an answer of HTTP/1.1: {first[:100]!r}")
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        name, _, value = line.partition(":")
        headers.add(name.strip(), value.strip())
    return int(words[1]), headers


async def _refusal(code: int, headers: CIMultiDict[str], reader: asyncio.StreamReader) -> web.Response:
    """The kubelet's own answer in place of an upgrade. Raise Failure if it is only text."""
    size = min(int(headers.get(hdrs.CONTENT_LENGTH, "0")), HEAD_AT_MOST)
    body = await reader.readexactly(size)
    if not headers.get(hdrs.CONTENT_TYPE, "").startswith("application/json"):
        raise _failure(code, body.decode(errors="replace"))
    kept = [(name, value) for name, value in headers.items() if name == upgrade.ACCEPTED_HEADER]
    return web.Response(body=body, status=code, headers=CIMultiDict(kept), content_type="application/json")


async def _joined(
    client: upgrade.SocketCarrier, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry bytes both ways until either end is closed."""

    async def up() -> None:
        while data := await client.read():
            writer.write(data)
            await writer.drain()

    async def down() -> None:
        while data := await reader.read(upgrade.CHUNK):
            await client.send(data)

    ways = [asyncio.create_task(up()), asyncio.create_task(down())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*ways)
        client.close()


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with contextlib.suppress(aiohttp.ClientError):  # the node has gone: what it said is all there is
        async for piece in answer.content.iter_any():
            yield piece


def _unreached(place: Place, error: Exception) -> Failure:
    return Failure(
        500, "InternalError", f"error dialing backend: {place}: {str(error) or type(error).__name__}"
    )


def _failure(code: int, text: str) -> Failure:
    return Failure(
        code, _REASONS.get(code, "InternalError"), text.strip()[:1024] or f"the kubelet said {code}"
    )
