"""File, http and api at once, with overlapping names and UIDs: the pods that run are the right ones.

A model says what is right: of the sources that name a UID the one that has named it for the longest time
without a break has it, with the pod that it gave last. Sources fail (they say nothing new), are restarted
(they say the same again) and go backwards (they say what they said before).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.kube.objects import Pod
from podwire.node.claims import Claims
from podwire.node.clock import SystemClock
from podwire.node.service import Node
from podwire.runtime.api import SandboxState
from podwire.runtime.fake import FakeRuntime
from podwire.sources.mux import Mux
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import Snapshot
from tests.node.helpers import HOST_IPS, container
from tests.node.helpers import pod as node_pod

SOURCES = ("file", "http", "api")
UIDS = ("a", "b", "c", "m")
"""``m`` is that of a mirror pod: an API server lets no pod become one or cease to be one."""
NAMES = ("one", "two", "three")


def make(uid: str, name: str, version: int, *, deleted: bool) -> Pod:
    """A pod; another version is another program."""
    mirror = {"kubernetes.io/config.mirror": "x"} if uid == "m" else {}
    metadata: dict[str, object] = {"annotations": mirror}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = [container("main", args=[str(version)])]
    return node_pod(name, uid=uid, containers=spec, metadata={"uid": uid, **metadata})


pods = st.builds(
    make,
    uid=st.sampled_from(UIDS),
    name=st.sampled_from(NAMES),
    version=st.sampled_from((1, 2)),
    deleted=st.sampled_from((False, False, False, True)),
)


def unique(given_pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The first of each name and UID: what a source would give."""
    kept: list[Pod] = []
    for one in given_pods:
        if all(one.full_name != k.full_name and one.metadata.uid != k.metadata.uid for k in kept):
            kept.append(one)
    return tuple(kept)


@dataclass(frozen=True)
class Step:
    """``what``: give, fail, restart (of the source), back, node (is restarted)."""

    what: str
    source: str
    pods: tuple[Pod, ...] = ()
    ago: int = 1


steps = st.one_of(
    st.builds(Step, st.just("give"), st.sampled_from(SOURCES), st.lists(pods, max_size=4).map(unique)),
    st.builds(Step, st.sampled_from(("fail", "restart")), st.sampled_from(SOURCES)),
    st.builds(Step, st.just("back"), st.sampled_from(SOURCES), ago=st.integers(1, 3)),
)
with_restarts = st.one_of(steps, steps, steps, st.builds(Step, st.just("node"), st.just("")))


@dataclass
class Model:
    """What each source said, and since when it has named each UID."""

    said: dict[str, list[tuple[Pod, ...]]] = field(default_factory=lambda: {name: [()] for name in SOURCES})
    order: dict[str, list[str]] = field(default_factory=dict)
    """For each UID the sources that name a pod that is not a mirror, in the order they began to."""

    def snapshot(self, step: Step) -> Snapshot:
        """What the source says in this step."""
        history = self.said[step.source]
        last = history[-1]
        if step.what == "fail":
            problem = SourceProblem(step.source, "", None, Reason.FAILED_READ, "gone", kept=True)
            return Snapshot(step.source, last, (problem,))
        if step.what == "restart":
            return Snapshot(step.source, last)
        if step.what == "back":
            return Snapshot(step.source, history[max(0, len(history) - 1 - step.ago)])
        return Snapshot(step.source, step.pods)

    def take(self, snapshot: Snapshot) -> set[str]:
        """Note it; the UIDs whose pod is another than before, so that it has to start anew."""
        before = self.wanted()
        was = {p.metadata.uid: p for p in self.said[snapshot.source][-1]}
        self.said[snapshot.source].append(snapshot.pods)
        now = {p.metadata.uid: p for p in snapshot.pods}
        for uid in UIDS:
            sources = self.order.setdefault(uid, [])
            renamed = uid in was and uid in now and was[uid].full_name != now[uid].full_name
            if snapshot.source in sources and (uid not in now or renamed):
                sources.remove(snapshot.source)
            if uid in now and not _is_mirror(now[uid]) and snapshot.source not in sources:
                sources.append(snapshot.source)
        after = self.wanted()
        return {
            uid
            for uid in UIDS
            if uid not in before or uid not in after or before[uid].full_name != after[uid].full_name
        }

    def winners(self) -> dict[str, Pod]:
        """The pod of each UID that somebody names."""
        return {
            uid: next(p for p in self.said[sources[0]][-1] if p.metadata.uid == uid)
            for uid, sources in self.order.items()
            if sources
        }

    def wanted(self) -> dict[str, Pod]:
        """The pods that are to run: those that are not being deleted by the API."""
        return {
            uid: p
            for uid, p in self.winners().items()
            if not (p.metadata.deletion_timestamp and self.order[uid][0] == "api")
        }


def _is_mirror(one: Pod) -> bool:
    return "kubernetes.io/config.mirror" in one.metadata.annotations


def program(one: Pod) -> list[str]:
    return one.spec.containers[0].args


