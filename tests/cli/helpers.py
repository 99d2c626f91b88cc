"""A machine to be a node on: podwire as a person runs it, in the test's own namespaces."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podwire.cli.__main__ import main

SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE = 20.0

SLEEPER = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      command: ["/bin/busybox", "sh", "-c", "echo hello from {name}; exec /bin/busybox sleep 1000"]
"""
SERVER = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      command: ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/etc"]
      ports: [{{containerPort: 80, hostPort: {port}}}]
"""


def output(*command: str) -> str:
    """What an independent program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def host() -> dict[str, str]:
    """What must be the same before and after."""
    sysctls = "cd /proc/sys/net && grep -s . ipv4/ip_forward ipv4/conf/*/* ipv6/conf/*/*"
    return {
        "links": json.dumps(json.loads(output("ip", "-j", "link")), indent=1),
        "routes": output("ip", "route", "show", "table", "all")
        + output("ip", "-6", "route", "show", "table", "all"),
        "rules": output("nft", "list", "ruleset"),
        "sysctls": subprocess.run(["sh", "-c", sysctls], capture_output=True, text=True).stdout,
        "run": "\n".join(sorted(map(str, Path("/run").rglob("*")))),
    }


class Machine:
    """One place for a node: its root, its manifests, and the command."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.kubeconfig = self.root / "lib" / "apiserver" / "kubeconfig"
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "PODWIRE_ROOT": str(self.root),
            "PYTHONWARNINGS": "default",
        }

    def podwire(
        self, *arguments: str, stdin: str = "", status: int | None = 0, prefix: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the command, by ``prefix``; ``status`` is the exit status expected, None for any."""
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "podwire", *arguments],
            capture_output=True,
            text=True,
            input=stdin,
            env=self.environment,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if status is not None:
            assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def ask(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """The same within this process, which is quicker: for commands that only ask the node."""
        command, *rest = arguments
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main([command, "--root", str(self.root), *rest])
        said, complaint = (stream.buffer.getvalue().decode() for stream in (out, err))
        assert found == status, f"{arguments}: {found}\n{said}\n{complaint}"
        return subprocess.CompletedProcess(arguments, found, said, complaint)

    @contextmanager
    def start(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """The command beside the test; killed at the end if it still runs."""
        command = [sys.executable, "-m", "podwire", *arguments]
        with subprocess.Popen(command, text=True, env=self.environment, **options) as process:
            try:
                yield process
            finally:
                process.kill()

    def write(self, name: str, text: str) -> None:
        """Put a manifest into the directory in one step."""
        temporary = self.manifests / f".{name}"
        temporary.write_text(text)
        temporary.rename(self.manifests / name)

    def up(self, *arguments: str) -> None:
        """Start a node in the background."""
        self.podwire("up", "--detach", str(self.manifests), "--node-name", "n1", *arguments)

    def pod(self, name: str) -> dict[str, Any]:
        """The pod as JSON."""
        found: dict[str, Any] = json.loads(self.ask("get", "pod", name, "-o", "json").stdout)
        return found

    @contextmanager
    def watching(self) -> Iterator[subprocess.Popen[str]]:
        """``get pods --watch``."""
        with self.start("get", "pods", "-w", "--no-headers", "-A", stdout=subprocess.PIPE) as watch:
            yield watch

    def wait_for(self, *wanted: str) -> None:
        """Return when each ``name=STATUS`` of ``wanted`` has been seen, as the watch tells it."""
        missing = {tuple(entry.split("=")) for entry in wanted}
        with self.watching() as watch:
            for line in lines(watch, PATIENCE):
                _, name, ready, status, *_ = line.split()
                if status != "Running" or ready.split("/")[0] == ready.split("/")[1]:
                    missing.discard((name.removesuffix("-n1"), status))
                if not missing:
                    return
        log = self.root / "lib" / "node.log"
        said = log.read_text() if log.exists() else ""
        raise AssertionError(f"not seen: {missing}\n{self.podwire('get', 'pods', '-A').stdout}\n{said}")


def lines(process: subprocess.Popen[str], seconds: float) -> Iterator[str]:
    """The lines that a process prints, until it ends or the time is over."""
    assert process.stdout is not None
    until = time.monotonic() + seconds
    buffer = ""
    fd = process.stdout.fileno()
    while select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
        data = os.read(fd, 65536).decode()
        if not data:
            return
        buffer += data
        *whole, buffer = buffer.split("\n")
        yield from whole
