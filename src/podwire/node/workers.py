"""All workers of a node: one for each pod UID, and which of them wait for which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from podwire.kube.objects import ObjectMeta, Pod, PodSpec
from podwire.node import hashes
from podwire.node.context import Context
from podwire.node.observed import Observed
from podwire.node.worker import PodWorker, Stage

DEFAULT_GRACE = 30


class Workers:
    """Starts, updates and ends workers. A worker that fails by a fault of ours sets :attr:`failed`.

    ``ended`` is called with UID and namespace/name of each worker that has ended.
    """

    def __init__(self, ended: Callable[[str, str], None] = lambda uid, full_name: None) -> None:
        self._tell_ended = ended
        self._ctx: Context | None = None
        self._workers: dict[str, PodWorker] = {}
        self._by_name: dict[str, list[PodWorker]] = {}
        self._again: dict[str, Pod] = {}
        self._leftovers: dict[str, set[str]] = {}
        self._left_as: dict[str, str] = {}
        """The name of each UID in the leftovers."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._paused = False
        self.failed: asyncio.Future[None] | None = None
        self.changed = asyncio.Event()
        """Set when the next worker has ended, and then another event stands in its place."""

    def open(self, ctx: Context) -> None:
        """Give the workers what they share; called once, in the running loop, when the cache is filled."""
        self._ctx = ctx
        for uid in ctx.cache.uids():
            sandbox = ctx.cache.observed(uid).sandbox
            if sandbox is not None and sandbox.labels.get(hashes.POD_UID) == uid:
                name = f"{sandbox.metadata.namespace}/{sandbox.metadata.name}"
                self._leftovers.setdefault(name, set()).add(uid)
                self._left_as[uid] = name
        self.failed = asyncio.get_running_loop().create_future()

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, uid: str) -> bool:
        return uid in self._workers

    def uids(self) -> set[str]:
        """The UIDs of all workers."""
        return set(self._workers)

    def names(self) -> list[str]:
        """namespace/name of the pods that have a worker."""
        return sorted({worker.full_name for worker in self._workers.values()})

    def get(self, uid: str) -> PodWorker | None:
        """The worker of that UID."""
        return self._workers.get(uid)

    def first(self, full_name: str) -> PodWorker | None:
        """Of the workers of one namespace/name that are not being removed the one whose turn is first."""
        return next((w for w in self._by_name.get(full_name, ()) if w.removal is None), None)

    def want(self, pod: Pod) -> None:
        """The pod is to run as it is written now."""
        uid = pod.metadata.uid
        worker = self._workers.get(uid)
        if worker is None and self._left_as.get(uid, pod.full_name) != pod.full_name:
            # Under another name it is another pod: what an earlier run left under the old one goes first.
            assert self._ctx is not None
            self.clear_orphan(uid, self._ctx.cache.observed(uid))
            worker = self._workers.get(uid)
        if worker is None:
            self._start(pod)
        elif worker.removal is not None:
            # Removed and put back while the old one still ends: it comes again when that is gone.
            self._again[uid] = pod
        else:
            worker.update(pod)

    def remove(self, uid: str, grace: float | None = None) -> None:
        """The pod is to go, in ``grace`` seconds if given, else in its own."""
        self._again.pop(uid, None)
        worker = self._workers.get(uid)
        if worker is not None:
            worker.remove(grace)

    def remove_all(self, grace: float | None = None) -> None:
        """Every pod is to go."""
        for uid in tuple(self._workers):
            self.remove(uid, grace)

    def clear_orphan(self, uid: str, observed: Observed, grace: float | None = None) -> None:
        """Take down what the runtime has of a pod that nobody wants."""
        pod = _orphan(uid, observed)
        if pod is not None and uid not in self._workers:
            self._start(pod, orphan=True).remove(grace)

    def poke(self, uid: str) -> None:
        """Something about the pod has changed."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.poke()

    async def pause(self, timeout: float) -> None:
        """Let every worker finish the step at hand, for at most ``timeout`` seconds, and end them all."""
        self._paused = True
        tasks = tuple(self._tasks.values())
        for worker in self._workers.values():
            worker.pause()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, pod: Pod, *, orphan: bool = False) -> PodWorker:
        assert self._ctx is not None
        same_name = self._by_name.setdefault(pod.full_name, [])
        # What runs since an earlier run of the node has the name, whoever asked for it first in this one.
        adopted = not orphan and pod.metadata.uid in self._left_as
        waiting = [w for w in same_name if adopted and w.stage is Stage.WAITING]
        worker = PodWorker(
            self._ctx,
            pod,
            tuple(w for w in same_name if w not in waiting),
            orphan=orphan,
            blocked=lambda: pod.full_name in self._leftovers,
        )
        for each in waiting:
            each.wait_for(worker)
        same_name.insert(len(same_name) - len(waiting), worker)
        if not orphan:
            self._claimed(pod.metadata.uid)
        self._workers[worker.uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod {pod.full_name}")
        self._tasks[worker.uid] = task
        task.add_done_callback(lambda done: self._ended(worker, done))
        return worker

    def _claimed(self, uid: str) -> None:
        """What an earlier run left of this UID is taken care of: others of its name need not wait for it."""
        full_name = self._left_as.pop(uid, None)
        if full_name is None:
            return
        left = self._leftovers[full_name]
        left.discard(uid)
        if not left:
            del self._leftovers[full_name]
            for worker in self._by_name.get(full_name, ()):
                worker.poke()

    def _ended(self, worker: PodWorker, task: asyncio.Task[None]) -> None:
        del self._workers[worker.uid]
        del self._tasks[worker.uid]
        same_name = self._by_name[worker.full_name]
        same_name.remove(worker)
        if not same_name:
            del self._by_name[worker.full_name]
        again = self._again.pop(worker.uid, None)
        self._claimed(worker.uid)
        if task.cancelled():
            return
        fault = task.exception()
        if fault is not None:
            if self.failed is not None and not self.failed.done():
                self.failed.set_exception(fault)
        elif again is not None and not self._paused:
            self._start(again)
        self._tell_ended(worker.uid, worker.full_name)
        self.changed.set()
        self.changed = asyncio.Event()


def _orphan(uid: str, observed: Observed) -> Pod | None:
    """What can be told of a pod from its sandbox alone; None if it is not a pod of Kubernetes'."""
    sandbox = observed.sandbox
    if sandbox is None or sandbox.labels.get(hashes.POD_UID) != uid:
        return None
    grace = sandbox.annotations.get(hashes.GRACE_PERIOD, "")
    return Pod(
        metadata=ObjectMeta(name=sandbox.metadata.name, namespace=sandbox.metadata.namespace, uid=uid),
        spec=PodSpec(
            termination_grace_period_seconds=int(grace) if grace.isdecimal() else DEFAULT_GRACE,
        ),
    )
