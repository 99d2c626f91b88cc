"""The mux: full snapshots of each source in, an ordered stream of changes out.

A pod is known by its UID within its source; under another name it is another pod. The annotations
config.source, config.seen and config.mirror do not count in comparisons; config.seen keeps the time of first
sight.
Source: k8s.io/kubernetes pkg/kubelet/config/config.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from msgspec.structs import replace

from podwire.kube.defaults import CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE
from podwire.kube.objects import Pod
from podwire.sources.problems import Problems, Reason, SourceProblem
from podwire.sources.updates import Op, PodUpdate, Snapshot

_LOCAL = (CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR)


class Mode(StrEnum):
    """How changes are told.

    INCREMENTAL: each change by its operation. SNAPSHOT: every change as SET of all pods of all sources.
    SNAPSHOT_AND_UPDATES: SET when pods come or go, else UPDATE and DELETE.
    """

    INCREMENTAL = "incremental"
    SNAPSHOT = "snapshot"
    SNAPSHOT_AND_UPDATES = "snapshot-and-updates"


class UnknownSource(ValueError):
    """A snapshot from a source that the mux was not made for."""


class Mux:
    """Merges the snapshots of the named sources. Only these count: ``seen_all`` waits for no other.

    Used from one event loop: sources call ``merge``, one reader iterates over ``updates``.
    """

    def __init__(
        self,
        *sources: str,
        mode: Mode = Mode.INCREMENTAL,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.problems = Problems()
        self._mode = mode
        self._now = now
        self._pods: dict[str, dict[str, Pod]] = {name: {} for name in sources}
        self._merged: set[str] = set()
        self._handled: set[str] = set()
        self._all_handled = asyncio.Event()
        if not sources:
            self._all_handled.set()
        self._queue: asyncio.Queue[tuple[PodUpdate, bool]] = asyncio.Queue()

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the configured sources."""
        return tuple(self._pods)

    def merge(self, snapshot: Snapshot) -> tuple[PodUpdate, ...]:
        """Take in what a source has now; the updates are queued for the reader and returned."""
        if snapshot.source not in self._pods:
            known = ", ".join(self._pods)
            raise UnknownSource(f'"{snapshot.source}" is not a configured source: {known}')
        pods, duplicates = _unique(snapshot)
        self.problems.replace(snapshot.source, [*snapshot.problems, *duplicates])
        changes = self._diff(snapshot.source, pods)
        first = snapshot.complete and snapshot.source not in self._merged
        if snapshot.complete:
            self._merged.add(snapshot.source)
        updates = self._told(snapshot.source, changes, first)
        for index, update in enumerate(updates):
            self._queue.put_nowait((update, first and index == len(updates) - 1))
        return updates

    async def updates(self) -> AsyncGenerator[PodUpdate, None]:
        """The changes in order. Asking for the next one says that the last one has been handled."""
        while True:
            update, completes = await self._queue.get()
            yield update
            if completes:
                self._handled.add(update.source)
                if len(self._handled) == len(self._pods):
                    self._all_handled.set()

    def seen_all(self) -> bool:
        """Whether each configured source has been merged, and its first state handled by the reader.

        Until then nothing that is not in ``pods`` may be removed: it may still come.
        """
        return self._all_handled.is_set()

    async def sources_ready(self) -> None:
        """Wait for ``seen_all``."""
        await self._all_handled.wait()

    def pods(self) -> tuple[Pod, ...]:
        """All pods of all sources, in the order of the sources."""
        return tuple(pod for pods in self._pods.values() for pod in pods.values())

    def _diff(self, source: str, pods: Iterable[Pod]) -> Mapping[Op, list[Pod]]:
        before, after = self._pods[source], {}
        changes: dict[Op, list[Pod]] = {op: [] for op in _ORDER}
        for new in pods:
            known = before.get(new.metadata.uid)
            if known is not None and known.full_name != new.full_name:
                changes[Op.REMOVE].append(known)
                known = None
            pod = _annotated(new, source, known, self._now)
            op = Op.ADD if known is None else _change(known, pod)
            if op is not None:
                changes[op].append(pod)
            after[pod.metadata.uid] = pod if op is not None or known is None else known
        changes[Op.REMOVE].extend(pod for uid, pod in before.items() if uid not in after)
        self._pods[source] = after
        return changes

    def _told(self, source: str, changes: Mapping[Op, list[Pod]], first: bool) -> tuple[PodUpdate, ...]:
        moved = bool(changes[Op.ADD] or changes[Op.REMOVE] or first)
        whole = (PodUpdate(Op.SET, self.pods(), source),)
        if self._mode is Mode.SNAPSHOT:
            return whole if moved or any(changes.values()) else ()
        if self._mode is Mode.SNAPSHOT_AND_UPDATES and moved:
            return whole
        told = [PodUpdate(op, tuple(changes[op]), source) for op in _ORDER if changes[op]]
        if self._mode is Mode.SNAPSHOT_AND_UPDATES:
            told = [update for update in told if update.op is not Op.RECONCILE]
        if first and not any(update.op in (Op.ADD, Op.UPDATE, Op.DELETE) for update in told):
            told.append(PodUpdate(Op.ADD, (), source))
        return tuple(told)


_ORDER = (Op.REMOVE, Op.ADD, Op.UPDATE, Op.DELETE, Op.RECONCILE)


def is_static(pod: Pod) -> bool:
    """Whether the pod comes from elsewhere than the API."""
    source = pod.metadata.annotations.get(CONFIG_SOURCE)
    return source is not None and source != "api"


def is_mirror(pod: Pod) -> bool:
    """Whether the pod is the API's picture of a static pod."""
    return CONFIG_MIRROR in pod.metadata.annotations


def _unique(snapshot: Snapshot) -> tuple[list[Pod], list[SourceProblem]]:
    pods: dict[str, Pod] = {}
    uids: set[str] = set()
    problems = []
    for pod in snapshot.pods:
        name, uid = pod.full_name, pod.metadata.uid
        if name in pods or uid in uids:
            what = f'pod "{name}"' if name in pods else f'a pod with UID "{uid}"'
            message = f"{what} is here twice: the first one is used"
            problems.append(
                SourceProblem(snapshot.source, "", None, Reason.FAILED_VALIDATION, message, pod=name)
            )
            continue
        pods[name] = pod
        uids.add(uid)
    return list(pods.values()), problems


def _annotated(pod: Pod, source: str, known: Pod | None, now: Callable[[], datetime]) -> Pod:
    seen = known.metadata.annotations[CONFIG_SEEN] if known else now().isoformat().replace("+00:00", "Z")
    annotations = {**pod.metadata.annotations, CONFIG_SOURCE: source, CONFIG_SEEN: seen}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def _change(known: Pod, new: Pod) -> Op | None:
    if _meaning(known) == _meaning(new):
        return None if known.status == new.status else Op.RECONCILE
    return Op.DELETE if new.metadata.deletion_timestamp else Op.UPDATE


def _meaning(pod: Pod) -> tuple[object, ...]:
    """What makes an update when it differs."""
    metadata = pod.metadata
    annotations = {key: value for key, value in metadata.annotations.items() if key not in _LOCAL}
    return (
        pod.spec,
        metadata.labels,
        metadata.deletion_timestamp,
        metadata.deletion_grace_period_seconds,
        annotations,
    )
