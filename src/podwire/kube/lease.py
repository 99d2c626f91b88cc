"""coordination.k8s.io/v1 Lease: who holds a role, and since when he has said so.

Source: k8s.io/api/coordination/v1/types.go.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from podwire.kube.metadata import Object, ObjectMeta


class LeaseSpec(Object, frozen=True, kw_only=True):
    """LeaseSpec. Times are MicroTime: RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: Any | UnsetType = UNSET
    preferred_holder: Any | UnsetType = UNSET


class Lease(Object, frozen=True, kw_only=True, omit_defaults=False):
    """Lease."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
