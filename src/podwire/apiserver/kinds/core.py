"""core/v1: namespaces, nodes, config maps, secrets, service accounts, endpoints.

Source: k8s.io/kubernetes/pkg/registry/core and pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import TYPE_CHECKING, Any

from podwire.apiserver import metadata, naming
from podwire.apiserver.kind import STATUS, Column, Kind, Named, Subresource, WriteOptions
from podwire.apiserver.kinds.columns import AGE, NAME, NONE, field, plain
from podwire.serving import status
from podwire.serving.status import Cause

if TYPE_CHECKING:
    from podwire.apiserver.registry import Registry

Object = dict[str, Any]

PERMANENT = ("default", "kube-public", "kube-system")
"""Namespaces that are always there."""
_ROLE = "node-role.kubernetes.io/"
_DATA_BYTES = 1 << 20
_IMMUTABLE = "field is immutable when `immutable` is set"
_SECRET_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


def _namespace_defaults(obj: Object) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


def _new_namespace(obj: Object) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def _kept_namespace(new: Object, old: Object) -> None:
    new["spec"] = old.get("spec") or {}


def _check_namespace_delete(obj: Object) -> None:
    name = obj["metadata"]["name"]
    if name in PERMANENT:
        raise status.forbidden("", "namespaces", name, "this namespace may not be deleted")


def _end_namespace(obj: Object) -> None:
    obj.setdefault("status", {})["phase"] = "Terminating"


def _finalize(current: Object, incoming: Object) -> Object:
    spec = {**current.get("spec", {}), "finalizers": field(incoming, "spec.finalizers", [])}
    return {**current, "metadata": incoming.get("metadata") or {}, "spec": spec}


NAMESPACES = Kind(
    group="",
    version="v1",
    kind="Namespace",
    plural="namespaces",
    namespaced=False,
    short_names=("ns",),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    message="core.Namespace",
    returns_deleted=True,
    check_name=naming.dns_label,
    prepare_create=_new_namespace,
    prepare_update=_kept_namespace,
    defaults=_namespace_defaults,
    check_delete=_check_namespace_delete,
    begin_delete=_end_namespace,
    holds=lambda obj: bool(field(obj, "spec.finalizers")),
    fields={"status.phase": lambda obj: str(field(obj, "status.phase", ""))},
    columns=(
        NAME,
        plain("Status", "status.phase", "", description="Active, or Terminating while it is emptied."),
        AGE,
    ),
    subresources={
        "finalize": Subresource(name="finalize", verbs=("update",), merge=_finalize),
        "status": STATUS,
    },
)


def _node_status(node: Object, at: datetime) -> str:
    conditions = {c.get("type"): c.get("status") for c in field(node, "status.conditions", [])}
    words = (
        ["Ready" if conditions["Ready"] == "True" else "NotReady"] if "Ready" in conditions else ["Unknown"]
    )
    if field(node, "spec.unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Object, at: datetime) -> str:
    labels = node["metadata"].get("labels") or {}
    roles = [key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE) and key != _ROLE]
    if labels.get("kubernetes.io/role"):
        roles.append(labels["kubernetes.io/role"])
    return ",".join(sorted(set(roles))) or NONE


def _node_address(kind: str) -> Any:
    def value(node: Object, at: datetime) -> str:
        for address in field(node, "status.addresses", []):
            if address.get("type") == kind:
                return str(address.get("address"))
        return NONE

    return value


def _kept_node(new: Object, old: Object) -> None:
    for name in ("podCIDR", "podCIDRs", "providerID"):
        if name in (old.get("spec") or {}) and name not in (new.get("spec") or {}):
            new.setdefault("spec", {})[name] = old["spec"][name]


def _check_node_update(new: Object, old: Object) -> list[Cause]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    causes = []
    if before.get("podCIDRs") and before["podCIDRs"] != after.get("podCIDRs"):
        detail = 'node updates may not change podCIDR except from "" to valid'
        causes.append(status.forbidden_field("spec.podCIDRs", detail))
    return causes


NODES = Kind(
    group="",
    version="v1",
    kind="Node",
    plural="nodes",
    namespaced=False,
    short_names=("no",),
    message="core.Node",
    keep_status=True,
    returns_deleted=True,
    prepare_update=_kept_node,
    validate_update=_check_node_update,
    fields={"spec.unschedulable": lambda obj: str(field(obj, "spec.unschedulable", False)).lower()},
    columns=(
        NAME,
        Column("Status", _node_status, description="Whether pods can run on it."),
        Column("Roles", _roles, description="Roles, from its labels."),
        AGE,
        plain("Version", "status.nodeInfo.kubeletVersion", "", description="Version of what runs the pods."),
        Column("Internal-IP", _node_address("InternalIP"), priority=1, description="Address inside."),
        Column("External-IP", _node_address("ExternalIP"), priority=1, description="Address outside."),
        plain("OS-Image", "status.nodeInfo.osImage", "<unknown>", priority=1, description="Its system."),
        plain(
            "Kernel-Version",
            "status.nodeInfo.kernelVersion",
            "<unknown>",
            priority=1,
            description="Its kernel.",
        ),
        plain(
            "Container-Runtime",
            "status.nodeInfo.containerRuntimeVersion",
            "<unknown>",
            priority=1,
            description="What makes its containers.",
        ),
    ),
    subresources={"status": STATUS},
)


def _check_keys(obj: Object, parts: tuple[str, ...]) -> list[Cause]:
    causes = []
    total = 0
    for part in parts:
        other = next((one for one in parts if one != part), "")
        for key, value in (obj.get(part) or {}).items():
            path = f"{part}[{key}]"
            if not key or len(key) > 253 or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in key):
                detail = (
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                    " (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is"
                    " '[-._a-zA-Z0-9]+')"
                )
                causes.append(status.invalid_value(path, key, detail))
            elif key in (".", "..") or key.startswith(".."):
                causes.append(status.invalid_value(path, key, "must not start with '..'"))
            if other and key in (obj.get(other) or {}):
                causes.append(status.invalid_value(path, key, f"duplicate of key present in {other}"))
            total += len(value) * 3 // 4 if part == "binaryData" else len(value.encode())
    if total > _DATA_BYTES:
        causes.append(status.too_long("", _DATA_BYTES))
    return causes


def _check_immutable(new: Object, old: Object, parts: tuple[str, ...]) -> list[Cause]:
    if not old.get("immutable"):
        return []
    causes = []
    if not new.get("immutable"):
        causes.append(status.forbidden_field("immutable", _IMMUTABLE))
    causes += [
        status.forbidden_field(part, _IMMUTABLE)
        for part in parts
        if (new.get(part) or {}) != (old.get(part) or {})
    ]
    return causes


CONFIG_MAPS = Kind(
    group="",
    version="v1",
    kind="ConfigMap",
    plural="configmaps",
    short_names=("cm",),
    message="core.ConfigMap",
    validate=lambda obj: _check_keys(obj, ("data", "binaryData")),
    validate_update=lambda new, old: [
        *_check_immutable(new, old, ("data", "binaryData")),
        *_check_keys(new, ("data", "binaryData")),
    ],
    columns=(
        NAME,
        Column(
            "Data",
            lambda obj, at: len(obj.get("data") or {}) + len(obj.get("binaryData") or {}),
            type="integer",
            description="How many keys it has.",
        ),
        AGE,
    ),
)


def _secret_defaults(obj: Object) -> None:
    if not obj.get("type"):
        obj["type"] = "Opaque"
    given = obj.pop("stringData", None)
    if given:
        data = obj.setdefault("data", {})
        data.update({key: base64.b64encode(value.encode()).decode() for key, value in given.items()})


def _check_secret(obj: Object) -> list[Cause]:
    causes = _check_keys(obj, ("data",))
    needed = _SECRET_KEYS.get(obj["type"], ())
    causes += [status.required(f"data[{key}]") for key in needed if key not in (obj.get("data") or {})]
    return causes


def _check_secret_update(new: Object, old: Object) -> list[Cause]:
    causes = []
    if new["type"] != old.get("type"):
        causes.append(status.invalid_value("type", new["type"], metadata.IMMUTABLE))
    return causes + _check_immutable(new, old, ("data",)) + _check_secret(new)


def _kept_secret(new: Object, old: Object) -> None:
    if not new.get("type"):
        new["type"] = old.get("type", "Opaque")


SECRETS = Kind(
    group="",
    version="v1",
    kind="Secret",
    plural="secrets",
    message="core.Secret",
    defaults=_secret_defaults,
    prepare_update=_kept_secret,
    validate=_check_secret,
    validate_update=_check_secret_update,
    fields={"type": lambda obj: str(obj.get("type", ""))},
    columns=(
        NAME,
        plain("Type", "type", "", description="What the data are for."),
        Column(
            "Data",
            lambda obj, at: len(obj.get("data") or {}),
            type="integer",
            description="How many keys it has.",
        ),
        AGE,
    ),
)


async def _no_token(registry: Registry, at: Named, request: Object, options: WriteOptions) -> Object:
    """Accounts have no tokens: there is one user, and nothing would become of another."""
    registry.get(at.kind, at.namespace, at.name)
    why = (
        "this server issues no tokens of service accounts; it has one user, whose token is in its kubeconfig"
    )
    raise status.forbidden("", "serviceaccounts/token", at.name, why)


SERVICE_ACCOUNTS = Kind(
    group="",
    version="v1",
    kind="ServiceAccount",
    plural="serviceaccounts",
    short_names=("sa",),
    message="core.ServiceAccount",
    returns_deleted=True,
    subresources={
        "token": Subresource(
            name="token",
            verbs=("create",),
            group="authentication.k8s.io",
            version="v1",
            kind="TokenRequest",
            act=_no_token,
            listed=False,
        )
    },
    columns=(
        NAME,
        Column(
            "Secrets",
            lambda obj, at: len(obj.get("secrets") or []),
            type="integer",
            description="How many secrets it names.",
        ),
        AGE,
    ),
)


def _endpoint_list(obj: Object, at: datetime) -> str:
    found = []
    for subset in obj.get("subsets") or []:
        for port in subset.get("ports") or [{}]:
            for address in subset.get("addresses") or []:
                ip = address.get("ip", "")
                shown = f"[{ip}]" if ":" in ip else ip
                found.append(f"{shown}:{port['port']}" if port.get("port") else ip)
    if len(found) > 3:
        return ",".join(found[:3]) + f" + {len(found) - 3} more..."
    return ",".join(found) or NONE


def _endpoint_defaults(obj: Object) -> None:
    for subset in obj.get("subsets") or []:
        for port in subset.get("ports") or []:
            port.setdefault("protocol", "TCP")


ENDPOINTS = Kind(
    group="",
    version="v1",
    kind="Endpoints",
    plural="endpoints",
    allow_create_on_update=True,
    singular="endpoints",
    list_kind="EndpointsList",
    short_names=("ep",),
    message="core.Endpoints",
    defaults=_endpoint_defaults,
    columns=(
        NAME,
        Column("Endpoints", _endpoint_list, description="Addresses and ports that are ready."),
        AGE,
    ),
)


KINDS = (NAMESPACES, NODES, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, ENDPOINTS)
