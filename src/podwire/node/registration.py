"""The node's own objects on the API server: Node, with its status, and the Lease that says that it lives.

Source: k8s.io/kubernetes pkg/kubelet/kubelet_node_status.go, k8s.io/component-helpers/apimachinery/lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from podwire.kube.client import Client
from podwire.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from podwire.kube.lease import Lease, LeaseSpec
from podwire.kube.metadata import ObjectMeta, OwnerReference
from podwire.kube.ratelimit import Priority
from podwire.kube.resource import LEASES, NODES
from podwire.node import machine
from podwire.node.clock import SECOND
from podwire.node.service import Node
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import API

_log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW = 10.0
STATUS_CHECK = 10.0
"""Seconds between two looks at the node's status while all is well; a status that did not change is
written every ``HEARTBEAT`` seconds."""
UNREADY_CHECK = 1.0
HEARTBEAT = 300.0
_FIRST_DELAY, _LAST_DELAY = 0.2, 7.0


class Registration:
    """Makes the Node object if it is not there, keeps its status, renews the Lease."""

    def __init__(self, client: Client, node: Node) -> None:
        self.known = asyncio.Event()
        """Set once the server has the Node."""
        self.uid = ""
        self.renewed: Callable[[], None] = lambda: None
        """Called when the server's Node has become another one."""
        self._client = client
        self._node = node
        self._written: dict[str, Any] = {}
        self._written_at = float("-inf")

    def owner(self) -> OwnerReference:
        """The Node as the owner of mirror pods and of its Lease."""
        return OwnerReference(
            api_version="v1", kind="Node", name=self._node.node_name, uid=self.uid, controller=True
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self._until_done("node", self._register)
        self.known.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_status())
            group.create_task(self._keep_lease())

    async def _until_done(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        delay, failures = _FIRST_DELAY, 0
        while True:
            try:
                await work()
                self._node.mux.problems.replace(what, ())
                return
            except KubeError as error:
                failures += 1
                level = logging.WARNING if failures <= 3 else logging.DEBUG
                _log.log(level, "%s %s: try %d: %s", what, self._node.node_name, failures, error)
                text = f"{what} {self._node.node_name} cannot be written: {error}"
                problem = SourceProblem(
                    API, self._client.config.server, None, Reason.FAILED_REGISTRATION, text
                )
                self._node.mux.problems.replace(what, (problem,))
            await self._node.clock.sleep(delay)
            delay = min(delay * 2, _LAST_DELAY)

    async def _register(self) -> None:
        name = self._node.node_name
        wanted = await machine.node_object(self._node)
        labels = wanted["metadata"]["labels"]
        try:
            body = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": wanted["status"],
            }
            there = await self._client.create(NODES, body, priority=Priority.URGENT)
        except AlreadyExists:
            there = await self._client.get(NODES, name, priority=Priority.URGENT)
            if not labels.items() <= (there["metadata"].get("labels") or {}).items():
                patch = {"metadata": {"labels": labels}}
                there = await self._client.patch(NODES, patch, name, priority=Priority.URGENT)
        self._is(there)
        await self._write_status(there)

    def _is(self, there: dict[str, Any]) -> None:
        before, self.uid = self.uid, there["metadata"]["uid"]
        if before not in ("", self.uid):
            self.renewed()

    async def _keep_status(self) -> None:
        while True:
            ready = all(condition.status for condition in await self._node.conditions())
            await self._node.clock.sleep(STATUS_CHECK if ready else UNREADY_CHECK)
            await self._until_done("status of node", self._refresh)

    async def _refresh(self) -> None:
        status = (await machine.node_object(self._node))["status"]
        due = self._node.clock.monotonic() - self._written_at >= HEARTBEAT
        if not due and _meaning(status) == _meaning(self._written):
            return
        try:
            there = await self._client.get(NODES, self._node.node_name, priority=Priority.URGENT)
        except NotFound:
            # Somebody deleted the Node: it registers again, and its mirror pods get the new owner.
            await self._register()
            return
        self._is(there)
        await self._write_status(there)

    async def _write_status(self, there: dict[str, Any]) -> None:
        """Patch the status; conditions of others stay, and so they hold for the version that was read."""
        status = (await machine.node_object(self._node))["status"]
        before = (there.get("status") or {}).get("conditions") or []
        conditions = _conditions(before, status["conditions"])
        patch = {
            "metadata": {"uid": self.uid, "resourceVersion": there["metadata"].get("resourceVersion", "")},
            "status": {**status, "conditions": conditions},
        }
        try:
            await self._client.patch(
                NODES, patch, self._node.node_name, subresource="status", priority=Priority.URGENT
            )
        except Conflict:
            self._written_at = float("-inf")
            return
        self._written, self._written_at = status, self._node.clock.monotonic()

    async def _keep_lease(self) -> None:
        lease: Lease | None = None

        async def renew() -> None:
            nonlocal lease
            lease = await self._renew(lease)

        while True:
            await self._until_done("lease of node", renew)
            await self._node.clock.sleep(RENEW)

    async def _renew(self, known: Lease | None) -> Lease:
        name = self._node.node_name
        spec = LeaseSpec(
            holder_identity=name,
            lease_duration_seconds=LEASE_SECONDS,
            renew_time=micro_time(self._node.clock.wall()),
        )
        if known is None:
            metadata = ObjectMeta(name=name, namespace=LEASE_NAMESPACE, owner_references=[self.owner()])
            try:
                return await self._client.create(
                    LEASES, Lease(metadata=metadata, spec=spec), LEASE_NAMESPACE, priority=Priority.URGENT
                )
            except AlreadyExists:
                pass
        patch = {
            "metadata": {"ownerReferences": [_reference(self.owner())]},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": spec.renew_time,
            },
        }
        try:
            return await self._client.patch(LEASES, patch, name, LEASE_NAMESPACE, priority=Priority.URGENT)
        except NotFound:
            if known is None:
                raise
            return await self._renew(None)


def micro_time(nanoseconds: int) -> str:
    """metav1.MicroTime: RFC 3339 in UTC with microseconds."""
    moment = datetime.fromtimestamp(nanoseconds // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{nanoseconds % SECOND // 1000:06d}Z"


def _reference(owner: OwnerReference) -> dict[str, Any]:
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }


def _conditions(before: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours in place of those that are there, with the time at which each changed; others' stay."""
    known = {condition.get("type"): condition for condition in before}
    made = {}
    for condition in ours:
        old = known.get(condition["type"], {})
        since = old.get("lastTransitionTime") if old.get("status") == condition["status"] else None
        made[condition["type"]] = {
            **condition,
            "lastTransitionTime": since or condition["lastHeartbeatTime"],
        }
    return [*(made.pop(c.get("type"), c) for c in before), *made.values()]


def _meaning(status: dict[str, Any]) -> object:
    """The status without what changes all the time."""
    conditions = [
        {name: value for name, value in condition.items() if name != "lastHeartbeatTime"}
        for condition in status.get("conditions", [])
    ]
    return {**status, "conditions": conditions}
