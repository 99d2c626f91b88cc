"""The node's events as objects on the API server."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from podwire.kube.client import Client
from podwire.kube.errors import AlreadyExists, KubeError, NotFound
from podwire.kube.objects import Event
from podwire.kube.ratelimit import Priority, TokenBucket
from podwire.kube.resource import EVENTS
from podwire.node.board import WatchTooSlow
from podwire.node.service import Node

_log = logging.getLogger(__name__)

QPS, BURST = 20.0, 200
"""Events are written at that rate at most; what is beyond it is left out, but stays with the node."""


class EventReports:
    """Writes each event of the node once, and counts it up when it happens again."""

    def __init__(self, client: Client, node: Node) -> None:
        self._client = client
        self._node = node
        self._bucket = TokenBucket(QPS, BURST, node.clock)
        self._prefix = f"{node.started_at:x}"

    async def run(self) -> None:
        """Work until cancelled."""
        first = self._node.events()
        while True:
            try:
                async with self._node.board.events.watch() as watch:
                    for event in first:
                        await self._write(event)
                    first = []
                    async for change in watch:
                        await self._write(change.object)
                return
            except WatchTooSlow:
                continue

    async def _write(self, event: Event) -> None:
        if not self._bucket.try_take():
            return
        # The node counts its events from 1 in each run; the server remembers those of earlier runs.
        name = f"{event.metadata.name}.{self._prefix}"
        namespace = event.metadata.namespace
        try:
            if event.count > 1:
                patch = {
                    "count": event.count,
                    "lastTimestamp": event.last_timestamp,
                    "type": event.type,
                }
                try:
                    await self._client.patch(EVENTS, patch, name, namespace, priority=Priority.BULK)
                    return
                except NotFound:
                    pass
            made = replace(
                event,
                metadata=replace(
                    event.metadata, name=name, uid="", resource_version="", creation_timestamp=None
                ),
            )
            await self._client.create(EVENTS, made, namespace, priority=Priority.BULK)
        except AlreadyExists:
            return
        except KubeError as error:
            _log.debug("event %s of %s: %s", event.reason, event.involved_object.name, error)
