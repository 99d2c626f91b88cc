"""The kubectls of this machine, run against a node's API server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.cli.helpers import Machine

_NEAR = Path("/usr/lib/google-cloud-sdk/bin")


def versions() -> list[str]:
    """The oldest and the newest kubectl that are found, at least one."""
    found = {path.name: str(path) for path in _NEAR.glob("kubectl.1.*")}
    if found:
        order = sorted(found, key=lambda name: int(re.sub(r".*\.", "", name)))
        return list(dict.fromkeys((found[order[0]], found[order[-1]])))
    plain = shutil.which("kubectl")
    assert plain, "no kubectl on this machine"
    return [plain]


class Kubectl:
    """One kubectl with the kubeconfig of a node."""

    def __init__(self, machine: Machine, program: str) -> None:
        self.program = program
        self.kubeconfig = machine.root / "lib" / "apiserver" / "kubeconfig"
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "HOME": str(machine.root.parent),
        }

    def __call__(self, *arguments: str, stdin: str = "", status: int = 0) -> str:
        """What it prints; ``status`` is the exit status expected."""
        done = subprocess.run(
            [self.program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=30,
        )
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if status == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        """What it prints as JSON."""
        return json.loads(self(*arguments, "-o", "json"))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """It, beside the test."""
        return subprocess.Popen([self.program, *arguments], text=True, env=self.environment, **options)
