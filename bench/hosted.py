"""Our agent with the shim before it, and the Go plugins: called alike, as a runtime calls them, in turns."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import podwire
from bench import load, peer
from bench.load import Call, Outcome
from podwire import plugins
from podwire.kernel import netns

ROOT = Path("/run/podwire-bench")
_RATE = 100_000_000
_BURST = 10_000_000
_BANDWIDTH = {"ingressRate": _RATE, "ingressBurst": _BURST, "egressRate": _RATE, "egressBurst": _BURST}


@dataclass(frozen=True)
class Row:
    """One line: figures of us and of the peer, what they are, and how many times as good ours are."""

    name: str
    ours: float
    peer: float | None
    unit: str
    n: int
    bigger_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Over 1: ours is better."""
        if not self.peer or not self.ours:
            return None
        return self.ours / self.peer if self.bigger_is_better else self.peer / self.ours

    def record(self) -> dict[str, Any]:
        """The row as it is written to BENCH_JSON."""
        return {"name": self.name, "ours": self.ours, "peer": self.peer, "unit": self.unit} | {
            "ratio": self.ratio,
            "n": self.n,
        }


@dataclass(frozen=True)
class Case:
    """A network: the Go plugins' chain, and what we put in its place (the same one, or the one plugin)."""

    name: str
    masquerade: bool = True
    ports: int = 2
    shaped: bool = True
    alone: str = ""

    def plugins(self, who: str, number: int, data: Path) -> list[dict[str, Any]]:
        """The configurations of one pod's chain, as a runtime hands them over."""
        mine = who == "ours"
        base = (30000 if mine else 10000) + 2 * number
        mappings = [
            {"hostPort": base + n, "containerPort": 80 + n, "protocol": "tcp"} for n in range(self.ports)
        ]
        subnet = "10.200.0.0/16" if mine else "10.100.0.0/16"
        common = {"cniVersion": "1.0.0", "name": f"bench-{who}"}
        if mine and self.alone:
            given = {"portMappings": mappings, "bandwidth": _BANDWIDTH}
            return [
                {
                    **common,
                    "type": "podwire",
                    "mode": self.alone,
                    "subnets": [subnet],
                    "dataDir": str(data),
                    "runtimeConfig": given,
                }
            ]
        chain: list[dict[str, Any]] = [
            {
                **common,
                "type": "bridge",
                "bridge": f"pw-{who}",
                "isGateway": True,
                "isDefaultGateway": True,
                "ipMasq": self.masquerade,
                "ipam": {"type": "host-local", "dataDir": str(data), "ranges": [[{"subnet": subnet}]]},
            }
        ]
        if self.ports:
            chain.append({**common, "type": "portmap", "runtimeConfig": {"portMappings": mappings}})
        if self.shaped:
            chain.append({**common, "type": "bandwidth", "runtimeConfig": {"bandwidth": _BANDWIDTH}})
        return chain


CASES = (
    Case("bridge + host-local", masquerade=False, ports=0, shaped=False),
    Case("bridge (ipMasq) + portmap + bandwidth, as three plugins"),
    Case("bridge (ipMasq) + portmap + bandwidth, as `podwire`, bridged", alone="bridge"),
    Case("bridge (ipMasq) + portmap + bandwidth, as `podwire`, routed", alone="routed"),
)


