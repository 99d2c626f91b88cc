"""A node in the server's own process, asked for the logs and streams of its pods."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from podwire.serving import status
from podwire.serving.query import flag
from podwire.serving.streaming.backend import ExecOptions, Target
from podwire.serving.streaming.service import Streaming

Object = dict[str, Any]


class OwnNode:
    """A :class:`podwire.apiserver.http.backend.NodeBackend`."""

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._streaming.log(request, _target(pod, container(pod, request)))

    async def exec(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._program(request, pod, command(request))

    async def attach(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._program(request, pod, ())

    async def port_forward(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """See NodeBackend."""
        return await self._streaming.port_forward(request, _target(pod, ""))

    async def _program(self, request: web.Request, pod: Object, words: tuple[str, ...]) -> web.StreamResponse:
        options = ExecOptions(
            command=words,
            stdin=flag(request, "stdin"),
            stdout=flag(request, "stdout"),
            stderr=flag(request, "stderr"),
            tty=flag(request, "tty"),
        )
        return await self._streaming.program(request, _target(pod, container(pod, request)), options)


def command(request: web.Request) -> tuple[str, ...]:
    """The command that exec is to run. Raise Failure 400."""
    words = tuple(request.query.getall("command", []))
    if not words:
        raise status.bad_request("you must specify a command")
    return words


def container(pod: Object, request: web.Request) -> str:
    """The container that is meant. Raise Failure 400.

    Source: k8s.io/kubernetes/pkg/registry/core/pod/strategy.go, validateContainer.
    """
    asked = request.query.get("container", "")
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


def _target(pod: Object, name: str) -> Target:
    metadata = pod["metadata"]
    return Target(
        namespace=metadata.get("namespace", ""),
        pod=metadata["name"],
        uid=metadata.get("uid", ""),
        container=name,
    )
