"""The node's socket as a target: a request line of any bytes, given to a node that runs in this process."""

from __future__ import annotations

import asyncio
import atexit
import logging
import tempfile
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path

from podwire.node.server import Server
from tests.fuzz.targets import Target
from tests.node.helpers import bench, pod

logging.getLogger("aiohttp.server").disabled = True  # what it says of each refusal
_ANSWER_WITHIN = 2.0
_POD = b"/api/v1/namespaces/default/pods/web"


class Served:
    """A node with one pod, and the loop that it lives in."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())
        atexit.register(self.close)

    async def _start(self) -> None:
        home = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._socket = home / "node.sock"
        found = await self._stack.enter_async_context(bench(home / "lib"))
        await self._stack.enter_async_context(Server(found.node, self._socket))
        found.give(pod("web"))
        await found.running("web")

    def close(self) -> None:
        """End the node."""
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()

    def ask(self, target: bytes) -> bytes:
        """The status line of the answer to ``GET target``; empty if the node hung up."""
        return self._loop.run_until_complete(self._ask(target))

    async def _ask(self, target: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(_ANSWER_WITHIN):
                return await reader.readline()
        finally:
            writer.close()


@cache
def served() -> Served:
    """The one node of this process."""
    return Served()


def request(data: bytes) -> None:
    """Whatever is asked, the node answers, and not with an error of its own."""
    line = served().ask(data)
    if line.split(b" ")[1:2] == [b"500"]:
        raise AssertionError(f"{line!r}")


SERVER = Target(
    request,
    (ConnectionError,),
    [
        b"/api/v1/pods",
        b"/api/v1/pods?watch=true&resourceVersion=1",
        b"/api/v1/namespaces/default/events?watch=false",
        b"/api/v1/nodes/node",
        b"/podwire/v1/problems",
        _POD,
        _POD + b"/log?container=main&follow=false&tailLines=3&sinceSeconds=9&timestamps=true&previous=false",
        _POD + b"/exec?command=ls&command=-l&container=main&stdin=true&tty=1",
        b"/healthz",
    ],
)
