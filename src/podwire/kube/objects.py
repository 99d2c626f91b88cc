"""The core/v1 objects that Podwire works with, as frozen msgspec structs with the API's own JSON names.

Fields that Podwire acts on are typed; the other fields of the API are declared as ``Any`` and pass through
as they came, so that a pod is printed as it was written. A field left out is ``UNSET`` or its empty default
and is not encoded. Times are RFC 3339 strings in UTC with whole seconds, as the API server writes them.
Source: k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType


class Object(
    Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What all objects share: frozen, camelCase on the wire, defaults left out, unknown fields refused."""


class OwnerReference(Object, frozen=True, kw_only=True):
    """metav1.OwnerReference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Object, frozen=True, kw_only=True):
    """metav1.ObjectMeta."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []
    managed_fields: Any | UnsetType = UNSET


class ContainerPort(Object, frozen=True, kw_only=True):
    """core/v1 ContainerPort; ``protocol`` is TCP, UDP or SCTP."""

    container_port: int
    name: str = ""
    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class ObjectFieldSelector(Object, frozen=True, kw_only=True):
    """core/v1 ObjectFieldSelector."""

    field_path: str
    api_version: str = ""


class EnvVarSource(Object, frozen=True, kw_only=True):
    """core/v1 EnvVarSource."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: Any | UnsetType = UNSET
    config_map_key_ref: Any | UnsetType = UNSET
    secret_key_ref: Any | UnsetType = UNSET
    file_key_ref: Any | UnsetType = UNSET


class EnvVar(Object, frozen=True, kw_only=True):
    """core/v1 EnvVar."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class ExecAction(Object, frozen=True, kw_only=True):
    """core/v1 ExecAction."""

    command: list[str] = []


class HTTPHeader(Object, frozen=True, kw_only=True):
    """core/v1 HTTPHeader."""

    name: str
    value: str


class HTTPGetAction(Object, frozen=True, kw_only=True):
    """core/v1 HTTPGetAction; ``port`` is a number or the name of a container port."""

    port: int | str
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: list[HTTPHeader] = []


class TCPSocketAction(Object, frozen=True, kw_only=True):
    """core/v1 TCPSocketAction."""

    port: int | str
    host: str = ""


class Probe(Object, frozen=True, kw_only=True):
    """core/v1 Probe; times in seconds."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: Any | UnsetType = UNSET
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class SleepAction(Object, frozen=True, kw_only=True):
    """core/v1 SleepAction."""

    seconds: int


class LifecycleHandler(Object, frozen=True, kw_only=True):
    """core/v1 LifecycleHandler."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(Object, frozen=True, kw_only=True):
    """core/v1 Lifecycle."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str = ""


class VolumeMount(Object, frozen=True, kw_only=True):
    """core/v1 VolumeMount."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""
    mount_propagation: Any | UnsetType = UNSET
    recursive_read_only: Any | UnsetType = UNSET


