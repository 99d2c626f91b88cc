"""What the server asks of the node for a pod: its logs, programs in it, its ports."""

from __future__ import annotations

from typing import Any, Protocol

from aiohttp import web

Object = dict[str, Any]


class NodeBackend(Protocol):
    """Answers requests for ``/api/v1/namespaces/NAMESPACE/pods/NAME/`` log, exec, attach and portforward.

    Each gets the request as it came (query, upgrade) and the pod; it may raise
    :class:`~podwire.serving.status.Failure` before the answer has begun.
    """

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """``PodLogOptions`` in the query; the answer is text."""
        ...

    async def exec(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """``PodExecOptions`` in the query; an upgrade to WebSocket or SPDY."""
        ...

    async def attach(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """``PodAttachOptions`` in the query; an upgrade to WebSocket or SPDY."""
        ...

    async def port_forward(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """``PodPortForwardOptions`` in the query; an upgrade to WebSocket or SPDY."""
        ...
