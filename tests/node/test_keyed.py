from __future__ import annotations

import asyncio

from podwire.kube.errors import KubeError
from podwire.node.clock import VirtualClock
from podwire.node.keyed import KeyedWork


async def test_one_call_at_a_time_for_a_key_and_marks_meanwhile_are_one_more() -> None:
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    calls: list[str] = []
    running: set[str] = set()

    async def work(key: str) -> None:
        assert key not in running
        running.add(key)
        calls.append(key)
        await gates[key].wait()
        running.discard(key)

    keyed = KeyedWork(work, clock := VirtualClock())
    for key in ("a", "b", "a", "a"):
        keyed.mark(key)
    await clock.settle()
    keyed.mark("a")
    keyed.mark("a")
    gates["a"].set()
    gates["b"].set()
    await keyed.idle()
    assert sorted(calls) == ["a", "a", "b"]


async def test_failures_are_tried_again_later_and_later_whatever_is_marked() -> None:
    failures: list[int] = []
    calls: list[float] = []
    clock = VirtualClock()

    async def work(key: str) -> None:
        calls.append(clock.monotonic())
        if len(calls) < 5:
            raise KubeError("no")

    keyed = KeyedWork(work, clock, failed=lambda key, error, count: failures.append(count))
    keyed.mark("a")
    for _ in range(80):
        keyed.mark("a")
        await clock.advance(0.1)
    assert calls[:5] == [0.0, 0.5, 1.5, 3.5, 7.5]
    assert failures == [1, 2, 3, 4]
    await clock.advance(1)
    await keyed.idle()


async def test_calls_are_spaced() -> None:
    calls: list[float] = []
    clock = VirtualClock()

    async def work(key: str) -> None:
        calls.append(clock.monotonic())
        if len(calls) < 3:
            keyed.mark(key)

    keyed = KeyedWork(work, clock, spacing=0.2)
    keyed.mark("a")
    await clock.advance(1)
    assert calls == [0.0, 0.2, 0.4]


async def test_so_many_at_once_and_no_more() -> None:
    gate = asyncio.Event()
    running = most = 0

    async def work(key: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    keyed = KeyedWork(work, clock := VirtualClock(), parallel=3)
    for number in range(10):
        keyed.mark(str(number))
    await clock.settle()
    gate.set()
    await keyed.idle()
    assert most == 3


async def test_close_ends_what_is_under_way() -> None:
    ended = asyncio.Event()

    async def work(key: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    keyed = KeyedWork(work, clock := VirtualClock())
    keyed.mark("a")
    await clock.settle()
    await keyed.close()
    assert ended.is_set()
