"""A raw client of the agent's socket, and the agent as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 20.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def exit(self) -> int:
        assert self.status == 200, self.body
        return int(self.headers["podwire-exit"])

    @property
    def stderr(self) -> bytes:
        return self.body[len(self.body) - int(self.headers["podwire-stderr"]) :]

    @property
    def stdout(self) -> bytes:
        return self.body[: len(self.body) - int(self.headers["podwire-stderr"])]

    @property
    def json(self) -> Any:
        return json.loads(self.stdout if "podwire-exit" in self.headers else self.body)


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(SECONDS)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return sock


def request(plugin: str, environ: dict[str, str], stdin: bytes, timeout: float = 30.0) -> bytes:
    variables = b"".join(f"{key}={value}".encode() + b"\0" for key, value in environ.items())
    head = (
        f"POST /cni/v1/{plugin} HTTP/1.1\r\nHost: podwire\r\nContent-Type: application/vnd.podwire.cni\r\n"
        f"Podwire-Environment: {len(variables)}\r\nPodwire-Timeout: {timeout * 1000:.0f}\r\n"
        f"Content-Length: {len(variables) + len(stdin)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + variables + stdin


def read_answer(sock: socket.socket) -> Answer | None:
    """Read until the end; None if the connection ended without an answer."""
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionError:
        pass
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    assert len(body) == int(headers["content-length"])
    return Answer(int(line.split()[1]), headers, body)


def exchange(path: Path, data: bytes) -> Answer | None:
    with connect(path) as sock:
        try:
            sock.sendall(data)
        except BrokenPipeError:
            pass
        return read_answer(sock)


def ask(path: Path, target: str, method: str = "GET") -> Answer:
    answer = exchange(path, f"{method} {target} HTTP/1.1\r\nHost: podwire\r\n\r\n".encode())
    assert answer is not None
    return answer


def variables(
    command: str, container: str, netns: str = "", ifname: str = "eth0", **more: str
) -> dict[str, str]:
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": netns,
        "CNI_IFNAME": ifname,
        "CNI_PATH": "/opt/cni/bin",
        **more,
    }


def cni(
    path: Path,
    command: str,
    config: dict[str, Any],
    container: str,
    netns: str = "",
    *,
    ifname: str = "eth0",
    timeout: float = 30.0,
    **more: str,
) -> Answer:
    environ = variables(command, container, netns, ifname, **more)
    answer = exchange(path, request(config["type"], environ, json.dumps(config).encode(), timeout))
    assert answer is not None, "the agent went away"
    return answer


class Agent:
    """``podwire agent`` as a process below a directory of its own."""

    def __init__(self, root: Path, *arguments: str, program: tuple[str, ...] = ("-m", "podwire")) -> None:
        self.root = root
        self.socket = root / "run" / "agent.sock"
        self.log = root.with_name(f"{root.name}.log")
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "agent", "--root", str(root), *arguments],
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environ,
            )

    def started(self) -> Agent:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"the agent ended: {self.log.read_text()}")
            try:
                if ask(self.socket, "/healthz").status == 200:
                    return self
            except (FileNotFoundError, ConnectionError, AssertionError):
                time.sleep(0.01)
        raise AssertionError(f"the agent does not answer: {self.log.read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def attachments(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(self.socket, "/v1/attachments").json["attachments"]
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = ask(self.socket, "/v1/status").json
        return found
