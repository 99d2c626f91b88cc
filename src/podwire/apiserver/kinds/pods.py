"""core/v1 Pod: its rules, and what is done with it: binding and eviction.

Source: k8s.io/kubernetes/pkg/registry/core/pod (strategy.go, storage) and
pkg/apis/core/validation/validation.go (ValidatePodUpdate).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.apiserver import metadata, naming
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import STATUS, Kind, Named, Subresource, WriteOptions
from podwire.apiserver.kinds import poddefaults, podtable, podupdates
from podwire.apiserver.kinds.columns import field
from podwire.kube.objects import Pod
from podwire.kube.rules import Invalid, Reason
from podwire.kube.validation import validate_pod
from podwire.serving import status
from podwire.serving.status import Cause

if TYPE_CHECKING:
    from podwire.apiserver.registry import Registry

Object = dict[str, Any]

_MIRROR = "kubernetes.io/config.mirror"
"""Of the pod of a manifest, whose containers need no image here."""
FINAL = ("Succeeded", "Failed")


def prepare_create(pod: Object) -> None:
    """A new pod is Pending."""
    pod["status"] = {"phase": "Pending", "qosClass": poddefaults.qos_class(pod)}


def admit(registry: Registry, pod: Object, old: Object | None) -> None:
    """What admission adds to a new pod."""
    if old is None:
        poddefaults.admit(pod)


def validate(pod: Object) -> list[Cause]:
    """What is wrong with the spec."""
    try:
        typed = msgspec.convert({**pod, "status": {}}, Pod)
    except msgspec.ValidationError as error:
        return [Cause("FieldValueInvalid", f"Invalid value: {error}", "spec")]
    causes = []
    for fault in validate_pod(typed):
        if fault.field.startswith(("metadata.name", "metadata.labels", "metadata.annotations[")) and (
            "bandwidth" not in fault.field
        ):
            continue
        causes.append(_cause(fault))
    spec = pod["spec"]
    if _MIRROR not in (pod["metadata"].get("annotations") or {}):
        for part in ("initContainers", "containers"):
            for index, container in enumerate(spec.get(part) or []):
                if not container.get("image"):
                    causes.append(status.required(f"spec.{part}[{index}].image"))
    node = spec.get("nodeName")
    if node and (wrong := naming.dns_subdomain(node)):
        causes.append(status.invalid_value("spec.nodeName", node, wrong))
    return causes


def _cause(fault: Invalid) -> Cause:
    value = fault.value or '""'
    match fault.reason:
        case Reason.REQUIRED:
            return status.required(fault.field)
        case Reason.NOT_SUPPORTED:
            told = f"Unsupported value: {value}: {fault.message}"
        case Reason.DUPLICATE:
            told = f"Duplicate value: {value}"
        case Reason.NOT_FOUND:
            told = f"Not found: {value}"
        case _:
            told = f"Invalid value: {value}: {fault.message}"
    return Cause(fault.reason.value, told, fault.field)


def grace(pod: Object, asked: int | None) -> int:
    """Seconds between TERM and KILL: what is asked for, or the pod's own; 0 for one that is not running."""
    spec = pod["spec"]
    period: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    if not spec.get("nodeName") or field(pod, "status.phase") in FINAL:
        return 0
    return 1 if period < 0 else period


