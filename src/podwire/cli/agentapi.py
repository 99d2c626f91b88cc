"""Asking the agent over its socket."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

_SECONDS = 2.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("podwire", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(str(self._path))


def not_ready(path: Path) -> str:
    """Why the agent on ``path`` cannot serve a CNI call now; empty if it can (``GET /healthz`` is 200)."""
    connection = _Connection(path)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        said = answer.read(1000).decode(errors="replace").strip()
    except OSError as error:
        return f"the agent on {path} does not answer: {error.strerror or error}"
    except http.client.HTTPException as error:
        return f"what answers on {path} is no agent: {type(error).__name__}"
    finally:
        connection.close()
    return "" if answer.status == http.client.OK else f"the agent is not ready: {said or answer.reason}"
