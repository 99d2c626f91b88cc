"""``python -m bench [NAME]...``: all benches of the plugins, or those named, one after the other.

inprocess   our plugins' functions, the Go plugins and the bare kernel, interleaved (BENCH_N pods a case: 40)
hosted      shim and agent beside the Go plugins, called as a runtime calls them (HOSTED_N: 40; HOSTED_BULK
            pods at once: 500)
density     what grows with the number of pods (BENCH_PODS: 4000)

Each runs in a network and a mount namespace of its own. ``BENCH_JSON=DIR`` writes DIR/NAME.json too.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
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
from functools import partial
from pathlib import Path
from typing import Any

from bench import density, hosted, hotpath, ours, peer, runtime
from bench.cases import CASES, Case
from bench.floor import Floor
from podwire import plugins
from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.runtime import Attachment, Runtime
from podwire.kernel import netns
from podwire.kernel.host import Kernel

_NEW = 0x40000000 | 0x00020000  # CLONE_NEWNET | CLONE_NEWNS
_BULK = 100
_WARM_UP = 2
_CALLERS = 16
_WHO = ("ours", "peer", "floor", "runtime")


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
    """Milliseconds that ``action`` takes; the bench's own garbage is collected before."""
    gc.collect()
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1000


async def timed_async(action: Coroutine[Any, Any, object]) -> float:
    """Milliseconds that ``action`` takes."""
    begin = time.perf_counter()
    await action
    return (time.perf_counter() - begin) * 1000


class Run:
    """One case: sets of pods and a bridge each for us, the peer and the floor; and for our runtime."""

    def __init__(self, number: int, case: Case, count: int, kernel: Kernel, directory: Path) -> None:
        self.case, self.count, self.directory, self.kernel = case, count, directory, kernel
        self.number = number
        self.pods = {who: Pods(Path(f"/run/netns/{who}{number}"), count) for who in _WHO}
        self.runtime = Runtime(plugins.load, kernel, cache_dir=directory / f"cache{number}")
        self.network = self._list()
        self.floor = Floor(kernel.netns, f"br-floor{number}", self._subnet(2))
        self.results: dict[tuple[str, int], Any] = {}

    def _subnet(self, which: int) -> str:
        return f"10.{100 + 4 * self.number + which}.0.0/16"

    def _chain(self, who: str, number: int) -> list[dict[str, Any]]:
        which = _WHO.index(who)
        return self.case.chain(
            f"pw-{who}{self.number}",
            self._subnet(which),
            self.directory / f"leases-{who}",
            self.case.mappings(10000 + 15000 * which + 10 * number),
        )

    def _list(self) -> NetworkConfigList:
        chain = self._chain("runtime", 0)
        for plugin in chain:
            plugin.pop("runtimeConfig", None)
        text = json.dumps({"cniVersion": "1.0.0", "name": f"runtime{self.number}", "plugins": chain})
        return parse_list(text)

    def _attachment(self, number: int) -> Attachment:
        ports = self.case.mappings(10000 + 15000 * _WHO.index("runtime") + 10 * number)
        return Attachment(
            container_id=f"runtime{number}",
            ifname="eth0",
            netns=str(self.pods["runtime"].paths[number]),
            capability_args={"portMappings": ports} if ports else {},
        )

    def _one(self, who: str, number: int) -> tuple[list[dict[str, Any]], str, str, Path]:
        return (
            self._chain(who, number),
            f"{who}{self.number}",
            f"{who}{number}",
            self.pods[who].paths[number],
        )

    def _ours_add(self, number: int) -> float:
        one = self._one("ours", number)
        begin = time.perf_counter()
        self.results["ours", number] = ours.add(self.kernel, *one)
        return (time.perf_counter() - begin) * 1000

    def _ours_delete(self, number: int) -> float:
        one = self._one("ours", number)
        begin = time.perf_counter()
        ours.delete(self.kernel, *one, self.results["ours", number])
        return (time.perf_counter() - begin) * 1000

    def _peer_add(self, number: int) -> float:
        one = self._one("peer", number)
        begin = time.perf_counter()
        self.results["peer", number] = peer.add(*one)
        return (time.perf_counter() - begin) * 1000

    def _peer_delete(self, number: int) -> float:
        one = self._one("peer", number)
        begin = time.perf_counter()
        peer.delete(*one, self.results["peer", number])
        return (time.perf_counter() - begin) * 1000

    def _floor_add(self, number: int) -> float:
        prepared = self.floor.prepare(number)
        path = self.pods["floor"].paths[number]
        return timed(lambda: self.floor.add(prepared, path))

    async def measure(self) -> list[Row]:
        """ADD and DEL one by one, the four in turns."""
        adds: dict[str, list[float]] = {who: [] for who in _WHO}
        deletes: dict[str, list[float]] = {who: [] for who in _WHO}
        for number in range(self.count):
            attachment = self._attachment(number)
            adds["ours"].append(self._ours_add(number))
            adds["peer"].append(self._peer_add(number))
            adds["floor"].append(self._floor_add(number))
            adds["runtime"].append(await timed_async(self.runtime.add(self.network, attachment)))
        for number in range(self.count):
            attachment = self._attachment(number)
            deletes["ours"].append(self._ours_delete(number))
            deletes["peer"].append(self._peer_delete(number))
            deletes["floor"].append(timed(partial(self.floor.delete, number)))
            deletes["runtime"].append(await timed_async(self.runtime.delete(self.network, attachment)))
        return [
            *self._rows("ADD", adds, floor=not self.case.masquerade),
            *self._rows("DEL", deletes, floor=not self.case.masquerade),
        ]

    def _rows(self, command: str, times: dict[str, list[float]], *, floor: bool) -> list[Row]:
        middle = {who: statistics.median(times[who][_WARM_UP:]) for who in _WHO}
        bare = middle["floor"] if floor else None
        name = f"{self.case.name}: {command}"
        return [
            Row(name, middle["ours"], middle["peer"], bare, self.count - _WARM_UP),
            Row(
                f"{name}, our runtime around it",
                middle["runtime"],
                middle["peer"],
                bare,
                self.count - _WARM_UP,
            ),
        ]

    def measure_bulk(self, rounds: int = 5) -> list[Row]:
        """Remove all pods at once, as a drained node does; the medians of ``rounds`` after one to warm up."""
        times: dict[str, list[float]] = {"ours": [], "one by one": [], "likewise": [], "floor": []}
        half = self.count // 2
        for _ in range(1 + rounds):
            for number in range(self.count):
                self._ours_add(number)
                self._peer_add(number)
                self._floor_add(number)
            with ThreadPoolExecutor(_CALLERS) as pool:
                mine = timed(lambda: list(pool.map(self._ours_delete, range(self.count))))
                theirs = timed(lambda: list(pool.map(self._peer_delete, range(half))))
            alone = timed(lambda: list(map(self._peer_delete, range(half, self.count))))
            bare = timed(lambda: self.floor.delete_group(range(self.count), 0x70770000))
            times["ours"].append(mine)
            times["likewise"].append(theirs * self.count / half)
            times["one by one"].append(alone * self.count / (self.count - half))
            times["floor"].append(bare)
        middle = {name: statistics.median(each[1:]) for name, each in times.items()}
        name = f"{self.case.name}: {self.count} pods deleted by {_CALLERS} callers"
        return [
            Row(f"{name}, peer {how}", middle["ours"], middle[how], middle["floor"], rounds)
            for how in ("one by one", "likewise")
        ]

    async def close(self) -> None:
        """Remove the namespaces and close what is open."""
        await self.runtime.close()
        self.floor.close()
        for pods in self.pods.values():
            pods.close()