class Agent:
    """A running agent of ours."""

    def __init__(self) -> None:
        self.socket = ROOT / "run" / "agent.sock"
        command = [sys.executable, "-m", "podwire", "agent", "--root", str(ROOT)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 30
        while not self.socket.exists():
            if time.monotonic() > limit or self._process.poll() is not None:
                raise load.LoadError("the agent does not come up")
            time.sleep(0.01)

    def cpu(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        """The most memory that it has had, in MiB."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        (found,) = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        return int(found) / 1024

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)


def shims(directory: Path) -> Path:
    """Make a plugin directory of shims."""
    program = Path(podwire.__file__).parent / "shim" / platform.machine() / "podwire-shim"
    directory.mkdir(parents=True)
    for type in {*plugins.TYPES, "podwire"}:
        (directory / type).symlink_to(program)
    return directory


@contextmanager
def pods(count: int, prefix: str) -> Iterator[list[Path]]:
    """Empty network namespaces."""
    paths = [Path(f"/run/netns/{prefix}{number}") for number in range(count)]
    for path in paths:
        netns.create(path)
    try:
        yield paths
    finally:
        for path in paths:
            netns.remove(path)


class Bench:
    """Everything that the measurements share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = load.build(directory)
        self.bin = {"ours": shims(directory / "bin"), "peer": peer.BIN}
        os.environ["PODWIRE_SOCKET"] = str(ROOT / "run" / "agent.sock")
        self.agent = Agent()
        self.peer_peak = 0.0

    def close(self) -> None:
        """End the agent."""
        self.agent.close()

    def calls(self, case: Case, who: str, paths: Sequence[Path]) -> list[Call]:
        """The attachments of some pods."""
        data = self.directory / f"leases-{who}"
        return [
            Call(f"{who}-{number}-{path.name}", path, case.plugins(who, number, data))
            for number, path in enumerate(paths)
        ]

    def run(self, who: str, command: str, callers: int, calls: Sequence[Call]) -> Outcome:
        """Have them made; our CPU seconds are the agent's and the shims'."""
        before = self.agent.cpu()
        done = load.run(self.program, command, callers, self.bin[who], calls)
        mine = self.agent.cpu() - before if who == "ours" else 0.0
        if who == "peer":
            self.peer_peak = max(self.peer_peak, done.peak_mib)
        return Outcome(done.milliseconds, done.results, done.wall, done.cpu + mine, done.peak_mib)

    def one_by_one(self, case: Case, count: int) -> list[Row]:
        """ADD and DEL of single pods, the two in turns: medians."""
        times: dict[tuple[str, str], list[float]] = {}
        with pods(count, "ours") as mine, pods(count, "peer") as theirs:
            calls = {"ours": self.calls(case, "ours", mine), "peer": self.calls(case, "peer", theirs)}
            results: dict[tuple[str, int], dict[str, Any]] = {}
            for command in ("ADD", "DEL"):
                for number in range(count):
                    for who in ("ours", "peer"):
                        call = calls[who][number]
                        if command == "DEL":
                            call = with_result(call, results[who, number])
                        done = self.run(who, command, 1, [call])
                        results[who, number] = done.results[0]
                        times.setdefault((who, command), []).append(done.milliseconds[0])
        return [
            Row(
                f"{case.name}: {command}",
                statistics.median(times["ours", command][2:]),
                statistics.median(times["peer", command][2:]),
                "ms",
                count - 2,
            )
            for command in ("ADD", "DEL")
        ]

    def at_once(self, case: Case, count: int, callers: int = 16) -> list[Row]:
        """ADD and DEL of many pods by many callers: pods a second, the spread of ADD, CPU and memory."""
        rows: list[Row] = []
        done: dict[tuple[str, str], Outcome] = {}
        for who in ("ours", "peer"):
            with pods(count, who) as paths:
                calls = self.calls(case, who, paths)
                added = done[who, "ADD"] = self.run(who, "ADD", callers, calls)
                calls = [with_result(*each) for each in zip(calls, added.results, strict=True)]
                done[who, "DEL"] = self.run(who, "DEL", callers, calls)
        for command in ("ADD", "DEL"):
            name = f"{case.name}: {command} of {count} pods by {callers} callers"
            mine, theirs = done["ours", command], done["peer", command]
            rows += [
                Row(name, count / mine.wall, count / theirs.wall, "pods/s", count, bigger_is_better=True),
                Row(f"{name}, p50", quantile(mine, 0.5), quantile(theirs, 0.5), "ms", count),
                Row(f"{name}, p99", quantile(mine, 0.99), quantile(theirs, 0.99), "ms", count),
                Row(f"{name}, CPU a pod", 1000 * mine.cpu / count, 1000 * theirs.cpu / count, "ms", count),
            ]
        return rows


def with_result(call: Call, result: dict[str, Any]) -> Call:
    """The same attachment with the ADD's result, as a DEL has it."""
    return Call(call.container_id, call.netns, [{**one, "prevResult": result} for one in call.plugins])


def quantile(done: Outcome, share: float) -> float:
    """The time that this share of the calls stayed within, in milliseconds."""
    ordered = sorted(done.milliseconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def table(rows: Sequence[Row]) -> str:
    """The rows for a person."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'ours':>10} {'Go peer':>10} {'':6}  {'times':>6} {'n':>5}"]
    for row in rows:
        theirs = "-" if row.peer is None else f"{row.peer:.2f}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.1f}"
        lines.append(f"{row.name:{width}}  {row.ours:10.2f} {theirs:>10} {row.unit:6}  {ratio:>6} {row.n:>5}")
    return "\n".join(lines)


def measure(directory: Path, count: int, bulk: int) -> list[Row]:
    """All of it."""
    bench = Bench(directory)
    rows: list[Row] = []
    try:
        for case in CASES:
            print(f"measuring {case.name} through the shim ...", file=sys.stderr, flush=True)
            rows += bench.one_by_one(case, count + 2)
        for case in CASES:
            print(f"measuring {case.name}, {bulk} pods at once ...", file=sys.stderr, flush=True)
            rows += bench.at_once(case, bulk)
        name = "peak memory: the agent; the largest of the Go processes, one to three at a time a caller"
        rows.append(Row(name, bench.agent.peak_mib(), bench.peer_peak, "MiB", 1))
    finally:
        bench.close()
    return rows


def main() -> None:
    """Measure and print; the caller has moved into namespaces of its own."""
    directory = Path(tempfile.mkdtemp(prefix="podwire-bench-"))
    try:
        count, bulk = (int(os.environ.get(n, d)) for n, d in (("HOSTED_N", "40"), ("HOSTED_BULK", "500")))
        rows = measure(directory, count, bulk)
    finally:
        shutil.rmtree(directory)
    print(table(rows))
    target = os.environ.get("BENCH_JSON")
    if target:
        Path(target).mkdir(parents=True, exist_ok=True)
        Path(target, "hosted.json").write_text(json.dumps([row.record() for row in rows], indent=2) + "\n")
