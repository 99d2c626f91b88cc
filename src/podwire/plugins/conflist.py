"""The network that ``podwire install`` writes for other runtimes: a list with the plugin ``podwire``.

The file says that it is ours, with a digest of the rest, so that one which somebody has edited is known too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "10-podwire.conflist"
"""Before most others in the directory's order: runtimes take the first network that they find."""
MARK = "podwire.install"
"""The key of the list that says so; runtimes pass over keys that they do not know."""
SUBNETS = ("10.202.0.0/16", "fd5a:202::/64")
MODES = ("routed", "bridge")
_BRIDGE = "cni-podwire0"
"""Another one than that of `podwire up`, which may be a node on the same machine."""
_CAPABILITIES = ("portMappings", "bandwidth", "ips", "mac", "ipRanges", "dns")
_VERSIONS = ["1.0.0", "1.1.0"]
"""``cniVersion`` is what every runtime in use speaks; one that knows ``cniVersions`` takes the highest."""


@dataclass(frozen=True)
class Network:
    """What can be chosen: the pods' ranges, one a family at most, the mode, the MTU (0: found by itself)."""

    subnets: tuple[str, ...] = SUBNETS
    mode: str = "routed"
    mtu: int = 0
    name: str = "podwire"


def text(network: Network) -> bytes:
    """Return the file."""
    plugin: dict[str, Any] = {
        "type": "podwire",
        "mode": network.mode,
        "subnets": list(network.subnets),
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
    }
    if network.mode == "bridge":
        plugin["bridge"] = _BRIDGE
    if network.mtu:
        plugin["mtu"] = network.mtu
    content = {
        "cniVersion": _VERSIONS[0],
        "cniVersions": _VERSIONS,
        "name": network.name,
        "plugins": [plugin],
    }
    return (json.dumps({**content, MARK: _digest(content)}, indent=2) + "\n").encode()


def is_ours(path: Path) -> bool:
    """Whether a file is one that ``podwire install`` wrote and nobody has edited. OSError."""
    content = _read(path)
    return content is not None and content.pop(MARK, None) == _digest(content)


def was_ours(path: Path) -> bool:
    """Whether ``podwire install`` wrote a file, which may be edited since. OSError."""
    content = _read(path)
    return content is not None and MARK in content


def is_edited(path: Path) -> bool:
    """Whether somebody has changed a file that ``podwire install`` wrote. OSError."""
    return was_ours(path) and not is_ours(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.is_symlink() or not path.is_file():
            return None
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _digest(content: dict[str, Any]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
