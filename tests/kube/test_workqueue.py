"""The work queue: each key once, newest value, one worker at a time, fair between groups (kuryr K4, K5)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from podwire.kube.workqueue import Delays, ShutDown, WorkQueue, work
from tests.kube.reflecting import QuickClock as VirtualClock


async def take(queue: WorkQueue[str, int], *, done: bool = True) -> tuple[str, int]:
    async with asyncio.timeout(5):
        found = await queue.get()
    if done:
        queue.done(found[0])
    return found


async def test_k4_a_key_that_waits_keeps_only_the_newest_value() -> None:
    queue: WorkQueue[str, int] = WorkQueue()
    for number in range(5):
        queue.add("a", number)
    queue.add("b", 7)
    assert len(queue) == 2
    assert [await take(queue), await take(queue)] == [("a", 4), ("b", 7)]
    assert len(queue) == 0


async def test_k4_a_key_is_worked_on_by_one_worker_and_comes_again_when_added_meanwhile() -> None:
    queue: WorkQueue[str, int] = WorkQueue()
    queue.add("a", 1)
    assert await take(queue, done=False) == ("a", 1)
    queue.add("a", 2)
    queue.add("a", 3)
    second = asyncio.create_task(take(queue))
    await asyncio.sleep(0)
    assert not second.done()
    assert "a" in queue
    queue.done("a")
    assert await second == ("a", 3)
    assert "a" not in queue


async def test_groups_take_turns() -> None:
    queue: WorkQueue[str, int] = WorkQueue(group=lambda key: key.split("/")[0])
    for number in range(100):
        queue.add(f"busy/{number}", number)
    queue.add("calm/0", 0)
    assert [(await take(queue))[0] for _ in range(3)] == ["busy/0", "calm/0", "busy/1"]


async def test_a_key_that_is_always_there_does_not_keep_others_waiting() -> None:
    queue: WorkQueue[str, int] = WorkQueue()
    queue.add("a", 0)
    queue.add("b", 0)
    found = []
    for _ in range(4):
        key, _ = await take(queue, done=False)
        found.append(key)
        if key == "a":
            queue.add("a", 0)
        queue.done(key)
        queue.add("b", 0)
    assert found == ["a", "b", "a", "b"]


async def test_add_after_keeps_the_sooner_time_and_the_newest_value() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str, int] = WorkQueue(clock=clock)
    queue.add_after("a", 1, 10)
    queue.add_after("a", 2, 5)
    queue.add_after("a", 3, 20)
    await clock.advance(4.9)
    assert len(queue) == 0
    await clock.advance(0.1)
    assert await take(queue) == ("a", 3)
    queue.add_after("b", 1, 5)
    queue.add("b", 2)
    await clock.advance(6)
    assert await take(queue) == ("b", 2)
    assert len(queue) == 0


async def test_k5_delays_double_up_to_the_cap_and_the_key_is_given_up_in_the_end() -> None:
    clock = VirtualClock()
    delays = Delays(initial=1.0, maximum=60.0, jitter=0.5, give_up=500.0)
    queue: WorkQueue[str, int] = WorkQueue(clock=clock, delays=delays)
    waited = []
    while True:
        queue.add("a", 0)
        await take(queue)
        delay = queue.retry("a", 0)
        if delay is None:
            break
        waited.append(delay)
        await clock.advance(delay)
    assert all(
        wanted <= delay <= wanted * 1.5
        for wanted, delay in zip((1, 2, 4, 8, 16, 32, 60, 60), waited, strict=False)
    )
    assert all(60 <= delay <= 90 for delay in waited[6:])
    assert 500 <= clock.monotonic() <= 600
    assert queue.failures("a") == 0


async def test_k5_a_key_that_is_dropped_is_not_tried_again() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str, int] = WorkQueue(clock=clock)
    queue.retry("gone", 1)
    queue.add("gone", 2)
    queue.drop("gone")
    await clock.advance(100)
    queue.add("b", 1)
    assert await take(queue) == ("b", 1)
    assert queue.failures("gone") == 0
    async with asyncio.timeout(1):
        await queue.drained()


async def test_k5_a_key_that_is_dropped_does_not_wait_for_its_turn_to_be_tried_again() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str, int] = WorkQueue(clock=clock, qps=1, burst=1)
    queue.retry("first", 1)
    queue.retry("gone", 1)
    assert "gone" in queue
    queue.drop("gone")
    assert "gone" not in queue
    await clock.advance(100)
    assert await take(queue) == ("first", 1)
    assert len(queue) == 0
    async with asyncio.timeout(1):
        await queue.drained()


async def test_k8_what_is_to_be_looked_at_now_and_then_is_whatever_else_happens_to_it() -> None:
    """Reconciled each 600 s, as a result asks for it: also after failures and changes in between."""
    clock = VirtualClock()
    queue: WorkQueue[str, int] = WorkQueue(clock=clock, delays=Delays(initial=1.0, jitter=0.0))
    looked: list[tuple[float, int]] = []

    async def reconcile(key: str, value: int) -> float:
        looked.append((clock.monotonic(), value))
        if len(looked) == 2:
            raise OSError("not now")
        return 600.0

    running = asyncio.create_task(work(queue, reconcile, workers=2))
    queue.add("balancer", 1)
    await clock.advance(700)
    queue.add("balancer", 2)
    await clock.advance(1200)
    assert looked == [(0, 1), (600, 1), (601, 1), (700, 2), (1201, 2), (1801, 2)]
    queue.shut_down()
    async with asyncio.timeout(5):
        await running


async def test_k4_what_was_due_later_does_not_bring_an_old_value_back() -> None:
    for qps in (None, 1):
        clock = VirtualClock()
        delays = Delays(initial=30.0, jitter=0.0)
        queue: WorkQueue[str, int] = WorkQueue(clock=clock, delays=delays, qps=qps, burst=1)
        queue.retry("failed", 1)
        queue.add_after("due", 1, 30)
        queue.retry("failed too", 1)
        for key in ("failed", "due", "failed too"):
            queue.add(key, 2)
        assert [await take(queue) for _ in range(3)] == [("failed", 2), ("due", 2), ("failed too", 2)]
        await clock.advance(60)
        assert sorted([await take(queue) for _ in range(len(queue))]) == [
            ("due", 2),
            ("failed", 2),
            ("failed too", 2),
        ]


async def test_retries_of_all_keys_together_are_limited() -> None:
    clock = VirtualClock()
    queue: WorkQueue[int, int] = WorkQueue(clock=clock, qps=10, burst=5, delays=Delays(initial=0.001))
    for key in range(25):
        queue.retry(key, 0)
    await clock.advance(0.05)
    assert len(queue) == 5
    await clock.advance(1.0)
    assert len(queue) == 15
    await clock.advance(1.0)
    assert len(queue) == 25


async def test_shut_down_gives_what_waits_and_then_ends() -> None:
    queue: WorkQueue[str, int] = WorkQueue()
    queue.add("a", 1)
    queue.add_after("later", 1, 60)
    queue.shut_down()
    queue.add("b", 1)
    assert await take(queue) == ("a", 1)
    with pytest.raises(ShutDown):
        await queue.get()
    async with asyncio.timeout(1):
        await queue.drained()


async def test_shut_down_is_the_end_also_of_what_waits_for_its_turn_to_be_tried_again() -> None:
    queue: WorkQueue[int, int] = WorkQueue(clock=VirtualClock(), qps=1, burst=1)
    for key in range(3):
        queue.retry(key, 1)
    queue.shut_down()
    async with asyncio.timeout(1):
        await queue.drained()


async def test_getters_that_wait_end_with_the_queue() -> None:
    queue: WorkQueue[str, int] = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shut_down()
    assert all(isinstance(each, ShutDown) for each in await asyncio.gather(*waiting, return_exceptions=True))


async def test_a_getter_that_is_cancelled_passes_its_turn_on() -> None:
    queue: WorkQueue[str, int] = WorkQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a", 1)
    first.cancel()
    async with asyncio.timeout(1):
        assert await second == ("a", 1)


async def test_work_retries_what_failed_and_asks_again_when_told() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str, int] = WorkQueue(clock=clock, delays=Delays(initial=1.0, jitter=0.0))
    tried: list[tuple[float, str]] = []
    problems = []

    async def do(key: str, value: int) -> float | None:
        tried.append((clock.monotonic(), key))
        if key == "bad" and len([each for each in tried if each[1] == "bad"]) < 3:
            raise OSError("not yet")
        return 30.0 if key == "often" else None

    running = asyncio.create_task(
        work(queue, do, workers=2, problem=lambda key, error, delay: problems.append((key, delay)))
    )
    queue.add("bad", 0)
    queue.add("often", 0)
    await clock.advance(61)
    assert tried == [(0, "bad"), (0, "often"), (1, "bad"), (3, "bad"), (30, "often"), (60, "often")]
    assert problems == [("bad", 1.0), ("bad", 2.0)]
    assert queue.failures("bad") == 0
    queue.shut_down()
    async with asyncio.timeout(5):
        await running


async def test_k4_a_retry_does_not_bring_an_old_value_back() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str, int] = WorkQueue(clock=clock, delays=Delays(initial=1.0, jitter=0.0))
    tried: list[int] = []

    async def do(key: str, value: int) -> None:
        tried.append(value)
        if value == 1:
            queue.add(key, 2)
        elif value == 3:
            queue.add_after(key, 4, 30)
        elif value == 4:
            return
        raise OSError("fails")

    running = asyncio.create_task(work(queue, do, workers=1))
    queue.add("a", 1)
    await clock.advance(0.5)
    assert tried == [1, 2]
    queue.add("a", 3)
    await clock.advance(100)
    assert tried == [1, 2, 3, 4]
    queue.shut_down()
    async with asyncio.timeout(5):
        await running


async def test_k5_an_exception_that_is_fatal_ends_all_workers() -> None:
    queue: WorkQueue[str, int] = WorkQueue()

    async def do(key: str, value: int) -> None:
        raise MemoryError

    queue.add("a", 1)
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(5):
            await work(queue, do, fatal=(MemoryError,))
    assert isinstance(caught.value.exceptions[0], MemoryError)


@given(st.lists(st.tuples(st.sampled_from(("add", "get", "done")), st.sampled_from("abc"), st.integers())))
def test_every_newest_value_is_worked_on_and_no_key_by_two(script: list[tuple[str, str, int]]) -> None:
    async def play() -> None:
        queue: WorkQueue[str, int] = WorkQueue()
        newest: dict[str, int] = {}
        working: set[str] = set()
        for step, key, value in script:
            if step == "add":
                queue.add(key, value)
                newest[key] = value
            elif step == "get" and len(queue):
                got, found = await take(queue, done=False)
                assert got not in working
                assert newest.pop(got) == found
                working.add(got)
            elif step == "done" and key in working:
                working.discard(key)
                queue.done(key)
        for key in working:
            queue.done(key)
        while len(queue):
            got, found = await take(queue)
            assert newest.pop(got) == found
        assert not newest

    asyncio.run(play())


STEPS = ("add", "after", "get", "done", "fail", "drop", "pass")


@example([("add", "a"), ("after", "a"), ("pass", "a")], None)
@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abc")), max_size=40),
    st.sampled_from((None, 2.0)),
)
def test_k4_whatever_waits_fails_and_is_due_the_newest_value_comes_and_none_goes_back(
    script: list[tuple[str, str]], qps: float | None
) -> None:
    async def play() -> None:
        clock = VirtualClock()
        delays = Delays(initial=1.0, maximum=8.0)
        queue: WorkQueue[str, int] = WorkQueue(clock=clock, delays=delays, qps=qps, burst=1)
        given: dict[str, int] = {}
        worked: dict[str, int] = {}
        working: dict[str, int] = {}

        async def get() -> str:
            key, value = await take(queue, done=False)
            assert key not in working
            assert worked.get(key, -1) <= value <= given[key], "a value came back"
            worked[key] = working[key] = value
            return key

        for number, (step, key) in enumerate(script):
            if step == "add":
                given[key] = number
                queue.add(key, number)
            elif step == "after":
                given[key] = number
                queue.add_after(key, number, 3)
            elif step == "get" and len(queue):
                await get()
            elif step == "fail" and key in working:
                queue.retry(key, working.pop(key))
                queue.done(key)
            elif step == "done" and key in working:
                del working[key]
                queue.forget(key)
                queue.done(key)
            elif step == "drop":
                queue.drop(key)
                if key in given:
                    worked[key] = given[key]
            elif step == "pass":
                await clock.advance(2)
        for key in working:
            queue.done(key)
        working.clear()
        for _ in range(30):
            await clock.advance(1)
            while len(queue):
                queue.done(await get())
                working.clear()
        assert worked == given
        assert not any(key in queue for key in given)
        async with asyncio.timeout(1):
            await queue.drained()

    asyncio.run(play())
