"""What a pod refers to: its containers, its volumes' sources, and other objects of the API.

A pod that comes from a file or a URL may not refer to other objects, because nobody would look them up.
Source: k8s.io/kubernetes pkg/kubelet/config/common.go, pkg/api/v1/pod/util.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from podwire.kube.objects import Container, Pod, PodSpec, Volume
from podwire.kube.rules import Invalid, Rules


def validate_static(pod: Pod) -> list[Invalid]:
    """Each reference to another object of the API."""
    rules = Rules()
    for field, resource in _references(pod.spec):
        rules.add(field, None, f"static pods may not reference {resource}")
    return rules.invalid


def all_containers(spec: PodSpec) -> Iterator[tuple[str, Container, bool]]:
    """The field path of each container, the container, and whether it is an init container."""
    for index, container in enumerate(spec.init_containers):
        yield f"spec.initContainers[{index}]", container, True
    for index, container in enumerate(spec.containers):
        yield f"spec.containers[{index}]", container, False


def volume_sources(volume: Volume) -> dict[str, Any]:
    """The sources that are given, by their name in the API."""
    found = {}
    for field in volume.__struct_fields__:
        value = getattr(volume, field)
        if field != "name" and value is not None and value is not UNSET:
            found[field] = value
    encoded = dict(zip(volume.__struct_fields__, volume.__struct_encode_fields__, strict=True))
    return {encoded[field]: value for field, value in found.items()}


def _references(spec: PodSpec) -> Iterator[tuple[str, str]]:
    """The fields that refer to other objects of the API, with the resource that they refer to."""
    for field, text in (
        ("serviceAccountName", spec.service_account_name),
        ("serviceAccount", spec.service_account),
    ):
        if text:
            yield f"spec.{field}", "serviceaccounts"
    if _given(spec.image_pull_secrets):
        yield "spec.imagePullSecrets", "secrets"
    if _given(spec.resource_claims):
        yield "spec.resourceClaims", "resourceclaims"
    for path, container, _ in all_containers(spec):
        for index, env in enumerate(container.env):
            if env.value_from is not None and env.value_from.config_map_key_ref is not UNSET:
                yield f"{path}.env[{index}].valueFrom.configMapKeyRef", "configmaps"
            if env.value_from is not None and env.value_from.secret_key_ref is not UNSET:
                yield f"{path}.env[{index}].valueFrom.secretKeyRef", "secrets"
        for index, source in enumerate(_items(container.env_from)):
            for key, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if source.get(key) is not None:
                    yield f"{path}.envFrom[{index}].{key}", resource
    for index, volume in enumerate(spec.volumes):
        path = f"spec.volumes[{index}]"
        for kind, value in volume_sources(volume).items():
            if kind in _VOLUME_RESOURCES:
                yield f"{path}.{kind}", _VOLUME_RESOURCES[kind]
            elif isinstance(value, dict) and value.get("secretRef") is not None:
                yield f"{path}.{kind}.secretRef", "secrets"
        projected = volume.projected if isinstance(volume.projected, dict) else {}
        for at, source in enumerate(_items(projected.get("sources"))):
            for key, resource in _PROJECTED_RESOURCES.items():
                if source.get(key) is not None:
                    yield f"{path}.projected.sources[{at}].{key}", resource


_VOLUME_RESOURCES = {
    "secret": "secrets",
    "configMap": "configmaps",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims",
    "csi": "csidrivers",
}
_PROJECTED_RESOURCES = {
    "secret": "secrets",
    "configMap": "configmaps",
    "serviceAccountToken": "serviceaccounts",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}


def _given(value: Any) -> bool:
    return value is not UNSET and bool(value)


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
