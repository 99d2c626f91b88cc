"""The node's process: source, runtime, node and server under one roof, and what the user sees of them."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from podwire.cli import assembly, detach, live, rows
from podwire.kernel.host import Kernel
from podwire.node.server import Server
from podwire.node.service import Node
from podwire.sources.file import FileSource
from podwire.sources.mux import Mux

if TYPE_CHECKING:
    from podwire.cli.up import Plan

REDRAW = 1.0
"""Seconds between two pictures when nothing happens: ages grow."""
CALM = 0.1
"""Seconds between two pictures at least."""


async def serve(plan: Plan) -> int:
    """Run the node until it is told to end; its pods go on running. The exit status is the result."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    async with AsyncExitStack() as stack:
        kernel = stack.enter_context(Kernel.open())
        network = assembly.network(plan.places, plan.bridge, plan.cidrs)
        runtime = await stack.enter_async_context(assembly.runtime(plan.places, kernel, network))
        mux = Mux(FileSource.name)
        source = FileSource(plan.manifests, plan.node_name)
        node = Node(runtime, mux, plan.node_name, pod_cidrs=plan.cidrs, root=plan.places.state)
        server = Server(node, plan.places.socket)
        await stack.enter_async_context(server)
        if plan.ready_fd >= 0:
            detach.tell(plan.ready_fd, detach.Started())
        return await _run(plan, node, source, mux, ending)


async def _run(plan: Plan, node: Node, source: FileSource, mux: Mux, ending: asyncio.Event) -> int:
    watch = _Watch(plan, node, mux)
    tasks = {
        asyncio.create_task(node.run(), name="node"),
        asyncio.create_task(source.run(mux.merge), name="source"),
        asyncio.create_task(ending.wait(), name="signal"),
        asyncio.create_task(watch.run(), name="view"),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.get_name() == "view":
                return await task
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        watch.close()
    _farewell(plan, node)
    return 0


class _Watch:
    """Shows the node's state as it changes; with ``--once``, until all is as it should be."""

    def __init__(self, plan: Plan, node: Node, mux: Mux) -> None:
        self._plan = plan
        self._node = node
        self._mux = mux
        title = f"node {plan.node_name}"
        self._view: live.View = live.TableView(title) if sys.stdout.isatty() else live.LineView()

    async def run(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self._view.close()


def _farewell(plan: Plan, node: Node) -> None:
    running = sum(rows.status(pod) == "Running" for pod in node.pods())
    print(
        f"The node has ended; {running} pods go on running."
        f" podwire down{plan.places.flags} stops and removes them, podwire up takes them over."
    )
