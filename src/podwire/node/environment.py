"""A container's environment and the ``$(VAR)`` references in it, its command and its arguments.

Rules: k8s.io/kubernetes third_party/forked/golang/expansion and kubelet_pods.go makeEnvironmentVariables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from podwire.kube.objects import Container, EnvVarSource, Pod
from podwire.kube.validation_container import FIELD_PATHS
from podwire.node.errors import ContainerConfigError

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']*)'\]$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pod runs: what ``fieldRef`` can ask for beyond the manifest. Primary addresses first."""

    pod_ips: Sequence[str] = ()
    host_ips: Sequence[str] = ()


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable; ``$$`` is a dollar sign, an unknown name stays as written."""

    def one(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        return variables.get(name, match.group(0))

    return _REFERENCE.sub(one, text)


def is_field_path(path: str) -> bool:
    """Whether an environment variable can be made from that ``fieldPath``."""
    return path in FIELD_PATHS or _SUBSCRIPT.match(path) is not None


def field_value(path: str, pod: Pod, place: Place) -> str:
    """The value at a ``fieldPath`` for which :func:`is_field_path` holds."""
    metadata = pod.metadata
    subscript = _SUBSCRIPT.match(path)
    if subscript is not None:
        values = metadata.labels if subscript.group(1) == "labels" else metadata.annotations
        return values.get(subscript.group(2), "")
    return {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": next(iter(place.host_ips), ""),
        "status.hostIPs": ",".join(place.host_ips),
        "status.podIP": next(iter(place.pod_ips), ""),
        "status.podIPs": ",".join(place.pod_ips),
    }[path]


def optional_reference(source: EnvVarSource) -> bool:
    """Whether the variable comes from a ConfigMap or Secret that need not exist, so that it is left out."""
    reference = source.config_map_key_ref if source.config_map_key_ref is not UNSET else source.secret_key_ref
    return isinstance(reference, dict) and reference.get("optional") is True


def environment(pod: Pod, container: Container, place: Place) -> dict[str, str]:
    """The container's variables in order; a value sees those before it."""
    variables: dict[str, str] = {}
    for item in container.env:
        source = item.value_from
        if source is None:
            variables[item.name] = expand(item.value, variables)
        elif source.field_ref is not None:
            variables[item.name] = field_value(source.field_ref.field_path, pod, place)
        elif not optional_reference(source):
            raise ContainerConfigError(container.name, f"env {item.name}: valueFrom has no source known here")
    return variables