class SecurityContext(Object, frozen=True, kw_only=True):
    """core/v1 SecurityContext."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool | None = None
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    capabilities: Any | UnsetType = UNSET
    proc_mount: Any | UnsetType = UNSET
    se_linux_options: Any | UnsetType = UNSET
    seccomp_profile: Any | UnsetType = UNSET
    app_armor_profile: Any | UnsetType = UNSET
    windows_options: Any | UnsetType = UNSET


class Container(Object, frozen=True, kw_only=True):
    """core/v1 Container. ``restart_policy`` Always on an init container makes it a sidecar."""

    name: str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    ports: list[ContainerPort] = []
    env: list[EnvVar] = []
    env_from: Any | UnsetType = UNSET
    resources: Any | UnsetType = UNSET
    resize_policy: Any | UnsetType = UNSET
    restart_policy: str = ""
    restart_policy_rules: Any | UnsetType = UNSET
    volume_mounts: list[VolumeMount] = []
    volume_devices: Any | UnsetType = UNSET
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class HostPathVolumeSource(Object, frozen=True, kw_only=True):
    """core/v1 HostPathVolumeSource."""

    path: str
    type: str = ""


class EmptyDirVolumeSource(Object, frozen=True, kw_only=True):
    """core/v1 EmptyDirVolumeSource."""

    medium: str = ""
    size_limit: Any | UnsetType = UNSET


class Volume(Object, frozen=True, kw_only=True):
    """core/v1 Volume; the sources that Podwire does not mount pass through."""

    name: str
    host_path: HostPathVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    aws_elastic_block_store: Any | UnsetType = UNSET
    azure_disk: Any | UnsetType = UNSET
    azure_file: Any | UnsetType = UNSET
    cephfs: Any | UnsetType = UNSET
    cinder: Any | UnsetType = UNSET
    config_map: Any | UnsetType = UNSET
    csi: Any | UnsetType = UNSET
    downward_api: Any | UnsetType = msgspec.field(default=UNSET, name="downwardAPI")
    ephemeral: Any | UnsetType = UNSET
    fc: Any | UnsetType = UNSET
    flex_volume: Any | UnsetType = UNSET
    flocker: Any | UnsetType = UNSET
    gce_persistent_disk: Any | UnsetType = UNSET
    git_repo: Any | UnsetType = UNSET
    glusterfs: Any | UnsetType = UNSET
    image: Any | UnsetType = UNSET
    iscsi: Any | UnsetType = UNSET
    nfs: Any | UnsetType = UNSET
    persistent_volume_claim: Any | UnsetType = UNSET
    photon_persistent_disk: Any | UnsetType = UNSET
    portworx_volume: Any | UnsetType = UNSET
    projected: Any | UnsetType = UNSET
    quobyte: Any | UnsetType = UNSET
    rbd: Any | UnsetType = UNSET
    scale_io: Any | UnsetType = msgspec.field(default=UNSET, name="scaleIO")
    secret: Any | UnsetType = UNSET
    storageos: Any | UnsetType = UNSET
    vsphere_volume: Any | UnsetType = UNSET


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


class ContainerStateWaiting(Object, frozen=True, kw_only=True):
    """core/v1 ContainerStateWaiting."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(Object, frozen=True, kw_only=True):
    """core/v1 ContainerStateRunning."""

    started_at: str | None = None


class ContainerStateTerminated(Object, frozen=True, kw_only=True, omit_defaults=False):
    """core/v1 ContainerStateTerminated."""

    exit_code: int
    signal: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str | UnsetType = msgspec.field(default=UNSET, name="containerID")


class ContainerStateUnion(Object, frozen=True, kw_only=True):
    """core/v1 ContainerState: one of the three."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Object, frozen=True, kw_only=True, omit_defaults=False):
    """core/v1 ContainerStatus."""

    name: str
    state: ContainerStateUnion = ContainerStateUnion()
    last_state: ContainerStateUnion = ContainerStateUnion()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str | UnsetType = msgspec.field(default=UNSET, name="containerID")
    started: bool | UnsetType = UNSET
    allocated_resources: Any | UnsetType = UNSET
    allocated_resources_status: Any | UnsetType = UNSET
    resources: Any | UnsetType = UNSET
    user: Any | UnsetType = UNSET
    volume_mounts: Any | UnsetType = UNSET
    stop_signal: Any | UnsetType = UNSET


class PodCondition(Object, frozen=True, kw_only=True, omit_defaults=False):
    """core/v1 PodCondition; ``status`` is True, False or Unknown."""

    type: str
    status: str
    last_probe_time: str | None = None
    last_transition_time: str | None = None
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    observed_generation: int | UnsetType = UNSET


class PodIP(Object, frozen=True, kw_only=True):
    """core/v1 PodIP and HostIP."""

    ip: str


class PodStatus(Object, frozen=True, kw_only=True):
    """core/v1 PodStatus; ``phase`` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    conditions: list[PodCondition] = []
    message: str = ""
    reason: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[PodIP] = msgspec.field(default=[], name="hostIPs")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[PodIP] = msgspec.field(default=[], name="podIPs")
    start_time: str | None = None
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []
    ephemeral_container_statuses: Any | UnsetType = UNSET
    nominated_node_name: str = ""
    qos_class: str = ""
    resize: Any | UnsetType = UNSET
    resource_claim_statuses: Any | UnsetType = UNSET
    observed_generation: int = 0


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


class ObjectReference(Object, frozen=True, kw_only=True):
    """core/v1 ObjectReference."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(Object, frozen=True, kw_only=True):
    """core/v1 EventSource."""

    component: str = ""
    host: str = ""


class Event(Object, frozen=True, kw_only=True, omit_defaults=False):
    """core/v1 Event; ``type`` is Normal or Warning."""

    api_version: str = "v1"
    kind: str = "Event"
    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 1
    type: str = "Normal"
    reporting_component: str = ""
    reporting_instance: str = ""