@given(st.lists(steps, max_size=20))
@settings(max_examples=300, deadline=None)
def test_the_decisions_are_those_of_the_model(sequence: list[Step]) -> None:
    mux, claims, model = Mux(*SOURCES), Claims(), Model()
    running: dict[str, Pod] = {}
    for step in sequence:
        snapshot = model.snapshot(step)
        model.take(snapshot)
        for update in mux.merge(snapshot):
            decisions = claims.apply(update)
            for uid in decisions.remove:
                del running[uid]
            for one in decisions.want:
                running[one.metadata.uid] = one
        winners = model.winners()
        assert running.keys() == winners.keys()
        for uid, one in winners.items():
            assert (running[uid].full_name, program(running[uid])) == (one.full_name, program(one))
            assert running[uid].metadata.deletion_timestamp == one.metadata.deletion_timestamp
            assert claims.winner(uid) is not None


@given(st.lists(with_restarts, max_size=10))
@settings(max_examples=30, deadline=None)
def test_what_runs_is_right_at_every_step(sequence: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_run(sequence, Path(directory)))


async def _run(sequence: list[Step], root: Path) -> None:
    runtime = FakeRuntime(SystemClock())
    model = Model()
    machine = _Machine(runtime, root)
    await machine.start()
    try:
        for name in SOURCES:
            machine.mux.merge(Snapshot(name, ()))
        for step in sequence:
            if step.what == "node":
                await machine.restart(model)
                continue
            snapshot = model.snapshot(step)
            anew = model.take(snapshot)
            before = await machine.sandboxes()
            machine.mux.merge(snapshot)
            await machine.becomes_right(model)
            after = await machine.sandboxes()
            for uid, sandbox in before.items():
                if uid not in anew and uid in model.wanted():
                    assert after.get(uid) == sandbox, "a pod that was to stay was interrupted"
    finally:
        await machine.stop()
        await runtime.close()


class _Machine:
    """A node over a runtime that outlives it."""

    def __init__(self, runtime: FakeRuntime, root: Path) -> None:
        self.runtime = runtime
        self.root = root
        self.mux = Mux(*SOURCES)

    async def start(self) -> None:
        self.mux = Mux(*SOURCES)
        self.node = Node(self.runtime, self.mux, "node", root=self.root, host_ips=HOST_IPS)
        self._task = asyncio.create_task(self.node.run())
        await self.node.ready.wait()

    async def stop(self) -> None:
        self.node.stop()
        await self._task

    async def restart(self, model: Model) -> None:
        """What runs goes on until every source has spoken; one that cannot says what it had, and waits."""
        model.order = {}
        for name in SOURCES:
            for one in model.said[name][-1]:
                if not _is_mirror(one):
                    model.order.setdefault(one.metadata.uid, []).append(name)
        names = {
            s.metadata.uid: f"{s.metadata.namespace}/{s.metadata.name}"
            for s in await self.runtime.list_pod_sandbox()
        }
        # Another source may have the UID now, under another name.
        before = {
            uid: sandbox
            for uid, sandbox in (await self.sandboxes()).items()
            if uid in model.wanted() and model.wanted()[uid].full_name == names[uid]
        }
        await self.stop()
        await self.start()
        for number, name in enumerate(SOURCES):
            last = model.said[name][-1]
            self.mux.merge(Snapshot(name, last, complete=False))
            await self._settle()
            assert not self.mux.seen_all()
            assert before.items() <= (await self.sandboxes()).items(), "removed before all have spoken"
            if number < len(SOURCES) - 1:
                self.mux.merge(Snapshot(name, last))
        self.mux.merge(Snapshot(SOURCES[-1], model.said[SOURCES[-1]][-1]))
        await self.becomes_right(model)

    async def sandboxes(self) -> dict[str, str]:
        """The ID of the ready sandbox of each pod."""
        return {
            s.metadata.uid: s.id
            for s in await self.runtime.list_pod_sandbox()
            if s.state == SandboxState.READY
        }

    async def becomes_right(self, model: Model) -> None:
        """Wait until what runs is right, and see that it stays so."""
        end = asyncio.get_running_loop().time() + 3
        while (wrong := await self._wrong(model)) is not None:
            assert asyncio.get_running_loop().time() < end, wrong
            await asyncio.sleep(0.001)
        await self._settle()
        assert await self._wrong(model) is None

    async def _settle(self) -> None:
        for _ in range(40):
            await asyncio.sleep(0)

    async def _wrong(self, model: Model) -> str | None:
        wanted = model.wanted()
        ready = await self.sandboxes()
        if not ready.keys() <= wanted.keys():
            return f"{ready.keys() - wanted.keys()} run and are not wanted"
        names = [wanted[uid].full_name for uid in ready]
        if len(names) != len(set(names)):
            return f"two pods of one name run: {names}"
        if set(names) != {one.full_name for one in wanted.values()}:
            return f"{names} run of {[(u, p.full_name) for u, p in wanted.items()]}"
        if len(self.runtime.addresses) != 2 * len(ready):
            return f"addresses: {self.runtime.addresses}"
        commands = {
            c.sandbox_id: c for c in await self.runtime.list_containers() if c.state.name == "RUNNING"
        }
        for uid, sandbox in ready.items():
            shown = self.node.board.get(uid)
            if shown is None or shown.status.phase != "Running" or sandbox not in commands:
                return f"{uid} does not run yet"
            if program(shown) != program(wanted[uid]):
                return f"{uid} runs {program(shown)}"
        return None
