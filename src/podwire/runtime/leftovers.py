"""Processes of sandboxes that no supervisor answers for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def kill_leftovers(sandbox_ids: set[str]) -> None:
    """Kill the processes of sandboxes whose supervisors are dead.

    They are known by the mounts that only a sandbox has: its /dev/shm, and its generated files.
    """
    marks = [
        mark for one in sandbox_ids for mark in (f" podwire-{one} ".encode(), f"/sandboxes/{one}/".encode())
    ]
    for _ in range(50):
        found = False
        known: dict[str, bool] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of them
            if not name.isdigit():
                continue
            try:
                namespace = os.readlink(f"/proc/{name}/ns/mnt")  # noqa: PTH115
                if namespace not in known:
                    mounts = Path("/proc", name, "mountinfo").read_bytes()
                    if not mounts:
                        continue
                    known[namespace] = any(mark in mounts for mark in marks)
                if known[namespace]:
                    os.kill(int(name), signal.SIGKILL)
                    found = True
            except OSError:  # it has ended, or is of another world and out of reach
                continue
        if not found:
            return
        time.sleep(0.002)
