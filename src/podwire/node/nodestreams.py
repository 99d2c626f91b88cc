"""The streams of pods, as servers ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from podwire.kernel.errors import NetnsError
from podwire.kube.objects import Pod
from podwire.node import podstreams
from podwire.node.clock import SECOND, timestamp
from podwire.node.request import ApiFailure
from podwire.node.service import Node
from podwire.runtime.api import ExecSession
from podwire.runtime.errors import RuntimeFault
from podwire.serving import status
from podwire.serving.status import Failure
from podwire.serving.streaming.backend import ExecOptions, LogOptions, Process, Target

_STREAMS = {"All": "", "Stdout": "stdout", "Stderr": "stderr"}


class NodeStreams:
    """See :class:`podwire.serving.streaming.backend.PodStreams`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def exec(self, target: Target, options: ExecOptions) -> Process:
        """Start a program in the container."""
        with _failures():
            container = podstreams.running(self._node, self._pod(target), target.container)
            session = await self._node.runtime.exec(
                container.id,
                options.command,
                stdin=options.stdin,
                tty=options.tty,
                size=options.size,
            )
        return _Program(session)

    async def attach(self, target: Target, options: ExecOptions) -> Process:
        """The streams of the container's own program, from now on."""
        with _failures():
            container = podstreams.running(self._node, self._pod(target), target.container)
            session = await self._node.runtime.attach(container.id, stdin=options.stdin)
            if options.size is not None:
                await session.resize(*options.size)
        return _Program(session)

    async def logs(self, target: Target, options: LogOptions) -> AsyncIterator[bytes]:
        """The container's log."""
        query = podstreams.LogQuery(
            follow=options.follow,
            previous=options.previous,
            timestamps=options.timestamps,
            since=self._since(options),
            tail=options.tail_lines,
            stream=_STREAMS[options.stream],
        )
        with _failures():
            return await podstreams.logs(self._node, self._pod(target), target.container, query)

    async def port_forward(
        self, target: Target, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the port on the pod's loopback."""
        with _failures():
            return await podstreams.connect(self._node, self._pod(target), port)

    def _pod(self, target: Target) -> Pod:
        """The pod as the node has it: a mirror pod's name leads to its static pod."""
        found = self._node.board.get(target.uid) or self._node.board.find(target.namespace, target.pod)
        if found is None:
            raise ApiFailure(404, f'pods "{target.pod}" not found on node {self._node.node_name}')
        return found

    def _since(self, options: LogOptions) -> str:
        if options.since_seconds is not None:
            return timestamp(self._node.clock.wall() - options.since_seconds * SECOND)
        if not options.since_time:
            return ""
        try:
            moment = datetime.fromisoformat(options.since_time)
        except ValueError as error:
            raise status.bad_request(f"sinceTime: {options.since_time!r}: {error}") from error
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Program:
    """A program in a container, with failures as the server knows them."""

    def __init__(self, session: ExecSession) -> None:
        self._session = session

    async def write_stdin(self, data: bytes) -> None:
        with _failures():
            await self._session.write_stdin(data)

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        with _failures():
            async for piece in self._session.output():
                yield piece

    async def resize(self, columns: int, rows: int) -> None:
        with _failures():
            await self._session.resize(columns, rows)

    async def wait(self) -> int:
        with _failures():
            return await self._session.wait()

    async def close(self) -> None:
        await self._session.close()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ApiFailure as error:
        reason = {400: "BadRequest", 404: "NotFound"}.get(error.code, "InternalError")
        raise Failure(error.code, reason, error.message) from error
    except (RuntimeFault, NetnsError) as fault:
        raise status.internal_error(str(fault)) from fault
