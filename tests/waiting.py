"""Waiting for what another thread, another process or the kernel does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    holds: Callable[[], object],
    told: Callable[[], object] | str = "it did not come to that",
    *,
    seconds: float = 10.0,
    every: float = 0.005,
) -> None:
    """Look again and again until something holds; fail with what is ``told`` after ``seconds``."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, told if isinstance(told, str) else told()
        time.sleep(every)
