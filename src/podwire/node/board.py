"""The pods as the node shows them, and those who watch: list, then changes, as in the Kubernetes API."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec.structs import replace

from podwire.kube.objects import Event, Pod

T = TypeVar("T")
QUEUE_LIMIT = 4096
HISTORY = 2048
"""Changes that a watch can still be started from; fewer than a watch may fall behind."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A watch event: ``type`` is ADDED, MODIFIED or DELETED."""

    type: str
    object: T


class WatchTooSlow(Exception):
    """The watcher fell too far behind and has to list again (the API's 410 Gone)."""


class Watch(Generic[T]):
    """The changes since it was opened; an async iterator, closed by ``async with`` or :meth:`close`."""

    def __init__(self, feed: Feed[T]) -> None:
        self._feed = feed
        self._queue: asyncio.Queue[Change[T] | None] = asyncio.Queue(QUEUE_LIMIT)
        self._lost = False

    def offer(self, change: Change[T] | None) -> None:
        """Add a change, None for the end."""
        try:
            self._queue.put_nowait(change)
        except asyncio.QueueFull:
            self._lost = True
            self._feed.watches.discard(self)

    def close(self) -> None:
        """Take no more changes."""
        self._feed.watches.discard(self)

    async def __aenter__(self) -> Watch[T]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Change[T]]:
        while True:
            if self._lost and self._queue.empty():
                raise WatchTooSlow
            change = await self._queue.get()
            if change is None:
                return
            yield change


class Feed(Generic[T]):
    """Changes of one kind of object, given to every watch; the last ones are remembered by version."""

    def __init__(self) -> None:
        self.watches: set[Watch[T]] = set()
        self.version = 0
        self._past: deque[Change[T]] = deque(maxlen=HISTORY)

    def watch(self, since: int | None = None) -> Watch[T]:
        """The changes from now on, or after version ``since``; :class:`WatchTooSlow` if that is too old."""
        missed = self.version - since if since is not None else 0
        if not 0 <= missed <= len(self._past):
            raise WatchTooSlow
        watch: Watch[T] = Watch(self)
        for change in tuple(self._past)[len(self._past) - missed :]:
            watch.offer(change)
        self.watches.add(watch)
        return watch

    def newest(self, wanted: Callable[[T], bool]) -> Change[T] | None:
        """The last change of an object that is ``wanted``, if it is remembered."""
        return next((change for change in reversed(self._past) if wanted(change.object)), None)

    def send(self, kind: str, item: T) -> None:
        """Tell every watch; the version grows by one."""
        self.version += 1
        change = Change(kind, item)
        self._past.append(change)
        for watch in tuple(self.watches):
            watch.offer(change)

    def close(self) -> None:
        """End every watch after what it was told."""
        for watch in tuple(self.watches):
            watch.offer(None)
        self.watches.clear()


class Board:
    """The pods by UID, with a resource version that grows with every change."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self.feed: Feed[Pod] = Feed()
        self.events: Feed[Event] = Feed()

    def publish(self, pod: Pod) -> None:
        """Show the pod; nothing happens if it is shown like that already."""
        known = self._pods.get(pod.metadata.uid)
        if known is not None:
            version = known.metadata.resource_version
            if replace(pod, metadata=replace(pod.metadata, resource_version=version)) == known:
                return
        shown = replace(pod, metadata=replace(pod.metadata, resource_version=self._next()))
        self._pods[pod.metadata.uid] = shown
        self.feed.send("ADDED" if known is None else "MODIFIED", shown)

    def withdraw(self, uid: str) -> None:
        """Show the pod no longer."""
        known = self._pods.pop(uid, None)
        if known is not None:
            last = replace(known, metadata=replace(known.metadata, resource_version=self._next()))
            self.feed.send("DELETED", last)

    def pods(self, namespace: str = "") -> list[Pod]:
        """The pods of one namespace or of all, by namespace and name."""
        chosen = [p for p in self._pods.values() if namespace in ("", p.metadata.namespace)]
        return sorted(chosen, key=lambda p: (p.metadata.namespace, p.metadata.name, p.metadata.uid))

    def get(self, uid: str) -> Pod | None:
        """The pod of that UID."""
        return self._pods.get(uid)

    def last(self, uid: str) -> Pod | None:
        """The pod of that UID as it was shown last, also if it is not any more."""
        change = self.feed.newest(lambda pod: pod.metadata.uid == uid)
        return None if change is None else change.object

    def find(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name; while one replaces another, the newer."""
        found = None
        for pod in self._pods.values():
            if pod.metadata.namespace == namespace and pod.metadata.name == name:
                found = pod
        return found

    def _next(self) -> str:
        return str(self.feed.version + 1)
