"""The runtime's side of the spawner: started when the first sandbox is made, ended with the runtime."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import podwire
from podwire.runtime.supervisor import Spec

_PROGRAM = """
import resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), hard))
sys.path.insert(0, sys.argv[2])
from podwire.runtime.spawner import main
main(int(sys.argv[1]))
"""

_PYTHON = (sys.executable, "-I", "-S", "-X", "utf8", "-c")


class Spawner:
    """Makes supervisors by forking them from a lean Python process. Thread-safe; its calls block shortly."""

    def __init__(self, log: Path) -> None:
        """``log``: where the process's errors go.

        Programs get the limit of open files that this process has now, also if it raises its own later.
        """
        self._log = log
        self._open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def spawn(self, spec: Spec, control: socket.socket) -> None:
        """Ask for a supervisor whose first connection is ``control``; its failure is told there. OSError."""
        packet = json.dumps(spec).encode()
        with self._lock:
            try:
                self._send(packet, control)
            except (BrokenPipeError, ConnectionResetError):
                # Somebody has killed it; supervisors live on their own, so a new one does as well.
                self._end()
                self._send(packet, control)

    def _send(self, packet: bytes, control: socket.socket) -> None:
        if self._socket is None:
            self._start()
        assert self._socket is not None
        socket.send_fds(self._socket, [packet], [control.fileno()])

    def _start(self) -> None:
        source = str(Path(podwire.__file__).parent.parent)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(30)
        try:
            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                self._process = subprocess.Popen(
                    [*_PYTHON, _PROGRAM, str(theirs.fileno()), source, str(self._open_files)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    env={"LANG": "C.UTF-8"},
                    cwd="/",
                    start_new_session=True,
                )
            finally:
                os.close(log)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process; the supervisors go on."""
        with self._lock:
            self._end()
