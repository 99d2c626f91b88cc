"""The client-side limit: a rate and a burst, urgent requests first, and nobody starves."""

from __future__ import annotations

import asyncio

import pytest

from podwire.kube.clock import VirtualClock
from podwire.kube.ratelimit import Priority, TokenBucket


async def test_burst_and_then_the_rate() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(10, 5, clock)
    given: list[float] = []

    async def take() -> None:
        await bucket.take()
        given.append(clock.monotonic())

    tasks = [asyncio.create_task(take()) for _ in range(8)]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert [round(at, 6) for at in given] == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


async def test_urgent_requests_go_first() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1, 1, clock)
    given: list[str] = []

    async def take(name: str, priority: Priority) -> None:
        await bucket.take(priority)
        given.append(name)

    names = [
        ("first", Priority.NORMAL),
        ("bulk", Priority.BULK),
        ("normal", Priority.NORMAL),
        ("urgent", Priority.URGENT),
    ]
    tasks = []
    for name, priority in names:
        tasks.append(asyncio.create_task(take(name, priority)))
        await asyncio.sleep(0)
    await clock.advance(5)
    await asyncio.gather(*tasks)
    assert given == ["first", "urgent", "normal", "bulk"]


async def test_bulk_is_late_under_steady_urgent_load_but_does_not_starve() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1, 1, clock)
    await bucket.take()
    bulk = asyncio.create_task(bucket.take(Priority.BULK))
    others = []
    for _ in range(30):
        others += [asyncio.create_task(bucket.take(Priority.URGENT)) for _ in range(2)]
        await clock.advance(1)
        if bulk.done():
            break
    assert 10 <= clock.monotonic() <= 25
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_a_request_that_is_given_up_takes_no_token() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1, 1, clock)
    await bucket.take()
    first, second = asyncio.create_task(bucket.take()), asyncio.create_task(bucket.take())
    await clock.advance(0.5)
    first.cancel()
    await clock.advance(0.5)
    assert second.done()
    assert bucket.waiting == 0


async def test_a_token_given_to_one_who_leaves_at_that_moment_goes_to_the_next() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1, 1, clock)
    await bucket.take()
    first, second = asyncio.create_task(bucket.take()), asyncio.create_task(bucket.take())
    await asyncio.sleep(0)
    clock._now = 1.0
    bucket._hand_out()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await clock.settle()
    assert second.done()


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_limits_that_make_no_sense(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TokenBucket(qps, burst, VirtualClock())
