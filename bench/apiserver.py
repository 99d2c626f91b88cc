"""How fast the API server is: writes with watchers beside them, a list of everything, and the start.

``python -m bench.apiserver [--pods N] [--writes N]`` starts a server of its own on a unix socket in a new
directory, and prints what it measured. The clients, which take their part of the processors too, speak HTTP
as plainly as possible. Times on a shared machine differ from run to run by a factor of two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NODES = 200
CONNECTIONS = 32


class Connection:
    """One HTTP/1.1 connection over the socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self, method: str, target: str, body: bytes = b"", media: str = "application/json"
    ) -> bytes:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_unix_connection(str(self._path), limit=1 << 24)
        assert self._reader is not None
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Type: {media}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = await self._reader.readexactly(size)
        code = int(answer.split(b" ", 2)[1])
        if code >= 300:
            raise RuntimeError(f"{method} {target}: {code} {content[:300]!r}")
        return content

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Watcher:
    """Counts the events of one node's pods."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self.events = 0
        self._arrived = asyncio.Event()

    async def all_seen(self, wanted: int) -> None:
        """Wait for that many events."""
        while self.events < wanted:
            await self._arrived.wait()
            self._arrived.clear()

    async def run(self, revision: str) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=1 << 24)
        query = f"watch=true&resourceVersion={revision}&fieldSelector=spec.nodeName%3D{self._node}"
        writer.write(f"GET /api/v1/pods?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        try:
            await reader.readuntil(b"\r\n\r\n")
            while chunk := await reader.read(1 << 16):
                self.events += chunk.count(b'{"type":"')
                self._arrived.set()
        finally:
            writer.close()


async def start(root: Path) -> tuple[asyncio.subprocess.Process, float]:
    """The server, and the seconds until it answered."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "podwire", "apiserver", "--root", str(root)),
        *("--listen", f"unix:{root / 'api.sock'}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process, time.monotonic() - began


def cpu(process: asyncio.subprocess.Process) -> float:
    """Seconds of processor time that it has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pod(number: int) -> bytes:
    """A pod of about 3 KB."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{number}",
                "labels": {"app": f"app-{number % 50}", "pod-template-hash": "5d4f8c7b9"},
                "annotations": {"example.com/notes": "n" * 1200},
            },
            "spec": {
                "nodeName": f"node-{number % NODES}",
                "containers": [
                    {
                        "name": name,
                        "image": "registry.example.com/team/app:1.2.3",
                        "env": [{"name": f"VARIABLE_{i}", "value": "v" * 20} for i in range(8)],
                        "ports": [{"containerPort": 8080, "name": "http"}],
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    }
                    for name in ("app", "sidecar")
                ],
            },
        }
    ).encode()


async def spread(path: Path, jobs: list[tuple[Any, ...]]) -> float:
    """Ask all of it over some connections; requests a second."""
    queue = list(reversed(jobs))

    async def work() -> None:
        connection = Connection(path)
        try:
            while queue:
                await connection.ask(*queue.pop())
        finally:
            connection.close()

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return len(jobs) / (time.monotonic() - began)


async def measure(root: Path, pods: int, writes: int) -> None:
    path = root / "api.sock"
    process, first = await start(root)
    print(f"start, empty                 {first:8.2f} s")
    try:
        target = "/api/v1/namespaces/default/pods"
        rate = await spread(path, [("POST", target, pod(n)) for n in range(pods)])
        print(f"creates                      {rate:8.0f} a second, {pods} pods of {len(pod(1))} bytes")
        one = Connection(path)
        began = time.monotonic()
        listed = await one.ask("GET", "/api/v1/pods")
        took = time.monotonic() - began
        print(f"list of all                  {1000 * took:8.0f} ms, {len(listed) >> 20} MiB")
        revision = json.loads(listed)["metadata"]["resourceVersion"]
        one.close()
        watchers = [Watcher(path, f"node-{n}") for n in range(NODES)]
        tasks = [asyncio.create_task(watcher.run(revision)) for watcher in watchers]
        changes = [
            (
                "PATCH",
                f"{target}/pod-{n % pods}/status",
                json.dumps(
                    {"status": {"phase": "Running", "podIP": f"10.0.{n >> 8 & 255}.{n & 255}"}}
                ).encode(),
                "application/merge-patch+json",
            )
            for n in range(writes)
        ]
        began = time.monotonic()
        used = cpu(process)
        rate = await spread(path, changes)
        async with asyncio.timeout(120):
            await asyncio.gather(*(watcher.all_seen(writes // NODES) for watcher in watchers))
        lag = time.monotonic() - began - writes / rate
        seen = sum(watcher.events for watcher in watchers)
        each = 1000 * (cpu(process) - used) / writes
        print(
            f"writes, {NODES} watchers         {rate:8.0f} a second, {each:.2f} ms of the server's CPU each;"
            f" {seen} of {writes} events, the last {lag:.2f} s later"
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        process, again = await start(root)
        print(f"start after kill -9          {again:8.2f} s, {cpu(process):.2f} s of CPU, {pods} objects")
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--writes", type=int, default=5_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="podwire-bench-") as directory:
        asyncio.run(measure(Path(directory), given.pods, given.writes))


if __name__ == "__main__":
    main()
