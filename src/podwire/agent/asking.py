"""How a command asks the agent that runs on this machine."""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import msgspec

SECONDS = 60.0


class AgentError(Exception):
    """The agent did not answer as asked."""


class NotRunning(AgentError):
    """No agent answers on ``socket``."""

    def __init__(self, socket: Path, reason: str) -> None:
        super().__init__(f"no agent answers on {socket}: {reason}")
        self.socket = socket


class _Connection(HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("podwire", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str, seconds: float = SECONDS) -> Any:
    """Return the JSON of a page; NotRunning, or AgentError with what the agent said.

    ``seconds`` is how long each part of the exchange may take.
    """
    connection = _Connection(path, seconds)
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        raise NotRunning(path, error.strerror or str(error)) from error
    try:
        connection.request(method, target)
        response = connection.getresponse()
        body = response.read()
    except (OSError, HTTPException) as error:
        raise AgentError(f"the agent on {path} went away: {error}") from error
    finally:
        connection.close()
    if response.headers.get_content_type() != "application/json":
        raise AgentError(body.decode(errors="replace").strip() or f"the agent answered {response.status}")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise AgentError(f"the agent's answer cannot be read: {error}") from error
