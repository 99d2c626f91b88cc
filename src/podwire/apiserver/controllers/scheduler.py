"""A simple scheduler: each pod goes to a node that is Ready, takes it, and has its host ports free.

It looks at nodeSelector, required node affinity, taints and host ports, and takes the node with the fewest
pods. Resources are not counted. Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from podwire.apiserver.controllers.recording import Recorder
from podwire.apiserver.controllers.work import Work
from podwire.apiserver.kind import Named, WriteOptions
from podwire.apiserver.kinds.columns import field
from podwire.apiserver.kinds.pods import FINAL, PODS, bind, put_condition
from podwire.apiserver.registry import Registry
from podwire.apiserver.selectors import Requirement
from podwire.apiserver.storage import Change, Key, Stored
from podwire.apiserver.watches import Predicate
from podwire.kube.ports import HostPort
from podwire.serving.status import Failure

Object = dict[str, Any]

NAME = "default-scheduler"
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!", "Gt": ">", "Lt": "<"}
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Scheduler:
    """Binds pods to nodes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._events = Recorder(registry, NAME)
        self._work: Work[Key] = Work("scheduler", self._sync)
        self._unbound: set[Key] = set()
        self._on_node: Counter[str] = Counter()
        for stored in registry.storage.list("", "pods").items:
            self._pod(Key("", "pods", stored.meta.namespace, stored.meta.name), None, stored)
        registry.storage.listen(self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._work.run()

    def _changed(self, change: Change) -> None:
        if change.key.group:
            return
        if change.key.plural == "pods":
            self._pod(change.key, change.before, change.after)
        elif change.key.plural == "nodes" and _matters(change):
            for key in self._unbound:
                self._work.add(key)

    def _pod(self, key: Key, before: Stored | None, after: Stored | None) -> None:
        left, taken = _occupied(before), _occupied(after)
        if left != taken:
            if left:
                self._on_node[left] -= 1
                # Host ports may have become free.
                for waiting in self._unbound:
                    self._work.add(waiting)
            if taken:
                self._on_node[taken] += 1
        if after is not None and not after.placement.node and _wants_node(after.object):
            if key not in self._unbound or before is None or before.object["spec"] != after.object["spec"]:
                self._unbound.add(key)
                self._work.add(key)
        else:
            self._unbound.discard(key)

    async def _sync(self, key: Key) -> None:
        stored = self._registry.storage.get(key)
        if stored is None or not _wants_node(stored.object):
            return
        pod = stored.object
        # What the node tells of the pod comes after this.
        began = time.time_ns()
        reasons: Counter[str] = Counter()
        fitting = []
        nodes = self._registry.storage.list("", "nodes").items
        for node in nodes:
            why = self._obstacle(pod, node.object)
            if why:
                reasons[why] += 1
            else:
                fitting.append(node.object["metadata"]["name"])
        if not fitting:
            await self._refuse(key, pod, len(nodes), reasons)
            return
        chosen = min(fitting, key=lambda name: (self._on_node[name], name))
        binding = {"metadata": {"uid": pod["metadata"]["uid"]}, "target": {"kind": "Node", "name": chosen}}
        try:
            at = Named(PODS, key.namespace, key.name)
            await bind(self._registry, at, binding, WriteOptions(user=NAME))
        except Failure as failure:
            if failure.reason not in ("NotFound", "Conflict"):
                raise
            return
        message = f"Successfully assigned {key.namespace}/{key.name} to {chosen}"
        await self._events.tell(pod, "Scheduled", message, at=began)

    async def _refuse(self, key: Key, pod: Object, nodes: int, reasons: Counter[str]) -> None:
        told = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        message = (
            f"0/{nodes} nodes are available: {told}." if nodes else "no nodes available to schedule pods"
        )

        changed = False

        def condition(current: Object) -> Object:
            nonlocal changed
            changed = put_condition(current, "PodScheduled", "False", reason="Unschedulable", message=message)
            return current

        try:
            await self._registry.update(PODS, key.namespace, key.name, condition)
        except Failure as failure:
            if failure.reason != "NotFound":
                raise
            return
        if changed:
            await self._events.tell(pod, "FailedScheduling", message, type="Warning")

    def _obstacle(self, pod: Object, node: Object) -> str:
        """Why the pod cannot run on the node; empty if it can."""
        spec = pod["spec"]
        labels = node["metadata"].get("labels") or {}
        if not _ready(node):
            return "node(s) were not ready"
        if field(node, "spec.unschedulable") and not _tolerates(
            spec, {"key": _UNSCHEDULABLE, "effect": "NoSchedule"}
        ):
            return "node(s) were unschedulable"
        for taint in field(node, "spec.taints", []):
            if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerates(spec, taint):
                shown = f"{taint.get('key')}: {taint.get('value', '')}"
                return f"node(s) had untolerated taint {{{shown}}}"
        wanted = spec.get("nodeSelector") or {}
        if any(labels.get(name) != value for name, value in wanted.items()) or not _affine(spec, node):
            return "node(s) didn't match Pod's node affinity/selector"
        ours = host_ports(pod)
        if ours:
            index = ("spec.nodeName", node["metadata"]["name"])
            here = _running_on(index[1])
            for other in self._registry.storage.list("", "pods", index=index, predicate=here).items:
                if any(one.overlaps(another) for one in ours for another in host_ports(other.object)):
                    return "node(s) didn't have free ports for the requested pod ports"
        return ""


def host_ports(pod: Object) -> list[HostPort]:
    """The host ports of a pod's containers and sidecars."""
    spec = pod["spec"]
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    return [
        HostPort(port.get("hostIP", ""), port["hostPort"], port.get("protocol", "TCP"))
        for container in [*(spec.get("containers") or []), *sidecars]
        for port in container.get("ports") or []
        if port.get("hostPort")
    ]


def _running_on(node: str) -> Predicate:
    return lambda stored: stored.placement.node == node and stored.placement.phase not in FINAL


def _wants_node(pod: Object) -> bool:
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and spec.get("schedulerName", NAME) == NAME
        and not spec.get("schedulingGates")
        and not pod["metadata"].get("deletionTimestamp")
        and field(pod, "status.phase") not in FINAL
    )


def _occupied(stored: Stored | None) -> str:
    if stored is None:
        return ""
    return "" if stored.placement.phase in FINAL else stored.placement.node


def _matters(change: Change) -> bool:
    """Whether a node became one that other pods may run on: its heartbeats say nothing new."""
    if change.before is None or change.after is None:
        return True
    before, after = change.before.object, change.after.object
    return bool(
        _ready(before) != _ready(after)
        or before.get("spec") != after.get("spec")
        or before["metadata"].get("labels") != after["metadata"].get("labels")
    )


def _ready(node: Object) -> bool:
    return any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in field(node, "status.conditions", [])
    )


def _tolerates(spec: Object, taint: Object) -> bool:
    for toleration in spec.get("tolerations") or []:
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if toleration.get("key") and toleration["key"] != taint.get("key"):
            continue
        if toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def _affine(spec: Object, node: Object) -> bool:
    path = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = field(spec, path)
    if terms is None:
        return True
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_holds(one, labels) for one in term.get("matchExpressions") or [])
        and all(_holds(one, fields) for one in term.get("matchFields") or [])
        for term in terms
    )


def _holds(term: Object, labels: dict[str, str]) -> bool:
    operator = _OPERATORS.get(term.get("operator", ""), "")
    return bool(operator) and Requirement(
        term.get("key", ""), operator, frozenset(term.get("values") or [])
    ).matches(labels)
