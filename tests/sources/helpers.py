"""Pods, snapshots and a running file source for the tests of podwire.sources."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from podwire.kube.objects import Container, ObjectMeta, Pod, PodSpec, PodStatus
from podwire.sources.file import FileSource
from podwire.sources.problems import SourceProblem
from podwire.sources.updates import Snapshot

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: main
    command: [sleep, "{seconds}"]
"""


def manifest(name: str, seconds: int = 1) -> str:
    return MANIFEST.format(name=name, seconds=seconds)


def pod(
    uid: str,
    name: str = "",
    *,
    image: str = "",
    phase: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleted: str | None = None,
    grace: int | None = None,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name or uid,
            namespace="default",
            uid=uid,
            labels=labels or {},
            annotations=annotations or {},
            deletion_timestamp=deleted,
            deletion_grace_period_seconds=grace,
        ),
        spec=PodSpec(containers=[Container(name="a", image=image)]),
        status=PodStatus(phase=phase),
    )


def snapshot(source: str, *pods: Pod) -> Snapshot:
    return Snapshot(source, pods)


class Watched:
    """The snapshots that a running source gave, and a way to wait for the next ones."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._new = asyncio.Event()

    def emit(self, given: Snapshot) -> None:
        self.snapshots.append(given)
        self._new.set()

    @property
    def last(self) -> Snapshot:
        return self.snapshots[-1]

    def names(self) -> list[str]:
        return [p.metadata.name for p in self.last.pods]

    def problems(self) -> list[SourceProblem]:
        return list(self.last.problems)

    async def until(self, true: Callable[[Snapshot], bool], timeout: float = 5.0) -> Snapshot:
        """The first snapshot, from the last one on, for which ``true`` holds."""
        async with asyncio.timeout(timeout):
            seen = max(0, len(self.snapshots) - 1)
            while True:
                for given in self.snapshots[seen:]:
                    seen += 1
                    if true(given):
                        return given
                self._new.clear()
                await self._new.wait()

    async def until_names(self, *names: str) -> Snapshot:
        return await self.until(lambda s: [p.metadata.name for p in s.pods] == list(names))


@contextlib.asynccontextmanager
async def running(
    paths: str | Path | Iterable[str | Path], poll_interval: float = 60.0
) -> AsyncIterator[Watched]:
    """A file source that runs; the first snapshot is there."""
    watched = Watched()
    task = asyncio.create_task(FileSource(paths, "node", poll_interval).run(watched.emit))
    try:
        waiting = asyncio.create_task(watched.until(lambda _: True))
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        await waiting
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
