"""A foreign plugin as a process: found in the path, a process group of its own, killed at its deadline."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podwire.cni import args as cni_args
from podwire.cni import gojson
from podwire.cni.errors import CNIError, DecodeFailure, IOFailure, PluginMissing, TryLater, from_code
from podwire.cni.types import TraceContext

STDOUT_MAX = 8 << 20
STDERR_KEPT = 4096
_BUSY_TRIES = 10
_BUSY_PAUSE = 0.1
_TICK = 0.5
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plugin's process left: its stdout, the tail of its stderr, and how long it took (seconds)."""

    stdout: bytes
    stderr: str
    seconds: float


class ProcessFailure(CNIError):
    """A plugin's process ended without an answer of the protocol.

    ``status`` is its exit status (negative: the signal that killed it), ``stderr`` the tail of what it said.
    """

    def __init__(self, msg: str, status: int, stderr: str) -> None:
        super().__init__(msg, f"stderr: {stderr}" if stderr else "it wrote nothing to stderr")
        self.status = status
        self.stderr = stderr


def find(type: str, path: Sequence[str]) -> str:
    """Return the executable of a plugin: the first regular file of that name. PluginMissing (7) if none."""
    cni_args.check_plugin_type(type)
    for directory in path:
        candidate = os.path.join(directory, type)  # noqa: PTH118 - once per operation and directory
        try:
            mode = os.stat(candidate).st_mode  # noqa: PTH116
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode):
            return candidate
    raise PluginMissing([type], path)


def execute(
    type: str,
    path: Sequence[str],
    *,
    command: str,
    container_id: str = "",
    netns: str = "",
    ifname: str = "",
    args: str = "",
    stdin: bytes,
    deadline: float,
    environ: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
    trace: TraceContext | None = None,
    stderr: list[str] | None = None,
) -> Outcome:
    """Find a plugin and run it for one command; CNIError is the plugin's own, or says how it ended.

    ``deadline`` is a `time.monotonic` time: at it, or when ``cancel`` is set, its process group is killed.
    The tail of what it wrote to stderr is added to ``stderr``, also when it failed. Without ``trace`` it is
    that of ``environ`` (default: of this process).
    """
    variables = {key: value for key, value in (environ or os.environ).items() if not key.startswith("CNI_")}
    if trace is not None:
        for key in ("TRACEPARENT", "TRACESTATE", "BAGGAGE"):
            variables.pop(key, None)
        variables.update(trace.variables())
    variables["CNI_COMMAND"] = command
    variables["CNI_PATH"] = os.pathsep.join(path)
    for key, value in (
        ("CNI_CONTAINERID", container_id),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", ifname),
        ("CNI_ARGS", args),
    ):
        if value or command in {"ADD", "CHECK", "DEL"}:
            variables[key] = value
    outcome = run(find(type, path), variables, stdin, deadline, cancel, stderr=stderr)
    if command in {"ADD", "VERSION"}:
        _require_json(outcome, type)
    return outcome


def _require_json(outcome: Outcome, type: str) -> None:
    try:
        gojson.parse(outcome.stdout)
    except ValueError as error:
        shown = outcome.stdout[:200].decode(errors="replace").strip()
        said = f"; stderr: {outcome.stderr}" if outcome.stderr else ""
        raise DecodeFailure(
            f'plugin "{type}" succeeded, but its stdout is no JSON: {error}', f"stdout: {shown!r}{said}"
        ) from None


def run(
    executable: str,
    environ: Mapping[str, str],
    stdin: bytes,
    deadline: float,
    cancel: threading.Event | None = None,
    *,
    stderr: list[str] | None = None,
) -> Outcome:
    """Run an executable to its end, its own failure raised as `CNIError`. Blocks: call it from a thread."""
    began = time.monotonic()
    process = _start(executable, environ, deadline)
    exchange = _Exchange(process, stdin)
    try:
        reason = exchange.until(deadline, cancel)
        if reason:
            _kill(process)
            exchange.drain()
            raise TryLater(
                f"{Path(executable).name} {reason} after {time.monotonic() - began:.1f} s and was killed",
                f"stderr: {exchange.said()}" if exchange.said() else "",
            )
    except BaseException:
        _kill(process)
        raise
    finally:
        exchange.close()
        process.wait()
        if stderr is not None and exchange.said():
            stderr.append(exchange.said())
    outcome = Outcome(bytes(exchange.stdout), exchange.said(), time.monotonic() - began)
    if process.returncode != 0:
        raise _failure(executable, process.returncode, outcome)
    return outcome


