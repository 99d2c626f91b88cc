"""What the runtime has, kept up to date by its events, so that no worker has to list everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from podwire.node.observed import Observed
from podwire.runtime.api import (
    ContainerEvent,
    ContainerState,
    ContainerStatus,
    EventType,
    RuntimeService,
    SandboxStatus,
)
from podwire.runtime.errors import Code, RuntimeFault


@dataclass(slots=True)
class _Record:
    sandboxes: dict[str, SandboxStatus] = field(default_factory=dict)
    containers: dict[str, ContainerStatus] = field(default_factory=dict)
    view: Observed | None = None


_KNOWN_BY = {
    EventType.CREATED: (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED),
    EventType.STARTED: (ContainerState.RUNNING, ContainerState.EXITED),
    EventType.STOPPED: (ContainerState.EXITED,),
}
"""States of a container in which an event tells nothing new."""


class RuntimeCache:
    """Sandboxes and containers by pod UID.

    ``changed`` is called with the UID when something else than the caller's own refresh altered them.
    """

    def __init__(self, runtime: RuntimeService, changed: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._changed = changed
        self._pods: dict[str, _Record] = {}
        self._uid_of: dict[str, str] = {}
        self._gone: set[str] = set()
        self._touched: set[str] = set()

    def observed(self, uid: str) -> Observed:
        """What is there for the pod, as last seen."""
        record = self._pods.get(uid)
        if record is None:
            return Observed()
        if record.view is None:
            record.view = Observed(
                tuple(sorted(record.sandboxes.values(), key=lambda s: (s.metadata.attempt, s.created_at))),
                tuple(sorted(record.containers.values(), key=lambda c: (c.metadata.attempt, c.created_at))),
            )
        return record.view

    def uids(self) -> set[str]:
        """The pods of which the runtime has something."""
        return set(self._pods)

    async def refresh_sandbox(self, sandbox_id: str) -> None:
        """Look at one sandbox again."""
        try:
            status = await self._runtime.pod_sandbox_status(sandbox_id)
        except RuntimeFault as fault:
            if fault.code != Code.NOT_FOUND:
                raise
            self.drop_sandbox(sandbox_id)
        else:
            self._store_sandbox(status)

    async def refresh_container(self, container_id: str) -> None:
        """Look at one container again."""
        try:
            status = await self._runtime.container_status(container_id)
        except RuntimeFault as fault:
            if fault.code != Code.NOT_FOUND:
                raise
            self.drop_container(container_id)
        else:
            self._store_container(status)

    def drop_sandbox(self, sandbox_id: str) -> None:
        """The sandbox and its containers are gone."""
        self._note_gone(sandbox_id)
        uid = self._uid_of.pop(sandbox_id, None)
        if uid is None:
            return
        record = self._pods[uid]
        record.view = None
        record.sandboxes.pop(sandbox_id, None)
        for container_id in [c.id for c in record.containers.values() if c.sandbox_id == sandbox_id]:
            self.drop_container(container_id)
        if not record.sandboxes and not record.containers:
            del self._pods[uid]

    def drop_container(self, container_id: str) -> None:
        """The container is gone."""
        self._note_gone(container_id)
        uid = self._uid_of.pop(container_id, None)
        if uid is not None:
            self._pods[uid].view = None
            self._pods[uid].containers.pop(container_id, None)

    async def apply(self, event: ContainerEvent) -> None:
        """Take in an event of the runtime."""
        uid = event.metadata.uid
        identity = event.container_id
        of_sandbox = identity == event.sandbox_id
        if event.type == EventType.DELETED:
            if identity not in self._uid_of:
                return
            (self.drop_sandbox if of_sandbox else self.drop_container)(identity)
        elif identity in self._gone:
            return
        elif of_sandbox:
            before = self.observed(uid)
            await self.refresh_sandbox(identity)
            if self.observed(uid) == before:
                return
        else:
            record = self._pods.get(uid)
            known = record.containers.get(identity) if record is not None else None
            if known is not None and known.state in _KNOWN_BY[event.type]:
                return
            await self.refresh_container(identity)
        self._changed(uid)

    async def relist(self) -> None:
        """Compare with all that the runtime has; what changed meanwhile by other ways is left alone."""
        self._gone.clear()
        self._touched = set()
        sandboxes = await self._runtime.list_pod_sandbox()
        containers = await self._runtime.list_containers()
        touched = self._touched
        before = {uid: self.observed(uid) for uid in self._pods}
        listed = {s.id for s in sandboxes} | {c.id for c in containers}
        for sandbox in sandboxes:
            if sandbox.id not in touched:
                self._store_sandbox(sandbox)
        for container in containers:
            if container.id not in touched:
                self._store_container(container)
        for uid in list(self._pods):
            record = self._pods[uid]
            for container_id in [i for i in record.containers if i not in listed and i not in touched]:
                self.drop_container(container_id)
            for sandbox_id in [i for i in record.sandboxes if i not in listed and i not in touched]:
                self.drop_sandbox(sandbox_id)
        for uid in before.keys() | self._pods.keys():
            if before.get(uid, Observed()) != self.observed(uid):
                self._changed(uid)

    def _note_gone(self, identity: str) -> None:
        self._gone.add(identity)
        self._touched.add(identity)

    def _store_sandbox(self, status: SandboxStatus) -> None:
        if status.id in self._gone:
            return
        self._touched.add(status.id)
        self._uid_of[status.id] = status.metadata.uid
        record = self._pods.setdefault(status.metadata.uid, _Record())
        record.sandboxes[status.id] = status
        record.view = None

    def _store_container(self, status: ContainerStatus) -> None:
        uid = self._uid_of.get(status.sandbox_id)
        if uid is None or status.id in self._gone:
            return
        self._touched.add(status.id)
        record = self._pods[uid]
        known = record.containers.get(status.id)
        if known is not None and known.state > status.state and known.state != ContainerState.UNKNOWN:
            return
        self._uid_of[status.id] = uid
        record.containers[status.id] = status
        record.view = None
