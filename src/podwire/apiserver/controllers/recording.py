"""Events that the server itself tells: the same one again only counts up."""

from __future__ import annotations

import hashlib
from typing import Any

from podwire.apiserver import metadata
from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.registry import Registry
from podwire.serving.status import Failure

Object = dict[str, Any]


async def tell(
    registry: Registry, about: Object, reason: str, message: str, *, component: str, type: str = "Normal"
) -> None:
    """Tell something of a namespaced object."""
    kind = registry.lookup("", "v1", "events")
    assert kind is not None
    meta = about["metadata"]
    namespace = meta.get("namespace") or "default"
    digest = hashlib.sha256(f"{meta['uid']}{component}{reason}{message}{type}".encode()).hexdigest()[:16]
    name = f"{meta['name'][:230]}.{digest}"
    now = metadata.now()

    def again(event: Object) -> Object:
        event["count"] = event.get("count", 1) + 1
        event["lastTimestamp"] = now
        return event

    try:
        await registry.update(kind, namespace, name, again)
        return
    except Failure as failure:
        if failure.reason != "NotFound":
            raise
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
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": type,
        "reportingComponent": component,
        "reportingInstance": "",
    }
    try:
        await registry.create(kind, namespace, event, WriteOptions(user="system"))
    except Failure as failure:
        # The namespace may be on its way out, and its events with it.
        if failure.reason not in ("Forbidden", "NotFound", "AlreadyExists"):
            raise
