"""Callers that cost next to nothing themselves: plugins run as a runtime runs them, timed by a C program."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).with_name("caller.c")


@dataclass(frozen=True)
class Call:
    """One attachment: its container, its namespace, and the configurations of the chain's plugins."""

    container_id: str
    netns: Path
    plugins: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What came of the calls, in their order: milliseconds and results; and of all, wall and CPU seconds.

    CPU seconds and peak memory (MiB, of the largest one) are those of the plugins' processes.
    """

    milliseconds: tuple[float, ...]
    results: tuple[dict[str, Any], ...]
    wall: float
    cpu: float
    peak_mib: float


class LoadError(Exception):
    """A plugin refused what the bench asked of it."""


def build(directory: Path) -> Path:
    """Compile the callers' program into ``directory``."""
    program = directory / "caller"
    compiler = shutil.which("cc") or shutil.which("gcc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*command, "-O2", "-o", str(program), str(_SOURCE), "-lpthread"], check=True)
    return program


def run(program: Path, command: str, callers: int, bin_dir: Path, calls: Sequence[Call]) -> Outcome:
    """Have ``callers`` at once make the calls; a chain's ADD hands results on, its DEL goes backward.

    Raises LoadError with what the first plugin that failed had said.
    """
    lines = []
    for call in calls:
        fields = [call.container_id, str(call.netns)]
        for plugin in call.plugins if command == "ADD" else reversed(call.plugins):
            fields += [str(bin_dir / plugin["type"]), json.dumps(plugin)[:-1]]
        lines.append("\t".join(fields))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [program, command, str(callers), str(bin_dir)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise LoadError(done.stderr.strip())
    rows = [line.split("\t", 2) for line in done.stdout.splitlines()]
    for call, (_, status, said) in zip(calls, rows, strict=True):
        if status != "0":
            raise LoadError(f"{command} {call.container_id}: {said}")
    return Outcome(
        tuple(int(micros) / 1000 for micros, _, _ in rows),
        tuple(json.loads(said) if said.strip() else {} for _, _, said in rows),
        int(done.stderr) / 1e6,
        (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime),
        after.ru_maxrss / 1024,
    )
