"""The peer: Debian's Go plugins, run as processes, as every runtime runs them today."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

BIN = Path("/usr/lib/cni")


class PeerError(Exception):
    """A Go plugin that failed: its type, the command and what it printed."""


def run(type_: str, command: str, config: dict[str, Any], container_id: str, netns: Path) -> dict[str, Any]:
    """Run one plugin; its result, or an empty object when it prints none."""
    done = subprocess.run(
        [BIN / type_],
        input=json.dumps(config).encode(),
        env={
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id,
            "CNI_NETNS": str(netns),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(BIN),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        },
        capture_output=True,
        check=False,
        close_fds=False,
    )
    if done.returncode != 0:
        raise PeerError(f"{type_} {command}: {done.stdout.decode()} {done.stderr.decode()}")
    result: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    return result


def add(plugins: list[dict[str, Any]], name: str, container_id: str, netns: Path) -> dict[str, Any]:
    """ADD over a chain, as libcni does it. Returns the last result."""
    result: dict[str, Any] = {}
    for plugin in plugins:
        config = {"cniVersion": "1.0.0", "name": name, **plugin}
        if result:
            config["prevResult"] = result
        result = run(plugin["type"], "ADD", config, container_id, netns)
    return result


def delete(plugins: list[dict[str, Any]], name: str, container_id: str, netns: Path, result: object) -> None:
    """DEL over a chain, backward, with the cached result."""
    for plugin in reversed(plugins):
        config = {"cniVersion": "1.0.0", "name": name, **plugin, "prevResult": result}
        run(plugin["type"], "DEL", config, container_id, netns)
