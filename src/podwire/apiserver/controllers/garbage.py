"""The garbage collector: what belongs to an owner that is gone goes too.

Every change of every object is seen, so the graph of owners is always that of the storage and nothing has to
be asked for. Source: k8s.io/kubernetes/pkg/controller/garbagecollector.
"""

from __future__ import annotations

from typing import Any

from podwire.apiserver.controllers.work import Work
from podwire.apiserver.deletion import FOREGROUND, ORPHAN, DeleteOptions
from podwire.apiserver.kind import Kind
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Change, Key, Stored
from podwire.serving.status import Failure

Object = dict[str, Any]


class Garbage:
    """Deletes dependents of what is gone, and carries out foreground and orphan deletions."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._work: Work[Key] = Work("garbage collector", self._sync)
        self._live: dict[str, Key] = {}
        self._dependents: dict[str, set[Key]] = {}
        for key, stored in registry.storage.everything():
            self._note(key, None, stored)
        registry.storage.listen(self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._work.run()

    def _changed(self, change: Change) -> None:
        self._note(change.key, change.before, change.after)

    def _note(self, key: Key, before: Stored | None, after: Stored | None) -> None:
        had = set() if before is None else _owners(before)
        has = set() if after is None else _owners(after)
        for uid in had - has:
            kept = self._dependents.get(uid, set())
            kept.discard(key)
            if not kept:
                self._dependents.pop(uid, None)
            # An owner that waits in the foreground may have waited for this one.
            if uid in self._live:
                self._work.add(self._live[uid])
        for uid in has:
            self._dependents.setdefault(uid, set()).add(key)
        for state, live in ((before, False), (after, True)):
            uid = "" if state is None else state.meta.uid
            if not uid:
                continue
            if live:
                self._live[uid] = key
            elif after is None or after.meta.uid != uid:
                self._live.pop(uid, None)
                for dependent in self._dependents.get(uid, ()):
                    self._work.add(dependent)
        if after is not None and (has or _waits(after)):
            self._work.add(key)
        if after is not None and after.meta.deletion_timestamp:
            for uid in has & self._live.keys():
                self._work.add(self._live[uid])

    async def _sync(self, key: Key) -> None:
        stored = self._registry.storage.get(key)
        kind = self._kind(key)
        if stored is None or kind is None:
            return
        obj = stored.object
        try:
            if obj["metadata"].get("deletionTimestamp"):
                finalizers = obj["metadata"].get("finalizers") or []
                if ORPHAN in finalizers:
                    await self._orphan(kind, key, obj)
                elif FOREGROUND in finalizers:
                    await self._foreground(kind, key, obj)
            else:
                await self._judge(kind, key, obj)
        except Failure as failure:
            if failure.reason not in ("NotFound", "Conflict"):
                raise

    def _kind(self, key: Key) -> Kind | None:
        found = (k for k in self._registry.kinds if k.stored_as is None)
        return next((k for k in found if (k.group, k.plural) == (key.group, key.plural)), None)

    async def _judge(self, kind: Kind, key: Key, obj: Object) -> None:
        """Delete the object if all of its owners are gone; else drop the references to those that are."""
        owners = obj["metadata"].get("ownerReferences") or []
        gone, waiting = [], []
        for owner in owners:
            state = self._owner(owner, key)
            if state is False:
                gone.append(owner)
            elif state is True:
                waiting.append(owner)
        if not gone and not waiting:
            return
        uid = obj["metadata"]["uid"]
        if len(gone) + len(waiting) == len(owners):
            policy = "Foreground" if waiting and self._dependents.get(uid) else "Background"
            finalizers = obj["metadata"].get("finalizers") or []
            if ORPHAN in finalizers:
                policy = "Orphan"
            elif FOREGROUND in finalizers:
                policy = "Foreground"
            options = DeleteOptions(propagation=policy, uid=uid)
            await self._registry.delete(kind, key.namespace, key.name, options)
        elif gone:
            dead = {owner["uid"] for owner in gone}
            await self._registry.update(kind, key.namespace, key.name, lambda o: _without_owners(o, dead))

    def _owner(self, owner: Object, of: Key) -> bool | None:
        """None: the owner lives, or is not for us to judge; False: it is gone; True: it waits for this."""
        kind = self._registry.of_kind(owner.get("apiVersion", ""), owner.get("kind", ""))
        if kind is None:
            return None
        key = self._live.get(owner.get("uid", ""))
        expected = self._registry.key(kind, of.namespace, owner.get("name", ""))
        if key is None or key != expected:
            return False
        stored = self._registry.storage.get(key)
        if stored is None:
            return False
        meta = stored.object["metadata"]
        foreground = meta.get("deletionTimestamp") and FOREGROUND in (meta.get("finalizers") or [])
        return True if foreground else None

    async def _foreground(self, kind: Kind, key: Key, obj: Object) -> None:
        blocking = False
        for dependent in tuple(self._dependents.get(obj["metadata"]["uid"], ())):
            self._work.add(dependent)
            stored = self._registry.storage.get(dependent)
            if stored is None:
                continue
            for owner in stored.object["metadata"].get("ownerReferences") or []:
                if owner.get("uid") == obj["metadata"]["uid"] and owner.get("blockOwnerDeletion"):
                    blocking = True
        if not blocking:
            await self._registry.update(
                kind, key.namespace, key.name, lambda o: _without_finalizer(o, FOREGROUND)
            )

    async def _orphan(self, kind: Kind, key: Key, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        for dependent in tuple(self._dependents.get(uid, ())):
            below = self._kind(dependent)
            if below is None:
                continue
            try:
                await self._registry.update(
                    below, dependent.namespace, dependent.name, lambda o: _without_owners(o, {uid})
                )
            except Failure as failure:
                if failure.reason != "NotFound":
                    raise
        await self._registry.update(kind, key.namespace, key.name, lambda o: _without_finalizer(o, ORPHAN))


def _owners(stored: Stored) -> set[str]:
    return {str(owner.get("uid", "")) for owner in stored.meta.owner_references or ()}


def _waits(stored: Stored) -> bool:
    finalizers = stored.meta.finalizers or ()
    return bool(stored.meta.deletion_timestamp) and (ORPHAN in finalizers or FOREGROUND in finalizers)


def _without_owners(obj: Object, uids: set[str]) -> Object:
    meta = obj["metadata"]
    kept = [owner for owner in meta.get("ownerReferences") or [] if owner.get("uid") not in uids]
    if kept:
        meta["ownerReferences"] = kept
    else:
        meta.pop("ownerReferences", None)
    return obj


def _without_finalizer(obj: Object, name: str) -> Object:
    meta = obj["metadata"]
    kept = [one for one in meta.get("finalizers") or [] if one != name]
    if kept:
        meta["finalizers"] = kept
    else:
        meta.pop("finalizers", None)
    return obj
