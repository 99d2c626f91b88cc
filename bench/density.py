"""``python -m bench density``: what grows with the number of pods of the plugin `podwire`.

4,000 routed pods, the last 400 beside the first 400; 1,000 pods on one bridge, the last 100 beside the first
100; and the 4,000 deleted by 32 callers at once. In process, as the agent calls the plugin. The first pods
are those of a second host, a network namespace of its own, and are made in turns with the last ones of the
full host: a machine that becomes slower or quicker meanwhile does so for both. Times are taken twice: as a
clock on the wall shows them, and the processor's, which others on the machine disturb less. ``BENCH_PODS``
sets another number of routed pods.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import subprocess
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
from podwire.kernel.netns import Netns
from podwire.plugins import podwire

ROUTED, BRIDGED, CALLERS = 4000, 1000, 32
_PODS = Path("/run/netns")
_SECOND = _PODS / "second-host"
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
    """Pods of one network on one host, a network namespace, by their numbers."""

    def __init__(self, host: Netns, kernel: Kernel, mode: str, subnet: str, data: Path) -> None:
        self._host = host
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

    def add(self, number: int) -> tuple[float, float]:
        """Attach one pod; ms on the wall and of processor time, less the way into the host and out."""

        def timed() -> tuple[float, float]:
            begin, busy = time.perf_counter(), time.thread_time()
            self._results[number] = self._call("ADD", number)
            took = time.thread_time() - busy
            return (time.perf_counter() - begin) * 1000, took * 1000

        return self._host.run(timed)

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


def grow(full: Network, fresh: Network, pods: int) -> Growth:
    """Fill a host but for a tenth of the pods, and make that tenth in turns with the first of another."""
    tenth = pods // 10
    for number in range(pods - tenth):
        full.add(number)
    first, last = [], []
    for number in range(tenth):
        first.append(fresh.add(pods + number))
        last.append(full.add(pods - tenth + number))
    (wall_first, busy_first), (wall_last, busy_last) = (
        [statistics.median(column) for column in zip(*times[_WARM_UP:], strict=True)]
        for times in (first, last)
    )
    return Growth(pods, (wall_first, wall_last), (busy_first, busy_last))


def main() -> None:
    """Measure and print; the caller has moved into namespaces of its own."""
    routed = int(os.environ.get("BENCH_PODS", str(ROUTED)))
    bridged = min(BRIDGED, routed)
    directory = Path(tempfile.mkdtemp(prefix="podwire-density-"))
    names = [_SECOND, *(_PODS / f"pod{number}" for number in range(routed + routed // 10))]
    print(f"making {len(names)} network namespaces ...", file=sys.stderr, flush=True)
    for name in names:
        netns.create(name)
    gc.disable()  # the bench's own objects are many
    try:
        with (
            netns.current() as host,
            netns.open(_SECOND) as second,
            Kernel(netns.current()) as kernel,
            Kernel(netns.open(_SECOND)) as other,
        ):
            for one in (host, second):
                one.run(_give_uplink)
            for mode, subnet, pods, told in (
                ("routed", "10.64.0.0/16", routed, "routed pods"),
                ("bridge", "10.65.0.0/16", bridged, "pods on one bridge"),
            ):
                full = Network(host, kernel, mode, subnet, directory / "full")
                fresh = Network(second, other, mode, subnet, directory / "fresh")
                print(f"{pods} {told}: {grow(full, fresh, pods)}")
                print(f"{pods} deletions by {CALLERS} callers: {_deleted(full, range(pods)):.2f} s")
                _deleted(fresh, range(pods, pods + pods // 10))
    finally:
        shutil.rmtree(directory)
        for name in names:
            netns.remove(name)


def _give_uplink() -> None:
    """Nodes have one. Without an address the kernel looks through all links for one with each route."""
    for words in (
        "link add uplink type veth peer uplink-peer",
        "address add 192.0.2.2/24 dev uplink",
        "link set uplink up",
        "link set uplink-peer up",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def _deleted(network: Network, pods: range) -> float:
    with ThreadPoolExecutor(CALLERS) as callers:
        begin = time.perf_counter()
        list(callers.map(network.delete, pods))
        return time.perf_counter() - begin
