"""The node's own API on a unix socket, in paths and bodies of the Kubernetes API (:mod:`podwire.node.api`).

GET /api/v1/pods, /api/v1/namespaces/{ns}/pods: list; with ``watch=true`` JSON lines
GET /api/v1/namespaces/{ns}/pods/{name}
GET .../pods/{name}/log: ``container follow previous tailLines sinceSeconds timestamps``
GET .../pods/{name}/exec: ``command`` (each word) ``container stdin tty columns rows``; WebSocket
GET /api/v1/events, /api/v1/namespaces/{ns}/events: list; with ``watch=true`` JSON lines
GET /api/v1/nodes, /api/v1/nodes/{name}
GET /podwire/v1/info, /podwire/v1/problems, /healthz
POST /podwire/v1/shutdown: ``remove=true gracePeriodSeconds``; JSON lines of what is left
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from podwire import __version__
from podwire.kube.objects import Event, Pod
from podwire.node import machine, streams
from podwire.node.api import STATUS_HEADER, STATUS_HEADER_LIMIT, failure
from podwire.node.board import Feed, WatchTooSlow
from podwire.node.clock import timestamp
from podwire.node.request import ApiFailure, find_pod, flag, number
from podwire.node.service import Node
from podwire.runtime.errors import RuntimeFault

T = TypeVar("T", Pod, Event)
_encode = msgspec.json.encode


class SocketInUse(Exception):
    """Another process answers on the socket."""


class Server:
    """Serves a node on ``socket_path`` (mode 0600); an async context manager."""

    def __init__(self, node: Node, socket_path: Path) -> None:
        self._node = node
        self._path = socket_path
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> Server:
        listener = _listen(self._path)
        self._socket = listener
        runner = web.AppRunner(
            application(self._node), access_log=None, shutdown_timeout=2.0, handler_cancellation=True
        )
        await runner.setup()
        self._runner = runner
        await web.SockSite(runner, listener).start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()
        self._path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """A listening socket that nobody else can open at any moment, in the place of a dead one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise SocketInUse(f"{path} is there and is not a socket")
        with socket.socket(socket.AF_UNIX) as other:
            try:
                other.connect(str(path))
            except OSError:
                pass
            else:
                raise SocketInUse(f"{path} is answered by another process")
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(made))
        made.chmod(0o600)
        listener.listen(128)
        made.replace(path)
    except OSError:
        listener.close()
        made.unlink(missing_ok=True)
        raise
    listener.setblocking(False)
    return listener


_NODE: web.AppKey[Node] = web.AppKey("node", Node)


