"""The answer of an API server that is not an object: metav1.Status.

Source: k8s.io/apimachinery/pkg/apis/meta/v1/types.go.
"""

from __future__ import annotations

import msgspec


class Lenient(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is only read from a server: unknown fields are passed over."""


class StatusCause(Lenient, frozen=True, kw_only=True):
    """metav1.StatusCause; ``reason`` is a CauseType such as FieldValueInvalid."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Lenient, frozen=True, kw_only=True):
    """metav1.StatusDetails; ``retry_after_seconds`` is 0 where the server names no time."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] | None = None
    retry_after_seconds: int = 0


class Status(Lenient, frozen=True, kw_only=True):
    """metav1.Status; ``status`` is Success or Failure, ``code`` the HTTP status that belongs to it."""

    api_version: str = "v1"
    kind: str = "Status"
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0

    def has_cause(self, reason: str) -> bool:
        """Whether one of the causes has that type."""
        return any(cause.reason == reason for cause in (self.details and self.details.causes) or ())


RESOURCE_VERSION_TOO_LARGE = "ResourceVersionTooLarge"
"""CauseType of an answer to a version that the server has not reached yet."""
