"""A queue of keys that are worked on one after another; what fails is tried again, later and later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_RETRY, LAST_RETRY = 0.05, 30.0
"""Seconds."""


class Work(Generic[K]):
    """Keys to work on. A key that is added while it waits is there once."""

    def __init__(self, name: str, handle: Callable[[K], Awaitable[None]]) -> None:
        self._name = name
        self._handle = handle
        self._ready: dict[K, None] = {}
        self._failures: dict[K, int] = {}
        self._waiting: dict[K, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Work on the key soon."""
        self._ready[key] = None
        self._wake.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Work on the key after a while, unless it is added before."""
        if key not in self._waiting:
            loop = asyncio.get_running_loop()
            self._waiting[key] = loop.call_later(seconds, self._due, key)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                await self._wake.wait()
                while self._ready:
                    key = next(iter(self._ready))
                    del self._ready[key]
                    await self._work(key)
                self._wake.clear()
        finally:
            for handle in self._waiting.values():
                handle.cancel()

    async def _work(self, key: K) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.cancel()
        try:
            await self._handle(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(FIRST_RETRY * 2**failures, LAST_RETRY)
            log.warning("%s: %s: %s; again in %.1f s", self._name, key, error, delay, exc_info=failures == 3)
            self.add_later(key, delay)
        else:
            self._failures.pop(key, None)

    def _due(self, key: K) -> None:
        self._waiting.pop(key, None)
        self.add(key)
