"""The log of a node in the background: its standard output and error in a file of bounded size."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

LIMIT = 8 << 20
"""Size in bytes from which the log is set aside as ``node.log.1``, in the place of an earlier one."""
LOOK = 30.0


def write_to(path: Path) -> None:
    """Standard output and error go to ``path`` from here on; what is too long there is set aside first."""
    set_aside(path)
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def set_aside(path: Path) -> bool:
    """Rename a log that has grown to its limit; whether there was one."""
    try:
        if path.stat().st_size < LIMIT:
            return False
        path.replace(path.with_name(f"{path.name}.1"))
    except FileNotFoundError:
        return False
    return True


async def keep_small(path: Path) -> None:
    """Look at the log now and then, and begin a new one when it has grown to its limit."""
    while True:
        await asyncio.sleep(LOOK)
        if set_aside(path):
            write_to(path)
