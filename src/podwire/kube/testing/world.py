"""What is true on a server for tests: objects of one resource, and the log of their changes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log; ``object`` is the state after the change, or before a deletion."""

    version: int
    type: str
    object: Object


class World:
    """What is true: the objects of one namespaced resource, and how they came to be so."""

    def __init__(self, kind: str = "Pod", api_version: str = "v1", version: int = 100) -> None:
        self.kind = kind
        self.api_version = api_version
        self.version = version
        self.compacted = 0
        """Changes up to this version are forgotten."""
        self.objects: dict[str, Object] = {}
        self.log: list[Change] = []
        self.changed = asyncio.Event()
        self._uids = 0

    def create(self, name: str, namespace: str = "default", **fields: Any) -> Object:
        """A new object, with a new UID; ``fields`` are merged into it at the top."""
        self._uids += 1
        made = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{self._uids}"},
            "spec": {"containers": [{"name": "main", "image": "example.org/image"}]},
            **fields,
        }
        return self._record("ADDED", made)

    def update(self, name: str, namespace: str = "default", **labels: str) -> Object:
        """Set labels of an object."""
        changed = copy.deepcopy(self.objects[f"{namespace}/{name}"])
        changed["metadata"].setdefault("labels", {}).update(labels)
        return self._record("MODIFIED", changed)

    def delete(self, name: str, namespace: str = "default") -> Object:
        """Remove an object."""
        return self._record("DELETED", copy.deepcopy(self.objects[f"{namespace}/{name}"]))

    def compact(self) -> None:
        """Forget the log: watches from earlier versions, and continue tokens, are expired."""
        self.compacted = self.version
        self.log.clear()

    def restore(self, version: int, names: Iterable[str] = ()) -> None:
        """Go back, as a server restored from a backup does: fewer objects, and a lower version."""
        self.version = version
        self.log.clear()
        self.compacted = version
        kept = set(names)
        self.objects = {
            key: found for key, found in self.objects.items() if found["metadata"]["name"] in kept
        }
        for number, found in enumerate(self.objects.values()):
            found["metadata"]["resourceVersion"] = str(version - len(self.objects) + number + 1)

    def versions(self) -> dict[str, tuple[str, str]]:
        """Key to UID and resource version of all that is there."""
        return {
            key: (found["metadata"]["uid"], found["metadata"]["resourceVersion"])
            for key, found in self.objects.items()
        }

    def _record(self, kind: str, found: Object) -> Object:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        key = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = found
        self.log.append(Change(self.version, kind, copy.deepcopy(found)))
        self.changed.set()
        self.changed = asyncio.Event()
        return found
