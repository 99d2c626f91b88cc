"""Namespaces: those that must be there, the service account of each, and emptying those that are deleted.

Source: k8s.io/kubernetes/pkg/controller/namespace/deletion, pkg/controller/serviceaccount.
"""

from __future__ import annotations

from typing import Any

from podwire.apiserver.controllers.work import Work
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.reading import ListOptions
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Change
from podwire.serving.status import Failure

Object = dict[str, Any]

ALWAYS = ("default", "kube-node-lease", "kube-public", "kube-system")
_ACCOUNT = "default"


class Namespaces:
    """Keeps each namespace furnished while it lives, and empties it when it is deleted."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._work: Work[str] = Work("namespaces", self._sync)
        registry.storage.listen(self._changed)
        for stored in registry.storage.list("", "namespaces").items:
            self._work.add(stored.object["metadata"]["name"])

    async def furnish(self) -> None:
        """Make the namespaces that must be there."""
        kind = self._registry.lookup("", "v1", "namespaces")
        assert kind is not None
        for name in ALWAYS:
            try:
                await self._registry.create(kind, "", {"metadata": {"name": name}}, WriteOptions())
            except Failure as failure:
                if failure.reason != "AlreadyExists":
                    raise

    async def run(self) -> None:
        """Work until cancelled."""
        await self._work.run()

    def _changed(self, change: Change) -> None:
        key = change.key
        if (key.group, key.plural) == ("", "namespaces"):
            if change.after is not None:
                self._work.add(key.name)
        elif key.namespace and change.after is None:
            namespace = self._get(key.namespace)
            # The last object of a namespace that is being emptied, or the account that every one has.
            if (namespace is not None and namespace["metadata"].get("deletionTimestamp")) or (
                (key.group, key.plural, key.name) == ("", "serviceaccounts", _ACCOUNT)
            ):
                self._work.add(key.namespace)

    def _get(self, name: str) -> Object | None:
        kind = self._registry.lookup("", "v1", "namespaces")
        assert kind is not None
        stored = self._registry.storage.get(self._registry.key(kind, "", name))
        return None if stored is None else stored.object

    async def _sync(self, name: str) -> None:
        namespace = self._get(name)
        if namespace is None:
            return
        if not namespace["metadata"].get("deletionTimestamp"):
            await self._account(name)
        elif (namespace.get("spec") or {}).get("finalizers") and await self._empty(name):
            kind = self._registry.lookup("", "v1", "namespaces")
            assert kind is not None
            try:
                await self._registry.update(kind, "", name, _finalized)
            except Failure as failure:
                if failure.reason != "NotFound":
                    raise

    async def _account(self, namespace: str) -> None:
        kind = self._registry.lookup("", "v1", "serviceaccounts")
        assert kind is not None
        if self._registry.storage.get(self._registry.key(kind, namespace, _ACCOUNT)) is None:
            try:
                await self._registry.create(
                    kind, namespace, {"metadata": {"name": _ACCOUNT}}, WriteOptions(user="system")
                )
            except Failure as failure:
                if failure.reason not in ("AlreadyExists", "Forbidden", "NotFound"):
                    raise

    async def _empty(self, namespace: str) -> bool:
        """Delete what is in the namespace; whether nothing is left."""
        empty = True
        for kind in self._registry.kinds:
            if not kind.namespaced or kind.stored_as is not None or "delete" not in kind.verbs:
                continue
            found = self._registry.list(kind, namespace, ListOptions()).items
            for stored in found:
                if stored.object["metadata"].get("deletionTimestamp"):
                    empty = False
                    continue
                try:
                    name = stored.object["metadata"]["name"]
                    options = DeleteOptions(propagation="Background")
                    _, gone = await self._registry.delete(kind, namespace, name, options)
                except Failure as failure:
                    if failure.reason != "NotFound":
                        raise
                else:
                    empty = empty and gone
        return empty


def _finalized(namespace: Object) -> Object:
    spec = namespace.get("spec") or {}
    kept = [name for name in spec.get("finalizers") or [] if name != "kubernetes"]
    namespace["spec"] = {**spec, "finalizers": kept} if kept else {}
    return namespace
