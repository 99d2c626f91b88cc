"""The streaming subresources of pods, over a backend that knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from podwire.apiserver import status
from podwire.apiserver.http.request import flag
from podwire.apiserver.streaming import (
    logs,
    portforward,
    spdy_channels,
    web_socket_channels,
    web_socket_portforward,
)
from podwire.apiserver.streaming.backend import ExecOptions, PodStreams, Process, Target
from podwire.apiserver.streaming.channels import Channels
from podwire.apiserver.streaming.portforward import Forwarder
from podwire.apiserver.streaming.program import DEFAULT_LIMITS, Limits, run
from podwire.apiserver.streaming.spdy_channels import SpdyChannels
from podwire.apiserver.streaming.upgrade import (
    VERSION_HEADER,
    WebSocketCarrier,
    chosen,
    no_upgrade,
    offered,
    to_spdy,
    to_web_socket,
    unknown_protocol,
    wants,
)
from podwire.apiserver.streaming.web_socket_channels import WebSocketChannels
from podwire.apiserver.streaming.web_socket_portforward import WebSocketForwarder

Object = dict[str, Any]

_WEB_SOCKET_HEADER = "Sec-WebSocket-Protocol"


class Streaming:
    """A :class:`podwire.apiserver.http.backend.NodeBackend`, whatever protocol the client speaks."""

    def __init__(self, backend: PodStreams, limits: Limits = DEFAULT_LIMITS) -> None:
        self._backend = backend
        self._limits = limits
        self._running: set[asyncio.Task[Any]] = set()

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        options, limit = logs.log_options(request)
        target = _target(pod, _container(pod, request.query.get("container", "")))
        with self._counted():
            return await logs.send(request, await self._backend.logs(target, options), limit)

    async def exec(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        command = tuple(request.query.getall("command", []))
        if not command:
            raise status.bad_request("you must specify a command")
        return await self._program(request, pod, command, self._backend.exec, exit_code=True)

    async def attach(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._program(request, pod, (), self._backend.attach, exit_code=False)

    async def port_forward(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        target = _target(pod, "")

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await self._backend.port_forward(target, port)

        what = f"pod {target.pod}, uid {target.uid}"
        with self._counted():
            known: tuple[str, ...]
            if wants(request) == "spdy":
                known, offers = (portforward.PROTOCOL,), offered(request, VERSION_HEADER)
                protocol = chosen(offers, known) if offers else portforward.PROTOCOL
                if protocol is None:
                    return unknown_protocol(offers, known)
                response, carrier = await to_spdy(request, protocol)
                await Forwarder(carrier, connect, self._limits, what).run()
                return response
            if wants(request) != "websocket":
                raise no_upgrade()
            known = (portforward.TUNNEL_PROTOCOL, *web_socket_portforward.PROTOCOLS)
            offers = offered(request, _WEB_SOCKET_HEADER)
            if (protocol := chosen(offers, known)) is None:
                return unknown_protocol(offers, known)
            if protocol != portforward.TUNNEL_PROTOCOL:
                ports = web_socket_portforward.ports(request)
                web_socket = await to_web_socket(request, protocol)
                await WebSocketForwarder(
                    web_socket,
                    protocol=protocol,
                    targets=ports,
                    connect=connect,
                    limits=self._limits,
                    what=what,
                ).run()
                return web_socket
            web_socket = await to_web_socket(request, protocol)
            await Forwarder(WebSocketCarrier(web_socket), connect, self._limits, what).run()
            await web_socket.close()
            return web_socket

    async def close(self) -> None:
        """End everything that runs, and wait until it has ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _program(
        self,
        request: web.Request,
        pod: Object,
        command: tuple[str, ...],
        begin: Callable[[Target, ExecOptions], Awaitable[Process]],
        *,
        exit_code: bool,
    ) -> web.StreamResponse:
        target = _target(pod, _container(pod, request.query.get("container", "")))
        options = _exec_options(request, command)
        with self._counted():
            response, channels = await _channels(request, options)
            if channels is not None:
                await run(
                    channels,
                    options,
                    lambda sized: begin(target, sized),
                    self._limits,
                    exit_code=exit_code,
                )
            return response

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)


async def _channels(request: web.Request, options: ExecOptions) -> tuple[web.StreamResponse, Channels | None]:
    """The answer, and the client's streams if it is an upgrade. Raise Failure 400."""
    kind = wants(request)
    if not kind:
        raise no_upgrade()
    header = VERSION_HEADER if kind == "spdy" else _WEB_SOCKET_HEADER
    known = spdy_channels.PROTOCOLS if kind == "spdy" else web_socket_channels.PROTOCOLS
    offers = offered(request, header)
    # A client that names nothing speaks the first version of the protocol.
    protocol = chosen(offers, known) if offers else "channel.k8s.io"
    if protocol is None:
        return unknown_protocol(offers, known), None
    if kind == "spdy":
        response, carrier = await to_spdy(request, protocol)
        return response, SpdyChannels(carrier, protocol, options)
    web_socket = await to_web_socket(request, protocol if offers else None)
    return web_socket, WebSocketChannels(web_socket, protocol, options)


def _exec_options(request: web.Request, command: tuple[str, ...]) -> ExecOptions:
    tty = flag(request, "tty")
    options = ExecOptions(
        command=command,
        stdin=flag(request, "stdin"),
        stdout=flag(request, "stdout"),
        # A terminal has one output.
        stderr=flag(request, "stderr") and not tty,
        tty=tty,
    )
    if not (options.stdin or options.stdout or options.stderr):
        raise status.bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return options


def _target(pod: Object, container: str) -> Target:
    metadata = pod["metadata"]
    return Target(
        namespace=metadata.get("namespace", ""),
        pod=metadata["name"],
        uid=metadata.get("uid", ""),
        container=container,
    )


def _container(pod: Object, asked: str) -> str:
    """The container that is meant. Raise Failure 400.

    Source: k8s.io/kubernetes/pkg/registry/core/pod/strategy.go, validateContainer.
    """
    spec = pod.get("spec") or {}
    name = pod["metadata"]["name"]
    containers, inits, ephemeral = (
        [str(one["name"]) for one in spec.get(field) or []]
        for field in ("containers", "initContainers", "ephemeralContainers")
    )
    if asked:
        if asked not in (*containers, *inits, *ephemeral):
            raise status.bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(containers) == 1:
        return containers[0]
    message = f"a container name must be specified for pod {name}"
    if containers:
        message += f", choose one of: [{' '.join(containers)}]"
    if inits:
        message += f" or one of the init containers: [{' '.join(inits)}]"
    raise status.bad_request(message)
