"""``python -m bench.kubelist``: 10,000 pods of 3 KB listed into a store, beside the official Python client.

Each in a process of its own, in turns, from one server in a third; peak resident memory as the kernel
counts it. Then a watch of 1,000 events a second for some seconds: how far behind the store is at the worst.

The official client (``kubernetes`` on PyPI) is of no use to Podwire otherwise, so it has a virtual
environment of its own, ``.bench/kubernetes`` in the working directory, which is made at the first run;
``BENCH_KUBERNETES_PYTHON`` names another Python that has it. ``BENCH_PODS`` sets the number of pods,
``BENCH_SECONDS`` the length of the watch (default 10), ``BENCH_JSON=FILE`` writes the figures as JSON too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEER = "kubernetes==37.0.2"
ROUNDS = 3
RATE = 1000
PAGE = 500
FASTER, SMALLER = 10.0, 10.0
"""What is asked for: that many times as fast, and in that part of the memory."""
BEHIND = 0.5
"""Seconds by which the store may be behind the watch's events at the worst of times."""


async def list_ours(port: int) -> dict[str, Any]:
    """List everything once into an informer's store."""
    from podwire.kube.client import Client
    from podwire.kube.config import Config
    from podwire.kube.informer import Informer
    from podwire.kube.resource import PODS

    async with Client(Config(server=f"http://127.0.0.1:{port}")) as client:
        await client.list(PODS, limit=1)
        before = _peak()
        began = time.perf_counter()
        informer = Informer(client, PODS)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        took = time.perf_counter() - began
        peak = _peak()
        began = time.perf_counter()
        decoded = sum(bool(found.spec.containers) for found in informer.store.values())
        reading = time.perf_counter() - began
        running.cancel()
    return {"pods": decoded, "seconds": took, "before_kib": before, "peak_kib": peak, "read_seconds": reading}


async def watch_ours(port: int, seconds: float) -> dict[str, Any]:
    """Follow the changes with a handler that reads each object; how late each was seen."""
    from podwire.kube.client import Client
    from podwire.kube.config import Config
    from podwire.kube.informer import Change, Informer
    from podwire.kube.objects import Pod
    from podwire.kube.resource import PODS

    late: list[float] = []

    def told(change: Change[Pod]) -> None:
        if change.type == "update":
            late.append(time.monotonic() - float(change.object.metadata.annotations["example.org/due"]))

    async with Client(Config(server=f"http://127.0.0.1:{port}")) as client:
        informer = Informer(client, PODS)
        informer.add_handler(told)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        await informer.wait_told()
        cpu = time.process_time()
        first = len(late)
        await asyncio.sleep(seconds)
        running.cancel()
    late = late[first:]
    return {
        "events": len(late),
        "seconds": seconds,
        "late_median": statistics.median(late),
        "late_worst": max(late),
        "cpu": (time.process_time() - cpu) / seconds,
        "peak_kib": _peak(),
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextlib.contextmanager
def _serving(pods: int) -> Iterator[tuple[int, int]]:
    """A server's port, and the size of its pods in bytes."""
    process = subprocess.Popen(
        [sys.executable, HERE / "kubelist_server.py", str(pods), str(RATE)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port, size = process.stdout.readline().split()
        yield int(port), int(size)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _peer_python() -> Path:
    """The Python that has the official client."""
    given = os.environ.get("BENCH_KUBERNETES_PYTHON")
    if given:
        return Path(given)
    place = Path(".bench", "kubernetes")
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        print(f"installing {PEER} into {place}")
        venv.create(place, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PEER], check=True
        )
        (place / "complete").touch()
    return python


def _run(*words: str | Path | int) -> dict[str, Any]:
    out = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(out))


def _ours(port: int, what: str, *more: str) -> dict[str, Any]:
    return _run(sys.executable, "-m", "bench.kubelist", what, port, *more)


def main() -> int:
    """The whole comparison; 1 if what is asked for is not reached."""
    pods = int(os.environ.get("BENCH_PODS", "10000"))
    seconds = os.environ.get("BENCH_SECONDS", "10")
    python = _peer_python()
    rounds: dict[str, list[dict[str, Any]]] = {"podwire": [], "official": [], "official, one page": []}
    with _serving(pods) as (port, size):
        for _ in range(ROUNDS):
            rounds["podwire"].append(_ours(port, "list"))
            rounds["official"].append(_run(python, HERE / "kubelist_peer.py", port, PAGE))
        rounds["official, one page"].append(_run(python, HERE / "kubelist_peer.py", port, 0))
        watched = _ours(port, "watch", seconds)
    assert all(each["pods"] == pods for found in rounds.values() for each in found)
    print(f"{pods} pods of {size} bytes, listed into a store; pages of {PAGE}; medians of {ROUNDS}\n")
    print(f"{'':20} {'seconds':>8} {'peak MiB':>9} {'of it for the list':>19}")
    middle: dict[str, dict[str, float]] = {}
    for who, found in rounds.items():
        middle[who] = {
            name: statistics.median(each[name] for each in found)
            for name in ("seconds", "before_kib", "peak_kib")
        }
        took, before, peak = middle[who].values()
        print(f"{who:20} {took:8.2f} {peak / 1024:9.0f} {(peak - before) / 1024:19.0f}")
    faster = middle["official"]["seconds"] / middle["podwire"]["seconds"]
    smaller = middle["official"]["peak_kib"] / middle["podwire"]["peak_kib"]
    reading = statistics.median(each["read_seconds"] for each in rounds["podwire"])
    print(f"\n{faster:.1f} times as fast, peak memory a {smaller:.1f}th (whole processes)")
    print(f"decoding all of the store once more: {reading:.2f} s")
    print(
        f"watch: {watched['events'] / watched['seconds']:.0f} events a second for {watched['seconds']:g} s, "
        f"seen {watched['late_median'] * 1000:.1f} ms after they were due (median), "
        f"{watched['late_worst'] * 1000:.0f} ms at the worst; {watched['cpu'] * 100:.0f} % of a CPU"
    )
    if os.environ.get("BENCH_JSON"):
        figures = {
            "rounds": rounds,
            "faster": faster,
            "smaller": smaller,
            "watch": watched,
            "pod_bytes": size,
        }
        Path(os.environ["BENCH_JSON"]).write_text(json.dumps(figures, indent=1))
    kept_up = watched["late_worst"] <= BEHIND and watched["events"] >= 0.95 * RATE * watched["seconds"]
    return 0 if faster >= FASTER and smaller >= SMALLER and kept_up else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        port = int(sys.argv[2])
        done = list_ours(port) if sys.argv[1] == "list" else watch_ours(port, float(sys.argv[3]))
        print(json.dumps(asyncio.run(done)))
    else:
        sys.exit(main())
