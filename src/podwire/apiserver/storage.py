"""Where the API server's objects are: a cache of all of them over a log of changes in SQLite.

Reads and watches are answered from memory; a write is visible, and answered, once it is durable
(:mod:`podwire.apiserver.database`). All objects share one counter of revisions: the resourceVersion.
A :class:`Storage` belongs to one event loop; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from podwire.apiserver.database import Database, DatabaseFault, Key, Write
from podwire.apiserver.stored import Change, Object, Stored
from podwire.apiserver.watches import Event, Index, Predicate, Watch, Watches

__all__ = [
    "Change",
    "Event",
    "Expired",
    "FutureRevision",
    "Key",
    "KeyExists",
    "KeyNotFound",
    "Object",
    "Page",
    "Storage",
    "Stored",
    "Watch",
]

LOG_KEPT = 10_000
"""Changes that stay in the log at least; twice as many at most."""
_TOGETHER = 512
"""Writes in one transaction at most."""


States = list[Stored]
Changes = list[Change]
Flights = list["_Flight"]
Listeners = list[Callable[[Change], None]]


class KeyExists(Exception):
    """There is an object of that key already."""


class KeyNotFound(Exception):
    """There is no object of that key."""


class Expired(Exception):
    """The revision is older than the log (410 Gone). ``oldest`` is the first that is known."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"{revision} is older than {oldest}")
        self.revision = revision
        self.oldest = oldest


class FutureRevision(Exception):
    """The revision has not been reached (504, cause ResourceVersionTooLarge)."""

    def __init__(self, revision: int, current: int) -> None:
        super().__init__(f"{revision} is not reached: {current}")
        self.revision = revision
        self.current = current


class Page(NamedTuple):
    """A part of a list. ``last`` is the place of the last item if more follow, else empty."""

    items: list[Stored]
    revision: int
    last: str
    remaining: int


class _Table:
    """The objects of one resource, by place (``namespace/name``), which is also their order in lists."""

    __slots__ = ("_dirty", "_indexes", "_order", "objects")

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self._indexes: dict[str, dict[str, set[str]]] = {}
        self._order: list[str] = []
        self._dirty = False

    def put(self, place: str, stored: Stored | None) -> None:
        for path, places in self._indexes.items():
            before = self.objects.get(place)
            if before is not None and (held := places.get(before.field(path))) is not None:
                held.discard(place)
            if stored is not None:
                places.setdefault(stored.field(path), set()).add(place)
        if stored is None:
            self._dirty |= self.objects.pop(place, None) is not None
        else:
            self._dirty |= place not in self.objects
            self.objects[place] = stored

    def order(self, index: Index | None = None) -> list[str]:
        """The places in order; with ``index`` those alone whose object has that value in that field.

        Who has which value is noted from the first time on that somebody asks.
        """
        if index is not None:
            places = self._indexes.get(index[0])
            if places is None:
                places = self._indexes[index[0]] = {}
                for place, stored in self.objects.items():
                    places.setdefault(stored.field(index[0]), set()).add(place)
            return sorted(places.get(index[1], ()))
        if self._dirty:
            self._order = sorted(self.objects)
            self._dirty = False
        return self._order


def place(key: Key) -> str:
    """The key's place in its resource."""
    return f"{key.namespace}/{key.name}"


class _Flight:
    """A write, or a compaction, on its way to the disk."""

    __slots__ = ("change", "compacted", "landed", "write")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        write: Write | None = None,
        change: Change | None = None,
        compacted: int = 0,
    ) -> None:
        self.write = write
        self.change = change
        self.compacted = compacted
        self.landed: asyncio.Future[None] = loop.create_future()
        # Nobody may be waiting any more when it fails.
        self.landed.add_done_callback(lambda done: done.cancelled() or done.exception())


