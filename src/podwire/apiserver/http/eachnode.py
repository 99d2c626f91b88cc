"""Which node is asked about a pod: one in the server's own process, or the kubelet's port of another."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from podwire.apiserver.http.backend import NodeBackend

Object = dict[str, Any]


class EachNode:
    """A :class:`podwire.apiserver.http.backend.NodeBackend` of all nodes: ``own`` by name, and ``others``."""

    def __init__(self, own: dict[str, NodeBackend], others: NodeBackend) -> None:
        self._own = own
        self._others = others

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._of(pod).log(request, pod)

    async def exec(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._of(pod).exec(request, pod)

    async def attach(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._of(pod).attach(request, pod)

    async def port_forward(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._of(pod).port_forward(request, pod)

    def _of(self, pod: Object) -> NodeBackend:
        return self._own.get((pod.get("spec") or {}).get("nodeName") or "", self._others)
