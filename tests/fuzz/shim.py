"""The shim as a target, with sanitizers: an agent that answers anything, a caller that says anything."""

from __future__ import annotations

import atexit
import json
import re
import socket
import tempfile
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.fuzz.targets import Target
from tests.shim.helpers import Asked, Shim, answer, build, receive

_HEAD_MAX = 8 << 10
_BODY_MAX = 16 << 20
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3})(?: [^\r]*(?:\r(?!\n)[^\r]*)*)?", re.DOTALL)
_OURS = {b"content-length": "length", b"podwire-exit": "exit", b"podwire-stderr": "stderr"}


@dataclass
class Bench:
    """The program, and a server for one call at a time, in a thread."""

    home: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    pieces: tuple[bytes, ...] = ()
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        home = Path(self.home.name)
        self.shim = Shim(build(home, sanitize=True), home, home / "agent.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.shim.socket))
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the server, remove the program."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
        self.home.cleanup()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self.asked.append(receive(connection))
                    for piece in self.pieces:
                        connection.sendall(piece)
                except OSError:
                    pass


@cache
def bench() -> Bench:
    """The one of this process."""
    return Bench()


def expected(data: bytes) -> tuple[int, bytes, bytes] | None:
    """What becomes of an answer by its definition: status, stdout, stderr; None if it must be refused."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank or len(head) + 4 > _HEAD_MAX:
        return None
    line, *headers = head.split(b"\r\n")
    status = _STATUS.fullmatch(line)
    found: dict[str, int] = {}
    for header in headers:
        name, colon, value = header.partition(b":")
        if not colon or name.lower() == b"transfer-encoding":
            return None
        key = _OURS.get(name.lower())
        value = value.lstrip(b" \t")
        if key is None:
            continue
        if key in found or not re.fullmatch(rb"[0-9]{1,9}", value):
            return None
        found[key] = int(value)
    if not status or status[1] != b"200" or len(found) != 3 or found["exit"] > 1:
        return None
    if found["length"] != len(body) or found["length"] > _BODY_MAX or found["stderr"] > found["length"]:
        return None
    split = len(body) - found["stderr"]
    return found["exit"], body[:split], body[split:]


def run_answer(data: bytes) -> None:
    """The agent answers ``data``, in pieces, and hangs up: it is passed on exactly, or refused as a whole."""
    size = 1 + (len(data) * 7 + sum(data[:16])) % 97
    slowly, rest = data[:4096], data[4096:]
    bench().asked.clear()
    bench().pieces = (*(slowly[at : at + size] for at in range(0, len(slowly), size)), rest)
    done = bench().shim.run()
    wanted = expected(data)
    if wanted is None:
        _refused(done.returncode, done.stdout, done.stderr, {11})
    elif (done.returncode, done.stdout, done.stderr) != wanted:
        raise AssertionError(f"want {wanted}, got {done}")


def run_call(data: bytes) -> None:
    """The caller says ``data``: a deadline, CNI_ARGS, a baggage, stdin. It arrives, or is refused."""
    found = bench()
    parts = [*data.split(b"\n", 3), b"", b"", b""][:4]
    timeout, arguments, baggage = (part.replace(b"\0", b"")[:100_000] for part in parts[:3])
    environ = {
        **found.shim.environ(),
        "PODWIRE_TIMEOUT": timeout.decode(errors="surrogateescape"),
        "CNI_ARGS": arguments.decode(errors="surrogateescape"),
        "BAGGAGE": baggage.decode(errors="surrogateescape"),
    }
    found.pieces = (answer(b"out", b"err"),)
    found.asked.clear()
    done = found.shim.run("host-local", parts[3], environ)
    if done.returncode:
        _refused(done.returncode, done.stdout, done.stderr, {4, 11})
        return
    (asked,) = found.asked
    if (done.stdout, done.stderr) != (b"out", b"err"):
        raise AssertionError(f"{done}")
    sent = {b"CNI_ARGS=" + arguments, b"BAGGAGE=" + baggage, b"PODWIRE_TIMEOUT=" + timeout}
    if asked.stdin != parts[3] or not sent <= set(asked.environ):
        raise AssertionError(f"arrived: {asked}")


def _refused(status: int, stdout: bytes, stderr: bytes, codes: set[int]) -> None:
    if status != 1 or stderr or json.loads(stdout.decode())["code"] not in codes:
        raise AssertionError(f"status {status}, stdout {stdout!r}, stderr {stderr!r}")


def _prepare() -> None:
    bench()


SHIM_ANSWER = Target(
    run_answer,
    (),
    [
        answer(b'{"cniVersion": "1.0.0"}', b"a warning\n"),
        answer(b"", b"", 1, "Server: x", "Date: y"),
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nsorry",
        b"HTTP/1.1 404\r\n\r\nno such \xe2\x80\xa6",
    ],
    _prepare,
)
SHIM_CALL = Target(
    run_call,
    (),
    [
        b'30\nK=V;IP=10.0.0.1\nk=v\n{"cniVersion": "1.0.0", "name": "net"}',
        b"1m30.5s\n\n\n",
        b"500ms\na\nb\n\0\xff",
    ],
    _prepare,
)
