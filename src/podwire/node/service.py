"""The node: takes pods from the sources, keeps them running, shows what became of them.

What a run of the node left behind (by :meth:`Node.stop`, a crash or kill -9) is found again in the runtime by
pod UID: pods that are still wanted go on, others are taken down once every source has been seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from podwire.kube.objects import Event, ObjectReference, Pod
from podwire.node.admission import HostPorts
from podwire.node.board import Board
from podwire.node.cache import RuntimeCache
from podwire.node.claims import Claims
from podwire.node.clock import Clock, SystemClock
from podwire.node.context import Context, NetworkGate
from podwire.node.deadlines import Deadlines
from podwire.node.dns import Resolver
from podwire.node.events import Events
from podwire.node.host import host_addresses
from podwire.node.observed import Observed
from podwire.node.volumes import Volumes
from podwire.node.workers import Workers
from podwire.runtime.api import ContainerEvent, RuntimeCondition, RuntimeService
from podwire.runtime.errors import RuntimeFault
from podwire.sources.mux import Mux, is_static
from podwire.sources.problems import ProblemChange, SourceProblem
from podwire.sources.updates import PodUpdate

HOUSEKEEPING = 2.0
RELIST = 10.0
"""Seconds between full comparisons with the runtime: a safety net, events tell the rest."""
RUNTIME_RETRY = 1.0
PAUSE_TIMEOUT = 10.0
FORCED_GRACE = 1.0
"""Seconds that the programs of a pod have that the API server deleted at once (pod_workers.go)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a shutdown has come."""

    remaining: tuple[str, ...]
    """namespace/name of the pods that are still there."""


class Node:
    """One machine's pods. ``run`` works until it is cancelled or ``stop`` or ``shutdown`` is called.

    ``root`` holds logs and volumes; ``host_ips`` left empty are found out when the node starts.
    """

    def __init__(
        self,
        runtime: RuntimeService,
        updates: Mux,
        node_name: str,
        *,
        root: Path,
        host_ips: tuple[str, ...] = (),
        pod_cidrs: tuple[str, ...] = (),
        resolver: Resolver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.node_name = node_name
        self.root = root
        self.pod_cidrs = pod_cidrs
        self.resolver = resolver or Resolver()
        self.clock: Clock = clock or SystemClock()
        self.board = Board()
        self.ready = asyncio.Event()
        """Set when the runtime has been looked through and pods are being worked on."""
        self.runtime: RuntimeService = Deadlines(runtime)
        self.mux = updates
        self.recorder = Events(self.clock, node_name)
        self.recorder.subscribe(self.board.events.send)
        self.runtime_version = ("", "")
        self.started_at = self.clock.wall()
        self.kubelet_port = 0
        """Where the API server reaches this node's pods; 0 for nowhere."""
        self._listeners: list[Callable[[str, str], None]] = []
        self._workers = Workers(self._tell)
        self._cache = RuntimeCache(self.runtime, self._workers.poke)
        self._network = NetworkGate(self.runtime, self.clock)
        self._host_ips: tuple[str, ...] = host_ips
        self._claims = Claims()
        self._deleted: set[str] = set()
        """UIDs that the API server has given a deletionTimestamp and still holds."""
        self._volumes = Volumes(root)
        self._ending = False
        self._stop = asyncio.Event()
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def host_ips(self) -> tuple[str, ...]:
        """The node's addresses, the first family first."""
        return self._host_ips

    def pods(self, namespace: str = "") -> list[Pod]:
        """The pods with their status, by namespace and name."""
        return self.board.pods(namespace)

    def events(self, namespace: str = "") -> list[Event]:
        """What happened, the latest last."""
        return self.recorder.list(namespace)

    def observed(self, pod: Pod) -> Observed:
        """What the runtime has of the pod."""
        return self._cache.observed(pod.metadata.uid)

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener`` with UID and namespace/name of each pod whose source or whose end told news."""
        self._listeners.append(listener)

    def released(self, uid: str) -> bool:
        """Whether the API server has deleted the pod and nothing is left of it here."""
        return uid in self._deleted and uid not in self._workers and not self._cache.observed(uid).sandboxes

    def current(self, full_name: str) -> Pod | None:
        """The pod that runs under namespace/name, or is next to; others of the name wait for it."""
        worker = self._workers.first(full_name)
        return None if worker is None else self._claims.winner(worker.uid)

    def problems(self) -> tuple[SourceProblem, ...]:
        """What is wrong with the sources now."""
        return self.mux.problems.current()

    async def conditions(self) -> tuple[RuntimeCondition, ...]:
        """RuntimeReady and NetworkReady; a runtime that does not answer is not ready."""
        try:
            return await self.runtime.status()
        except RuntimeFault as fault:
            return (RuntimeCondition("RuntimeReady", False, "RuntimeUnavailable", str(fault)),)

    async def run(self) -> None:
        """Work. Pods go on running when it returns, unless ``shutdown`` has removed them."""
        stream = self.runtime.events()
        self.runtime_version = await self.runtime.version()
        self._host_ips = self._host_ips or host_addresses()
        await self._cache.relist()
        self._workers.open(self._context())
        unsubscribe = self.mux.problems.subscribe(self._tell_problems)
        self._tell_problems(ProblemChange(self.problems(), ()))
        try:
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(self._follow_runtime(stream)),
                    group.create_task(self._follow_sources()),
                    group.create_task(self._keep_house()),
                    group.create_task(self._every(RELIST, self._relist)),
                    group.create_task(self._watch_workers()),
                ]
                self.ready.set()
                await self._stop.wait()
                await self._workers.pause(PAUSE_TIMEOUT)
                for part in parts:
                    part.cancel()
        finally:
            await self._workers.pause(0)
            unsubscribe()
            self.board.feed.close()
            self.board.events.close()

    def stop(self) -> None:
        """End the node; its pods go on running."""
        self._stop.set()

    async def shutdown(self, *, grace: float | None = None) -> None:
        """Take every pod down, side by side, wanted or not, then end the node."""
        async for _ in self.shutting_down(grace):
            continue

    async def shutting_down(self, grace: float | None = None) -> AsyncIterator[Progress]:
        """``shutdown``, told: what is left at first, and again whenever a pod is gone.

        It goes on to its end whether or not anybody listens; asked again, it can only become faster.
        """
        if self._shutdown is None:
            self._ending = True
            self._shutdown = asyncio.create_task(self._remove_all(grace))
        elif grace is not None:
            self._workers.remove_all(grace)
        while not self._shutdown.done():
            changed = self._workers.changed
            yield Progress(tuple(self._workers.names()))
            waits = asyncio.ensure_future(changed.wait())
            await asyncio.wait((waits, self._shutdown), return_when=asyncio.FIRST_COMPLETED)
            waits.cancel()
        await self._shutdown
        yield Progress(())

    async def _remove_all(self, grace: float | None) -> None:
        await self.ready.wait()
        while True:
            self._workers.remove_all(grace)
            for uid in self._cache.uids():
                self._workers.clear_orphan(uid, self._cache.observed(uid), grace)
            changed = self._workers.changed
            if not len(self._workers):
                break
            await changed.wait()
        self.stop()

    def _context(self) -> Context:
        return Context(
            runtime=self.runtime,
            cache=self._cache,
            clock=self.clock,
            events=self.recorder,
            board=self.board,
            ports=HostPorts(self._workers.poke),
            volumes=self._volumes,
            network=self._network,
            resolver=self.resolver,
            root=self.root,
            host_ips=self._host_ips,
            runtime_name=self.runtime_version[0],
        )

    async def _follow_sources(self) -> None:
        async for update in self.mux.updates():
            if not self._ending:
                self._take(update)

    def _take(self, update: PodUpdate) -> None:
        decisions = self._claims.apply(update)
        for uid in decisions.remove:
            # One that was being deleted and is gone before the node let go of it was deleted by force.
            self._workers.remove(uid, FORCED_GRACE if uid in self._deleted else None)
            self._deleted.discard(uid)
        self._want(decisions.want)
        for uid in decisions.poke:
            self._workers.poke(uid)
        for pod in update.pods:
            self._tell(pod.metadata.uid, pod.full_name)

    def _tell(self, uid: str, full_name: str) -> None:
        for listener in self._listeners:
            listener(uid, full_name)

    def _want(self, pods: Iterable[Pod]) -> None:
        """Those that run already come first: they hold the host ports that others may ask for."""
        running = self._cache.uids()
        for pod in sorted(pods, key=lambda pod: pod.metadata.uid not in running):
            uid = pod.metadata.uid
            if pod.metadata.deletion_timestamp is None or is_static(pod):
                self._workers.want(pod)
            elif uid not in self._deleted or uid in self._workers:
                # One that was taken down already only waits for the server to let go of it.
                self._deleted.add(uid)
                self._workers.want(pod)
                grace = pod.metadata.deletion_grace_period_seconds
                self._workers.remove(uid, None if grace is None else max(grace, FORCED_GRACE))

    async def _follow_runtime(self, stream: AsyncIterator[ContainerEvent]) -> None:
        while True:
            try:
                async for event in stream:
                    await self._cache.apply(event)
            except RuntimeFault:
                pass
            await self.clock.sleep(RUNTIME_RETRY)
            stream = self.runtime.events()
            await self._relist()

    async def _relist(self) -> None:
        try:
            await self._cache.relist()
        except (RuntimeFault, OSError):
            return
        if self.mux.seen_all() and not self._ending:
            for uid in self._volumes.left() - self._workers.uids() - self._cache.uids():
                await asyncio.to_thread(self._volumes.remove, uid)

    async def _keep_house(self) -> None:
        await self.mux.sources_ready()
        while True:
            await self._housekeeping()
            await self.clock.sleep(HOUSEKEEPING)

    async def _housekeeping(self) -> None:
        """Take down what no source wants, once all sources have spoken."""
        if self._ending:
            return
        for uid in self._cache.uids():
            if uid not in self._workers:
                self._workers.clear_orphan(uid, self._cache.observed(uid))

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self.clock.sleep(seconds)
            await work()

    async def _watch_workers(self) -> None:
        assert self._workers.failed is not None
        await self._workers.failed

    def _tell_problems(self, change: ProblemChange) -> None:
        for problem in change.appeared:
            namespace, _, name = problem.pod.rpartition("/")
            subject = (
                ObjectReference(kind="Pod", api_version="v1", namespace=namespace, name=name)
                if name
                else ObjectReference(kind="Node", api_version="v1", name=self.node_name)
            )
            self.recorder.about(subject, problem.type, problem.reason, str(problem))
