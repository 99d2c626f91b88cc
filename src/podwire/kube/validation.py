"""x."""

from __future__ import annotations

from dataclasses import dataclass

from podwire.kube.objects import Pod


@dataclass(frozen=True, slots=True)
class Invalid:
    """A field that breaks a rule, its value and the rule."""

    field: str
    value: str
    message: str


def validate_pod(pod: Pod) -> list[Invalid]:
    """X."""
    return []


def validate_static(pod: Pod) -> list[Invalid]:
    """X."""
    return []
