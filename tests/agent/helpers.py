"""A raw client of the agent's socket, and the agent as a process."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from podwire.agent.daemon import Agent, import_everything
from podwire.agent.settings import Settings
from podwire.cni.plugin import Plugin
from podwire.plugins import load

ROOT = Path(__file__).parents[2]
SECONDS = 20.0
CALM = Settings(drain_seconds=5, repair_seconds=3600, sweep_seconds=3600)
"""Settings with which the agent does nothing of itself, but at its start."""


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


class Running:
    """An agent that answers on a socket, whatever runs it."""

    socket: Path
    log: Path
    pid: int

    def ended(self) -> int | None:
        raise NotImplementedError

    def started(self) -> Self:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self.ended() is not None:
                raise AssertionError(f"the agent ended: {self.log.read_text()}")
            try:
                if ask(self.socket, "/healthz").status == 200:
                    return self
            except (FileNotFoundError, ConnectionError, AssertionError):
                time.sleep(0.01)
        raise AssertionError(f"the agent does not answer: {self.log.read_text()}")

    def wait(self) -> int:
        """Wait until it has ended; the exit status, or minus the signal."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if (status := self.ended()) is not None:
                return status
            time.sleep(0.005)
        raise AssertionError(f"the agent does not end: {self.log.read_text()}")

    def kill(self) -> None:
        if self.ended() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def end(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def add(self, config: dict[str, Any], container: str, netns: str = "", **more: Any) -> Answer:
        return cni(self.socket, "ADD", config, container, netns, **more)

    def delete(self, config: dict[str, Any], container: str, netns: str = "", **more: Any) -> Answer:
        return cni(self.socket, "DEL", config, container, netns, **more)

    def attachments(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(self.socket, "/v1/attachments").json["attachments"]
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = ask(self.socket, "/v1/status").json
        return found

    def until(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is as wanted."""
        end = time.monotonic() + SECONDS
        while not what(found := self.status()):
            assert time.monotonic() < end, f"{found}; {self.log.read_text()}"
            time.sleep(0.01)
        return found


class Process(Running):
    """``podwire agent`` as a user starts it."""

    def __init__(self, root: Path, *arguments: str, **environ: str) -> None:
        self.socket = root / "run" / "agent.sock"
        self.log = root.with_name(f"{root.name}.log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "podwire", "agent", "--root", str(root), *arguments],
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environ},
            )
        self.pid = self.process.pid

    def ended(self) -> int | None:
        return self.process.poll()


class Forked(Running):
    """An agent in a copy of this process: there at once, with plugins and faults of the test's own."""

    def __init__(
        self,
        root: Path,
        *,
        plugins: Sequence[Plugin[Any, Any]] = (),
        settings: Settings = CALM,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        self.socket = root / "run" / "agent.sock"
        self.log = root.with_name(f"{root.name}.log")
        self._status: int | None = None
        import_everything(logging.getLogger())  # once here, in place of once in every copy
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._be(root, plugins, settings, prepare)
            except BaseException:  # noqa: BLE001 - the test's own code must not go on here
                traceback.print_exc(file=sys.stderr)
                sys.stderr.flush()
            finally:
                os._exit(99)

    def _be(
        self,
        root: Path,
        plugins: Sequence[Plugin[Any, Any]],
        settings: Settings,
        prepare: Callable[[], object] | None,
    ) -> None:
        gc.freeze()  # the heap of the tests is not the agent's to look through
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stderr = os.fdopen(2, "w")
        logging.basicConfig(stream=sys.stderr, level=logging.DEBUG, force=True)
        own = {plugin.type: plugin for plugin in plugins}
        if prepare is not None:
            prepare()
        unfinished = Agent(
            self.socket, root / "lib", settings, lambda type: own.get(type) or load(type)
        ).run()
        os._exit(1 if unfinished else 0)

    def ended(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status
