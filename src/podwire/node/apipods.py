"""The API server's pods of this node, as it told them last: real ones and mirror pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from podwire.kube.objects import Pod


class ApiPods:
    """By UID and by name. Listeners hear which pods have changed, come or gone, after each list."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Pod] = {}
        self._by_name: dict[str, Pod] = {}
        self._listeners: list[Callable[[list[Pod]], None]] = []
        self.synced = asyncio.Event()
        """Set once there was a list."""

    def replace(self, pods: Iterable[Pod]) -> None:
        """Exactly these are there."""
        before = self._by_uid
        self._by_uid = {pod.metadata.uid: pod for pod in pods}
        self._by_name = {pod.full_name: pod for pod in self._by_uid.values()}
        changed = [pod for uid, pod in self._by_uid.items() if before.get(uid) is not pod]
        changed += [pod for uid, pod in before.items() if uid not in self._by_uid]
        self.synced.set()
        for listener in self._listeners:
            listener(changed)

    def get(self, uid: str) -> Pod | None:
        """The pod of that UID."""
        return self._by_uid.get(uid)

    def find(self, full_name: str) -> Pod | None:
        """The pod of that namespace/name."""
        return self._by_name.get(full_name)

    def all(self) -> list[Pod]:
        """All pods."""
        return list(self._by_uid.values())

    def subscribe(self, listener: Callable[[list[Pod]], None]) -> None:
        """Call ``listener`` from now on."""
        self._listeners.append(listener)