async def measure(kernel: Kernel, directory: Path, count: int) -> list[Row]:
    """All cases.

    The pods without masquerading come first: once a namespace masquerades, the kernel walks its connections
    at the end of each interface, by work of its own that takes the processor from whoever is measured.
    """
    rows = []
    for number, case in enumerate(CASES):
        _progress(case.name)
        run = Run(number, case, count + _WARM_UP, kernel, directory)
        rows += await run.measure()
        await run.close()
        if case is CASES[0]:
            _progress(f"{case.name}, {_BULK} at once")
            run = Run(len(CASES), case, _BULK, kernel, directory)
            rows += run.measure_bulk()
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


def in_process() -> None:
    """Measure, print, write."""
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
    own = runtime.measure()
    print(
        f"the runtime's own cost, with a plugin that does nothing: ADD {own.add_ms:.2f} ms,"
        f" CHECK {own.check_ms:.2f} ms, DEL {own.delete_ms:.2f} ms"
    )
    for command, cost_ms in (("ADD", own.add_ms), ("CHECK", own.check_ms), ("DEL", own.delete_ms)):
        rows.append(Row(f"runtime with a plugin that does nothing: {command}", cost_ms, None, None, own.n))
    records = [row.record() for row in rows]
    records.append(
        Row("import of the hot path", cost.milliseconds, None, cost.start_milliseconds, cost.n).record()
        | {"resident_mib": round(cost.resident_mib, 1)}
    )
    write_json("inprocess", records)


def write_json(name: str, records: list[dict[str, Any]]) -> None:
    """Write what was measured where BENCH_JSON says, if it says so."""
    target = os.environ.get("BENCH_JSON")
    if target:
        Path(target).mkdir(parents=True, exist_ok=True)
        Path(target, f"{name}.json").write_text(json.dumps(records, indent=2) + "\n")


BENCHES: dict[str, Callable[[], None]] = {
    "inprocess": in_process,
    "hosted": hosted.main,
    "density": density.main,
}


def main() -> None:
    """Run one here, or several in processes of their own."""
    names = sys.argv[1:] or list(BENCHES)
    for name in names:
        if name not in BENCHES:
            sys.exit(f"bench: no bench {name!r}: there are {', '.join(BENCHES)}")
    if not (peer.BIN / "bridge").exists():
        sys.exit(f"bench: no {peer.BIN}/bridge: install the Debian package containernetworking-plugins")
    if len(names) == 1:
        isolate()
        BENCHES[names[0]]()
        return
    for name in names:
        print(f"{name}\n", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", name], check=False).returncode:
            sys.exit(1)
        print(flush=True)


if __name__ == "__main__":
    main()
