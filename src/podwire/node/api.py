"""What the node's server and its client agree on: paths, error bodies, and the framing of exec.

Paths and bodies are those of the Kubernetes API (k8s.io/api/core/v1, metav1.Status). Exec is a WebSocket with
the subprotocol ``v5.channel.k8s.io``, as kubectl speaks it: the first byte of each binary message is the
channel: 0 stdin, 1 stdout, 2 stderr, 3 the final metav1.Status as JSON, 4 the terminal's size as JSON
``{"Width", "Height"}``, 255 closes the channel whose number follows.
"""

from __future__ import annotations

import enum
from http import HTTPStatus
from typing import Any

STATUS_HEADER = "Podwire-Status"
"""A refusal's metav1.Status once more, for WebSocket clients, which see no body."""
STATUS_HEADER_LIMIT = 6000
EXEC_PROTOCOL = "v5.channel.k8s.io"


class Channel(enum.IntEnum):
    """The first byte of an exec message."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    STATUS = 3
    RESIZE = 4
    CLOSE = 255


_REASONS = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.CONFLICT: "Conflict",
    HTTPStatus.GONE: "Expired",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
}


def failure(
    code: int, message: str, reason: str = "", details: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A metav1.Status that says no."""
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS.get(HTTPStatus(code), "Unknown"),
        "code": code,
    }
    if details:
        status["details"] = details
    return status


def exit_status(code: int) -> dict[str, Any]:
    """The metav1.Status that ends an exec: Success, or NonZeroExitCode with the code as a cause."""
    if code == 0:
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def exit_code(status: dict[str, Any]) -> int | None:
    """The exit code that such a status tells; None if it tells of another failure."""
    if status.get("status") == "Success":
        return 0
    for cause in status.get("details", {}).get("causes", []):
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdecimal():
            return int(cause["message"])
    return None
