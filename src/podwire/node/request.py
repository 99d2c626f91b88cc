"""Reading requests of the node's API: the pod that is meant, and query parameters."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from podwire.kube.objects import Pod
from podwire.node.service import Node


class ApiFailure(Exception):
    """The answer is a metav1.Status with this HTTP code."""

    def __init__(self, code: int, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


def find_pod(node: Node, request: web.Request) -> Pod:
    """The pod that the path names."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    pod = node.board.find(namespace, name)
    if pod is None:
        message = f'pods "{name}" not found in namespace "{namespace}"'
        raise ApiFailure(404, message, {"kind": "pods", "name": name})
    return pod


def container_name(pod: Pod, request: web.Request) -> str:
    """The container that ``container`` names; it can be left out when there is only one."""
    names = [c.name for c in (*pod.spec.init_containers, *pod.spec.containers)]
    wanted = request.query.get("container", "")
    if not wanted:
        if len(pod.spec.containers) == 1:
            return pod.spec.containers[0].name
        raise ApiFailure(
            400,
            f"a container name must be specified for pod {pod.metadata.name}, "
            f"choose one of: {' '.join(names)}",
        )
    if wanted not in names:
        raise ApiFailure(
            400, f"container {wanted} is not valid for pod {pod.metadata.name}, it has: {' '.join(names)}"
        )
    return wanted


def flag(request: web.Request, name: str) -> bool:
    """A parameter that is true or false; false if left out."""
    value = request.query.get(name, "false").lower()
    if value in ("true", "1"):
        return True
    if value in ("false", "0", ""):
        return False
    raise ApiFailure(400, f"{name}: {value!r} is neither true nor false")


def number(request: web.Request, name: str) -> int | None:
    """A parameter that is a number of at least 0; None if left out."""
    value = request.query.get(name)
    if value is None or value == "":
        return None
    if not value.isdecimal():
        raise ApiFailure(400, f"{name}: {value!r} is not a number of at least 0")
    return int(value)