class Storage:
    """Objects by :class:`Key`, with revisions, pages and watches. ``path`` None: nothing outlives it."""

    def __init__(self, path: Path | None = None, *, log_kept: int = LOG_KEPT) -> None:
        """Open the file and read all of it. Raise DatabaseFault if it cannot be used."""
        self._database = Database(path)
        self._log_kept = log_kept
        self._tables: dict[tuple[str, str], _Table] = {}
        self._log: deque[Change] = deque()
        self._revision, self._compacted = self._database.state()
        self._assigned = self._revision
        self._pending: dict[Key, Change] = {}
        self._flights: dict[int, asyncio.Future[None]] = {}
        self._watches = Watches()
        self._listeners: Listeners = []
        self._waiting: Flights = []
        self._flying: Flights = []
        self._takeoff = False
        self._closed = False
        self._compacting = False
        self._loop = asyncio.get_running_loop()
        self._load()
        self._database.start(self._landed)

    def _load(self) -> None:
        states: dict[Key, Stored] = {}
        for row in self._database.objects():
            stored = Stored(row.revision, row.data)
            states[row.key] = stored
            self._table(row.key.group, row.key.plural).put(place(row.key), stored)
        for change in self._database.changes():
            before = None if change.before is None else Stored(change.before_revision, change.before)
            after = states.get(change.key)
            self._log.appendleft(Change(change.revision, change.key, before, after))
            if before is None:
                states.pop(change.key, None)
            else:
                states[change.key] = before

    @property
    def revision(self) -> int:
        """The revision of the newest change that can be seen."""
        return self._revision

    @property
    def compacted(self) -> int:
        """The oldest revision from which a watch can start, or at which a list can be read."""
        return self._compacted

    def get(self, key: Key) -> Stored | None:
        """The object as it is now."""
        table = self._tables.get((key.group, key.plural))
        return None if table is None else table.objects.get(f"{key.namespace}/{key.name}")

    def list(
        self,
        group: str,
        plural: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
        index: Index | None = None,
        predicate: Predicate | None = None,
    ) -> Page:
        """Objects in the order of their places, at most ``limit`` (0: all) of them, behind ``after``.

        ``revision`` other than 0: as it was then. Raise Expired or FutureRevision. ``remaining`` counts
        what is behind this page; with a predicate it is -1, not known. With ``index`` only objects that have
        that value in that field are looked at.
        """
        table = self._at(group, plural, revision)
        order = table.order(index)
        low = bisect_right(order, after) if after else 0
        high = len(order)
        if namespace is not None:
            # "0" comes right behind "/".
            low = max(low, bisect_left(order, f"{namespace}/"))
            high = bisect_left(order, f"{namespace}0")
        objects = table.objects
        items: States = []
        at = low
        for at in range(low, high):
            stored = objects[order[at]]
            if predicate is None or predicate(stored):
                if limit and len(items) == limit:
                    break
                items.append(stored)
        else:
            return Page(items, revision or self._revision, "", 0)
        return Page(items, revision or self._revision, order[at - 1], -1 if predicate else high - at)

    async def create(self, key: Key, obj: Object) -> Stored:
        """Store a new object and return it with its resourceVersion. Raise KeyExists, DatabaseFault."""

        def change(current: Stored | None) -> Object:
            if current is not None:
                raise KeyExists(key)
            return obj

        stored = await self.modify(key, change)
        assert stored is not None
        return stored

    async def update(self, key: Key, change: Callable[[Object], Object]) -> Stored:
        """Replace an object by what ``change`` makes of a copy of it. Raise KeyNotFound, DatabaseFault.

        What ``change`` raises is passed on and nothing is written.
        """

        def must(current: Stored | None) -> Object:
            if current is None:
                raise KeyNotFound(key)
            return change(current.copy())

        stored = await self.modify(key, must)
        assert stored is not None
        return stored

    async def delete(self, key: Key, check: Callable[[Object], None] | None = None) -> Stored:
        """Remove an object and return its last state, with the revision of its removal.

        ``check`` may raise to prevent it. Raise KeyNotFound, DatabaseFault.
        """

        def gone(current: Stored | None) -> None:
            if current is None:
                raise KeyNotFound(key)
            if check is not None:
                check(current.object)

        stored = await self.modify(key, gone)
        assert stored is not None
        return stored

    async def modify(self, key: Key, change: Callable[[Stored | None], Object | None]) -> Stored | None:
        """The one way to write: ``change`` gets the newest state, or None, and gives the next.

        It is called once and at once, so nothing can come between what it reads and what is written. None
        deletes. The same object again is not written. Returns what is stored now; for a deletion the last
        state at the revision of the deletion; None if there was nothing and there is nothing.
        """
        newest = self._newest(key)
        with contextlib.nullcontext() if newest is None else newest.decoded():
            after = change(newest)
            same = after is not None and newest is not None and after == newest.object
        if after is None and newest is None:
            return None
        if same:
            pending = self._pending.get(key)
            if pending is not None:
                await asyncio.shield(self._flights[pending.revision])
            return newest
        if self._closed:
            raise RuntimeError("the storage is closed")
        self._assigned += 1
        revision = self._assigned
        stored = None if after is None else Stored.of(after, revision)
        made = Change(revision, key, newest, stored)
        await self._write(made)
        return made.gone if stored is None else stored

    def watch(
        self,
        group: str,
        plural: str,
        namespace: str | None = None,
        *,
        since: int,
        index: Index | None = None,
        predicate: Predicate | None = None,
    ) -> Watch:
        """All changes after the revision ``since``, as seen through ``index`` and ``predicate``.

        An object that begins to match is ADDED, one that ceases to is DELETED. ``index`` is a field that
        the objects must have with a value, such as ``("spec.nodeName", "a")``: the watch costs nothing
        for changes of other objects. Raise Expired or FutureRevision.
        """
        self._known(since)
        watch = Watch(self._watches, (group, plural), namespace, index, predicate)
        for change in self._since(since):
            if (change.key.group, change.key.plural) == (group, plural):
                watch.offer(change)
        self._watches.add(watch)
        return watch

    def listen(self, call: Callable[[Change], None]) -> None:
        """Call, at once and in order, for every change that becomes visible; it must not fail."""
        self._listeners.append(call)

    def everything(self) -> Iterator[tuple[Key, Stored]]:
        """All objects of all resources."""
        for (group, plural), table in list(self._tables.items()):
            for where, stored in list(table.objects.items()):
                namespace, _, name = where.partition("/")
                yield Key(group, plural, namespace, name), stored

    async def compact(self, revision: int) -> None:
        """Forget the log up to ``revision``. Raise DatabaseFault."""
        revision = min(revision, self._revision)
        if revision <= self._compacted:
            return
        self._compacted = revision
        while self._log and self._log[0].revision <= revision:
            self._log.popleft()
        await asyncio.shield(self._submit(_Flight(self._loop, compacted=revision)))

    def end_watches(self) -> None:
        """End all watches that are open now."""
        self._watches.close()

    async def close(self) -> None:
        """End all watches, write what is queued and close the file."""
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        while flights := [*self._flying, *self._waiting]:
            await asyncio.wait([flight.landed for flight in flights])
        await asyncio.to_thread(self._database.close)

    def _table(self, group: str, plural: str) -> _Table:
        table = self._tables.get((group, plural))
        if table is None:
            table = self._tables[group, plural] = _Table()
        return table

    def _newest(self, key: Key) -> Stored | None:
        pending = self._pending.get(key)
        return self.get(key) if pending is None else pending.after

    def _known(self, revision: int) -> None:
        if revision < self._compacted:
            raise Expired(revision, self._compacted)
        if revision > self._revision:
            raise FutureRevision(revision, self._revision)

    def _since(self, revision: int) -> Changes:
        found: Changes = []
        for change in reversed(self._log):
            if change.revision <= revision:
                break
            found.append(change)
        found.reverse()
        return found

    def _at(self, group: str, plural: str, revision: int) -> _Table:
        table = self._table(group, plural)
        if revision in (0, self._revision):
            return table
        self._known(revision)
        past = _Table()
        for where, stored in table.objects.items():
            past.put(where, stored)
        for change in reversed(self._log):
            if change.revision <= revision:
                break
            if (change.key.group, change.key.plural) == (group, plural):
                past.put(place(change.key), change.before)
        return past

    async def _write(self, change: Change) -> None:
        before, after = change.before, change.after
        write = Write(
            change.revision,
            change.key,
            0 if before is None else before.revision,
            None if before is None else before.raw,
            None if after is None else after.raw,
        )
        self._pending[change.key] = change
        # A caller that goes away does not undo what is on its way to the disk.
        await asyncio.shield(self._submit(_Flight(self._loop, write, change)))
        if len(self._log) > 2 * self._log_kept and not self._compacting:
            self._compacting = True
            try:
                await self.compact(self._log[-self._log_kept].revision - 1)
            finally:
                self._compacting = False

    def _submit(self, flight: _Flight) -> asyncio.Future[None]:
        if flight.change is not None:
            self._flights[flight.change.revision] = flight.landed
        self._waiting.append(flight)
        if not self._flying and not self._takeoff:
            # Those that are asked for in this turn of the loop go together.
            self._takeoff = True
            self._loop.call_soon(self._fly)
        return flight.landed

    def _fly(self) -> None:
        self._takeoff = False
        self._flying, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
        if self._flying:
            writes = [flight.write for flight in self._flying if flight.write is not None]
            self._database.submit(writes, max(flight.compacted for flight in self._flying))

    def _landed(self, fault: DatabaseFault | None) -> None:
        """In the writer thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, fault)

    def _settle(self, fault: DatabaseFault | None) -> None:
        landed = self._flying
        if fault is not None:
            # All that waits may build on what failed.
            landed, self._waiting = landed + self._waiting, []
            self._pending.clear()
        for flight in landed:
            if flight.change is not None:
                del self._flights[flight.change.revision]
                if fault is None:
                    self._apply(flight.change)
            if not flight.landed.done():
                if fault is None:
                    flight.landed.set_result(None)
                else:
                    flight.landed.set_exception(fault)
        self._flying = []
        self._fly()

    def _apply(self, change: Change) -> None:
        key = change.key
        if self._pending.get(key) is change:
            del self._pending[key]
        self._table(key.group, key.plural).put(place(key), change.after)
        self._revision = change.revision
        self._log.append(change)
        self._watches.dispatch(change)
        for call in self._listeners:
            call(change)
        change.forget()
