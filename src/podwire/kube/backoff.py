"""Delays that grow with each failure (k8s.io/client-go wait.Backoff and its manager)."""

from __future__ import annotations

import random

from podwire.kube.clock import Clock


class Backoff:
    """``initial`` doubling to ``maximum`` seconds, each with up to ``jitter`` of itself on top.

    Begins anew when it was not asked for ``reset`` seconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        initial: float = 0.8,
        maximum: float = 30.0,
        reset: float = 120.0,
        jitter: float = 1.0,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._initial = initial
        self._maximum = maximum
        self._reset_after = reset
        self._jitter = jitter
        self._random = rng or random.Random()
        self._base = initial
        self._asked: float | None = None

    def next(self) -> float:
        """The delay to wait now, in seconds."""
        now = self._clock.monotonic()
        if self._asked is not None and now - self._asked >= self._reset_after:
            self._base = self._initial
        self._asked = now
        base = self._base
        self._base = min(base * 2, self._maximum)
        return base * (1 + self._jitter * self._random.random())

    def reset(self) -> None:
        """Begin anew."""
        self._base = self._initial
        self._asked = None
