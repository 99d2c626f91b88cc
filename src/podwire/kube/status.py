"""What is observed of a pod and its containers.

Source: k8s.io/api/core/v1/types.go.
"""

# ruff: noqa: RUF012 (msgspec gives each instance a new list or dict)

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from podwire.kube.metadata import Object


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
