"""A grace period that becomes shorter while programs are being stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from podwire.node.actions import MINIMUM_GRACE
from podwire.node.clock import VirtualClock
from podwire.node.grace import Grace
from podwire.runtime.fake import Program
from tests.node.helpers import bench, container, pod
from tests.node.member import RAW_PODS, api_pod, cluster, member


async def test_time_becomes_less_and_never_more() -> None:
    clock = VirtualClock()
    grace = Grace(clock, 30)
    await clock.advance(10)
    grace.shorten(25)
    assert grace.left == 20
    grace.shorten(5)
    assert grace.left == 5
    await clock.advance(9)
    assert grace.left == 0


@pytest.mark.parametrize(("first", "second", "gone_after"), [(300, 5, 5), (300, 0, 0), (5, 300, 5)])
async def test_a_pod_that_is_being_stopped_ends_by_the_earlier_time(
    tmp_path: Path, first: int, second: int, gone_after: int
) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(on_term=1000)
        b.give(pod())
        await b.running("web")
        down = asyncio.create_task(b.node.shutdown(grace=first))
        await clock.settle()
        assert b.shown("web").metadata.deletion_grace_period_seconds == first
        again = asyncio.create_task(b.node.shutdown(grace=second))
        await clock.settle()
        if gone_after:
            assert b.shown("web").metadata.deletion_grace_period_seconds == min(first, second)
            await clock.advance(gone_after - 0.1)
            assert b.runtime.addresses
            await clock.advance(0.2)
        assert not b.runtime.addresses
        await asyncio.gather(down, again)


async def test_every_container_gets_the_shorter_time_sidecars_too(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        names = ("side", "a", "b")
        b.runtime.programs.update({name: Program(on_term=1000) for name in names})
        sidecar = container("side", restartPolicy="Always")
        b.give(pod(initContainers=[sidecar], containers=[container("a"), container("b")]))
        await b.running("web")
        down = asyncio.create_task(b.node.shutdown(grace=300))
        await clock.advance(10)
        again = asyncio.create_task(b.node.shutdown(grace=6))
        await clock.advance(5.9)
        assert {name: b.runtime.count("stop_container", name) for name in names} == {
            "side": 0,
            "a": 2,
            "b": 2,
        }
        # What the sidecar has then is the least that any program has between TERM and KILL.
        await clock.advance(2.2)
        assert not b.runtime.addresses
        await asyncio.gather(down, again)


async def test_a_pre_stop_hook_is_cut_short_and_the_program_is_told_to_end(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        hook = {"preStop": {"sleep": {"seconds": 200}}}
        b.runtime.programs["main"] = Program(on_term=1)
        b.give(pod(terminationGracePeriodSeconds=300, containers=[container("main", lifecycle=hook)]))
        await b.running("web")
        b.give()
        await clock.advance(20)
        downs = [asyncio.create_task(b.node.shutdown(grace=30))]
        await clock.advance(10)
        downs.append(asyncio.create_task(b.node.shutdown(grace=4)))
        await clock.advance(3.9)
        assert b.runtime.count("stop_container") == 0
        await clock.advance(0.2)
        assert b.runtime.count("stop_container") == 1
        assert "FailedPreStopHook" in b.reasons("web")
        await clock.advance(1)
        await asyncio.gather(*downs)


async def test_a_container_that_is_stopped_for_its_probe_ends_when_its_pod_has_to(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(on_term=1000)
        b.give(pod(terminationGracePeriodSeconds=300))
        await b.running("web")
        b.give(pod(terminationGracePeriodSeconds=300, containers=[container("main", args=["new"])]))
        await b.until(lambda: b.runtime.count("stop_container") == 1)
        down = asyncio.create_task(b.node.shutdown(grace=3))
        await clock.advance(3.1)
        assert not b.runtime.addresses
        await down


async def test_a_pod_that_has_to_end_waits_for_no_post_start_hook(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        hook = {"postStart": {"exec": {"command": ["prepare"]}}}
        b.runtime.hold("exec_sync")
        b.give(pod(containers=[container("main", lifecycle=hook)]))
        await b.until(lambda: b.runtime.count("exec_sync") == 1)
        await b.node.shutdown(grace=5)
        assert not b.runtime.addresses
        assert "FailedPostStartHook" not in b.reasons("web")


@pytest.mark.parametrize(("grace", "seconds"), [(5, 5), (1, MINIMUM_GRACE), (0, MINIMUM_GRACE)])
async def test_a_second_delete_through_the_server_shortens_the_first(
    tmp_path: Path, grace: int, seconds: float
) -> None:
    clock = VirtualClock()
    async with cluster() as server, member(tmp_path, server, clock=clock) as m:
        m.runtime.programs["main"] = Program(on_term=1000)
        await m.client.create(RAW_PODS, api_pod(terminationGracePeriodSeconds=300), "default")
        await m.running("web")
        await m.client.delete(RAW_PODS, "web", "default")
        await m.until(lambda: m.runtime.count("stop_container") == 1)
        await clock.advance(10)
        await m.client.delete(RAW_PODS, "web", "default", grace=grace)
        await m.until(lambda: m.runtime.count("stop_container") == 2)
        await clock.advance(seconds - 0.1)
        assert m.runtime.addresses
        await clock.advance(0.2)
        assert not m.runtime.addresses


async def test_a_pod_that_is_deleted_by_force_has_the_least_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with cluster() as server, member(tmp_path, server, clock=clock) as m:
        m.runtime.programs["main"] = Program(on_term=1000)
        await m.client.create(RAW_PODS, api_pod(terminationGracePeriodSeconds=300), "default")
        await m.running("web")
        await m.client.delete(RAW_PODS, "web", "default", grace=0)
        assert not server.pod("web")
        await m.until(lambda: m.runtime.count("stop_container") == 1)
        await clock.advance(MINIMUM_GRACE - 0.1)
        assert m.runtime.addresses
        await clock.advance(0.2)
        assert not m.runtime.addresses


async def test_a_deleted_pod_of_which_only_the_end_is_heard_was_deleted_by_force(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock, source="api") as b:
        b.runtime.programs["main"] = Program(on_term=1000)
        meta = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 300}
        b.give(pod())
        await b.running("web")
        b.give(pod(metadata=meta))
        await b.until(lambda: b.runtime.count("stop_container") == 1)
        b.give()
        await b.until(lambda: b.runtime.count("stop_container") == 2)
        await clock.advance(MINIMUM_GRACE + 0.1)
        assert not b.runtime.addresses