def application(node: Node) -> web.Application:
    """The API over one node."""
    app = web.Application(middlewares=[_errors])
    app[_NODE] = node
    pod = "/api/v1/namespaces/{namespace}/pods/{name}"
    app.add_routes(
        [
            web.get("/api/v1/pods", _pods),
            web.get("/api/v1/namespaces/{namespace}/pods", _pods),
            web.get(pod, _pod),
            web.get(f"{pod}/log", _log),
            web.get(f"{pod}/exec", _exec),
            web.get("/api/v1/events", _events),
            web.get("/api/v1/namespaces/{namespace}/events", _events),
            web.get("/api/v1/nodes", _nodes),
            web.get("/api/v1/nodes/{name}", _one_node),
            web.get("/podwire/v1/info", _info),
            web.get("/podwire/v1/problems", _problems),
            web.post("/podwire/v1/shutdown", _shutdown),
            web.get("/healthz", _healthy),
        ]
    )
    return app


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(value), status=status, content_type="application/json")


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every failure is a metav1.Status."""
    try:
        return await handler(request)
    except ApiFailure as error:
        return _failed(failure(error.code, error.message, details=error.details))
    except WatchTooSlow:
        return _failed(failure(410, "too old resource version: list again"))
    except RuntimeFault as fault:
        return _failed(failure(500, str(fault), reason=fault.code))
    except web.HTTPException as error:
        return _failed(failure(error.status, f"{request.method} {request.path}: {error.reason}"))


def _failed(status: dict[str, Any]) -> web.Response:
    response = _json(status, status["code"])
    response.headers[STATUS_HEADER] = json.dumps(status)[:STATUS_HEADER_LIMIT]
    return response


async def _pods(request: web.Request) -> web.StreamResponse:
    node, namespace = request.app[_NODE], request.match_info.get("namespace", "")
    if flag(request, "watch"):
        pods = node.board.feed
        return await _watch(request, pods, lambda pod: _in(namespace, pod.metadata.namespace), node.pods)
    return _list("PodList", node.pods(namespace), node.board.feed.version)


async def _events(request: web.Request) -> web.StreamResponse:
    node, namespace = request.app[_NODE], request.match_info.get("namespace", "")
    if flag(request, "watch"):
        return await _watch(
            request, node.board.events, lambda event: _in(namespace, event.metadata.namespace), node.events
        )
    return _list("EventList", node.events(namespace), node.board.events.version)


def _in(wanted: str, namespace: str) -> bool:
    return wanted in ("", namespace)


def _list(kind: str, items: list[Any], version: int) -> web.Response:
    return _json(
        {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}, "items": items}
    )


async def _watch(
    request: web.Request, feed: Feed[T], wanted: Callable[[T], bool], current: Callable[[], list[T]]
) -> web.StreamResponse:
    """What is there (as ADDED) and then each change; with ``resourceVersion`` only what came after it."""
    since = number(request, "resourceVersion")
    watch = feed.watch(since or None)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    async with watch:
        await response.prepare(request)
        if not since:
            first = [item for item in current() if wanted(item)]
            await response.write(b"".join(_line("ADDED", item) for item in first))
        try:
            async for change in watch:
                if wanted(change.object):
                    await response.write(_line(change.type, change.object))
        except WatchTooSlow:
            await response.write(_line("ERROR", failure(410, "the watch fell behind: list again")))
    return response


def _line(kind: str, item: object) -> bytes:
    return _encode({"type": kind, "object": item}) + b"\n"


async def _pod(request: web.Request) -> web.Response:
    return _json(find_pod(request.app[_NODE], request))


async def _log(request: web.Request) -> web.StreamResponse:
    node = request.app[_NODE]
    return await streams.serve_log(node, find_pod(node, request), request)


async def _exec(request: web.Request) -> web.StreamResponse:
    node = request.app[_NODE]
    return await streams.serve_exec(node, find_pod(node, request), request)


async def _nodes(request: web.Request) -> web.Response:
    return _list("NodeList", [await machine.node_object(request.app[_NODE])], 0)


async def _one_node(request: web.Request) -> web.Response:
    node, name = request.app[_NODE], request.match_info["name"]
    if name != node.node_name:
        raise ApiFailure(404, f'nodes "{name}" not found', {"kind": "nodes", "name": name})
    return _json(await machine.node_object(node))


async def _info(request: web.Request) -> web.Response:
    node = request.app[_NODE]
    name, version = node.runtime_version
    return _json(
        {
            "nodeName": node.node_name,
            "version": __version__,
            "pid": os.getpid(),
            "root": str(node.root),
            "startedAt": timestamp(node.started_at),
            "hostIPs": node.host_ips,
            "podCIDRs": node.pod_cidrs,
            "runtime": {"name": name, "version": version},
            "pods": len(node.pods()),
            "sourcesReady": node.mux.seen_all(),
        }
    )


async def _problems(request: web.Request) -> web.Response:
    found = [
        {
            "source": problem.source,
            "subject": problem.subject,
            "line": problem.line,
            "reason": problem.reason,
            "message": problem.message,
            "pod": problem.pod,
            "kept": problem.kept,
            "type": problem.type,
            "text": str(problem),
        }
        for problem in request.app[_NODE].problems()
    ]
    return _json({"items": found})


async def _shutdown(request: web.Request) -> web.StreamResponse:
    """End the node; with ``remove`` its pods too, telling which are left each time one is gone."""
    node = request.app[_NODE]
    if not flag(request, "remove"):
        node.stop()
        return _json({"remaining": []})
    grace = number(request, "gracePeriodSeconds")
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    async for left in node.shutting_down(None if grace is None else float(grace)):
        await response.write(_encode({"remaining": left.remaining}) + b"\n")
    return response


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok")
