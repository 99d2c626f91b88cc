"""What it costs a process to have the path of an ADD in memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

MODULES = (
    "podwire.cni.runtime",
    "podwire.plugins.bridge",
    "podwire.plugins.host_local",
    "podwire.plugins.portmap",
    "podwire.plugins.masquerade",
    "podwire.kernel.host",
    "podwire.kernel.nft",
    "podwire.kernel.removal",
)


@dataclass(frozen=True)
class Cost:
    """Time over a bare start of Python, and the resident size of the whole process."""

    milliseconds: float
    start_milliseconds: float
    resident_mib: float
    n: int


def measure(n: int = 9) -> Cost:
    """Medians of ``n`` starts with the imports and ``n`` without, interleaved."""
    program = f"import {', '.join(MODULES)}\nprint(open('/proc/self/statm').read().split()[1])"
    full, bare, pages = [], [], 0
    for _ in range(n):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        middle = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        bare.append(middle - begin)
        full.append(time.perf_counter() - middle)
        pages = int(done.stdout)
    start = statistics.median(bare) * 1000
    return Cost(statistics.median(full) * 1000 - start, start, pages * 4096 / 2**20, n)
