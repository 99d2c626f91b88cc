"""Events are kept for an hour.

Source: the kube-apiserver's ``--event-ttl``.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import KeyNotFound, Stored

KEPT = timedelta(hours=1)
EVERY = 60.0
"""Seconds between looks."""


class Expiry:
    """Deletes old events."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.sweep(datetime.now(UTC))
            await asyncio.sleep(EVERY)

    async def sweep(self, now: datetime) -> None:
        """Delete the events that were last written more than an hour before ``now``."""
        storage = self._registry.storage
        kind = self._registry.lookup("", "v1", "events")
        assert kind is not None
        for stored in storage.list("", "events").items:
            if _last(stored) + KEPT < now:
                meta = stored.object["metadata"]
                try:
                    await storage.delete(self._registry.key(kind, meta["namespace"], meta["name"]))
                except KeyNotFound:
                    continue


def _last(stored: Stored) -> datetime:
    """When it was written last, as far as that shows; never before it was made, whatever its times say."""
    event = stored.object
    meta = event["metadata"]
    times = [
        meta["creationTimestamp"],
        *(entry.get("time") for entry in meta.get("managedFields") or []),
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
    ]
    return max(_time(text) for text in times)


def _time(text: str | None) -> datetime:
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
