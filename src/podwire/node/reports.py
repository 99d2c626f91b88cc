"""The node's events as objects on the API server, by the recorder that all components use.

An event of a static pod names the UID that its mirror pod carries as config.mirror, which is how kubectl
finds it, and waits a while until something of the pod's name is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from podwire.kube import names
from podwire.kube.client import Client
from podwire.kube.objects import Event, ObjectReference
from podwire.kube.recorder import Recorder
from podwire.node.apipods import ApiPods
from podwire.node.clock import SECOND
from podwire.node.events import COMPONENT
from podwire.node.service import Node
from podwire.sources.mux import is_static

PATIENCE = 30
"""Seconds that events wait for mirror pods: some never come, as where another node's pod has the name."""
HELD = 1000
"""Events that wait for mirror pods at most; the oldest go first, and stay with the node alone."""


class _Held(NamedTuple):
    full_name: str
    event: Event
    at: int


class EventReports:
    """Records what the node tells, each time that it tells it, from the moment that it is made."""

    def __init__(self, client: Client, api: ApiPods, node: Node) -> None:
        self._api = api
        self._node = node
        self._recorder = Recorder(client, COMPONENT, host=node.node_name)
        self._held: deque[_Held] = deque(maxlen=HELD)
        node.recorder.subscribe(self._heard)
        api.subscribe(lambda _: self._look_at_held())

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            while True:
                await self._node.clock.sleep(PATIENCE / 3)
                self._look_at_held()

    def _heard(self, _change: str, event: Event) -> None:
        about, at = event.involved_object, self._node.clock.wall()
        if names.dns_subdomain(about.name) or names.dns_label(about.namespace):
            return  # a manifest was refused for it: no object is called so, and no event has a name after it
        if self._waits(about):
            self._held.append(_Held(_full_name(about), event, at))
        else:
            self._record(event, at)

    def _look_at_held(self) -> None:
        held, self._held = self._held, deque(maxlen=HELD)
        oldest = self._node.clock.wall() - PATIENCE * SECOND
        for each in held:
            if self._api.find(each.full_name) is None and each.at > oldest:
                self._held.append(each)
            else:
                self._record(each.event, each.at)

    def _waits(self, about: ObjectReference) -> bool:
        full_name = _full_name(about)
        pod = self._node.board.get(about.uid) or self._node.current(full_name)
        return pod is not None and is_static(pod) and self._api.find(full_name) is None

    def _record(self, event: Event, at: int) -> None:
        self._recorder.event(event.involved_object, event.type, event.reason, event.message, at=at)


def _full_name(about: ObjectReference) -> str:
    return f"{about.namespace}/{about.name}"
