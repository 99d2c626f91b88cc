"""The node over the embedded runtime and the real plugins: real programs, namespaces and packets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire import plugins
from podwire.cni import config
from podwire.cni.runtime import Runtime
from podwire.kernel.host import Kernel
from podwire.node.service import Node
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.sources.mux import Mux
from podwire.sources.updates import Snapshot
from tests.node.helpers import container, pod

pytestmark = pytest.mark.kernel

SHELL = "/bin/busybox"


def network(root: Path) -> config.NetworkConfigList:
    ranges = [[{"subnet": "10.99.0.0/16"}], [{"subnet": "fd99::/64"}]]
    bridge = {
        "type": "bridge",
        "bridge": "pwtest0",
        "isGateway": True,
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "dataDir": str(root / "networks"), "ranges": ranges},
    }
    portmap = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
    document = {"cniVersion": "1.1.0", "name": "test", "plugins": [bridge, portmap]}
    return config.parse_list(json.dumps(document).encode())


class Machine:
    """A node on this machine, fed by one source."""

    def __init__(self, node: Node, mux: Mux, runtime: EmbeddedRuntime) -> None:
        self.node = node
        self.mux = mux
        self.runtime = runtime

    def give(self, *pods: Any) -> None:
        self.mux.merge(Snapshot("file", pods))

    async def until(self, what: Any, seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            events = [(e.reason, e.message) for e in self.node.events()][-6:]
            assert time.monotonic() < end, (
                f"{[(p.metadata.name, p.status) for p in self.node.pods()]} {events}"
            )
            await asyncio.sleep(0.01)

    async def ready(self, count: int) -> None:
        def all_ready() -> bool:
            states = [c.status for p in self.node.pods() for c in p.status.conditions if c.type == "Ready"]
            return states == ["True"] * count

        await self.until(all_ready)

    def address(self, name: str, family: int = 0) -> str:
        found = self.node.board.find("default", name)
        assert found is not None
        return found.status.pod_ips[family].ip


@asynccontextmanager
async def machine(tmp_path: Path, *, leave: bool = False) -> AsyncIterator[Machine]:
    """A running node; at the end its pods are removed, unless they are to be left for the next one."""
    with Kernel.open() as kernel:
        made = {kind: plugin for kind in plugins.TYPES if (plugin := plugins.load(kind)) is not None}
        cni = Runtime(made, kernel, path=(), cache_dir=tmp_path / "cni")
        runtime = EmbeddedRuntime(tmp_path / "lib", tmp_path / "run", cni, network(tmp_path))
        mux = Mux("file")
        node = Node(runtime, mux, "node", root=tmp_path / "lib")
        task = asyncio.create_task(node.run())
        try:
            yield Machine(node, mux, runtime)
        finally:
            node.stop()
            await task
            if not leave:
                for sandbox in await runtime.list_pod_sandbox():
                    await runtime.remove_pod_sandbox(sandbox.id)
            await runtime.close()


def server(**fields: Any) -> dict[str, Any]:
    script = (
        "mkdir -p /tmp/www-$PORT && echo hello-$NAME > /tmp/www-$PORT/index.html && "
        f"exec {SHELL} httpd -f -p $PORT -h /tmp/www-$PORT"
    )
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "PORT", "value": "8080"},
    ]
    return container("main", command=["/bin/sh", "-c", script], env=env, **fields)


async def fetch(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


def links() -> list[str]:
    found = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    return sorted(link["ifname"] for link in found)


async def test_pods_serve_each_other_and_leave_nothing(tmp_path: Path) -> None:
    before = links()
    async with machine(tmp_path) as m:
        probe = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}
        web = pod(
            containers=[server(readinessProbe=probe, ports=[{"containerPort": 8080, "hostPort": 9080}])]
        )
        client = pod("client", containers=[container("main", command=[SHELL, "sleep", "1000"])])
        began = time.monotonic()
        m.give(web, client)
        await m.ready(2)
        assert time.monotonic() - began < 5
        assert await fetch(f"http://{m.address('web')}:8080/") == "hello-web\n"
        assert await fetch(f"http://[{m.address('web', 1)}]:8080/") == "hello-web\n"
        inside = next(
            c for c in await m.runtime.list_containers() if c.sandbox_id != "" and "client" in c.log_path
        )
        command = (SHELL, "wget", "-q", "-O", "-", f"http://{m.address('web')}:8080/")
        assert (await m.runtime.exec_sync(inside.id, command, 5)).stdout == b"hello-web\n"
        m.give()
        await m.until(lambda: not m.node.pods())
        assert await m.runtime.list_pod_sandbox() == []
        assert [name for name in links() if name not in before] == ["pwtest0"]
        reserved = [
            p.name for p in (tmp_path / "networks").rglob("*") if p.name.startswith(("10.99", "fd99"))
        ]
        assert reserved == []


async def test_node_restart_keeps_programs_and_addresses(tmp_path: Path) -> None:
    web = pod(containers=[server()])
    gone = pod("gone", containers=[container("main", command=[SHELL, "sleep", "1000"])])
    async with machine(tmp_path, leave=True) as m:
        m.give(web, gone)
        await m.ready(2)
        address = m.address("web")
        pids = {c.pid for c in await m.runtime.list_containers() if "web" in c.log_path}
    async with machine(tmp_path) as m:
        m.give(web)
        await m.ready(1)
        assert m.address("web") == address
        assert await fetch(f"http://{address}:8080/") == "hello-web\n"
        await m.until(m.node.mux.seen_all)
        end = time.monotonic() + 10
        while len(await m.runtime.list_pod_sandbox()) != 1:
            assert time.monotonic() < end, "the orphan is still there"
            await asyncio.sleep(0.05)
        assert {c.pid for c in await m.runtime.list_containers()} == pids
        await m.node.shutdown()
        assert await m.runtime.list_pod_sandbox() == []


async def test_killed_program_is_restarted_and_bad_ones_say_why(tmp_path: Path) -> None:
    async with machine(tmp_path) as m:
        m.give(
            pod("steady", containers=[container("main", command=[SHELL, "sleep", "1000"])]),
            pod("bad", containers=[container("main", command=["/no/such/program"])]),
            pod("image", containers=[container("main", command=[], image="nginx")]),
        )
        await m.until(lambda: "Started" in [e.reason for e in m.node.events()])
        (running,) = [c for c in await m.runtime.list_containers() if c.pid]
        subprocess.run(["kill", "-9", str(running.pid)], check=True)

        def shown(name: str) -> Any:
            found = m.node.board.find("default", name)
            return found.status.container_statuses[0] if found and found.status.container_statuses else None

        await m.until(lambda: shown("steady").restart_count == 1 and shown("steady").state.running)
        assert shown("steady").last_state.terminated.exit_code == 137
        await m.until(lambda: shown("bad").last_state.terminated is not None)
        assert shown("bad").last_state.terminated.reason == "ContainerCannotRun"
        assert "/no/such/program" in shown("bad").last_state.terminated.message
        await m.until(lambda: shown("image").state.waiting.reason == "CreateContainerError")
        assert "command" in shown("image").state.waiting.message
