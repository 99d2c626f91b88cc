"""Serves what definitions define: accepts their names, and deletes their objects before they go.

Source: k8s.io/apiextensions-apiserver/pkg/controller/{status,establish,finalizer}.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from podwire.apiserver import metadata
from podwire.apiserver.crd.definition import DEFINITIONS, FINALIZER, GROUP, PLURAL, condition
from podwire.apiserver.crd.kinds import kinds
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import Kind
from podwire.apiserver.reading import ListOptions
from podwire.apiserver.registry import Registry
from podwire.serving.status import Failure

log = logging.getLogger(__name__)

Object = dict[str, Any]


class Definitions:
    """Follows all definitions; serve :data:`DEFINITIONS` by the registry before."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._served: dict[str, list[Kind]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cleaning: set[str] = set()

    async def start(self) -> None:
        """Serve the definitions that are there, and from now on all that come."""
        storage = self._registry.storage
        since = storage.revision
        for stored in storage.list(GROUP, PLURAL).items:
            await self._settle(stored.object)
        watch = storage.watch(GROUP, PLURAL, since=since)

        async def follow() -> None:
            async for event in watch:
                try:
                    if event.type == "DELETED":
                        self._serve(event.stored.object["metadata"]["name"], [])
                        await self._settle_waiting()
                    else:
                        await self._settle(event.stored.object)
                except Failure as failure:
                    log.warning("definition %s: %s", event.stored.object["metadata"]["name"], failure)

        self._spawn(follow())

    async def close(self) -> None:
        """Stop following; what is served stays so."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, definition: Object) -> None:
        name = definition["metadata"]["name"]
        if definition["metadata"].get("deletionTimestamp") and name not in self._cleaning:
            self._cleaning.add(name)
            self._spawn(self._clean(name))
        wanted = self._status(definition)
        if wanted != definition.get("status"):
            # Served before the write is answered to anybody who waits for the condition.
            self._serve(name, kinds({**definition, "status": wanted}))
            with contextlib.suppress(Failure):
                await self._registry.update(DEFINITIONS, "", name, self._with_status)
            return
        self._serve(name, kinds(definition))

    async def _settle_waiting(self) -> None:
        """Names that were taken may be free by now."""
        for stored in self._registry.storage.list(GROUP, PLURAL).items:
            if not condition(stored.object, "NamesAccepted"):
                await self._settle(stored.object)

    def _with_status(self, definition: Object) -> Object:
        return {**definition, "status": self._status(definition)}

    def _serve(self, name: str, wanted: list[Kind]) -> None:
        before = self._served.pop(name, [])
        ids = {(kind.group, kind.version, kind.plural) for kind in wanted}
        for kind in before:
            if (kind.group, kind.version, kind.plural) not in ids:
                self._registry.remove(kind)
        for kind in wanted:
            self._registry.add(kind)
        if wanted:
            self._served[name] = wanted

    def _status(self, definition: Object) -> Object:
        """The status that the definition should have now."""
        spec, held = definition["spec"], definition.get("status") or {}
        taken = self._taken(definition)
        conditions = list(held.get("conditions") or [])
        if taken:
            _set(conditions, "NamesAccepted", "False", taken[0], taken[1])
            if not any(one["type"] == "Established" for one in conditions):
                _set(conditions, "Established", "False", "NotAccepted", "not all names are accepted")
        else:
            _set(conditions, "NamesAccepted", "True", "NoConflicts", "no conflicts found")
            told = "the initial names have been accepted"
            _set(conditions, "Established", "True", "InitialNamesAccepted", told)
        if definition["metadata"].get("deletionTimestamp"):
            told = "CustomResource deletion is in progress"
            _set(conditions, "Terminating", "True", "InstanceDeletionInProgress", told)
        stored = list(held.get("storedVersions") or [])
        for version in spec["versions"]:
            if version["storage"] and version["name"] not in stored:
                stored.append(version["name"])
        accepted = (held.get("acceptedNames") or {"plural": "", "kind": ""}) if taken else spec["names"]
        return {**held, "conditions": conditions, "acceptedNames": accepted, "storedVersions": stored}

    def _taken(self, definition: Object) -> tuple[str, str] | None:
        """The reason and words if another resource of the group has one of the names."""
        spec = definition["spec"]
        names = spec["names"]
        own = (spec["group"], names["plural"])
        others = [
            kind
            for kind in self._registry.kinds
            if kind.group == own[0] and (kind.storage != own or not kind.custom)
        ]
        known = {name for kind in others for name in (kind.plural, kind.single, *kind.short_names)}
        for field, reason in (("plural", "PluralConflict"), ("singular", "SingularConflict")):
            if names.get(field) in known:
                return reason, f'"{names[field]}" is already in use'
        for short in names.get("shortNames") or []:
            if short in known:
                return "ShortNamesConflict", f'"{short}" is already in use'
        types = {name for kind in others for name in (kind.kind, kind.lists)}
        for field, reason in (("kind", "KindConflict"), ("listKind", "ListKindConflict")):
            if names.get(field) in types:
                return reason, f'"{names[field]}" is already in use'
        return None

    async def _clean(self, name: str) -> None:
        """Delete all objects of a definition, then let it go."""
        registry = self._registry
        try:
            definition = registry.get(DEFINITIONS, "", name).object
            group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
            served = self._served.get(name) or kinds(definition)
            # Objects may have finalizers, and one may come from a create that was under way.
            watch = registry.storage.watch(group, plural, since=registry.storage.revision)
            try:
                while served and await self._delete_objects(served[0]):
                    if not await watch.batch():
                        return
            finally:
                watch.close()
            await registry.update(DEFINITIONS, "", name, _released)
        except Failure as failure:
            log.warning("definition %s: %s", name, failure)
        finally:
            self._cleaning.discard(name)

    async def _delete_objects(self, kind: Kind) -> bool:
        """Delete all objects of a kind; whether some are left."""
        registry = self._registry
        for stored in registry.list(kind, None, ListOptions()).items:
            meta = stored.object["metadata"]
            if not meta.get("deletionTimestamp"):
                with contextlib.suppress(Failure):
                    await registry.delete(kind, meta.get("namespace") or "", meta["name"], DeleteOptions())
        return bool(registry.list(kind, None, ListOptions(limit=1)).items)


def _released(definition: Object) -> Object:
    finalizers = definition["metadata"].get("finalizers") or []
    definition["metadata"]["finalizers"] = [one for one in finalizers if one != FINALIZER]
    return definition


def _set(conditions: list[Object], kind: str, value: str, reason: str, message: str) -> None:
    for index, one in enumerate(conditions):
        if one["type"] == kind:
            if (one["status"], one.get("reason")) != (value, reason):
                time = one["lastTransitionTime"] if one["status"] == value else metadata.now()
                conditions[index] = {**_made(kind, value, reason, message), "lastTransitionTime": time}
            return
    conditions.append(_made(kind, value, reason, message))


def _made(kind: str, value: str, reason: str, message: str) -> Object:
    return {
        "type": kind,
        "status": value,
        "lastTransitionTime": metadata.now(),
        "reason": reason,
        "message": message,
    }
