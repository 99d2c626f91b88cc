"""Delays between tries: from 0.8 s doubling to 30 s, with jitter, and anew after two minutes."""

from __future__ import annotations

import random

from podwire.kube.backoff import Backoff
from podwire.kube.clock import VirtualClock


async def test_delays_double_to_the_cap_with_up_to_as_much_again_by_chance() -> None:
    clock = VirtualClock()
    backoff = Backoff(clock, rng=random.Random(1))
    found = [backoff.next() for _ in range(8)]
    bases = (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30)
    assert all(base <= delay < 2 * base for base, delay in zip(bases, found, strict=True))
    assert len({delay / base for base, delay in zip(bases, found, strict=True)}) == 8


async def test_two_minutes_without_a_failure_begin_anew() -> None:
    clock = VirtualClock()
    backoff = Backoff(clock, jitter=0.0)
    assert [backoff.next() for _ in range(3)] == [0.8, 1.6, 3.2]
    await clock.advance(119)
    assert backoff.next() == 6.4
    await clock.advance(120)
    assert backoff.next() == 0.8
    backoff.reset()
    assert backoff.next() == 0.8
