"""The independent observer of the kernel tests: iproute2's own reading of the kernel."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

_NESTS = {(18,), (18, 2)}
"""IFLA_LINKINFO and IFLA_INFO_DATA."""


def ip(*arguments: str, netns: str | None = None) -> list[dict[str, Any]]:
    """What ``ip -j -d`` says; an empty list when it says nothing."""
    place = [] if netns is None else ["-n", netns]
    done = subprocess.run(["ip", "-j", "-d", *place, *arguments], capture_output=True, text=True, check=True)
    return [entry for entry in json.loads(done.stdout or "[]") if entry]


def link(name: str, netns: str | None = None) -> dict[str, Any]:
    """One link as ``ip`` sees it."""
    [found] = ip("link", "show", "dev", name, netns=netns)
    return found


def link_names(netns: str | None = None) -> set[str]:
    return {entry["ifname"] for entry in ip("link", "show", netns=netns)}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def descriptors() -> set[str]:
    """The numbers of this process's open files."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def tree(data: bytes, place: tuple[int, ...] = ()) -> list[object]:
    """Attributes in no order: ``ip`` has its own, leaves out the flag of a nest and the NUL of a text."""
    found: list[object] = []
    offset = 0
    while offset < len(data):
        length, number = struct.unpack_from("=HH", data, offset)
        number &= 0x3FFF
        payload = data[offset + 4 : offset + length]
        inner = (*place, number)
        value = tree(payload, inner) if inner in _NESTS else payload.rstrip(b"\0") or b"\0"
        found.append((number, value))
        offset += (length + 3) & ~3
    return sorted(found, key=repr)
