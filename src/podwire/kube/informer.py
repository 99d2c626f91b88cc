"""A shared copy of a resource that tells its handlers what changes.

The store is changed first, then the handlers are told, one after the other in the order in which they were
added (k8s.io/client-go/tools/cache/shared_informer.go). A handler that fails does not keep the others from
being told.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from podwire.kube.client import Client
from podwire.kube.clock import Clock
from podwire.kube.errors import KubeError
from podwire.kube.reflector import Reflector
from podwire.kube.resource import Resource
from podwire.kube.sealed import Sealed
from podwire.kube.store import Indexer, Store

T = TypeVar("T")
_log = logging.getLogger(__name__)

MOST_PENDING = 10_000
"""Changes that may wait for the handlers before no more are read from the server."""
RESYNC_SPREAD = 0.1
"""The part of a resync period over which its notifications are spread, so that they do not come in one
burst."""


class Change(Generic[T]):
    """What a handler is told.

    ``type`` is "add", "update" or "delete". ``old`` is None for an add, ``new`` is None for a delete. An
    object that was deleted and made again while nobody watched is one update, with another UID.
    ``initial``: it was there before the handler, or before the informer. ``resync``: nothing has changed,
    it is said once more. ``tombstone``: the deletion itself was missed, ``old`` is the last state that was
    seen.
    """

    __slots__ = ("_new", "_old", "initial", "resync", "sealed_new", "sealed_old", "tombstone", "type")

    def __init__(
        self,
        kind: Literal["add", "update", "delete"],
        old: Sealed[T] | None,
        new: Sealed[T] | None,
        *,
        initial: bool = False,
        resync: bool = False,
        tombstone: bool = False,
    ) -> None:
        self.type = kind
        self.sealed_old = old
        self.sealed_new = new
        self.initial = initial
        self.resync = resync
        self.tombstone = tombstone
        self._old: T | None = None
        self._new: T | None = None

    @property
    def old(self) -> T | None:
        """The state before; decoded when first asked for."""
        if self._old is None and self.sealed_old is not None:
            self._old = self.sealed_old.open()
        return self._old

    @property
    def new(self) -> T | None:
        """The state now; decoded when first asked for."""
        if self._new is None and self.sealed_new is not None:
            self._new = self.sealed_new.open()
        return self._new

    @property
    def object(self) -> T:
        """The newest state that is known."""
        found = self.new if self.sealed_new is not None else self.old
        assert found is not None
        return found

    @property
    def sealed(self) -> Sealed[T]:
        """The newest state that is known, not decoded: its UID and version."""
        found = self.sealed_new or self.sealed_old
        assert found is not None
        return found

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` for what has no namespace."""
        return self.sealed.key


Handler = Callable[[Change[T]], Awaitable[None] | None]


@dataclass(eq=False, slots=True)
class Registration(Generic[T]):
    """A handler and what it has been told. ``remove`` ends that."""

    handler: Handler[T]
    resync: float
    informer: Informer[T]
    synced: bool = False
    """Whether the handler has been told all that was there when it came, or when the informer began."""
    failures: int = 0
    next_resync: float = 0.0
    resyncing: int = 0
    """How much of a resync the handler has not been told yet."""

    def remove(self) -> None:
        """Tell the handler nothing more."""
        self.informer.remove_handler(self)


