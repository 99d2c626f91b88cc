"""The volumes of a pod.

Source: k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from podwire.kube.metadata import Object


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
