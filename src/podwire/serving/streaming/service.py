"""The streaming subresources of pods, over a backend that knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from podwire.serving import status
from podwire.serving.streaming import (
    logs,
    portforward,
    spdy_channels,
    web_socket_channels,
    web_socket_portforward,
)
from podwire.serving.streaming.backend import ExecOptions, PodStreams, Target
from podwire.serving.streaming.channels import Channels
from podwire.serving.streaming.portforward import Forwarder
from podwire.serving.streaming.program import DEFAULT_LIMITS, Limits, run
from podwire.serving.streaming.spdy_channels import SpdyChannels
from podwire.serving.streaming.upgrade import (
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
from podwire.serving.streaming.web_socket_channels import WebSocketChannels
from podwire.serving.streaming.web_socket_portforward import WebSocketForwarder

_WEB_SOCKET_HEADER = "Sec-WebSocket-Protocol"


class Streaming:
    """Answers requests for the streams of one node's pods, whatever protocol the client speaks."""

    def __init__(self, backend: PodStreams, limits: Limits = DEFAULT_LIMITS) -> None:
        self._backend = backend
        self._limits = limits
        self._running: set[asyncio.Task[Any]] = set()

    async def log(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Answer with a container's log, ``PodLogOptions`` in the query. Raise Failure."""
        options, limit = logs.log_options(request)
        with self._counted():
            return await logs.send(request, await self._backend.logs(target, options), limit)

    async def program(self, request: web.Request, target: Target, options: ExecOptions) -> web.StreamResponse:
        """Run the command of ``options``, or without one attach to the container's own. Raise Failure."""
        if not (options.stdin or options.stdout or options.stderr):
            raise status.bad_request("you must specify at least 1 of stdin, stdout, stderr")
        if options.tty:  # a terminal has one output
            options = msgspec.structs.replace(options, stderr=False)
        begin = self._backend.exec if options.command else self._backend.attach
        with self._counted():
            response, channels = await _channels(request, options)
            if channels is not None:
                await run(
                    channels,
                    options,
                    lambda sized: begin(target, sized),
                    self._limits,
                    exit_code=bool(options.command),
                )
            return response

    async def port_forward(
        self, request: web.Request, target: Target, *, parameter: str = "ports"
    ) -> web.StreamResponse:
        """Forward connections; ``parameter`` names the ports in the query, where they are. Raise Failure."""

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
                ports = web_socket_portforward.ports(request, parameter)
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
