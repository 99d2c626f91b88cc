"""``python -m bench``: our ADD and DEL, the Go plugins' and the bare kernel's, interleaved in one run.

Runs in a network and a mount namespace of its own. ``BENCH_JSON=FILE`` writes the table as JSON too,
``BENCH_N`` sets how many pods each case has (default 40).
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import hotpath, peer
from bench.cases import CASES, Case
from bench.floor import Floor
from podwire import plugins
from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.runtime import Attachment, Runtime
from podwire.kernel import netns
from podwire.kernel.host import Kernel

_NEW = 0x40000000 | 0x00020000  # CLONE_NEWNET | CLONE_NEWNS
_BULK = 100
_CALLERS = 16


@dataclass(frozen=True)
class Row:
    """One line: medians in milliseconds, and how many times as fast we are (over 1: faster)."""

    name: str
    ours_ms: float
    peer_ms: float | None
    floor_ms: float | None
    n: int

    @property
    def ratio_to_peer(self) -> float | None:
        """The peer's time over ours."""
        return self.peer_ms / self.ours_ms if self.peer_ms else None

    @property
    def ratio_to_floor(self) -> float | None:
        """Our time over the floor's."""
        return self.ours_ms / self.floor_ms if self.floor_ms else None

    def record(self) -> dict[str, Any]:
        """The row as it is written to BENCH_JSON."""
        return {**asdict(self), "ratio_to_peer": self.ratio_to_peer, "ratio_to_floor": self.ratio_to_floor}


