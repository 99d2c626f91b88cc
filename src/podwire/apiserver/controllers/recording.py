"""Events that the server itself tells: the same one again only counts up.

Names end with the time in nanoseconds, as those of client-go do: a list is in the order of what happened.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from podwire.apiserver import metadata
from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.registry import Registry
from podwire.serving.status import Failure

Object = dict[str, Any]

REMEMBERED = 4096
"""Events that may count up; older ones are told anew."""


class Recorder:
    """Tells events of one component."""

    def __init__(self, registry: Registry, component: str) -> None:
        self._registry = registry
        self._component = component
        self._known: OrderedDict[tuple[str, str, str, str], str] = OrderedDict()

    async def tell(
        self, about: Object, reason: str, message: str, *, type: str = "Normal", at: int = 0
    ) -> None:
        """Tell something of a namespaced object, that happened ``at`` (nanoseconds since 1970; 0: now)."""
        kind = self._registry.lookup("", "v1", "events")
        assert kind is not None
        meta = about["metadata"]
        namespace = meta.get("namespace") or "default"
        key = meta["uid"], reason, message, type
        now = metadata.now()

        def again(event: Object) -> Object:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = now
            return event

        if key in self._known:
            self._known.move_to_end(key)
            try:
                await self._registry.update(kind, namespace, self._known[key], again)
                return
            except Failure as failure:
                if failure.reason != "NotFound":
                    raise
        name = f"{meta['name'][:230]}.{at or time.time_ns():x}"
        event = {
            "metadata": {"name": name},
            "involvedObject": {
                "kind": about["kind"],
                "namespace": namespace,
                "name": meta["name"],
                "uid": meta["uid"],
                "apiVersion": about["apiVersion"],
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": type,
            "reportingComponent": self._component,
            "reportingInstance": "",
        }
        try:
            await self._registry.create(kind, namespace, event, WriteOptions(user="system"))
        except Failure as failure:
            # The namespace may be on its way out, and its events with it.
            if failure.reason not in ("Forbidden", "NotFound", "AlreadyExists"):
                raise
            return
        self._known[key] = name
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
