"""Pods and nodes for the tests of the node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from podwire.kube.objects import Pod
from podwire.node.clock import SECOND, Clock, SystemClock
from podwire.node.observed import Observed, View
from podwire.node.service import Node
from podwire.runtime.api import (
    ContainerMetadata,
    ContainerState,
    ContainerStatus,
    NetworkMode,
    SandboxMetadata,
    SandboxState,
    SandboxStatus,
)
from podwire.runtime.fake import FakeRuntime
from podwire.sources.mux import Mux
from podwire.sources.updates import Snapshot

NOW = 1_750_000_000 * SECOND
CREATED, RUNNING, EXITED, UNKNOWN = ContainerState


def sandbox(attempt: int = 0, **fields: Any) -> SandboxStatus:
    """A sandbox of the pod ``web`` that is as it should be, unless its fields say otherwise."""
    values: dict[str, Any] = {
        "id": f"s{attempt}",
        "metadata": SandboxMetadata("web", "uid-web", "default", attempt),
        "state": SandboxState.READY,
        "created_at": NOW - 1000 * SECOND + attempt,
        "network": NetworkMode.POD,
        "ips": ("10.88.0.2",),
        "labels": {},
        "annotations": {},
    }
    return SandboxStatus(**{**values, **fields})


def status(name: str, state: ContainerState = RUNNING, attempt: int = 0, **fields: Any) -> ContainerStatus:
    """A container of ``s0``; one that has ended did so 5 s ago, by itself."""
    values: dict[str, Any] = {
        "id": f"{name}-{attempt}",
        "sandbox_id": "s0",
        "metadata": ContainerMetadata(name, attempt),
        "state": state,
        "created_at": NOW - 500 * SECOND + attempt,
        "started_at": NOW - 500 * SECOND if state != CREATED else 0,
        "finished_at": NOW - 5 * SECOND if state == EXITED else 0,
    }
    return ContainerStatus(**{**values, **fields})


def view(made: Pod, sandboxes: list[SandboxStatus], containers: list[ContainerStatus], **more: Any) -> View:
    """What there is of a pod at ``NOW``."""
    return View(made, Observed(tuple(sandboxes), tuple(containers)), NOW, **more)


HOST_IPS = ("192.0.2.10", "2001:db8::10")


def pod(name: str = "web", *, uid: str = "", namespace: str = "default", **spec: Any) -> Pod:
    """A pod with one container ``main``, unless the spec says otherwise (API names)."""
    spec.setdefault("containers", [container("main")])
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        **spec.pop("metadata", {}),
    }
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": "node", **spec}}, Pod)


def container(name: str, **fields: Any) -> dict[str, Any]:
    """A container that runs /bin/true, unless its fields say otherwise."""
    return {"name": name, "command": ["/bin/true"], **fields}


class Bench:
    """A node over a fake runtime, and the one source that feeds it."""

    def __init__(
        self,
        root: Path,
        clock: Clock | None = None,
        runtime: FakeRuntime | None = None,
        *,
        source: str = "file",
    ) -> None:
        self._source = source
        self.clock: Clock = clock or SystemClock()
        self.runtime = runtime or FakeRuntime(self.clock)
        self.mux = Mux(source)
        self.node = Node(self.runtime, self.mux, "node", root=root, host_ips=HOST_IPS, clock=self.clock)

    def give(self, *pods: Pod) -> None:
        """These are all pods of the source now."""
        self.mux.merge(Snapshot(self._source, pods))

    def shown(self, name: str) -> Pod:
        """The pod as the node shows it; an empty one if it shows none."""
        return self.node.board.find("default", name) or Pod()

    def phase(self, name: str) -> str:
        """The pod's phase, empty if there is no such pod."""
        found = self.node.board.find("default", name)
        return found.status.phase if found is not None else ""

    def reasons(self, name: str) -> list[str]:
        """The reasons of the pod's events."""
        return [e.reason for e in self.node.events() if e.involved_object.name == name]

    async def until(self, what: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until something holds, on the machine's time."""
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not reached: {self.state()}"
            await asyncio.sleep(0.001)

    async def running(self, *names: str) -> None:
        """Wait until the pods are Running."""
        await self.until(lambda: all(self.phase(name) == "Running" for name in names))

    def state(self) -> str:
        """What there is, for a failed wait's message."""
        pods = [(p.metadata.name, p.status.phase, p.status.reason) for p in self.node.pods()]
        return f"{pods} {[(e.reason, e.message) for e in self.node.events()][-5:]}"


@asynccontextmanager
async def bench(
    root: Path, *, clock: Clock | None = None, runtime: FakeRuntime | None = None, source: str = "file"
) -> AsyncIterator[Bench]:
    """A running node; it is stopped at the end, and its runtime's state stays."""
    made = Bench(root, clock, runtime, source=source)
    task = asyncio.create_task(made.node.run())
    ready = asyncio.create_task(made.node.ready.wait())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield made
    finally:
        made.node.stop()
        await task
        await made.runtime.close()