class Pods:
    """Empty network namespaces for one case."""

    def __init__(self, directory: Path, count: int) -> None:
        self.paths = [directory / f"pod{number}" for number in range(count)]
        for path in self.paths:
            netns.create(path)

    def close(self) -> None:
        """Remove them."""
        for path in self.paths:
            netns.remove(path)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that ``action`` takes."""
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1000


async def timed_async(action: Coroutine[Any, Any, object]) -> float:
    """Milliseconds that ``action`` takes."""
    begin = time.perf_counter()
    await action
    return (time.perf_counter() - begin) * 1000


class Run:
    """One case: three sets of pods, one bridge each for us, the peer and the floor."""

    def __init__(self, number: int, case: Case, count: int, kernel: Kernel, directory: Path) -> None:
        self.case, self.count, self.directory = case, count, directory
        self.prefix = f"10.{100 + 3 * number}"
        self.runtime = Runtime(plugins.load, kernel, cache_dir=directory / f"cache{number}")
        self.pods = [Pods(directory / f"{who}{number}", count) for who in ("ours", "peer", "floor")]
        self.network = self._list(number)
        self.peer_name = f"peer{number}"
        self.peer_bridge = f"cni-peer{number}"
        self.peer_subnet = f"10.{101 + 3 * number}.0.0/16"
        self.floor = Floor(kernel.netns, f"br-floor{number}", f"10.{102 + 3 * number}.0.0/16")
        self.results: dict[int, object] = {}
        self.number = number

    def _list(self, number: int) -> NetworkConfigList:
        chain = self.case.chain(
            f"pw-bench{number}", f"{self.prefix}.0.0/16", self.directory / f"leases{number}", []
        )
        for plugin in chain:
            plugin.pop("runtimeConfig", None)
        return parse_list(json.dumps({"cniVersion": "1.0.0", "name": f"bench{number}", "plugins": chain}))

    def attachment(self, number: int) -> Attachment:
        """Our attachment of one pod."""
        ports = {"portMappings": self.case.mappings(20000 + 10 * number)} if self.case.ports else {}
        return Attachment(
            container_id=f"ours{number}",
            ifname="eth0",
            netns=str(self.pods[0].paths[number]),
            capability_args=ports,
        )

    def _peer_chain(self, number: int) -> list[dict[str, Any]]:
        return self.case.chain(
            self.peer_bridge,
            self.peer_subnet,
            self.directory / "peer-leases",
            self.case.mappings(40000 + 10 * number),
        )

    def peer_add(self, number: int) -> None:
        """The peer's ADD."""
        self.results[number] = peer.add(
            self._peer_chain(number), self.peer_name, f"peer{number}", self.pods[1].paths[number]
        )

    def peer_delete(self, number: int) -> None:
        """The peer's DEL."""
        peer.delete(
            self._peer_chain(number),
            self.peer_name,
            f"peer{number}",
            self.pods[1].paths[number],
            self.results[number],
        )

    async def measure(self) -> list[Row]:
        """ADD and DEL one by one, interleaved; then all of them removed at once."""
        adds: list[list[float]] = [[], [], []]
        deletes: list[list[float]] = [[], [], []]
        plain = not self.case.masquerade
        for number in range(self.count):
            await self._add(number, adds, plain)
        for number in range(self.count):
            deletes[0].append(await timed_async(self.runtime.delete(self.network, self.attachment(number))))
            deletes[1].append(timed(lambda one=number: self.peer_delete(one)))  # type: ignore[misc]
            if plain:
                deletes[2].append(timed(lambda one=number: self.floor.delete(one)))  # type: ignore[misc]
        return [
            self._row("ADD", adds),
            self._row("DEL", deletes),
        ]

    async def measure_bulk(self) -> list[Row]:
        """Remove ``count`` pods as when a node is drained: all are asked for at once."""
        for number in range(self.count):
            await self._add(number, [[], [], []], True)
        ours = await timed_async(
            _all([self.runtime.delete(self.network, self.attachment(number)) for number in range(self.count)])
        )
        sequential = range(self.count // 2)
        parallel = range(self.count // 2, self.count)
        one_by_one = timed(lambda: list(map(self.peer_delete, sequential))) * 2
        with ThreadPoolExecutor(_CALLERS) as pool:
            together = timed(lambda: list(pool.map(self.peer_delete, parallel))) * 2
        floor = timed(lambda: self.floor.delete_group(range(self.count), 0x70770000))
        return [
            Row(f"{self.case.name}: {self.count} DELs at once, peer one by one", ours, one_by_one, floor, 1),
            Row(
                f"{self.case.name}: {self.count} DELs at once, peer {_CALLERS} at once",
                ours,
                together,
                floor,
                1,
            ),
        ]

    async def _add(self, number: int, times: list[list[float]], floor: bool) -> None:
        prepared = self.floor.prepare(number)
        times[0].append(await timed_async(self.runtime.add(self.network, self.attachment(number))))
        times[1].append(timed(lambda: self.peer_add(number)))
        if floor:
            times[2].append(timed(lambda: self.floor.add(prepared, self.pods[2].paths[number])))

    def _row(self, command: str, times: list[list[float]]) -> Row:
        ours, theirs, floor = (statistics.median(each) if each else None for each in times)
        assert ours is not None
        return Row(f"{self.case.name}: {command}", ours, theirs, floor, len(times[0]))

    async def close(self) -> None:
        """Remove the namespaces and close what is open."""
        await self.runtime.close()
        self.floor.close()
        for pods in self.pods:
            pods.close()


async def _all(actions: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*actions)


async def measure(kernel: Kernel, directory: Path, count: int) -> list[Row]:
    """All cases."""
    rows = []
    for number, case in enumerate(CASES):
        _progress(case.name)
        run = Run(number, case, count, kernel, directory)
        rows += await run.measure()
        await run.close()
    for number, case in enumerate(CASES[:1]):
        _progress(f"{case.name}, {_BULK} at once")
        run = Run(len(CASES) + number, case, _BULK, kernel, directory)
        rows += await run.measure_bulk()
        await run.close()
    return rows


def _progress(text: str) -> None:
    print(f"measuring {text} ...", file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    """The rows for a person."""
    width = max(len(row.name) for row in rows)
    lines = [
        f"{'':{width}}  {'ours':>9} {'Go peer':>9} {'floor':>9}  {'peer/ours':>9} {'ours/floor':>10} {'n':>4}"
    ]
    for row in rows:
        cells = [row.ours_ms, row.peer_ms, row.floor_ms]
        shown = " ".join("        -" if cell is None else f"{cell:6.2f} ms" for cell in cells)
        ratios = [row.ratio_to_peer, row.ratio_to_floor]
        first, second = ("-" if ratio is None else f"{ratio:.1f}" for ratio in ratios)
        lines.append(f"{row.name:{width}}  {shown}  {first:>9} {second:>10} {row.n:>4}")
    return "\n".join(lines)


def isolate() -> None:
    """Move into namespaces of our own, with an empty ``/run``: nothing of the machine is reached."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW) != 0:
        sys.exit(f"bench: unshare: {os.strerror(ctypes.get_errno())} (root is needed)")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def main() -> None:
    """Measure, print, write."""
    if not (peer.BIN / "bridge").exists():
        sys.exit(f"bench: no {peer.BIN}/bridge: install the Debian package containernetworking-plugins")
    isolate()
    count = int(os.environ.get("BENCH_N", "40"))
    directory = Path(tempfile.mkdtemp(prefix="podwire-bench-"))
    try:
        with Kernel.open() as kernel:
            rows = asyncio.run(measure(kernel, directory, count))
    finally:
        shutil.rmtree(directory)
    print(table(rows))
    cost = hotpath.measure()
    print(
        f"\nimporting the hot path: {cost.milliseconds:.0f} ms over Python's own start "
        f"({cost.start_milliseconds:.0f} ms), {cost.resident_mib:.1f} MiB resident"
    )
    records = [row.record() for row in rows]
    records.append(
        Row("import of the hot path", cost.milliseconds, None, cost.start_milliseconds, cost.n).record()
        | {"resident_mib": round(cost.resident_mib, 1)}
    )
    target = os.environ.get("BENCH_JSON")
    if target:
        Path(target).write_text(json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    main()
