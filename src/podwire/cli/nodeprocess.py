"""The node's process: source, runtime, node and server under one roof, and what the user sees of them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

from podwire.apiserver.http.ownnode import OwnNode
from podwire.cli import assembly, detach, joining, kubelet, live, nodelog, output, rows
from podwire.cli.errors import CommandError
from podwire.kernel.host import Kernel
from podwire.kube.objects import Pod
from podwire.node.board import Feed, WatchTooSlow
from podwire.node.membership import Membership
from podwire.node.nodestreams import NodeStreams
from podwire.node.server import Server
from podwire.node.service import Node
from podwire.serving.streaming.service import Streaming
from podwire.sources.api import APISource
from podwire.sources.file import FileSource
from podwire.sources.http import HTTPSource
from podwire.sources.mux import Mux, is_mirror
from podwire.sources.updates import Source

if TYPE_CHECKING:
    from podwire.cli.up import Plan

T = TypeVar("T")
REDRAW = 1.0
"""Seconds between two pictures when nothing happens: ages grow."""
CALM = 0.1
"""Seconds between two pictures at least."""
START_SECONDS = 60.0


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
        joined = await _join(plan, stack)
        sources = _sources(plan)
        names = [source.name for source in sources]
        mux = Mux(*names, *([APISource.name] if joined is not None else []))
        node = Node(runtime, mux, plan.node_name, root=plan.places.state, pod_cidrs=plan.cidrs)
        membership = None
        if joined is not None:
            membership = Membership(joined.client, node, make_namespaces=joined.server is not None)
            sources.append(membership.source)
            if joined.server is not None:
                streaming = Streaming(NodeStreams(node))
                stack.push_async_callback(streaming.close)
                joined.server.use_node(plan.node_name, OwnNode(streaming))
                if not plan.once:
                    output.say(_invitation(plan, joined))
            await stack.enter_async_context(kubelet.serving(plan.kubelet, node, joined.client, plan.places))
        return await _Process(plan, node, mux, sources, membership).run(ending)


async def _join(plan: Plan, stack: AsyncExitStack) -> joining.Joined | None:
    """The API server that the node belongs to, until ``stack`` is left."""
    if plan.kubeconfig is not None:
        return await stack.enter_async_context(joining.joined(plan.kubeconfig))
    if plan.apiserver:
        return await stack.enter_async_context(joining.embedded(plan.places))
    return None


def _invitation(plan: Plan, joined: joining.Joined) -> str:
    if joined.kubeconfig is None:
        return f"The API server has no loopback address here: it answers on {plan.places.apiserver_socket}."
    return f"The API server answers: kubectl --kubeconfig {joined.kubeconfig} get pods -A"


def _sources(plan: Plan) -> list[Source]:
    """Where the pods come from besides the API."""
    found: list[Source] = []
    if plan.manifests:
        found.append(FileSource(plan.manifests, plan.node_name, keep=plan.places.manifests))
    if plan.urls:
        found.append(HTTPSource(plan.urls, plan.node_name, headers=plan.url_headers, keep=plan.places.pages))
    return found


class _Process:
    """The tasks of a node's process, from start to end."""

    def __init__(
        self,
        plan: Plan,
        node: Node,
        mux: Mux,
        sources: Sequence[Source],
        membership: Membership | None,
    ) -> None:
        self._plan = plan
        self._node = node
        self._mux = mux
        self._sources = sources
        self._membership = membership
        title = f"node {plan.node_name}"
        self._view: live.View = live.TableView(title) if sys.stdout.isatty() else live.LineView()
        self._changed = asyncio.Event()

    async def run(self, ending: asyncio.Event) -> int:
        """Start everything, wait for the first reason to end, end everything."""
        node = asyncio.create_task(self._node.run(), name="node")
        others: set[asyncio.Task[int | None]] = set()
        try:
            await self._started(node)
            async with Server(self._node, self._plan.places.socket):
                others = {
                    *(
                        asyncio.create_task(source.run(self._mux.merge), name=f"{source.name} source")
                        for source in self._sources
                    ),
                    asyncio.create_task(self._show(), name="view"),
                    asyncio.create_task(_when(ending), name="signal"),
                }
                if self._membership is not None:
                    others.add(asyncio.create_task(self._membership.run(), name="membership"))
                if self._plan.waiter is not None:
                    others.add(asyncio.create_task(self._log(), name="log"))
                    self._plan.waiter.tell(detach.Started())
                done, _ = await asyncio.wait({node, *others}, return_when=asyncio.FIRST_COMPLETED)
                status = max((task.result() or 0) for task in done)
                shut_down = node in done
                self._node.stop()
                await node
        finally:
            for task in (node, *others):
                task.cancel()
            await asyncio.gather(node, *others, return_exceptions=True)
            self._view.close()
        output.say(_farewell(self._plan, self._node.pods(), shut_down=shut_down))
        return status

    async def _started(self, node: asyncio.Task[None]) -> None:
        ready = asyncio.create_task(self._node.ready.wait())
        try:
            done, _ = await asyncio.wait(
                {node, ready}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if node in done:
            await node
        if ready not in done:
            raise CommandError(f"the node is not ready after {START_SECONDS:g} s")

    async def _log(self) -> None:
        await nodelog.keep_small(self._plan.places.log)

    async def _show(self) -> int:
        """Show every change; with ``--once``, return when all is as it should be or will not be."""
        deadline = time.monotonic() + self._plan.timeout
        unsubscribe = self._mux.problems.subscribe(lambda _: self._changed.set())
        board = self._node.board
        redraw = REDRAW if sys.stdout.isatty() else None
        async with asyncio.TaskGroup() as group:
            followers = [
                group.create_task(self._follow(board.feed)),
                group.create_task(self._follow(board.events)),
            ]
            try:
                while True:
                    self._changed.clear()
                    self._view.show(self._picture())
                    if self._plan.once:
                        status = self._verdict(deadline)
                        if status is not None:
                            return status
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), REDRAW if self._plan.once else redraw)
                    await asyncio.sleep(CALM)
            finally:
                unsubscribe()
                for follower in followers:
                    follower.cancel()

    async def _follow(self, feed: Feed[T]) -> None:
        while True:
            try:
                async with feed.watch() as watch:
                    self._changed.set()
                    async for _ in watch:
                        self._changed.set()
                return
            except WatchTooSlow:
                continue

    def _picture(self) -> live.Picture:
        return live.Picture(
            pods=tuple(self._node.pods()),
            events=tuple(self._node.events()),
            problems=tuple(str(problem) for problem in self._node.problems()),
        )

    def _verdict(self, deadline: float) -> int | None:
        """0 when every pod runs or has succeeded, 1 when one cannot or time is up, None until then."""
        pods = self._node.pods()
        complaints = [str(problem) for problem in self._node.problems() if problem.type == "Warning"]
        complaints += [_complaint(pod) for pod in pods if failed(pod)]
        waiting = [pod for pod in pods if not settled(pod) and not failed(pod)]
        wanted = {pod.metadata.uid for pod in self._mux.pods() if not is_mirror(pod)}
        all_there = self._mux.seen_all() and wanted <= {pod.metadata.uid for pod in pods}
        if (waiting or not all_there) and time.monotonic() < deadline:
            return None
        self._table(pods)
        complaints += [f"{_complaint(pod)} after {self._plan.timeout:g} s" for pod in waiting]
        for complaint in complaints:
            output.note(f"error: {complaint}")
        return 1 if complaints or not all_there else 0

    def _table(self, pods: list[Pod]) -> None:
        if not sys.stdout.isatty():
            live.print_pods(pods)


def settled(pod: Pod) -> bool:
    """Whether the pod is where it should be: Running and ready, or Succeeded."""
    if pod.status.phase == "Succeeded":
        return True
    done, _, total = rows.ready(pod).partition("/")
    return rows.status(pod) == "Running" and done == total


def failed(pod: Pod) -> bool:
    """Whether the pod has failed, or a container of it cannot be started or does not stay up."""
    word = rows.status(pod)
    return pod.status.phase == "Failed" or word.endswith(("Error", "BackOff"))


def _complaint(pod: Pod) -> str:
    reason = rows.reason(pod)
    return f"pod {pod.full_name} is {rows.status(pod)}" + (f": {reason}" if reason else "")


async def _when(event: asyncio.Event) -> int:
    await event.wait()
    return 0


def _farewell(plan: Plan, pods: list[Pod], *, shut_down: bool) -> str:
    if shut_down:
        return "The node has ended; its pods are removed."
    running = sum(rows.status(pod) == "Running" for pod in pods)
    return (
        f"The node has ended; {running} pod{'s go' if running != 1 else ' goes'} on running."
        f" podwire up{plan.places.flags} takes over, podwire down{plan.places.flags} stops and removes."
    )
