"""The node as a Kubernetes object: core/v1 Node, as plain data for printing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from podwire.kube import release
from podwire.node.clock import timestamp
from podwire.node.service import Node

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


async def node_object(node: Node) -> dict[str, Any]:
    """The node with its addresses, conditions and what it runs on."""
    name = node.node_name
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    runtime, version = node.runtime_version
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": f"{_memory_kib()}Ki"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": timestamp(node.started_at),
            "labels": {
                "kubernetes.io/arch": architecture,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
            },
        },
        "spec": {"podCIDR": node.pod_cidrs[0], "podCIDRs": list(node.pod_cidrs)} if node.pod_cidrs else {},
        "status": {
            "addresses": [
                *({"type": "InternalIP", "address": ip} for ip in node.host_ips),
                {"type": "Hostname", "address": name},
            ],
            "capacity": capacity,
            "allocatable": capacity,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": node.kubelet_port}},
            "conditions": await _conditions(node),
            "nodeInfo": {
                "architecture": architecture,
                "bootID": _line("/proc/sys/kernel/random/boot_id"),
                "containerRuntimeVersion": f"{runtime}://{version}",
                "kernelVersion": platform.release(),
                "kubeletVersion": release.VERSION,
                "machineID": _line("/etc/machine-id"),
                "operatingSystem": "linux",
                "osImage": _os_image(),
                "systemUUID": _line("/sys/class/dmi/id/product_uuid"),
            },
        },
    }


async def _conditions(node: Node) -> list[dict[str, str]]:
    bad = [condition for condition in await node.conditions() if not condition.status]
    network = any(condition.type == "NetworkReady" for condition in bad)
    ready = {
        "type": "Ready",
        "status": "False" if bad else "True",
        "lastHeartbeatTime": timestamp(node.clock.wall()),
        "reason": ("NetworkPluginNotReady" if network else "RuntimeNotReady") if bad else "NodeReady",
        "message": "; ".join(f"{c.type}: {c.reason}: {c.message}" for c in bad) or "the node is ready",
    }
    return [ready]


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _memory_kib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
