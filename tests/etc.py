"""An ``/etc`` to write in: the worker's own, over that of the machine, for the length of a test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def over(directory: Path) -> Iterator[Path]:
    """Lay an overlay in memory over ``/etc``; the worker's mount namespace is its own (tests/conftest.py)."""
    memory = directory / "etc"
    memory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", memory], check=True)
    for name in ("upper", "work"):
        (memory / name).mkdir()
    options = f"lowerdir=/etc,upperdir={memory}/upper,workdir={memory}/work"
    try:
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, "/etc"], check=True)
        try:
            yield Path("/etc")
        finally:
            subprocess.run(["umount", "-l", "/etc"], check=True)
    finally:
        subprocess.run(["umount", "-l", memory], check=True)
