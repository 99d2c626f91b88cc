"""What a person or a server asks of a pod that runs: its containers, their logs, its ports.

Nothing here knows of HTTP. What is wrong is raised before anything begins: ApiFailure, RuntimeFault, OSError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from asyncinotify import Inotify, Mask

from podwire.kernel import netns
from podwire.kernel.errors import NetnsError
from podwire.kube.objects import Pod
from podwire.node.logs import LogReader, Renderer
from podwire.node.request import ApiFailure
from podwire.node.service import Node
from podwire.runtime.api import ContainerState, ContainerStatus

ENDED_CHECK = 0.25
"""Seconds after which a followed log is looked at even if the file system said nothing."""
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which part of a log: ``since`` is RFC 3339 in UTC, ``tail`` a number of lines, None for all.

    ``stream`` is ``stdout`` or ``stderr``, empty for both.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: str = ""
    tail: int | None = None
    stream: str = ""


def running(node: Node, pod: Pod, name: str) -> ContainerStatus:
    """The container, which has to run."""
    status = node.observed(pod).latest(name)
    if status is None or status.state != ContainerState.RUNNING:
        raise ApiFailure(400, f'container "{name}" in pod "{pod.metadata.name}" does not run')
    return status


async def logs(node: Node, pod: Pod, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
    """The log of a container as text, in pieces."""
    status = _logged(node, pod, name, previous=query.previous)
    renderer = Renderer(timestamps=query.timestamps, since=query.since.encode(), stream=query.stream.encode())
    reader = await asyncio.to_thread(LogReader, Path(status.log_path), query.tail)
    return _rendered(node, pod, status, reader, renderer, follow=query.follow)


async def _rendered(
    node: Node, pod: Pod, status: ContainerStatus, reader: LogReader, renderer: Renderer, *, follow: bool
) -> AsyncGenerator[bytes, None]:
    entries = _followed(node, pod, status, reader) if follow else _read(reader)
    async with contextlib.aclosing(entries):
        async for piece in entries:
            yield renderer.render(piece)


async def _read(reader: LogReader) -> AsyncGenerator[bytes, None]:
    try:
        while entries := reader.read():
            yield entries
    finally:
        reader.close()


async def _followed(
    node: Node, pod: Pod, status: ContainerStatus, reader: LogReader
) -> AsyncGenerator[bytes, None]:
    """Whole entries as they come, until the container has ended."""
    try:
        with Inotify() as inotify:
            inotify.add_watch(Path(status.log_path).parent, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)
            while True:
                ended = not any(one.id == status.id for one in node.observed(pod).running)
                while entries := reader.read():
                    yield entries
                if ended:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(inotify.get(), ENDED_CHECK)
    finally:
        reader.close()


def _logged(node: Node, pod: Pod, name: str, *, previous: bool) -> ContainerStatus:
    """The container whose log is meant."""
    history = [s for s in node.observed(pod).history(name) if s.state != ContainerState.CREATED]
    if previous:
        if len(history) < 2:
            raise ApiFailure(
                400, f'previous terminated container "{name}" in pod "{pod.metadata.name}" not found'
            )
        return history[-2]
    if not history:
        statuses = [*pod.status.init_container_statuses, *pod.status.container_statuses]
        waiting = next((s.state.waiting for s in statuses if s.name == name), None)
        why = (waiting.reason if waiting is not None else "") or pod.status.reason or pod.status.phase
        raise ApiFailure(400, f'container "{name}" in pod "{pod.metadata.name}" is waiting to start: {why}')
    return history[-1]


async def connect(node: Node, pod: Pod, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TCP connection to ``port`` on the pod's loopback, IPv4 before IPv6. Raises OSError that says so."""
    sandbox = node.observed(pod).sandbox
    stopped = ApiFailure(400, f'pod "{pod.metadata.name}" does not run')
    if sandbox is None or sandbox not in node.observed(pod).ready_sandboxes:
        raise stopped
    failure: OSError | None = None
    for family, address in _LOOPBACK:
        try:
            made = await asyncio.to_thread(_socket_inside, sandbox.netns, family)
        except NetnsError as error:  # it was stopped since the node last looked
            raise stopped from error
        except OSError as error:
            failure = failure or error
            continue
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
            return await asyncio.open_connection(sock=made)
        except BaseException as error:
            made.close()
            if not isinstance(error, OSError):
                raise
            failure = failure or error
    assert failure is not None
    why = os.strerror(failure.errno) if failure.errno else str(failure)
    raise OSError(failure.errno, f"cannot connect to localhost:{port} inside the pod: {why}") from failure


def _socket_inside(path: str, family: socket.AddressFamily) -> socket.socket:
    """A socket of the network namespace at ``path``, or of the host's if that is empty."""

    def make() -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    if not path:
        return make()
    with netns.open(path) as inside:
        return inside.run(make)
