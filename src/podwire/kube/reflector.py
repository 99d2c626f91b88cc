"""Keeps a local copy of a resource equal to the server's: list, watch, and begin again as little as possible.

After k8s.io/client-go/tools/cache/reflector.go. What it holds to, however the server behaves:

- It never goes back in time: it lists at the last version that it has seen or a newer one, and does not take
  events, lists and objects that are older than what it has. Only consistent reads (resourceVersion ""), and
  several of them, can tell that the server itself was set back.
- A list replaces everything; what is not in it is gone.
- It never hammers: whatever fails is followed by a delay that grows, and a stream that ends too soon counts
  as failing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from podwire.kube.backoff import Backoff
from podwire.kube.client import PAGE, Client
from podwire.kube.clock import deadline
from podwire.kube.decode import Identity, Page, WatchEvent, sealing
from podwire.kube.errors import (
    ApiError,
    BadAnswer,
    ConnectionFailed,
    ConnectionRefused,
    Expired,
    KubeError,
    TooManyRequests,
)
from podwire.kube.ratelimit import Priority
from podwire.kube.remedies import is_too_old, only_waiting_helps
from podwire.kube.resource import Resource
from podwire.kube.sealed import Sealed
from podwire.kube.store import Sink
from podwire.kube.versions import is_newer, is_older, revision
from podwire.kube.watching import Watch

T = TypeVar("T")

PAGE_TIMEOUT = 60.0
OPEN_TIMEOUT = 30.0
WATCH_SECONDS = (300, 600)
"""How long a server is asked to keep a watch open: as much as chance gives in between."""
WATCH_MARGIN = 15.0
"""Seconds after which a stream is closed that the server should have closed."""
MOST_SILENT = 90.0
"""Seconds without even a bookmark after which a stream is asked for anew: servers send one every minute."""
INITIAL_SILENCE = 10.0
"""Seconds of silence before the initial events have ended, after which a list is asked for instead."""
SET_BACK = 3
"""How many consistent lists in a row must be older than what is known before they are believed."""
SHORT = 1.0
"""A stream that lived for fewer seconds was short."""
SHORT_STREAMS = 3
"""How many short streams in a row, with events, are followed by the next at once."""


class WentBack(BadAnswer):
    """The server showed a state that is older than one that it had shown."""


class ShortWatch(KubeError):
    """A watch that ended as soon as it had begun."""


@dataclass(slots=True)
class Counts:
    """What a reflector has done so far."""

    lists: int = 0
    pages: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    stale: int = 0
    """Events that were older than what is known, and not taken."""
    skipped: int = 0
    """Events and items of another type, or that could not be decoded."""
    errors: int = 0


@dataclass(slots=True)
class _Progress:
    relist: bool = True
    consistent: bool = False
    """Whether the next list is to be the newest state that there is, whatever its version."""
    streaming: bool = True
    """Whether lists are asked for by a watch with initial events."""
    short: int = 0
    failing_since: float | None = None
    older: int = 0
    """How many lists in a row were older than what is known."""


class Reflector(Generic[T]):
    """``run`` fills ``sink`` until it is cancelled, with one request at a time.

    ``problem`` is called with each error and for each event that was passed over, ``well`` when all is well
    again after errors.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        sink: Sink[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        watch_list: bool = True,
        problem: Callable[[KubeError], None] | None = None,
        well: Callable[[], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = sealing(resource)
        self.version = ""
        """The last resource version seen; empty before the first list."""
        self.synced = False
        """Whether the sink has been filled once."""
        self.counts = Counts()
        self._client = client
        self._clock = client.clock
        self._sink = sink
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._page = page
        self._problem = problem
        self._when_well = well
        self._random = rng or random.Random()
        self._backoff = Backoff(self._clock, rng=self._random)
        self._opening_backoff = Backoff(self._clock, rng=self._random)
        """For watches that nobody takes, apart: what follows once a server is there need not wait as long."""
        self._state = _Progress(streaming=watch_list)
        self._stream: Watch[Sealed[T]] | None = None

    @property
    def failing_for(self) -> float:
        """Seconds since when nothing has gone well; 0 while all is well. For a liveness probe."""
        since = self._state.failing_since
        return 0.0 if since is None else self._clock.monotonic() - since

    async def run(self) -> None:
        """List and watch for ever."""
        try:
            while True:
                error = await self._turn()
                if error is not None:
                    self._failed(error)
                    await self._clock.sleep(self._delay(error))
        finally:
            await self._drop_stream()

    async def _turn(self) -> KubeError | None:
        """One list if needed and one watch; an error is to be followed by a delay."""
        try:
            if self._state.relist:
                await self._fill()
        except KubeError as error:
            return error
        return await self._follow()

    def _failed(self, error: KubeError) -> None:
        self.counts.errors += 1
        if self._state.failing_since is None:
            self._state.failing_since = self._clock.monotonic()
        if self._problem is not None:
            self._problem(error)

    def _well(self) -> None:
        failing, self._state.failing_since = self._state.failing_since, None
        if failing is not None and self._when_well is not None:
            self._when_well()

    def _delay(self, error: KubeError) -> float:
        opening = isinstance(error, ConnectionRefused | TooManyRequests)
        delay = (self._opening_backoff if opening else self._backoff).next()
        if isinstance(error, ApiError) and error.retry_after is not None:
            return max(delay, error.retry_after)
        return delay

    # Lists

    async def _fill(self) -> None:
        await self._drop_stream()
        if self._state.streaming and await self._fill_by_stream():
            return
        await self._fill_by_pages()

    def _wanted_version(self, first: str) -> str:
        """The version to list at: newest, not older than what is known, or ``first``."""
        return "" if self._state.consistent else self.version or first

    async def _fill_by_stream(self) -> bool:
        """A watch with initial events; False if a list is to be tried instead."""
        while True:
            asked = self._wanted_version("")
            stream = self._open(asked, initial=True)
            try:
                items, version = await self._initial_events(stream)
                self._accept(items, version)
            except BaseException as error:
                await stream.close()
                if isinstance(error, TimeoutError):
                    self._state.streaming = False  # it does not know initial events, and told nobody
                    return False
                if not isinstance(error, KubeError) or only_waiting_helps(error):
                    raise
                if isinstance(error, WentBack) or (is_too_old(error) and asked == ""):
                    raise
                if is_too_old(error):
                    self._state.consistent = True
                    continue
                if isinstance(error, ApiError):
                    self._state.streaming = False  # it refuses, as servers without the feature do
                else:
                    self._failed(error)
                return False
            self._stream = stream
            return True

    async def _initial_events(self, stream: Watch[Sealed[T]]) -> tuple[dict[str, Sealed[T]], str]:
        found: dict[str, Sealed[T]] = {}
        async with deadline(self._clock, OPEN_TIMEOUT + INITIAL_SILENCE):
            await stream.open()
        while True:
            try:
                async with deadline(self._clock, INITIAL_SILENCE):
                    event = await anext(stream)
            except StopAsyncIteration:
                raise BadAnswer(f"watch of {self.resource.plural}: ended before its initial events") from None
            if event.type == "BOOKMARK":
                if event.initial_end:
                    return found, event.version
            elif event.object is None:
                self._skip(event.problem)
                if event.unreadable is not None and event.type == "DELETED":
                    found.pop(event.unreadable.key, None)
                elif event.unreadable is not None:
                    self._keep(found, event.unreadable)
            elif event.type == "DELETED":
                found.pop(event.object.key, None)
            else:
                self._collect(found, event.object)

    async def _fill_by_pages(self) -> None:
        asked = self._wanted_version("0")
        try:
            items, version = await self._pages(asked, self._page)
        except ApiError as error:
            if not is_too_old(error) or asked == "":
                raise
            self._state.consistent = True
            asked = ""
            items, version = await self._pages(asked, self._page)
        self._accept(items, version)

    async def _pages(self, asked: str, limit: int) -> tuple[dict[str, Sealed[T]], str]:
        found: dict[str, Sealed[T]] = {}
        token = ""
        self.counts.lists += 1
        while True:
            try:
                page = await self._one_page(asked, limit, token)
            except Expired:
                if not token:
                    raise
                # The pages' version is gone: all at once, which cannot expire in between.
                self._state.consistent = True
                return await self._pages("", 0)
            for item in page.items:
                self._collect(found, item)
            for who in page.unreadable:
                self._skip(f"{self.resource.kind} {who.key}: it could not be decoded")
                self._keep(found, who)
            if not page.token:
                return found, page.version
            if page.token == token or not page.items:
                raise BadAnswer(f"list of {self.resource.plural}: its pages do not end")
            token = page.token

    async def _one_page(self, asked: str, limit: int, token: str) -> Page[Sealed[T]]:
        self.counts.pages += 1
        return await self._client.list(
            self.resource,
            self._namespace,
            limit=limit,
            token=token,
            version=asked,
            timeout=PAGE_TIMEOUT,
            repeat=False,
            labels=self._labels,
            fields=self._fields,
        )

    def _collect(self, found: dict[str, Sealed[T]], item: Sealed[T]) -> None:
        """Add an item of a list; if that state is known, as it is known, so that it is there once."""
        known = self._sink.get(item.key)
        found[item.key] = known if known is not None and known.same(item) else item

    def _keep(self, found: dict[str, Sealed[T]], who: Identity) -> None:
        """An item that cannot be decoded is there all the same: it stays as it was known."""
        known = self._sink.get(who.key)
        if known is not None and known.uid == who.uid:
            found.setdefault(who.key, known)

    def _accept(self, items: dict[str, Sealed[T]], version: str) -> None:
        """Replace all by a list, unless it is older than what is known."""
        if not version:
            raise BadAnswer(f"list of {self.resource.plural}: it has no resource version")
        self._refuse_older(items, version)
        self._sink.replace(list(items.values()))
        self.version = version
        self.synced = True
        self._state.relist = False
        self._state.consistent = False
        self._well()

    def _refuse_older(self, items: dict[str, Sealed[T]], version: str) -> None:
        older = is_older(version, self.version) or any(
            known is not None and is_older(item.version, known.version)
            for known, item in ((self._sink.get(key), item) for key, item in items.items())
        )
        if not older:
            self._state.older = 0
            return
        # The newest state that there is cannot be older, unless the server itself was set back. One server of
        # several may be behind even then, so it is to be said more than once.
        self._state.older += self._state.consistent
        self._state.consistent = True
        if self._state.older < SET_BACK:
            raise WentBack(f"list of {self.resource.plural}: version {version} after {self.version}")
        self._state.older = 0

    # Watches

    def _open(self, since: str, *, initial: bool = False) -> Watch[Sealed[T]]:
        self.counts.watches += 1
        self._seconds = int(self._random.uniform(*WATCH_SECONDS))
        return self._client.watch(
            self.resource,
            self._namespace,
            since=since,
            initial_events=initial,
            seconds=self._seconds,
            timeout=OPEN_TIMEOUT,
            most_silent=MOST_SILENT,
            priority=Priority.BULK if initial else Priority.NORMAL,
            labels=self._labels,
            fields=self._fields,
        )

    async def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _follow(self) -> KubeError | None:
        if self._stream is None:
            stream = self._open(self.version)
            try:
                await stream.open()
            except KubeError as error:
                await stream.close()
                self._state.relist = not isinstance(error, ConnectionRefused | TooManyRequests)
                self._state.consistent = is_too_old(error)
                return error
            self._stream = stream
        try:
            return await self._events(self._stream)
        finally:
            await self._drop_stream()

    async def _events(self, stream: Watch[Sealed[T]]) -> KubeError | None:
        began = self._clock.monotonic()
        progressed = False
        broken: KubeError | None = None
        # A stream that lasts is well, whether or not there is anything to tell in it.
        lasting = self._clock.call_later(SHORT, self._well)
        try:
            async with deadline(self._clock, self._seconds + WATCH_MARGIN):
                async for event in stream:
                    progressed = self._take(event) or progressed
                    if progressed:
                        self._well()
                    await self._sink.ready()
        except TimeoutError:
            pass  # the server should have closed it
        except ApiError as error:
            self._state.relist = not isinstance(error, TooManyRequests)
            self._state.consistent = is_too_old(error)
            return error
        except BadAnswer as error:
            self._state.relist = True
            return error
        except ConnectionFailed as error:
            broken = error
        finally:
            lasting.cancel()
        return self._ended(self._clock.monotonic() - began, progressed, broken)

    def _ended(self, lived: float, progressed: bool, broken: KubeError | None) -> KubeError | None:
        """What follows a stream that is over: the next at once (None), or a delay."""
        if lived >= SHORT:
            self._state.short = 0
            if broken is not None:
                self._failed(broken)
            return None
        if broken is not None:
            return broken
        if not progressed:
            self._state.relist = True
            return ShortWatch(f"watch of {self.resource.plural}: closed after {lived:.1f} s without an event")
        self._state.short += 1
        if self._state.short > SHORT_STREAMS:
            return ShortWatch(
                f"watch of {self.resource.plural}: {self._state.short} streams of under {SHORT:g} s"
            )
        return None

    def _take(self, event: WatchEvent[Sealed[T]]) -> bool:
        """Put one event into the sink; whether there was anything new in it."""
        if event.type == "BOOKMARK":
            self.counts.bookmarks += 1
            return self._advance(event.version)
        if event.object is None:
            self._skip(event.problem)
            return event.type == "DELETED" and self._take_end(event.unreadable)
        self.counts.events += 1
        new = event.object
        known = self._sink.get(new.key)
        if self._is_stale(event.type, new, known):
            self.counts.stale += 1
            return False
        if event.type == "DELETED":
            if known is not None:
                self._sink.delete(new)
        else:
            self._sink.put(new)
        self._advance(new.version)
        return True

    def _take_end(self, who: Identity | None) -> bool:
        """The deletion of an object whose last state cannot be decoded; whether it was there."""
        known = self._sink.get(who.key) if who is not None else None
        if who is None or known is None or not is_newer(who.version, known.version):
            return False
        self._sink.delete(known)
        self._advance(who.version)
        return True

    def _is_stale(self, kind: str, new: Sealed[T], known: Sealed[T] | None) -> bool:
        """Whether the event tells what is known already. Raises WentBack where it cannot be told."""
        if not new.version or revision(new.version) is None:
            return False
        if known is not None:
            # Servers of old give the last state's version to a deletion in place of one of its own.
            if kind == "DELETED" and known.same(new):
                return False
            # That can be so in a watch of the right versions too: a list may hold objects that are newer than
            # it says of itself, and their past is told after it.
            if not is_newer(new.version, known.version):
                return True
        if is_newer(new.version, self.version):
            return False
        if known is None and kind == "DELETED":
            return True
        raise WentBack(f"watch of {self.resource.plural}: {new.key} at {new.version} after {self.version}")

    def _advance(self, version: str) -> bool:
        if not version or version == self.version or is_older(version, self.version):
            return False
        self.version = version
        return True

    def _skip(self, problem: str) -> None:
        self.counts.skipped += 1
        if self._problem is not None:
            self._problem(BadAnswer(problem))
