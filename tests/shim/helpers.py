"""An agent that answers by a script, and the shim as a runtime calls it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 10.0
ASAN = "abort_on_error=0:exitcode=99:detect_leaks=0"
"""A finding of a sanitizer is an exit status that nothing else has."""


def builder() -> ModuleType:
    """``shim/build.py``."""
    if (found := sys.modules.get("podwire_shim_build")) is not None:
        return found
    spec = importlib.util.spec_from_file_location("podwire_shim_build", ROOT / "shim" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(directory: Path, *, sanitize: bool = False) -> Path:
    """The shim, compiled now."""
    shim = builder()
    target = directory / "podwire-shim"
    shim.compile(target, ["gcc"] if sanitize else shim.system(), sanitize=sanitize)
    return target


@dataclass
class Asked:
    """One request as it came: its first line, its headers by name, its environment and its stdin."""

    line: str
    headers: dict[str, str]
    environ: list[bytes]
    stdin: bytes

    @property
    def variables(self) -> dict[str, str]:
        return dict(each.decode().split("=", 1) for each in self.environ)


def receive(connection: socket.socket) -> Asked:
    """Read one request, strictly."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = connection.recv(65536)
        if not got:
            raise ConnectionError(f"hung up after {data!r}")
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    line, *rest = head.decode("ascii").split("\r\n")
    headers = dict(each.split(": ", 1) for each in rest)
    length = int(headers["Content-Length"])
    chunks, size = [body], len(body)
    while size < length:
        got = connection.recv(1 << 20)
        if not got:
            raise ConnectionError(f"hung up after {size} of {length} bytes")
        chunks.append(got)
        size += len(got)
    body = b"".join(chunks)
    assert len(body) == length
    split = int(headers["Podwire-Environment"])
    variables = body[:split]
    assert variables == b"" or variables.endswith(b"\0")
    return Asked(line, headers, variables.split(b"\0")[:-1], body[split:])


def answer(stdout: bytes = b"", stderr: bytes = b"", status: int = 0, *extra: str) -> bytes:
    """An answer as the agent gives it."""
    head = (
        "HTTP/1.1 200 OK",
        f"Content-Length: {len(stdout) + len(stderr)}",
        f"Podwire-Exit: {status}",
        f"Podwire-Stderr: {len(stderr)}",
        *extra,
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + stdout + stderr


Script = Callable[[socket.socket], None]


@dataclass
class Agent:
    """A server on ``path``; each connection is given to ``script`` in a thread of its own."""

    path: Path
    asked: list[Asked] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def answering(self, *data: bytes) -> Script:
        """Read the request, send ``data``, hang up."""

        def script(connection: socket.socket) -> None:
            self.asked.append(receive(connection))
            for each in data:
                connection.sendall(each)

        return script

    @contextmanager
    def serve(self, script: Script, uid: int | None = None) -> Iterator[Agent]:
        """Answer by ``script`` for the length of a block; what failed in it fails the block.

        ``uid`` is the user that the kernel takes down as the listener's.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        before = os.geteuid()
        try:
            if uid is not None:
                os.seteuid(uid)
            listener.listen(256)
        finally:
            os.seteuid(before)
        threads: list[threading.Thread] = []
        open_now: set[socket.socket] = set()

        def one(connection: socket.socket) -> None:
            try:
                with connection:
                    script(connection)
            except BaseException as error:  # noqa: BLE001 - told at the end of the block
                self.failures.append(error)
            finally:
                open_now.discard(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                open_now.add(connection)
                threads.append(threading.Thread(target=one, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield self
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            acceptor.join(PATIENCE)
            for connection in list(open_now):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(PATIENCE)
            self.path.unlink()
        if self.failures:
            raise self.failures[0]


def closed(connection: socket.socket) -> bool:
    """Wait until the other side has hung up: whether it has."""
    connection.settimeout(PATIENCE)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def hung_up(connection: socket.socket) -> None:
    """Wait until the other side has hung up, without reading what it sent."""
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    assert poll.poll(PATIENCE * 1000)


def reset(connection: socket.socket) -> None:
    """Hang up as the kernel does for a process that is killed with data unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@dataclass
class Shim:
    """The program under a plugin's name in ``bin``, and the socket that it is told of."""

    program: Path
    home: Path
    socket: Path

    @property
    def bin(self) -> Path:
        return self.home / "bin"

    def named(self, name: str) -> Path:
        """The program as ``name``: a link, as installed."""
        self.bin.mkdir(exist_ok=True)
        path = self.bin / name
        if not path.exists():
            os.link(self.program, path)
        return path

    def environ(self, command: str = "ADD", **more: str) -> dict[str, str]:
        variables = {"CNI_COMMAND": command} if command else {}
        found = {"PATH": os.environ["PATH"], "PODWIRE_SOCKET": str(self.socket), "ASAN_OPTIONS": ASAN}
        return {**found, **variables, **more}

    def start(
        self, name: str = "bridge", environ: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(
            [str(self.named(name))], env=self.environ() if environ is None else environ, **streams
        )

    def run(
        self,
        name: str = "bridge",
        stdin: bytes | int = b"{}",
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        """One call, to its end; ``stdin`` is what it gets, or a file descriptor."""
        given = stdin if isinstance(stdin, bytes) else None
        process = self.start(name, environ, **({} if given is not None else {"stdin": stdin}), **options)
        try:
            out, err = process.communicate(given, timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def in_tree() -> Path:
    """The shim where an editable installation finds it, compiled if its source is newer."""
    shim = builder()
    target: Path = shim.IN_TREE
    newest = max(path.stat().st_mtime for path in shim.sources())
    if not target.exists() or target.stat().st_mtime < newest:
        shim.compile(target, shim.system())
    return target
