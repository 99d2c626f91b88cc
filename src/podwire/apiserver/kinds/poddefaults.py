"""The defaults of a pod.

Source: k8s.io/kubernetes/pkg/apis/core/v1/defaults.go, and the admission plugins ServiceAccount, Priority,
DefaultTolerationSeconds.
"""

from __future__ import annotations

from typing import Any

from podwire.kube.quantity import QuantityError, parse_quantity

Object = dict[str, Any]

_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def set_defaults(pod: Object) -> None:
    """Fill in what is left out of the spec."""
    spec = pod.setdefault("spec", {})
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
        ("preemptionPolicy", "PreemptLowerPriority"),
        ("priority", 0),
    ):
        if spec.get(name) in (None, ""):
            spec[name] = value
    spec.setdefault("securityContext", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        fill(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes", []):
        _volume(volume)


def admit(pod: Object) -> None:
    """What admission adds to a new pod: tolerations of a node that is away."""
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or []
    for key in _UNREACHABLE:
        tolerated = any(
            one.get("key") in (key, None, "") and one.get("effect") in ("NoExecute", None, "")
            for one in tolerations
        )
        if not tolerated:
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            spec["tolerations"] = [*spec.get("tolerations", []), added]


def qos_class(pod: Object) -> str:
    """Guaranteed, Burstable or BestEffort, by the CPU and memory of all containers."""
    guaranteed, any_set = True, False
    spec = pod.get("spec") or {}
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        resources = container.get("resources") or {}
        limits, requests = _amounts(resources.get("limits")), _amounts(resources.get("requests"))
        any_set = any_set or bool(limits or requests)
        guaranteed = guaranteed and set(limits) == {"cpu", "memory"} and limits == requests
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amounts(amounts: Object | None) -> Object:
    found = {}
    for name in ("cpu", "memory"):
        try:
            value = parse_quantity(str((amounts or {})[name]))
        except (KeyError, QuantityError):
            continue
        if value:
            found[name] = value
    return found


def fill(container: Object, *, host_network: bool = False) -> None:
    """Fill in what is left out of a container."""
    container.setdefault("resources", {})
    resources = container["resources"]
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    for name, value in (
        ("terminationMessagePath", "/dev/termination-log"),
        ("terminationMessagePolicy", "File"),
        ("imagePullPolicy", _pull_policy(container.get("image", ""))),
    ):
        if not container.get(name):
            container[name] = value
    for port in container.get("ports", []):
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if host_network and not port.get("hostPort") and port.get("containerPort"):
            port["hostPort"] = port["containerPort"]
    for entry in container.get("env", []):
        reference = (entry.get("valueFrom") or {}).get("fieldRef")
        if isinstance(reference, dict) and not reference.get("apiVersion"):
            reference["apiVersion"] = "v1"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            _probe(container[name])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _http(handler.get("httpGet"))


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "Always" if not colon or tag == "latest" else "IfNotPresent"


def _probe(probe: Object) -> None:
    for name, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(name):
            probe[name] = value
    _http(probe.get("httpGet"))
    if isinstance(probe.get("grpc"), dict):
        probe["grpc"].setdefault("service", "")


def _http(action: Object | None) -> None:
    if action is not None:
        action["path"] = action.get("path") or "/"
        action["scheme"] = action.get("scheme") or "HTTP"


def _volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for name in ("secret", "configMap", "projected", "downwardAPI"):
        if isinstance(volume.get(name), dict):
            volume[name].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
