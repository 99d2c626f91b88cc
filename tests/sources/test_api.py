"""The API source beside an embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from podwire.kube.client import Client
from podwire.kube.config import Config
from podwire.kube.defaults import CONFIG_SOURCE
from podwire.kube.objects import Pod
from podwire.kube.resource import PODS
from podwire.kube.testing import ScriptedServer, World
from podwire.sources.api import APISource
from podwire.sources.mux import Mux
from podwire.sources.problems import Reason
from podwire.sources.updates import API, Op, Snapshot
from tests.kube.reflecting import QuickClock
from tests.node.member import RAW_PODS, api_pod, cluster
from tests.sources.helpers import Watched


@contextlib.asynccontextmanager
async def running(client: Client, known: asyncio.Event) -> AsyncIterator[tuple[Watched, list[list[Pod]]]]:
    watched, told = Watched(), list[list[Pod]]()
    task = asyncio.create_task(APISource(client, "node", known, told.append).run(watched.emit))
    try:
        yield watched, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def test_pods_of_all_namespaces_that_are_bound_to_the_node() -> None:
    async with cluster() as made, made.client() as client:
        await client.create(RAW_PODS, api_pod("one"), "default")
        await client.create(RAW_PODS, api_pod("two", metadata={"namespace": "kube-system"}), "kube-system")
        await client.create(RAW_PODS, api_pod("elsewhere", nodeName="other"), "default")
        free = api_pod("free")
        del free["spec"]["nodeName"]
        await client.create(RAW_PODS, free, "default")
        async with running(client, set_event()) as (watched, told):
            snapshot = await watched.until(lambda s: len(s.pods) == 2)
            assert sorted(p.full_name for p in snapshot.pods) == ["default/one", "kube-system/two"]
            assert told[-1] == list(snapshot.pods)
            await client.delete(PODS, "one", "default", grace=0)
            await watched.until_names("two")


async def test_nothing_is_asked_before_the_node_is_known() -> None:
    async with cluster() as made, made.client() as client:
        known = asyncio.Event()
        async with running(client, known) as (watched, _):
            for _ in range(50):
                await asyncio.sleep(0)
            assert watched.snapshots == []
            known.set()
            assert (await watched.until(lambda _: True)).complete


async def test_defaults_that_a_server_left_out_and_unchanged_pods_stay_the_same_objects() -> None:
    async with cluster() as made, made.client() as client:
        await client.create(RAW_PODS, api_pod("one"), "default")
        async with running(client, set_event()) as (watched, _):
            first = await watched.until_names("one")
            await client.create(RAW_PODS, api_pod("two"), "default")
            second = await watched.until(lambda s: len(s.pods) == 2)
        one = next(p for p in second.pods if p.metadata.name == "one")
        assert one is first.pods[0]
        assert one.spec.security_context is not None


async def test_a_server_that_is_away_is_a_problem_and_the_pods_stay() -> None:
    mux = Mux(API)
    async with cluster() as made, made.client() as client:
        await client.create(RAW_PODS, api_pod("one"), "default")
        watched = Watched()

        def emit(snapshot: Snapshot) -> None:
            mux.merge(snapshot)
            watched.emit(snapshot)

        task = asyncio.create_task(APISource(client, "node", set_event()).run(emit))
        await watched.until_names("one")
        (pod,) = mux.pods()
        assert pod.metadata.annotations[CONFIG_SOURCE] == "api"
        made.storage.end_watches()
        await made.server.close()
        snapshot = await watched.until(lambda s: bool(s.problems))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [p.metadata.name for p in snapshot.pods] == ["one"]
    assert snapshot.problems[0].reason is Reason.FAILED_READ and snapshot.problems[0].kept
    assert mux.pods() == (pod,)


async def test_a_trouble_that_is_over_is_listed_no_longer_though_no_pod_has_changed() -> None:
    clock, world = QuickClock(), World()
    world.create("one", spec={"nodeName": "node", "containers": [{"name": "c", "image": "i"}]})
    async with (
        ScriptedServer(world, clock) as server,
        Client(server.config, clock=clock) as client,
        running(client, set_event()) as (watched, told),
    ):
        await clock.advance(5)
        await server.stop()
        await clock.advance(5)
        away = watched.snapshots[-1]
        await server.start()
        await clock.advance(60)
        server.reset_watches()
        await clock.settle()
        reset = watched.snapshots[-1]
        await clock.advance(5)
    assert [p.reason for p in away.problems] == [p.reason for p in reset.problems] == [Reason.FAILED_READ]
    assert watched.snapshots[-1].problems == ()
    assert all(s.pods == watched.snapshots[0].pods for s in watched.snapshots)
    assert len(told) == 1
    assert server.count("list") == 0


async def test_a_server_that_never_answered_does_not_make_the_source_seen(tmp_path: Path) -> None:
    mux = Mux(API)
    config = Config(server=f"unix://{tmp_path}/none.sock")
    async with Client(config) as client, running(client, set_event()) as (watched, _):
        snapshot = await watched.until(lambda s: bool(s.problems))
    assert not snapshot.complete
    assert mux.merge(snapshot) == ()


async def test_a_deletion_timestamp_is_told_as_delete() -> None:
    async with cluster() as made, made.client() as client:
        mux, watched = Mux(API), Watched()
        await client.create(RAW_PODS, api_pod("one"), "default")
        ops: list[Op] = []
        graces: list[int | None] = []

        def emit(snapshot: Snapshot) -> None:
            for update in mux.merge(snapshot):
                ops.append(update.op)
                if update.op is Op.DELETE:
                    graces.extend(pod.metadata.deletion_grace_period_seconds for pod in update.pods)
            watched.emit(snapshot)

        task = asyncio.create_task(APISource(client, "node", set_event()).run(emit))
        await watched.until_names("one")
        await client.delete(PODS, "one", "default")
        await watched.until(lambda s: bool(s.pods and s.pods[0].metadata.deletion_timestamp))
        await client.delete(PODS, "one", "default", grace=0)
        await watched.until(lambda s: not s.pods)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    # The second says that no time is left (store.go, Delete); then the object is gone.
    assert ops == [Op.ADD, Op.DELETE, Op.DELETE, Op.REMOVE]
    assert graces == [30, 0]
