"""Podwire as other runtimes have it: its agent as a process, its programs in a plugin directory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 20.0
END_SECONDS = 20.0


@contextmanager
def agent(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent below ``root`` for the length of a block."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "log").open("ab") as log:
        process = subprocess.Popen(_podwire("agent", "--root", str(root), "-v"), stdout=log, stderr=log)
    try:
        limit = time.monotonic() + START_SECONDS
        while not (root / "run/agent.sock").exists():
            assert process.poll() is None and time.monotonic() < limit, (root / "log").read_text()
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(END_SECONDS)


def install(root: Path, bin_dir: Path, conf_dir: Path, *arguments: str) -> None:
    """Run ``podwire install`` for that agent."""
    places = ("--root", str(root), "--bin-dir", str(bin_dir), "--conf-dir", str(conf_dir))
    done = subprocess.run(_podwire("install", *places, *arguments), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or done.stdout


def _podwire(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "podwire", *arguments]
