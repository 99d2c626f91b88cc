"""The core/v1 objects that Podwire works with, as frozen msgspec structs with the API's own JSON names.

Fields that Podwire acts on are typed; the other fields of the API are declared as ``Any`` and pass through
as they came, so that a pod is printed as it was written. A field left out is ``UNSET`` or its empty default
and is not encoded. Times are RFC 3339 strings in UTC with whole seconds, as the API server writes them.
Source: k8s.io/api/core/v1/types.go.
"""

# ruff: noqa: RUF012 (msgspec gives each instance a new list or dict)

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from podwire.kube.containers import (
    Container,
    ContainerPort,
    EnvVar,
    EnvVarSource,
    ExecAction,
    HTTPGetAction,
    HTTPHeader,
    Lifecycle,
    LifecycleHandler,
    ObjectFieldSelector,
    Probe,
    SecurityContext,
    SleepAction,
    TCPSocketAction,
    VolumeMount,
)
from podwire.kube.events import (
    Event,
    EventSource,
)
from podwire.kube.metadata import (
    Object,
    ObjectMeta,
    ObjectReference,
    OwnerReference,
)
from podwire.kube.status import (
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateUnion,
    ContainerStateWaiting,
    ContainerStatus,
    PodCondition,
    PodIP,
    PodStatus,
)
from podwire.kube.volumes import (
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    Volume,
)

__all__ = [
    "Container",
    "ContainerPort",
    "ContainerStateRunning",
    "ContainerStateTerminated",
    "ContainerStateUnion",
    "ContainerStateWaiting",
    "ContainerStatus",
    "EmptyDirVolumeSource",
    "EnvVar",
    "EnvVarSource",
    "Event",
    "EventSource",
    "ExecAction",
    "HTTPGetAction",
    "HTTPHeader",
    "HostAlias",
    "HostPathVolumeSource",
    "Lifecycle",
    "LifecycleHandler",
    "Object",
    "ObjectFieldSelector",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "Pod",
    "PodCondition",
    "PodDNSConfig",
    "PodDNSConfigOption",
    "PodIP",
    "PodSecurityContext",
    "PodSpec",
    "PodStatus",
    "Probe",
    "SecurityContext",
    "SleepAction",
    "Sysctl",
    "TCPSocketAction",
    "Toleration",
    "Volume",
    "VolumeMount",
]


class HostAlias(Object, frozen=True, kw_only=True):
    """core/v1 HostAlias."""

    ip: str
    hostnames: list[str] = []


class PodDNSConfigOption(Object, frozen=True, kw_only=True):
    """core/v1 PodDNSConfigOption."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Object, frozen=True, kw_only=True):
    """core/v1 PodDNSConfig."""

    nameservers: list[str] = []
    searches: list[str] = []
    options: list[PodDNSConfigOption] = []


class Sysctl(Object, frozen=True, kw_only=True):
    """core/v1 Sysctl."""

    name: str
    value: str


class PodSecurityContext(Object, frozen=True, kw_only=True):
    """core/v1 PodSecurityContext."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: list[int] = []
    fs_group: int | None = None
    sysctls: list[Sysctl] = []
    fs_group_change_policy: Any | UnsetType = UNSET
    supplemental_groups_policy: Any | UnsetType = UNSET
    se_linux_change_policy: Any | UnsetType = UNSET
    se_linux_options: Any | UnsetType = UNSET
    seccomp_profile: Any | UnsetType = UNSET
    app_armor_profile: Any | UnsetType = UNSET
    windows_options: Any | UnsetType = UNSET


class Toleration(Object, frozen=True, kw_only=True):
    """core/v1 Toleration."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Object, frozen=True, kw_only=True):
    """core/v1 PodSpec."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    ephemeral_containers: Any | UnsetType = UNSET
    volumes: list[Volume] = []
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    dns_policy: str = "ClusterFirst"
    dns_config: PodDNSConfig | None = None
    node_selector: dict[str, str] = {}
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: Any | UnsetType = UNSET
    hostname: str = ""
    hostname_override: str | None = None
    subdomain: str = ""
    set_hostname_as_fqdn: bool | None = msgspec.field(default=None, name="setHostnameAsFQDN")
    affinity: Any | UnsetType = UNSET
    scheduler_name: str = ""
    tolerations: list[Toleration] = []
    host_aliases: list[HostAlias] = []
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: Any | UnsetType = UNSET
    readiness_gates: Any | UnsetType = UNSET
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    overhead: Any | UnsetType = UNSET
    topology_spread_constraints: Any | UnsetType = UNSET
    os: Any | UnsetType = UNSET
    scheduling_gates: Any | UnsetType = UNSET
    resource_claims: Any | UnsetType = UNSET
    resources: Any | UnsetType = UNSET


class Pod(Object, frozen=True, kw_only=True, omit_defaults=False):
    """core/v1 Pod."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def full_name(self) -> str:
        """``namespace/name``, the name by which a person finds the pod."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
