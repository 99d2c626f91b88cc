"""Writes what becomes of pods back to the API server, and lets go of pods that were deleted and are gone.

A pod is deleted in this order: its containers are stopped, its network is taken down, its last status is
written, and then the object goes (grace 0, with its UID as precondition).
Source: k8s.io/kubernetes pkg/kubelet/status/status_manager.go.
"""

from __future__ import annotations

import logging

from podwire.kube.client import Client
from podwire.kube.defaults import CONFIG_HASH, CONFIG_MIRROR
from podwire.kube.errors import Conflict, KubeError, NotFound
from podwire.kube.objects import Pod
from podwire.kube.ratelimit import Priority
from podwire.kube.resource import PODS
from podwire.node.apipods import ApiPods
from podwire.node.board import WatchTooSlow
from podwire.node.keyed import KeyedWork
from podwire.node.service import Node
from podwire.node.statuspatch import status_patch
from podwire.sources.mux import is_mirror, is_static

_log = logging.getLogger(__name__)

SPACING = 0.1
"""Seconds between two writes about one pod at least: what happens in between is one write."""


class StatusWriter:
    """Follows the node's board and the server's pods. A static pod's status goes to its mirror pod."""

    def __init__(self, client: Client, api: ApiPods, node: Node) -> None:
        self._client = client
        self._api = api
        self._node = node
        self._written: dict[str, tuple[Pod, Pod]] = {}
        """By UID: the pod as a write left it, and the one that the list held at that time."""
        self._work = KeyedWork(self._sync, node.clock, failed=self._failed, spacing=SPACING)
        api.subscribe(self._heard)
        node.subscribe(lambda uid, _: self._work.mark(uid))

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                for pod in self._node.pods():
                    self._work.mark(pod.metadata.uid)
                for pod in self._api.all():
                    self._mark(pod)
                try:
                    async with self._node.board.feed.watch() as watch:
                        async for change in watch:
                            self._work.mark(change.object.metadata.uid)
                    return
                except WatchTooSlow:
                    continue
        finally:
            await self._work.close()

    def _heard(self, changed: list[Pod]) -> None:
        for pod in changed:
            if self._api.get(pod.metadata.uid) is None:
                self._written.pop(pod.metadata.uid, None)
            self._mark(pod)

    def _mark(self, pod: Pod) -> None:
        """Look again at the pod, or at the static one that it is the mirror of."""
        if not is_mirror(pod):
            self._work.mark(pod.metadata.uid)
            return
        static = self._node.board.find(*pod.full_name.split("/", 1))
        if static is not None:
            self._work.mark(static.metadata.uid)

    async def _sync(self, uid: str) -> None:
        shown = self._node.board.get(uid)
        if shown is not None:
            await self._write(uid, shown)
        elif (pod := self._deleted(uid)) is not None:
            last = self._node.board.last(uid)
            if last is None or await self._write(uid, last):
                await self._let_go(pod)

    async def _write(self, uid: str, shown: Pod) -> bool:
        """Write the status; False if something else was written meanwhile and this is to be tried again."""
        target = self._target(shown)
        patch = None if target is None else status_patch(target, shown.status)
        if target is None or patch is None:
            return True
        name, namespace = target.metadata.name, target.metadata.namespace
        try:
            left = await self._client.patch(
                PODS, patch, name, namespace, subresource="status", priority=Priority.URGENT
            )
        except NotFound:
            return True
        except Conflict:
            # Something else was written: by that, or over a pod of the same name.
            left = await self._client.get(PODS, name, namespace)
            if left.metadata.uid != target.metadata.uid:
                return True
            self._remember(left)
            self._work.mark(uid)
            return False
        self._remember(left)
        return True

    def _remember(self, left: Pod) -> None:
        listed = self._api.get(left.metadata.uid)
        if listed is not None:
            self._written[left.metadata.uid] = (left, listed)

    def _target(self, shown: Pod) -> Pod | None:
        """The server's object that tells of the pod, as far as it is known to be."""
        found = self._api.find(shown.full_name)
        if found is None:
            return None
        if is_static(shown):
            config_hash = shown.metadata.annotations.get(CONFIG_HASH)
            if not is_mirror(found) or found.metadata.annotations.get(CONFIG_MIRROR) != config_hash:
                return None
        elif found.metadata.uid != shown.metadata.uid:
            return None
        left, listed = self._written.get(found.metadata.uid, (found, found))
        return left if listed is found else found

    def _deleted(self, uid: str) -> Pod | None:
        """The server's pod, if it was deleted and the node has nothing more of it."""
        pod = self._api.get(uid)
        if pod is None or is_mirror(pod) or pod.metadata.deletion_timestamp is None:
            return None
        return pod if self._node.released(uid) else None

    async def _let_go(self, pod: Pod) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(
                PODS, meta.name, meta.namespace, uid=meta.uid, grace=0, priority=Priority.URGENT
            )
        except (NotFound, Conflict):
            return

    def _failed(self, uid: str, error: KubeError, failures: int) -> None:
        level = logging.WARNING if failures <= 3 else logging.DEBUG
        _log.log(level, "status of pod %s: try %d: %s", uid, failures, error)
