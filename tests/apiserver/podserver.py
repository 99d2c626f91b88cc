"""As much of an API server as kubectl needs to find one pod, with the streaming subresources under test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from podwire.apiserver.http.answers import answer
from podwire.apiserver.http.ownnode import OwnNode
from podwire.serving import status
from podwire.serving.answers import failed
from podwire.serving.status import Failure
from podwire.serving.streaming.backend import PodStreams
from podwire.serving.streaming.program import DEFAULT_LIMITS, Limits
from podwire.serving.streaming.service import Streaming
from tests.apiserver.podstreams import LocalStreams

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default", "uid": "0a1b"},
    "spec": {"containers": [{"name": "main", "image": "none", "tty": False, "stdin": True}]},
    "status": {"phase": "Running"},
}
_BASE = "/api/v1/namespaces/default/pods/web"


class PodServer:
    """``url`` is valid inside ``async with``."""

    def __init__(
        self, backend: PodStreams, *, limits: Limits = DEFAULT_LIMITS, pod: dict[str, Any] | None = None
    ) -> None:
        self.streaming = Streaming(backend, limits)
        self._node = OwnNode(self.streaming)
        self.pod = POD if pod is None else pod
        self.requests: list[str] = []
        self.url = ""
        self.port = 0
        self.quiet = asyncio.Event()
        """Set while no request is being answered."""
        self._answering = 0

    async def __aenter__(self) -> PodServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.streaming.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path} {request.headers.get('Upgrade', '')}".strip())
        self._answering += 1
        self.quiet.clear()
        try:
            match request.path:
                case "/api":
                    return answer({"kind": "APIVersions", "versions": ["v1"]})
                case "/apis":
                    return answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
                case "/api/v1":
                    return answer(_RESOURCES)
                case path if path == _BASE:
                    return answer(self.pod)
                case path if path == f"{_BASE}/exec":
                    return await self._node.exec(request, self.pod)
                case path if path == f"{_BASE}/attach":
                    return await self._node.attach(request, self.pod)
                case path if path == f"{_BASE}/portforward":
                    return await self._node.port_forward(request, self.pod)
                case path if path == f"{_BASE}/log":
                    return await self._node.log(request, self.pod)
            raise status.no_such_path()
        except Failure as failure:
            return failed(failure)
        finally:
            self._answering -= 1
            if not self._answering:
                self.quiet.set()


@contextlib.asynccontextmanager
async def serving(streams: LocalStreams, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[PodServer]:
    """A server that has to leave no program and no task behind."""
    before = asyncio.all_tasks()
    async with PodServer(streams, limits=limits) as server:
        yield server
    await asyncio.gather(*(one.program.wait() for one in streams.started))
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        # Handlers of the pod's own connections, which see their ends only now.
        _, left = await asyncio.wait(left, timeout=5)
    assert not left


_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "v1",
    "resources": [
        {
            "name": "pods",
            "singularName": "pod",
            "namespaced": True,
            "kind": "Pod",
            "verbs": ["get", "list"],
            "shortNames": ["po"],
        }
    ],
}
