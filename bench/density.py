"""``python -m bench density``: what grows with the number of pods of the plugin `podwire`.

4,000 routed pods, the last 400 beside the first 400; 1,000 pods on one bridge, the last 100 beside the first
100; and the 4,000 deleted by 32 callers at once. In process, as the agent calls the plugin. Times are taken
twice: as a clock on the wall shows them, and the processor's, which others on the machine disturb less.
``BENCH_PODS`` sets another number of routed pods.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwire.cni.plugin import Result, call, make_request
from podwire.kernel import netns
from podwire.kernel.host import Kernel
from podwire.plugins import podwire

ROUTED, BRIDGED, CALLERS = 4000, 1000, 32
_PODS = Path("/run/netns")
_WARM_UP = 5


@dataclass(frozen=True)
class Growth:
    """Medians of the first and the last tenth of the ADDs, in ms: on the wall, and processor time."""

    pods: int
    wall: tuple[float, float]
    processor: tuple[float, float]

    def __str__(self) -> str:
        (first, last), (busy_first, busy_last) = self.wall, self.processor
        return (
            f"first tenth {first:.2f} ms, last tenth {last:.2f} ms a pod: {last / first:.2f} times as slow"
            f" (processor {busy_first:.2f} and {busy_last:.2f} ms: {busy_last / busy_first:.2f} times)"
        )


class Network:
    """Pods of one network, by their numbers."""

    def __init__(self, kernel: Kernel, mode: str, subnet: str, data: Path) -> None:
        self._kernel = kernel
        self._config = {
            "cniVersion": "1.1.0",
            "name": f"density-{mode}",
            "type": "podwire",
            "mode": mode,
            "subnets": [subnet],
            "dataDir": str(data),
        }
        self._results: dict[int, Result | None] = {}

    def add(self, number: int) -> None:
        """Attach one pod."""
        self._results[number] = self._call("ADD", number)

    def delete(self, number: int) -> None:
        """Detach it."""
        self._call("DEL", number, self._results.pop(number))

    def _call(self, command: str, number: int, result: Result | None = None) -> Result | None:
        config: dict[str, Any] = self._config
        request = make_request(
            podwire.PLUGIN,
            command,
            config,
            container_id=f"{number:064x}",
            netns=str(_PODS / f"pod{number}"),
            ifname="eth0",
            prev_result=result,
        )
        return call(podwire.PLUGIN, request, self._kernel)


def grow(network: Network, pods: int) -> Growth:
    """Attach the pods one after the other."""
    wall, processor = [], []
    for number in range(pods):
        begin, busy = time.perf_counter(), time.thread_time()
        network.add(number)
        processor.append((time.thread_time() - busy) * 1000)
        wall.append((time.perf_counter() - begin) * 1000)
    tenth = pods // 10
    first, last = slice(_WARM_UP, tenth), slice(-tenth, None)
    return Growth(
        pods,
        (statistics.median(wall[first]), statistics.median(wall[last])),
        (statistics.median(processor[first]), statistics.median(processor[last])),
    )


def main() -> None:
    """Measure and print; the caller has moved into namespaces of its own."""
    routed = int(os.environ.get("BENCH_PODS", str(ROUTED)))
    bridged = min(BRIDGED, routed)
    directory = Path(tempfile.mkdtemp(prefix="podwire-density-"))
    print(f"making {routed} network namespaces ...", file=sys.stderr, flush=True)
    for number in range(routed):
        netns.create(_PODS / f"pod{number}")
    gc.disable()  # the bench's own objects are many
    try:
        with Kernel.open() as kernel:
            network = Network(kernel, "routed", "10.64.0.0/16", directory)
            print(f"{routed} routed pods: {grow(network, routed)}")
            print(f"{routed} deletions by {CALLERS} callers: {_deleted(network, routed):.2f} s")
            network = Network(kernel, "bridge", "10.65.0.0/16", directory)
            print(f"{bridged} pods on one bridge: {grow(network, bridged)}")
            print(f"{bridged} deletions by {CALLERS} callers: {_deleted(network, bridged):.2f} s")
    finally:
        shutil.rmtree(directory)
        for number in range(routed):
            netns.remove(_PODS / f"pod{number}")


def _deleted(network: Network, pods: int) -> float:
    with ThreadPoolExecutor(CALLERS) as callers:
        begin = time.perf_counter()
        list(callers.map(network.delete, range(pods)))
        return time.perf_counter() - begin
