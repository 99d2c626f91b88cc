"""Events for people to read, as few as possible.

After k8s.io/client-go/tools/record: the same event again raises the count of the first; many similar ones
become one that says so; a source that floods is cut off for its object. Recording never waits and never
fails; when the server cannot be reached, events wait in a queue of limited length.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from podwire.kube.backoff import Backoff
from podwire.kube.client import Client
from podwire.kube.clock import timestamp
from podwire.kube.decode import identity
from podwire.kube.errors import (
    AlreadyExists,
    ApiError,
    InternalError,
    KubeError,
    NotFound,
    ServerTimeout,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
)
from podwire.kube.events import Event, EventSource
from podwire.kube.metadata import ObjectMeta, ObjectReference
from podwire.kube.ratelimit import Priority, TokenBucket
from podwire.kube.resource import EVENTS

K = TypeVar("K")
V = TypeVar("V")
_log = logging.getLogger(__name__)

REMEMBERED = 4096
"""Events that are remembered, to find the same and the similar."""
SIMILAR = 10
"""How many similar events within :data:`SIMILAR_SECONDS` stay single."""
SIMILAR_SECONDS = 600.0
FLOOD_BURST = 25
FLOOD_QPS = 1 / 300
"""A source may send so many events about one object at once, and then one in five minutes."""
QUEUED = 1000
TRIES = 12
LONGEST_MESSAGE = 1024
COMBINED = "(combined from similar events): "


class Happening(NamedTuple):
    """What is recorded, once."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    at: int


@dataclass(slots=True)
class _Similar:
    since: float
    messages: OrderedDict[str, None] = field(default_factory=OrderedDict)


class Recorder:
    """Records events of one component: ``event`` takes them and returns at once, ``run`` sends them."""

    def __init__(
        self, client: Client, component: str, *, host: str = "", rng: random.Random | None = None
    ) -> None:
        self.dropped = 0
        """Events that were not sent: floods, a full queue, a server that refused them."""
        self._client = client
        self._clock = client.clock
        self._source = EventSource(component=component, host=host)
        self._random = rng or random.Random()
        self._queue: deque[Happening] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._known: OrderedDict[tuple[ObjectReference, str, str, str], Event] = OrderedDict()
        self._similar: OrderedDict[tuple[ObjectReference, str, str], _Similar] = OrderedDict()
        self._floods: OrderedDict[ObjectReference, TokenBucket] = OrderedDict()

    def event(
        self, regarding: object, kind: str, reason: str, message: str, *, at: int | None = None
    ) -> bool:
        """Record an event about an object or an ObjectReference; whether it was taken.

        ``kind`` is Normal or Warning, ``reason`` one word in CamelCase, ``at`` when it happened (nanoseconds
        since the epoch) if not just now.
        """
        if kind not in ("Normal", "Warning"):
            raise ValueError(f"{kind!r}: an event is Normal or Warning")
        about = regarding if isinstance(regarding, ObjectReference) else reference(regarding)
        bucket = _remembered(self._floods, about)
        if bucket is None:
            bucket = _remember(self._floods, about, TokenBucket(FLOOD_QPS, FLOOD_BURST, self._clock))
        if not bucket.try_take() or len(self._queue) >= QUEUED:
            self.dropped += 1
            return False
        if len(message) > LONGEST_MESSAGE:
            message = message[: LONGEST_MESSAGE - 3] + "..."
        when = self._clock.wall() if at is None else at
        self._queue.append(Happening(about, kind, reason, message, when))
        self._idle.clear()
        self._wake.set()
        return True

    async def flushed(self) -> None:
        """Return when all that was recorded has been sent or given up."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send what is recorded, until cancelled."""
        while True:
            while self._queue:
                await self._send(self._queue.popleft())
            self._idle.set()
            self._wake.clear()
            await self._wake.wait()

    async def _send(self, happening: Happening) -> None:
        message = self._combined(happening)
        made = self._made(happening, message)
        backoff = Backoff(self._clock, initial=1.0, maximum=30.0, rng=self._random)
        for _ in range(TRIES):
            try:
                await self._write(happening, made)
                return
            except (ApiError, KubeError) as error:
                if isinstance(error, ApiError) and not isinstance(
                    error, TooManyRequests | ServiceUnavailable | InternalError | ServerTimeout | Timeout
                ):
                    _log.warning("event %s refused: %s", happening.reason, error)
                    break
                wait = backoff.next()
                if isinstance(error, ApiError) and error.retry_after is not None:
                    wait = max(wait, error.retry_after)
                await self._clock.sleep(wait)
        self.dropped += 1

    def _combined(self, happening: Happening) -> str:
        """The message; of events that are similar too often, one that says so."""
        key = happening.regarding, happening.type, happening.reason
        similar = _remembered(self._similar, key)
        now = self._clock.monotonic()
        if similar is None or now - similar.since > SIMILAR_SECONDS:
            similar = _remember(self._similar, key, _Similar(now))
        similar.messages[happening.message] = None
        if len(similar.messages) <= SIMILAR:
            return happening.message
        similar.messages.popitem(last=False)
        return COMBINED + happening.message

    async def _write(self, happening: Happening, made: Event) -> None:
        message = made.message
        # Combined events are one, whatever each of them says.
        text = COMBINED if message.startswith(COMBINED) else message
        key = happening.regarding, happening.type, happening.reason, text
        known = _remembered(self._known, key)
        if known is not None:
            try:
                _remember(self._known, key, await self._again(known, message, happening.at))
                return
            except NotFound:  # it has expired on the server
                del self._known[key]
        try:
            created = await self._client.create(EVENTS, made, made.metadata.namespace, priority=Priority.BULK)
        except AlreadyExists:  # an earlier try did arrive
            created = made
        _remember(self._known, key, created)

    async def _again(self, known: Event, message: str, at: int) -> Event:
        change = {"count": known.count + 1, "lastTimestamp": timestamp(at), "message": message}
        await self._client.patch(
            EVENTS, change, known.metadata.name, known.metadata.namespace, priority=Priority.BULK
        )
        return msgspec.structs.replace(known, count=known.count + 1)

    def _made(self, happening: Happening, message: str) -> Event:
        about = happening.regarding
        return Event(
            metadata=ObjectMeta(
                name=f"{about.name[:200]}.{happening.at:x}{self._random.getrandbits(16):04x}",
                namespace=about.namespace or "default",
            ),
            involved_object=about,
            reason=happening.reason,
            message=message,
            source=self._source,
            first_timestamp=timestamp(happening.at),
            last_timestamp=timestamp(happening.at),
            type=happening.type,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )


def reference(found: object) -> ObjectReference:
    """A reference to an object of any type."""
    about = identity(found)
    get = found.get if isinstance(found, dict) else lambda name: None
    return ObjectReference(
        kind=getattr(found, "kind", "") or get("kind") or "",
        api_version=getattr(found, "api_version", "") or get("apiVersion") or "",
        namespace=about.namespace,
        name=about.name,
        uid=about.uid,
    )


def _remembered(found: OrderedDict[K, V], key: K) -> V | None:
    value = found.get(key)
    if value is not None:
        found.move_to_end(key)
    return value


def _remember(found: OrderedDict[K, V], key: K, value: V) -> V:
    found[key] = value
    found.move_to_end(key)
    if len(found) > REMEMBERED:
        found.popitem(last=False)
    return value