class Informer(Generic[T]):
    """One resource, in one namespace or all, as chosen by selectors.

    ``run`` keeps ``store`` equal to the server and tells the handlers; ``wait_synced`` returns once the
    store has been filled. Handlers may be added at any time: a late one is told what is there as adds.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexers: Mapping[str, Indexer[T]] | None = None,
        problem: Callable[[KubeError], None] | None = None,
        watch_list: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self.store: Store[T] = Store(indexers)
        self.reflector = Reflector(
            client,
            resource,
            _Sink(self),
            namespace=namespace,
            labels=labels,
            fields=fields,
            problem=problem or self._note,
            watch_list=watch_list,
            rng=rng,
        )
        self._plural = resource.plural
        self._clock: Clock = client.clock
        self._random = rng or random.Random()
        self._handlers: list[Registration[T]] = []
        self._pending: deque[tuple[Registration[T] | None, Change[T] | None]] = deque()
        self._telling = 0
        """Changes that were taken out for the handlers, told or being told."""
        self._told = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._synced = asyncio.Event()
        self._resync_wanted = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the store has been filled once."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return once the store has been filled."""
        await self._synced.wait()

    async def wait_told(self) -> None:
        """Return once the handlers were told all that is pending now, and are done with it."""
        last = self._telling + len(self._pending)
        while self._told < last:
            self._room.clear()
            await self._room.wait()

    def add_handler(self, handler: Handler[T], *, resync: float = 0.0) -> Registration[T]:
        """Tell ``handler`` every change from now on, and first what is there.

        ``resync``: seconds after which it is told everything again, 0 for never.
        """
        made = Registration(handler, resync, self)
        if resync:
            # Each handler at a moment of its own, so that not all work falls together.
            made.next_resync = self._clock.monotonic() + resync * (1 + RESYNC_SPREAD * self._random.random())
        if self.synced:
            for item in self.store.all_sealed():
                self._pending.append((made, Change("add", None, item, initial=True)))
            self._pending.append((made, None))
        self._handlers.append(made)
        self._wake.set()
        self._resync_wanted.set()
        return made

    def remove_handler(self, registration: Registration[T]) -> None:
        """Tell a handler nothing more, not even what is pending."""
        if registration in self._handlers:
            self._handlers.remove(registration)

    async def run(self) -> None:
        """Follow the server and tell the handlers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflector.run())
            group.create_task(self._tell())
            group.create_task(self._resync())

    def changed(self, change: Change[T]) -> None:
        """Let the handlers be told of a change that the store has already."""
        for registration in self._handlers:
            self._pending.append((registration, change))
        if self._handlers:
            self._wake.set()

    def filled(self) -> None:
        """The first list is in the store."""
        if not self.synced:
            self._synced.set()
            for registration in self._handlers:
                self._pending.append((registration, None))
            self._wake.set()

    async def room(self) -> None:
        """Return when not too many changes wait for the handlers."""
        while len(self._pending) >= MOST_PENDING:
            self._room.clear()
            await self._room.wait()

    async def _tell(self) -> None:
        while True:
            while self._pending:
                registration, change = self._pending.popleft()
                self._telling += 1
                if registration is not None and registration in self._handlers:
                    await self._tell_one(registration, change)
                self._told += 1
                if not self._room.is_set() and len(self._pending) < MOST_PENDING:
                    self._room.set()
            self._wake.clear()
            if not self._pending:
                await self._wake.wait()

    async def _tell_one(self, registration: Registration[T], change: Change[T] | None) -> None:
        if change is None:
            registration.synced = True
            return
        try:
            told = registration.handler(change)
            if inspect.isawaitable(told):
                await told
        except Exception:  # noqa: BLE001 (handlers are others' code: one failing is not the others' fault)
            registration.failures += 1
            _log.exception("%s %s: a handler failed at %s", self._plural, change.key, change.type)
        finally:
            registration.resyncing -= change.resync

    async def _resync(self) -> None:
        while True:
            self._resync_wanted.clear()
            now = self._clock.monotonic()
            asked = [each for each in self._handlers if each.resync]
            next_due = min((each.next_resync for each in asked), default=None)
            if next_due is None or next_due > now:
                await self._clock.wait(self._resync_wanted, None if next_due is None else next_due - now)
                continue
            for registration in [each for each in asked if each.next_resync <= now]:
                registration.next_resync = now + registration.resync
                if registration.resyncing:
                    continue  # a handler that is slower than its resyncs gets one after the other
                for item in self.store.all_sealed():
                    registration.resyncing += 1
                    self._pending.append((registration, Change("update", item, item, resync=True)))
            self._wake.set()

    def _note(self, error: KubeError) -> None:
        _log.warning("%s: %s: %s", self._plural, type(error).__name__, error)


class _Sink(Generic[T]):
    """Where the reflector of an informer puts what it hears."""

    def __init__(self, informer: Informer[T]) -> None:
        self._informer = informer

    def get(self, key: str) -> Sealed[T] | None:
        return self._informer.store.sealed(key)

    def put(self, item: Sealed[T]) -> None:
        self._put(item, initial=False)

    def _put(self, item: Sealed[T], *, initial: bool) -> None:
        old = self._informer.store.put(item)
        if old is None:
            self._informer.changed(Change("add", None, item, initial=initial))
        else:
            self._informer.changed(Change("update", old, item))

    def delete(self, item: Sealed[T]) -> None:
        if self._informer.store.remove(item.key) is not None:
            self._informer.changed(Change("delete", item, None))

    def replace(self, items: list[Sealed[T]]) -> None:
        store = self._informer.store
        initial = not self._informer.synced
        there = {item.key for item in items}
        for key in store.keys():  # noqa: SIM118 (a copy: the store changes)
            if key not in there:
                gone = store.remove(key)
                assert gone is not None
                self._informer.changed(Change("delete", gone, None, tombstone=True))
        for item in items:
            known = store.sealed(item.key)
            if known is None or not known.same(item):
                self._put(item, initial=initial)
        self._informer.filled()

    async def ready(self) -> None:
        await self._informer.room()


def handler(
    *,
    add: Callable[[T], Any] | None = None,
    update: Callable[[T, T], Any] | None = None,
    delete: Callable[[T], Any] | None = None,
) -> Handler[T]:
    """A handler of one function per type of change; each may be a coroutine function."""

    def told(change: Change[T]) -> Awaitable[None] | None:
        result: Any = None
        if change.type == "add" and add is not None and change.new is not None:
            result = add(change.new)
        elif (
            change.type == "update"
            and update is not None
            and change.old is not None
            and change.new is not None
        ):
            result = update(change.old, change.new)
        elif change.type == "delete" and delete is not None and change.old is not None:
            result = delete(change.old)
        return result if inspect.isawaitable(result) else None

    return told
