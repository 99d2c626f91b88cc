"""Mirror pods: the API server's pictures of static pods, which nobody can change the pods by.

A mirror pod has the static pod's name and namespace, its config.hash as annotation config.mirror, and the
Node as owner. One that is deleted comes back; one that is ending or shows another manifest is deleted
(grace 0, with its UID as precondition) and made again; one whose static pod is gone goes. Containers are not
touched.
Source: k8s.io/kubernetes pkg/kubelet/pod/mirror_client.go, kubelet.go (reconcileMirrorPod).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from msgspec.structs import replace

from podwire.kube.client import Client
from podwire.kube.defaults import CONFIG_HASH, CONFIG_MIRROR
from podwire.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from podwire.kube.objects import Container, ObjectMeta, OwnerReference, Pod, PodStatus
from podwire.kube.resource import NAMESPACES, PODS
from podwire.node.apipods import ApiPods
from podwire.node.events import WARNING
from podwire.node.keyed import KeyedWork
from podwire.node.registration import Registration
from podwire.node.service import Node
from podwire.sources.mux import is_mirror, is_static

_log = logging.getLogger(__name__)

SPACING = 0.2
"""Seconds between two writes of one mirror pod at least, whoever keeps deleting it."""
RECHECK = 10.0
NO_IMAGE = "none"
"""What mirror pods show as the image of a container that runs a program of this machine."""


class MirrorPods:
    """Keeps the server's mirror pods as the node's static pods are, one name at a time."""

    def __init__(
        self,
        client: Client,
        api: ApiPods,
        node: Node,
        registration: Registration,
        *,
        make_namespaces: bool = False,
    ) -> None:
        self._make_namespaces = make_namespaces
        self._client = client
        self._api = api
        self._node = node
        self._registration = registration
        self._in_the_way: set[str] = set()
        self._work = KeyedWork(self._sync, node.clock, failed=self._failed, spacing=SPACING)
        api.subscribe(lambda changed: self._mark(pod.full_name for pod in changed))
        node.subscribe(lambda _, full_name: self._mark([full_name]))
        registration.renewed = self._mark_all

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._registration.known.wait()
            await self._api.synced.wait()
            while True:
                self._mark_all()
                if self._node.mux.seen_all():
                    await self._node.clock.sleep(RECHECK)
                else:
                    await self._node.mux.sources_ready()
        finally:
            await self._work.close()

    def _mark_all(self) -> None:
        self._mark(pod.full_name for pod in (*self._api.all(), *self._node.mux.pods()))

    def _mark(self, names: Iterable[str]) -> None:
        if self._registration.known.is_set() and self._api.synced.is_set():
            for full_name in names:
                self._work.mark(full_name)

    async def _sync(self, full_name: str) -> None:
        static, there = self._static(full_name), self._api.find(full_name)
        if there is not None and not is_mirror(there):
            if static is not None and full_name not in self._in_the_way:
                self._in_the_way.add(full_name)
                text = "the API server has another pod of this name: there is no mirror pod"
                self._node.recorder.pod(static, WARNING, "FailedMirrorPod", text)
            return
        self._in_the_way.discard(full_name)
        if static is None:
            # Without all sources nobody knows whether the static pod is still to come.
            if there is not None and self._node.mux.seen_all() and not self._shown(full_name):
                await self._delete(there)
            return
        if there is not None:
            if self._is_right(there, static):
                return
            await self._delete(there)
        await self._create(static)

    def _static(self, full_name: str) -> Pod | None:
        """The static pod that runs under the name, or is next to."""
        wanted = [p for p in self._node.mux.pods() if p.full_name == full_name and is_static(p)]
        current = self._node.current(full_name)
        first = next((p for p in wanted if current is not None and p is current), None)
        return first or next(iter(wanted), None)

    def _shown(self, full_name: str) -> bool:
        """Whether a static pod of the name is still being taken down."""
        return any(pod.full_name == full_name and is_static(pod) for pod in self._node.pods())

    def _is_right(self, mirror: Pod, static: Pod) -> bool:
        metadata = mirror.metadata
        return (
            metadata.deletion_timestamp is None
            and metadata.annotations.get(CONFIG_MIRROR) == static.metadata.annotations.get(CONFIG_HASH)
            and any(owner.uid == self._registration.uid for owner in metadata.owner_references)
        )

    async def _delete(self, mirror: Pod) -> None:
        metadata = mirror.metadata
        try:
            await self._client.delete(PODS, metadata.name, metadata.namespace, uid=metadata.uid, grace=0)
        except (NotFound, Conflict):
            return

    async def _create(self, static: Pod) -> None:
        mirror = mirror_of(static, self._registration.owner())
        namespace = static.metadata.namespace
        try:
            await self._client.create(PODS, mirror, namespace)
        except AlreadyExists:
            # The list will tell what is there.
            return
        except NotFound:
            if not self._make_namespaces:
                raise
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            with contextlib.suppress(AlreadyExists):
                await self._client.create(NAMESPACES, body)
            await self._client.create(PODS, mirror, namespace)

    def _failed(self, full_name: str, error: KubeError, failures: int) -> None:
        level = logging.WARNING if failures <= 3 else logging.DEBUG
        _log.log(level, "mirror pod %s: try %d: %s", full_name, failures, error)


def mirror_of(static: Pod, owner: OwnerReference) -> Pod:
    """The mirror pod of a static pod."""
    metadata = static.metadata
    annotations = {**metadata.annotations, CONFIG_MIRROR: metadata.annotations[CONFIG_HASH]}
    return replace(
        static,
        metadata=ObjectMeta(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            annotations=annotations,
            owner_references=[owner],
        ),
        spec=replace(
            static.spec,
            containers=[_with_image(each) for each in static.spec.containers],
            init_containers=[_with_image(each) for each in static.spec.init_containers],
        ),
        status=PodStatus(),
    )


def _with_image(container: Container) -> Container:
    """API servers refuse a container without an image, which static pods may have here."""
    return container if container.image else replace(container, image=NO_IMAGE)
