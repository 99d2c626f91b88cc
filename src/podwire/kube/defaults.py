"""Default values: what the API server and the kubelet fill in before a pod is used.

``static_pod`` gives a pod from a file or a URL its name, namespace, node, UID and annotations. The UID is a
hash over the defaulted pod, the node and the source's path, so comments and white space keep it, while
another content, path or node makes another pod. It has the form of upstream's: 32 hexadecimal digits without
dashes, and stands in the annotation ``kubernetes.io/config.hash`` as well.
Source: k8s.io/kubernetes pkg/apis/core/v1/defaults.go, pkg/kubelet/config/common.go.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from msgspec.structs import replace

from podwire.kube.objects import (
    Container,
    EnvVar,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSecurityContext,
    Probe,
    Toleration,
)
from podwire.kube.printing import to_builtins
from podwire.kube.quantity import QuantityError, parse_quantity

CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_SEEN = "kubernetes.io/config.seen"
CONFIG_MIRROR = "kubernetes.io/config.mirror"

DEFAULT_NAMESPACE = "default"
NAME_LIMIT = 253
"""Characters of a pod's name at most (RFC 1123 subdomain)."""


def static_pod(pod: Pod, *, node_name: str, source: str, path: str, tolerate: bool = True) -> Pod:
    """The pod as this node runs it.

    ``path`` is the file's path or the URL. ``tolerate`` adds the toleration that files' pods get.
    """
    metadata, spec = pod.metadata, default_pod(pod).spec
    tolerations = [*spec.tolerations]
    if tolerate and not any(t.operator == "Exists" and t.effect == "NoExecute" for t in tolerations):
        tolerations.append(Toleration(operator="Exists", effect="NoExecute"))
    annotations = {k: v for k, v in metadata.annotations.items() if k not in (CONFIG_SEEN, CONFIG_MIRROR)}
    annotations[CONFIG_SOURCE] = source
    named = replace(
        pod,
        metadata=replace(
            metadata,
            name=static_name(metadata.name, node_name),
            namespace=metadata.namespace or DEFAULT_NAMESPACE,
            annotations={k: v for k, v in annotations.items() if k != CONFIG_HASH},
        ),
        spec=replace(spec, node_name=node_name, tolerations=tolerations),
        status=replace(pod.status, phase="Pending"),
    )
    uid = metadata.uid or content_hash(named, node_name, path)
    annotations[CONFIG_HASH] = uid
    return replace(named, metadata=replace(named.metadata, uid=uid, annotations=annotations))


def static_name(name: str, node_name: str) -> str:
    """The name of a static pod: that of the manifest and that of the node."""
    return f"{name}-{node_name.lower()}"


def content_hash(pod: Pod, node_name: str, path: str) -> str:
    """32 hexadecimal digits that change with the pod, the node or the path."""
    content = json.dumps([to_builtins(pod), node_name, path], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def default_pod(pod: Pod) -> Pod:
    """The pod with the API server's defaults in the spec and with its QoS class."""
    spec = pod.spec
    spec = replace(
        spec,
        restart_policy=spec.restart_policy or "Always",
        dns_policy=spec.dns_policy or "ClusterFirst",
        scheduler_name=spec.scheduler_name or "default-scheduler",
        enable_service_links=True if spec.enable_service_links is None else spec.enable_service_links,
        security_context=spec.security_context or PodSecurityContext(),
        containers=[_container(c, spec.host_network) for c in spec.containers],
        init_containers=[_container(c, spec.host_network) for c in spec.init_containers],
    )
    return replace(pod, spec=spec, status=replace(pod.status, qos_class=qos_class(pod)))


def _container(container: Container, host_network: bool) -> Container:
    ports = [
        replace(port, host_port=port.host_port or (port.container_port if host_network else 0))
        for port in container.ports
    ]
    return replace(
        container,
        ports=ports,
        env=[_env(env) for env in container.env],
        resources=_resources(container.resources),
        liveness_probe=_probe(container.liveness_probe),
        readiness_probe=_probe(container.readiness_probe),
        startup_probe=_probe(container.startup_probe),
        lifecycle=_lifecycle(container.lifecycle),
        termination_message_path=container.termination_message_path or "/dev/termination-log",
        termination_message_policy=container.termination_message_policy or "File",
        image_pull_policy=container.image_pull_policy or _pull_policy(container.image),
    )


def _pull_policy(image: str) -> str:
    """Always for the tag ``latest``, said or implied."""
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "Always" if not colon or tag == "latest" else "IfNotPresent"


def _env(env: EnvVar) -> EnvVar:
    source = env.value_from
    if source is None or source.field_ref is None or source.field_ref.api_version:
        return env
    return replace(env, value_from=replace(source, field_ref=replace(source.field_ref, api_version="v1")))


def _resources(resources: Any) -> Any:
    """Requests that are not given are the limits."""
    if not isinstance(resources, dict):
        return {}
    limits = resources.get("limits")
    if not isinstance(limits, dict) or not limits:
        return resources
    return {**resources, "requests": {**limits, **(resources.get("requests") or {})}}


def _probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    return replace(
        probe,
        http_get=_http(probe.http_get),
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
    )


def _http(action: HTTPGetAction | None) -> HTTPGetAction | None:
    if action is None:
        return None
    return replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")


def _lifecycle(lifecycle: Lifecycle | None) -> Lifecycle | None:
    if lifecycle is None:
        return None
    return replace(
        lifecycle, post_start=_handler(lifecycle.post_start), pre_stop=_handler(lifecycle.pre_stop)
    )


def _handler(handler: LifecycleHandler | None) -> LifecycleHandler | None:
    return None if handler is None else replace(handler, http_get=_http(handler.http_get))


def qos_class(pod: Pod) -> str:
    """Guaranteed, Burstable or BestEffort, by the CPU and memory of all containers."""
    guaranteed, any_set = True, False
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        resources = _resources(container.resources)
        limits = _amounts(resources.get("limits"))
        requests = {**limits, **_amounts(resources.get("requests"))}
        any_set = any_set or bool(limits or requests)
        guaranteed = guaranteed and set(limits) == {"cpu", "memory"} and limits == requests
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amounts(amounts: Any) -> dict[str, Any]:
    result = {}
    for name in ("cpu", "memory"):
        try:
            value = (
                parse_quantity(str(amounts[name])) if isinstance(amounts, dict) and name in amounts else None
            )
        except QuantityError:
            value = None
        if value:
            result[name] = value
    return result