def _start(executable: str, environ: Mapping[str, str], deadline: float) -> subprocess.Popen[bytes]:
    for attempt in range(_BUSY_TRIES):
        try:
            return subprocess.Popen(
                [executable],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # The file is being installed right now: its writer still has it open.
            busy = isinstance(error, OSError) and error.errno == errno.ETXTBSY
            last = attempt == _BUSY_TRIES - 1 or time.monotonic() + _BUSY_PAUSE > deadline
            if not busy or last:
                reason = getattr(error, "strerror", None) or str(error)
                raise IOFailure(f"cannot run {executable}: {reason}") from error
        time.sleep(_BUSY_PAUSE)
    raise IOFailure(f"cannot run {executable}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@dataclass
class _Exchange:
    """The pipes of a running process: stdin fed, stdout kept, of stderr the tail."""

    process: subprocess.Popen[bytes]
    stdin: bytes
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._pending = memoryview(self.stdin)
        self._selector = selectors.DefaultSelector()
        self._pidfd = os.pidfd_open(self.process.pid)
        self._pipes: list[Any] = [self.process.stdin, self.process.stdout, self.process.stderr]
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._pipes[0], selectors.EVENT_WRITE, self._feed)
        self._selector.register(self._pipes[1], selectors.EVENT_READ, self._read_stdout)
        self._selector.register(self._pipes[2], selectors.EVENT_READ, self._read_stderr)
        self._selector.register(self._pidfd, selectors.EVENT_READ, None)

    def until(self, deadline: float, cancel: threading.Event | None) -> str:
        """Exchange until the process has ended; else why not: past the deadline, cancelled, too much said.

        The end is the process's, not its pipes': a daemon that it left behind may hold those open.
        """
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "was not done at its deadline"
            if cancel is not None and cancel.is_set():
                return "was cancelled"
            ended = False
            for key, _ in self._selector.select(min(left, _TICK) if cancel else left):
                if key.data is None:
                    ended = True
                else:
                    key.data(key.fileobj)
            if len(self.stdout) > STDOUT_MAX:
                return f"wrote more than {STDOUT_MAX} bytes to stdout"
            if ended:
                self.drain()
                return ""

    def drain(self) -> None:
        """Take what the pipes still hold, without waiting for more."""
        for pipe, take in ((self._pipes[1], self._read_stdout), (self._pipes[2], self._read_stderr)):
            while not pipe.closed and len(self.stdout) <= STDOUT_MAX and take(pipe):
                pass

    def said(self) -> str:
        """Return the tail of stderr as one line of text."""
        return " | ".join(bytes(self.stderr).decode(errors="replace").strip().splitlines())

    def close(self) -> None:
        """Let go of all that was opened."""
        self._selector.close()
        os.close(self._pidfd)
        for pipe in self._pipes:
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def _feed(self, pipe: Any) -> None:
        try:
            if self._pending:
                self._pending = self._pending[os.write(pipe.fileno(), self._pending[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._pending = memoryview(b"")
        if not self._pending:
            self._drop(pipe)

    def _read_stdout(self, pipe: Any) -> bool:
        return self._read(pipe, self.stdout)

    def _read_stderr(self, pipe: Any) -> bool:
        more = self._read(pipe, self.stderr)
        del self.stderr[:-STDERR_KEPT]
        return more

    def _read(self, pipe: Any, into: bytearray) -> bool:
        try:
            chunk = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._drop(pipe)
            return False
        into += chunk
        return True

    def _drop(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        pipe.close()


def _failure(executable: str, status: int, outcome: Outcome) -> CNIError:
    try:
        said = gojson.parse(outcome.stdout)
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("code"), int) and isinstance(said.get("msg"), str):
        details = said.get("details")
        msg = said["msg"] or f"failed with exit status {status} and no message"
        return from_code(said["code"], msg, details if isinstance(details, str) else "")
    name = Path(executable).name
    how = f"exit status {status}"
    if status < 0:
        try:
            how = f"killed by {signal.Signals(-status).name}"
        except ValueError:
            how = f"killed by signal {-status}"
    shown = outcome.stdout[:200].decode(errors="replace").strip()
    said_out = f", stdout: {shown!r}" if shown else ""
    return ProcessFailure(f"{name} gave no CNI error: {how}{said_out}", status, outcome.stderr)
