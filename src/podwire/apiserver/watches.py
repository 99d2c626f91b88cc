"""Who is told of a change: watches, found by resource, namespace, or the value of a field."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from podwire.apiserver.stored import Change, Stored

Predicate = Callable[[Stored], bool]
Index = tuple[str, str]
"""A field's path and the value it must have."""
Resource = tuple[str, str]

QUEUED_AT_MOST = 20_000
"""Events that a watch may lag behind; one that does not keep up is ended, and its client lists again."""

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class Event(NamedTuple):
    """An event of one watch: ADDED, MODIFIED or DELETED, and the object to show."""

    type: str
    change: Change

    @property
    def revision(self) -> int:
        """The revision of the change."""
        return self.change.revision

    @property
    def stored(self) -> Stored:
        """The object after the change; of DELETED its last state at the revision of the deletion."""
        after = self.change.after
        return self.change.gone if self.type == DELETED or after is None else after

    @property
    def line(self) -> bytes:
        """The event as JSON on a line, made once for all watches."""
        line = self.change.lines.get(self.type)
        if line is None:
            line = b'{"type":"%s","object":%s}\n' % (self.type.encode(), self.stored.raw)
            self.change.lines[self.type] = line
        return line


class Watch:
    """An asynchronous iterator of events, in the order of their revisions; it ends when it is closed.

    It also ends when its reader lags too far behind (``overrun``) or the storage is closed.
    """

    def __init__(
        self,
        watches: Watches,
        resource: Resource,
        namespace: str | None,
        index: Index | None,
        predicate: Predicate | None,
    ) -> None:
        self._watches = watches
        self._predicate = predicate
        self._queue: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.resource = resource
        self.namespace = namespace
        self.index = index
        self.closed = False
        self.overrun = False

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self.closed:
                raise StopAsyncIteration
            await self._arrival()
        return self._queue.popleft()

    async def batch(self) -> list[Event]:
        """All events that are there, at least one; an empty list when the watch has ended."""
        while not self._queue and not self.closed:
            await self._arrival()
        events = list(self._queue)
        self._queue.clear()
        return events

    @property
    def idle(self) -> bool:
        """Whether all events were read."""
        return not self._queue

    def offer(self, change: Change) -> None:
        """Queue the change if it concerns this watch."""
        if self.namespace is not None and change.key.namespace != self.namespace:
            return
        before = change.before is not None and self._matches(change.before)
        after = change.after is not None and self._matches(change.after)
        if not before and not after:
            return
        if len(self._queue) >= QUEUED_AT_MOST:
            self.overrun = True
            self.close()
            return
        self._queue.append(Event(MODIFIED if before and after else ADDED if after else DELETED, change))
        self._wake()

    def close(self) -> None:
        """End the watch; what is queued can still be read."""
        if not self.closed:
            self.closed = True
            self._watches.remove(self)
            self._wake()

    def _matches(self, stored: Stored) -> bool:
        if self.index is not None and stored.field(self.index[0]) != self.index[1]:
            return False
        return self._predicate is None or self._predicate(stored)

    async def _arrival(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Watches:
    """All watches, by what they can be interested in."""

    def __init__(self) -> None:
        self._all: dict[tuple[Resource, str | None], set[Watch]] = {}
        self._indexed: dict[Resource, dict[str, dict[str, set[Watch]]]] = {}

    def add(self, watch: Watch) -> None:
        """Tell the watch of changes from now on."""
        self._group(watch).add(watch)

    def remove(self, watch: Watch) -> None:
        """Tell it nothing more."""
        self._group(watch).discard(watch)
        if watch.index is None:
            if not self._all[watch.resource, watch.namespace]:
                del self._all[watch.resource, watch.namespace]
            return
        path, value = watch.index
        fields = self._indexed[watch.resource]
        if not fields[path][value]:
            del fields[path][value]
        if not fields[path]:
            del fields[path]

    def close(self) -> None:
        """End all of them."""
        for watch in [w for group in self._all.values() for w in group]:
            watch.close()
        for fields in list(self._indexed.values()):
            for values in list(fields.values()):
                for watch in [w for group in values.values() for w in group]:
                    watch.close()

    def dispatch(self, change: Change) -> None:
        """Offer the change to those that may want it."""
        key = change.key
        resource = (key.group, key.plural)
        for namespace in (None, key.namespace):
            for watch in tuple(self._all.get((resource, namespace), ())):
                watch.offer(change)
        for path, values in self._indexed.get(resource, {}).items():
            states = (change.before, change.after)
            for value in {state.field(path) for state in states if state is not None}:
                for watch in tuple(values.get(value, ())):
                    watch.offer(change)

    def _group(self, watch: Watch) -> set[Watch]:
        if watch.index is None:
            return self._all.setdefault((watch.resource, watch.namespace), set())
        path, value = watch.index
        return self._indexed.setdefault(watch.resource, {}).setdefault(path, {}).setdefault(value, set())
