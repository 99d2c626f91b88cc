"""Definitions for tests."""

from __future__ import annotations

from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A job at times.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "description": "What is wanted.",
            "required": ["cronSpec"],
            "properties": {
                "cronSpec": {"type": "string", "pattern": r"^(\S+\s?){5}$", "description": "When it runs."},
                "image": {"type": "string", "default": "busybox"},
                "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
                "mode": {"type": "string", "enum": ["fast", "slow"]},
                "ports": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port"],
                    "items": {
                        "type": "object",
                        "required": ["port"],
                        "properties": {"port": {"type": "integer"}, "name": {"type": "string"}},
                    },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}},
        },
    },
}


def version(name: str = "v1", *, storage: bool = True, **more: Any) -> dict[str, Any]:
    """A version of the definition."""
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": SCHEMA}, **more}


def definition(*versions: dict[str, Any], **names: Any) -> dict[str, Any]:
    """The definition of CronTab."""
    named = {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"], **names}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{named['plural']}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": named,
            "versions": list(versions) or [version()],
        },
    }


def crontab(name: str = "one", *, api_version: str = "example.com/v1", **spec: Any) -> dict[str, Any]:
    """A custom object."""
    return {
        "apiVersion": api_version,
        "kind": "CronTab",
        "metadata": {"name": name},
        "spec": {"cronSpec": "* * * * *", **spec},
    }
