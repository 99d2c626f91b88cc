"""Nodes that no longer renew their lease are not ready: nobody knows how they are.

Times are taken from when a renewal was seen here, so neither clocks that differ nor a server that was away
make a node look lost. Source: k8s.io/kubernetes/pkg/controller/nodelifecycle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from podwire.apiserver import metadata
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Key
from podwire.serving.status import Failure

Object = dict[str, Any]

NAMESPACE = "kube-node-lease"
GRACE = 40.0
"""Seconds after the last renewal."""
EVERY = 5.0
"""Seconds between looks."""


class Nodes:
    """Marks nodes whose lease has run out. ``clock`` gives seconds that only go forward."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Mark those that are lost now. A node that has no lease is left alone."""
        storage = self._registry.storage
        names = [stored.meta.name for stored in storage.list("", "nodes").items]
        for name in names:
            lease = storage.get(Key("coordination.k8s.io", "leases", NAMESPACE, name))
            if lease is None:
                self._seen.pop(name, None)
                continue
            renewed = lease.field("spec.renewTime")
            seen, since = self._seen.get(name, ("", 0.0))
            if renewed != seen or name not in self._seen:
                self._seen[name] = (renewed, self._clock())
            elif self._clock() - since > GRACE:
                await self._mark(name)
        self._seen = {name: held for name, held in self._seen.items() if name in names}

    async def _mark(self, name: str) -> None:
        kind = self._registry.lookup("", "v1", "nodes")
        assert kind is not None
        try:
            await self._registry.update(kind, "", name, _unknown)
        except Failure as failure:
            if failure.reason != "NotFound":
                raise


def _unknown(node: Object) -> Object:
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready" and condition.get("status") != "Unknown":
            condition.update(
                status="Unknown",
                reason="NodeStatusUnknown",
                message="Kubelet stopped posting node status.",
                lastTransitionTime=metadata.now(),
            )
    return node