async def bind(registry: Registry, at: Named, binding: Object, options: WriteOptions) -> Object:
    """Assign a pod to a node, once."""
    kind, namespace, name = at
    target = binding.get("target") or {}
    node = target.get("name") or ""
    causes = []
    if target.get("kind") not in (None, "", "Node"):
        causes.append(status.not_supported("target.kind", target.get("kind"), ["Node", "<empty>"]))
    if not node:
        causes.append(status.required("target.name"))
    if causes:
        raise status.invalid("", "Binding", name, causes)
    wanted = (binding.get("metadata") or {}).get("uid") or ""

    def assign(pod: Object) -> Object:
        meta = pod["metadata"]
        if wanted and wanted != meta["uid"]:
            why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {meta['uid']}"
            raise status.conflict("", "pods", name, why)
        if meta.get("deletionTimestamp"):
            raise status.conflict(
                "", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host"
            )
        if pod["spec"].get("nodeName"):
            why = f"pod {name} is already assigned to node {status.quoted(pod['spec']['nodeName'])}"
            raise status.conflict("", "pods/binding", name, why)
        if pod["spec"].get("schedulingGates"):
            raise status.conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
        pod["spec"]["nodeName"] = node
        for part in ("labels", "annotations"):
            given = (binding.get("metadata") or {}).get(part)
            if given:
                meta[part] = {**(meta.get(part) or {}), **given}
        put_condition(pod, "PodScheduled", "True")
        return pod

    await registry.update(kind, namespace, name, assign, dry_run=options.dry_run)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def put_condition(pod: Object, name: str, value: str, *, reason: str = "", message: str = "") -> bool:
    """Set a condition in the status; whether anything changed."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    found = next((c for c in conditions if c.get("type") == name), None)
    said = {key: text for key, text in (("reason", reason), ("message", message)) if text}
    if found is None:
        time = metadata.now()
        conditions.append(
            {"type": name, "status": value, "lastProbeTime": None, "lastTransitionTime": time, **said}
        )
        return True
    before = dict(found)
    if found.get("status") != value:
        found["lastTransitionTime"] = metadata.now()
    found["status"] = value
    for key in ("reason", "message"):
        found.pop(key, None)
    found.update(said)
    return bool(found != before)


async def evict(registry: Registry, at: Named, eviction: Object, options: WriteOptions) -> Object:
    """Delete a pod for somebody who empties a node; there are no disruption budgets here."""
    kind, namespace, name = at
    given = (eviction.get("metadata") or {}).get("name")
    if given and given != name:
        raise status.bad_request("name in URL does not match name in Eviction object")
    deletion = DeleteOptions.of(eviction.get("deleteOptions") or {})
    if options.dry_run:
        registry.get(kind, namespace, name)
    else:
        await registry.delete(kind, namespace, name, deletion)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _merge_resize(current: Object, incoming: Object) -> Object:
    spec = copy.deepcopy(current["spec"])
    given = {c.get("name"): c for c in field(incoming, "spec.containers", [])}
    for container in spec.get("containers", []):
        if container["name"] in given:
            container["resources"] = given[container["name"]].get("resources") or {}
    return {**current, "metadata": incoming.get("metadata") or {}, "spec": spec}


PODS = Kind(
    group="",
    version="v1",
    kind="Pod",
    plural="pods",
    short_names=("po",),
    categories=("all",),
    message="core.Pod",
    generation=True,
    returns_deleted=True,
    check_name=naming.dns_subdomain,
    prepare_create=prepare_create,
    prepare_update=podupdates.prepare,
    defaults=poddefaults.set_defaults,
    admit=admit,
    validate=validate,
    validate_update=podupdates.validate,
    grace=grace,
    columns=podtable.COLUMNS,
    fields={
        "spec.nodeName": lambda pod: str(field(pod, "spec.nodeName", "")),
        "spec.restartPolicy": lambda pod: str(field(pod, "spec.restartPolicy", "")),
        "spec.schedulerName": lambda pod: str(field(pod, "spec.schedulerName", "")),
        "spec.serviceAccountName": lambda pod: str(field(pod, "spec.serviceAccountName", "")),
        "spec.hostNetwork": lambda pod: str(field(pod, "spec.hostNetwork", False)).lower(),
        "status.phase": lambda pod: str(field(pod, "status.phase", "")),
        "status.podIP": lambda pod: str(field(pod, "status.podIP", "")),
        "status.nominatedNodeName": lambda pod: str(field(pod, "status.nominatedNodeName", "")),
    },
    subresources={
        "attach": Subresource(
            name="attach", verbs=("create", "get"), kind="PodAttachOptions", connect="attach"
        ),
        "binding": Subresource(name="binding", verbs=("create",), kind="Binding", act=bind),
        "eviction": Subresource(
            name="eviction", verbs=("create",), group="policy", version="v1", kind="Eviction", act=evict
        ),
        "exec": Subresource(name="exec", verbs=("create", "get"), kind="PodExecOptions", connect="exec"),
        "log": Subresource(name="log", verbs=("get",), connect="log"),
        "portforward": Subresource(
            name="portforward", verbs=("create", "get"), kind="PodPortForwardOptions", connect="port_forward"
        ),
        "resize": Subresource(name="resize", merge=_merge_resize),
        "status": STATUS,
    },
)
