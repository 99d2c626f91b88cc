"""What of a pod this node cannot honour: said in an event, or refused where going on would be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from podwire.kube.objects import Container, Pod, Volume
from podwire.node.environment import is_field_path, optional_reference

_NAMESPACED_SYSCTLS = ("net.", "kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
_UNENFORCED_SECURITY = (
    "capabilities",
    "proc_mount",
    "se_linux_options",
    "seccomp_profile",
    "app_armor_profile",
    "windows_options",
)
_DEFAULT_TERMINATION_MESSAGE = ("", "/dev/termination-log")


@dataclass(frozen=True, slots=True)
class Finding:
    """A field of the pod that is not honoured. ``fatal``: the pod must not run without it."""

    field: str
    message: str
    fatal: bool

    @property
    def text(self) -> str:
        """Field and message in one line."""
        return f"{self.field}: {self.message}"


def findings(pod: Pod) -> list[Finding]:
    """Everything in the pod that this node does not honour, in the order of the spec."""
    return [*_spec(pod), *_volumes(pod), *_containers(pod)]


def _given(value: Any) -> bool:
    return value is not UNSET and value not in (None, {}, [], "")


def _ignored(field: str, why: str = "is not enforced by this node") -> Finding:
    return Finding(field, why, fatal=False)


def _refused(field: str, why: str) -> Finding:
    return Finding(field, why, fatal=True)


def _spec(pod: Pod) -> Iterator[Finding]:
    spec = pod.spec
    if spec.host_ipc:
        yield _ignored("spec.hostIPC")
    if spec.host_users is False:
        yield _ignored("spec.hostUsers", "user namespaces are not made by this node")
    if spec.runtime_class_name:
        yield _refused("spec.runtimeClassName", f"no RuntimeClass {spec.runtime_class_name!r} on this node")
    if _given(spec.resource_claims):
        yield _refused("spec.resourceClaims", "devices are not allocated by this node")
    if isinstance(spec.os, dict) and spec.os.get("name") not in (None, "linux"):
        yield _refused("spec.os.name", f"{spec.os.get('name')!r} is not this node's system, linux")
    if _given(spec.readiness_gates):
        yield _ignored("spec.readinessGates", "nothing sets their conditions here; they are not waited for")
    if _given(spec.resources):
        yield _ignored("spec.resources")
    if _given(spec.ephemeral_containers):
        yield _ignored("spec.ephemeralContainers", "are not run by this node")
    if spec.node_selector:
        yield _ignored("spec.nodeSelector", "this node has no labels to compare")
    context = spec.security_context
    if context is None:
        return
    for name in (*_UNENFORCED_SECURITY, "fs_group_change_policy", "supplemental_groups_policy"):
        if _given(getattr(context, name, UNSET)) and name not in ("capabilities", "proc_mount"):
            yield _ignored(f"spec.securityContext.{_camel(name)}")
    for index, sysctl in enumerate(context.sysctls):
        field = f"spec.securityContext.sysctls[{index}].name"
        if not sysctl.name.replace("/", ".").startswith(_NAMESPACED_SYSCTLS):
            yield _refused(field, f"{sysctl.name!r} is the whole machine's, not a pod's")
        elif spec.host_network and sysctl.name.startswith("net"):
            yield _refused(field, f"{sysctl.name!r} would change the host, whose network this pod uses")


def _volumes(pod: Pod) -> Iterator[Finding]:
    for index, volume in enumerate(pod.spec.volumes):
        field = f"spec.volumes[{index}]"
        if volume.empty_dir is not None:
            if volume.empty_dir.medium not in ("", "Memory"):
                yield _refused(f"{field}.emptyDir.medium", f"{volume.empty_dir.medium!r} is not known here")
            elif volume.empty_dir.medium:
                yield _ignored(f"{field}.emptyDir.medium", "the directory is on disk, not in memory")
            if _given(volume.empty_dir.size_limit):
                yield _ignored(f"{field}.emptyDir.sizeLimit")
        elif volume.host_path is None:
            kind = _volume_kind(volume)
            yield _refused(
                f"{field}.{kind}" if kind else field,
                f"volume {volume.name!r} cannot be had on this node: only emptyDir and hostPath can",
            )


def _volume_kind(volume: Volume) -> str:
    for field in msgspec.structs.fields(volume):
        if field.name != "name" and _given(getattr(volume, field.name)):
            return field.encode_name
    return ""


def _containers(pod: Pod) -> Iterator[Finding]:
    for kind, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
    ):
        for index, container in enumerate(containers):
            field = f"spec.{kind}[{index}]"
            yield from _container(field, container)
            yield from _environment(field, container)
            yield from _security(field, container)


def _container(field: str, container: Container) -> Iterator[Finding]:
    for name in ("resources", "restart_policy_rules"):
        if _given(getattr(container, name)):
            yield _ignored(f"{field}.{_camel(name)}")
    if _given(container.volume_devices):
        yield _refused(f"{field}.volumeDevices", "block devices are not given to containers by this node")
    if container.termination_message_path not in _DEFAULT_TERMINATION_MESSAGE:
        yield _ignored(f"{field}.terminationMessagePath", "is not read by this node")
    if container.termination_message_policy not in ("", "File"):
        yield _ignored(f"{field}.terminationMessagePolicy", "is not used by this node")
    if container.lifecycle is not None and container.lifecycle.stop_signal not in ("", "SIGTERM"):
        yield _ignored(f"{field}.lifecycle.stopSignal", "containers are stopped with SIGTERM")
    for name in ("startup_probe", "liveness_probe", "readiness_probe"):
        probe = getattr(container, name)
        if probe is not None and _given(probe.grpc):
            yield _refused(f"{field}.{_camel(name)}.grpc", "gRPC probes cannot be made by this node")
    for number, mount in enumerate(container.volume_mounts):
        if mount.mount_propagation not in (UNSET, None, "", "None"):
            yield _ignored(f"{field}.volumeMounts[{number}].mountPropagation")
        if mount.recursive_read_only not in (UNSET, None, "", "Disabled"):
            yield _ignored(f"{field}.volumeMounts[{number}].recursiveReadOnly")


def _environment(field: str, container: Container) -> Iterator[Finding]:
    if _given(container.env_from):
        yield _refused(f"{field}.envFrom", "there are no ConfigMaps and Secrets without a cluster")
    for number, item in enumerate(container.env):
        source = item.value_from
        if source is None:
            continue
        where = f"{field}.env[{number}].valueFrom"
        if source.field_ref is not None:
            if not is_field_path(source.field_ref.field_path):
                path = source.field_ref.field_path
                yield _refused(f"{where}.fieldRef.fieldPath", f"{path!r} cannot be given to a variable")
        elif optional_reference(source):
            yield _ignored(where, f"there are no ConfigMaps and Secrets here: {item.name} is left out")
        else:
            yield _refused(where, f"{item.name} can only come from fieldRef on this node")


def _security(field: str, container: Container) -> Iterator[Finding]:
    context = container.security_context
    if context is None:
        return
    for name in _UNENFORCED_SECURITY:
        if _given(getattr(context, name)):
            yield _ignored(f"{field}.securityContext.{_camel(name)}")
    if context.read_only_root_filesystem:
        yield _ignored(f"{field}.securityContext.readOnlyRootFilesystem")
    if context.allow_privilege_escalation is False:
        yield _ignored(f"{field}.securityContext.allowPrivilegeEscalation")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
