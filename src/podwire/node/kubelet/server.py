"""The server on the kubelet's port: logs, exec, attach, port-forward, and the pods that are here.

Paths and parameters are the kubelet's, and failures are text, as kube-apiserver expects them.
Source: k8s.io/kubernetes pkg/kubelet/server/server.go, k8s.io/kubelet/pkg/cri/streaming/remotecommand.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from podwire.kube.errors import KubeError
from podwire.kube.objects import Pod
from podwire.node.kubelet.callers import Callers
from podwire.node.service import Node
from podwire.serving.status import Failure
from podwire.serving.streaming.backend import ExecOptions, Target
from podwire.serving.streaming.service import Streaming

log = logging.getLogger(__name__)

PORT = 10250
_BACKLOG = 1024
_POD = r"{namespace}/{pod}"
_CONTAINER = r"{namespace}/{pod}/{container}"
_OF_UID = r"{namespace}/{pod}/{uid}/{container}"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Kubelet:
    """Serves on ``listener`` from :meth:`start` to :meth:`close`; ``streaming`` is the caller's to close."""

    def __init__(self, node: Node, streaming: Streaming, callers: Callers) -> None:
        self._node = node
        self._streaming = streaming
        self._callers = callers
        self._runner: web.AppRunner | None = None

    async def start(self, listeners: list[socket.socket], tls: ssl.SSLContext) -> None:
        """Answer from now on."""
        app = web.Application(middlewares=[self._guarded])
        routes = app.router
        routes.add_get("/healthz", _healthy)
        routes.add_get("/pods", self._pods)
        routes.add_get("/runningpods/", self._pods)
        for path in (_CONTAINER, _OF_UID):
            routes.add_get(f"/containerLogs/{path}", self._log)
            for method in ("GET", "POST"):
                routes.add_route(method, f"/exec/{path}", self._exec)
                routes.add_route(method, f"/attach/{path}", self._attach)
        for path in (_POD, rf"{_POD}/{{uid}}"):
            for method in ("GET", "POST"):
                routes.add_route(method, f"/portForward/{path}", self._port_forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        for listener in listeners:
            await web.SockSite(self._runner, listener, ssl_context=tls, backlog=_BACKLOG).start()

    async def close(self) -> None:
        """Stop listening and end what runs."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = await self._refusal(request)
            return await handler(request) if refusal is None else refusal
        except Failure as failure:
            return web.Response(status=failure.code, text=failure.message)

    async def _refusal(self, request: web.Request) -> web.Response | None:
        """What a caller is told that is nobody or may not do this."""
        try:
            user = await self._callers.user(request)
        except KubeError as error:
            log.warning("a caller cannot be known: %s", error)
            user = None
        if user is None:
            return web.Response(status=401, text="Unauthorized")
        what = f"user={user.name}, method={request.method}, resource=nodes, path={request.path}"
        try:
            allowed = await self._callers.may(user, request)
        except KubeError as error:
            log.warning("%s: whether it may cannot be known: %s", what, error)
            return web.Response(status=500, text=f"Authorization error ({what})")
        return None if allowed else web.Response(status=403, text=f"Forbidden ({what})")

    async def _pods(self, _request: web.Request) -> web.Response:
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._node.pods()}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _log(self, request: web.Request) -> web.StreamResponse:
        return await self._streaming.log(request, self._target(request))

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        words = tuple(request.query.getall("command", []))
        if not words:
            raise Failure(400, "BadRequest", "you must specify a command")
        return await self._program(request, words)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        return await self._program(request, ())

    async def _program(self, request: web.Request, words: tuple[str, ...]) -> web.StreamResponse:
        wanted = {name: request.query.get(name) == "1" for name in ("input", "output", "error", "tty")}
        options = ExecOptions(
            command=words,
            stdin=wanted["input"],
            stdout=wanted["output"],
            stderr=wanted["error"],
            tty=wanted["tty"],
        )
        return await self._streaming.program(request, self._target(request), options)

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        return await self._streaming.port_forward(request, self._target(request), parameter="port")

    def _target(self, request: web.Request) -> Target:
        """The pod and the container of the path. Raise Failure 404."""
        asked = request.match_info
        pod = self._node.board.find(asked["namespace"], asked["pod"])
        if pod is None or asked.get("uid") not in (None, pod.metadata.uid):
            raise Failure(404, "NotFound", f'pod "{asked["namespace"]}/{asked["pod"]}" does not exist')
        container = asked.get("container", "")
        if container and container not in _containers(pod):
            raise Failure(404, "NotFound", f'container "{container}" not found in pod "{pod.metadata.name}"')
        return Target(
            namespace=asked["namespace"], pod=pod.metadata.name, uid=pod.metadata.uid, container=container
        )


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _containers(pod: Pod) -> set[str]:
    return {one.name for one in (*pod.spec.init_containers, *pod.spec.containers)}


def listen(port: int) -> list[socket.socket]:
    """Listen on every address of this machine, of both families where there are both. Raise OSError."""
    if socket.has_dualstack_ipv6():
        try:
            return [socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)]
        except OSError:
            # IPv6 may be switched off; what else is wrong is told again.
            return [socket.create_server(("", port))]
    return [socket.create_server(("", port))]
