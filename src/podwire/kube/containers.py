"""A container of a pod and its parts: ports, environment, probes, life-cycle handlers, mounts.

Source: k8s.io/api/core/v1/types.go.
"""

# ruff: noqa: RUF012 (msgspec gives each instance a new list or dict)

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from podwire.kube.metadata import Object


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
