"""An operator in Python: it makes a Fleet's pods, and keeps their number as its spec says.

It knows nothing of Podwire: kopf and the official client, as for any cluster.

    kubectl apply -f examples/operator/fleet.yaml
    kopf run --all-namespaces examples/operator/operator.py
"""

from __future__ import annotations

from typing import Any

import kopf
import kubernetes

FLEETS = ("example.com", "v1", "fleets")


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Use the kubeconfig that kopf uses, and keep progress in annotations only."""
    kubernetes.config.load_kube_config()
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage()


@kopf.on.create(*FLEETS)
@kopf.on.update(*FLEETS, field="spec")
@kopf.on.resume(*FLEETS)
def fill(body: Any, spec: Any, name: str, namespace: str, patch: Any, **_: Any) -> dict[str, int]:
    """Make the pods that are missing and remove those that are too many."""
    core = kubernetes.client.CoreV1Api()
    selector = f"fleet={name}"
    wanted = {f"{name}-{number}" for number in range(spec["size"])}
    found = {pod.metadata.name for pod in core.list_namespaced_pod(namespace, label_selector=selector).items}
    for missing in sorted(wanted - found):
        make(missing, namespace, body)
    for extra in sorted(found - wanted):
        core.delete_namespaced_pod(extra, namespace, grace_period_seconds=0)
    told = f"{len(wanted)} pods, {len(wanted - found)} made, {len(found - wanted)} removed"
    kopf.info(body, reason="Filled", message=told)
    patch.status["size"] = len(wanted)
    patch.status["selector"] = selector
    return {"made": len(wanted - found), "removed": len(found - wanted)}


@kopf.on.event("pods", labels={"fleet": kopf.PRESENT})
def replace(event: Any, name: str, namespace: str, labels: Any, **_: Any) -> None:
    """A pod that somebody deleted comes back."""
    if event["type"] != "DELETED":
        return
    try:
        fleet = kubernetes.client.CustomObjectsApi().get_namespaced_custom_object(
            FLEETS[0], FLEETS[1], namespace, FLEETS[2], labels["fleet"]
        )
    except kubernetes.client.ApiException as error:
        if error.status == 404:
            return
        raise
    if not fleet["metadata"].get("deletionTimestamp"):
        number = int(name.rpartition("-")[2])
        if number < fleet["spec"]["size"]:
            make(name, namespace, fleet)


def make(name: str, namespace: str, fleet: Any) -> None:
    """Make a pod that belongs to the fleet."""
    labels = {"fleet": fleet["metadata"]["name"]}
    container = {"name": "main", "image": fleet["spec"]["image"]}
    pod = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}
    kopf.adopt(pod, owner=fleet)
    kubernetes.client.CoreV1Api().create_namespaced_pod(namespace, pod)


@kopf.on.delete(*FLEETS)
def farewell(name: str, namespace: str, **_: Any) -> None:
    """Leave a note; the pods go by their owner references."""
    note = {"metadata": {"name": f"{name}-was-here"}, "data": {"fleet": name}}
    kubernetes.client.CoreV1Api().create_namespaced_config_map(namespace, note)
