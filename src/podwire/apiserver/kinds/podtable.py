"""The columns of ``kubectl get pods``.

Source: k8s.io/kubernetes/pkg/printers/internalversion/printers.go (printPod).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from podwire.apiserver.kind import Column
from podwire.apiserver.kinds.columns import AGE, NAME, NONE
from podwire.kube import ages

Object = dict[str, Any]


class Summary(NamedTuple):
    """What a pod's line says of its containers; ``restarted`` is the time of the last restart."""

    ready: int
    total: int
    status: str
    restarts: int
    restarted: str


def summary(pod: Object) -> Summary:
    """The state of a pod in one line."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    if (conditions.get("PodScheduled") or {}).get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    ready = restarts = 0
    restarted = ""
    initialising = ""
    kept_restarts, kept_restarted = 0, ""
    for index, one in enumerate(status.get("initContainerStatuses") or []):
        restarts += one.get("restartCount", 0)
        restarted = max(restarted, _finished(one))
        if one.get("name") in sidecars:
            kept_restarts += one.get("restartCount", 0)
            kept_restarted = max(kept_restarted, _finished(one))
        state = one.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and not ended.get("exitCode"):
            continue
        if one.get("name") in sidecars and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        if ended is not None:
            initialising = f"Init:{_ended(ended)}"
        elif waiting.get("reason") not in (None, "", "PodInitializing"):
            initialising = f"Init:{waiting['reason']}"
        else:
            initialising = f"Init:{index}/{len(spec.get('initContainers') or [])}"
        break
    if initialising and (conditions.get("Initialized") or {}).get("status") != "True":
        word = initialising
    else:
        restarts, restarted = kept_restarts, kept_restarted
        running = False
        for one in reversed(status.get("containerStatuses") or []):
            restarts += one.get("restartCount", 0)
            restarted = max(restarted, _finished(one))
            state = one.get("state") or {}
            if (state.get("waiting") or {}).get("reason"):
                word = state["waiting"]["reason"]
            elif state.get("terminated") is not None:
                word = _ended(state["terminated"])
            elif one.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if word == "Completed" and running:
            word = "Running" if (conditions.get("Ready") or {}).get("status") == "True" else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            word = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            word = "Terminating"
    return Summary(ready, len(spec.get("containers") or []) + len(sidecars), word, restarts, restarted)


def _ended(state: Object) -> str:
    if state.get("reason"):
        return str(state["reason"])
    if state.get("signal"):
        return f"Signal:{state['signal']}"
    return f"ExitCode:{state.get('exitCode', 0)}"


def _finished(one: Object) -> str:
    ended = (one.get("lastState") or {}).get("terminated") or {}
    return ended.get("finishedAt") or ""


def _restarts(pod: Object, at: datetime) -> str:
    found = summary(pod)
    if found.restarts and found.restarted:
        return f"{found.restarts} ({ages.since(found.restarted, at)} ago)"
    return str(found.restarts)


def _gates(pod: Object, at: datetime) -> str:
    gates = (pod.get("spec") or {}).get("readinessGates") or []
    if not gates:
        return NONE
    met = {c["type"] for c in (pod.get("status") or {}).get("conditions") or [] if c.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in met for gate in gates)}/{len(gates)}"


def _address(pod: Object, at: datetime) -> str:
    status = pod.get("status") or {}
    return (status.get("podIPs") or [{}])[0].get("ip") or status.get("podIP") or NONE


COLUMNS = (
    NAME,
    Column(
        "Ready",
        lambda pod, at: "{0.ready}/{0.total}".format(summary(pod)),
        description="Containers that are ready, out of all.",
    ),
    Column("Status", lambda pod, at: summary(pod).status, description="The phase, or what holds the pod up."),
    Column("Restarts", _restarts, description="How often containers were started again, and when last."),
    AGE,
    Column("IP", _address, priority=1, description="The pod's first address."),
    Column("Node", lambda pod, at: pod["spec"].get("nodeName") or NONE, priority=1, description="Its node."),
    Column(
        "Nominated Node",
        lambda pod, at: (pod.get("status") or {}).get("nominatedNodeName") or NONE,
        priority=1,
        description="The node that is being made free for it.",
    ),
    Column("Readiness Gates", _gates, priority=1, description="Conditions met, out of those awaited."),
)
