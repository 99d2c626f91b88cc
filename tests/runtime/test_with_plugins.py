"""The embedded runtime over the real CNI runtime and plugins: addresses, traffic, a host port."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from podwire import plugins
from podwire.cni.config import parse_list
from podwire.cni.runtime import Runtime
from podwire.kernel.host import Kernel
from podwire.runtime.api import PortMapping, PortProtocol
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import RuntimeFault
from tests.runtime.helpers import Places, container, ran, started, until

pytestmark = pytest.mark.kernel

HOST_PORT = (PortMapping(PortProtocol.TCP, 80, 8080),)
FETCH = """
import sys, urllib.request
for ip in sys.argv[1:]:
    sys.stdout.buffer.write(urllib.request.urlopen(f"http://{ip}/", timeout=5).read())
"""


def configuration(places: Places) -> bytes:
    ranges = [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]
    bridge = {
        "type": "bridge",
        "bridge": "pw-test",
        "isDefaultGateway": True,
        "ipam": {"type": "host-local", "dataDir": str(places.base / "ipam"), "ranges": ranges},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.1.0", "name": "pods", "plugins": [bridge, portmap]}).encode()


@pytest.fixture
async def pods(places: Places) -> AsyncIterator[EmbeddedRuntime]:
    with Kernel.open() as kernel:
        cni = Runtime(plugins.load, kernel, cache_dir=places.base / "cache")
        runtime = EmbeddedRuntime(places.root, places.run_dir, cni, parse_list(configuration(places)))
        yield runtime
        for sandbox in await runtime.list_pod_sandbox():
            await runtime.remove_pod_sandbox(sandbox.id)
        await runtime.close()
        await cni.close()
    assert ports() == [] and addresses(places) == []


def ports() -> list[Any]:
    """The bridge's ports, as iproute2 sees them."""
    done = subprocess.run(["ip", "-j", "link", "show", "master", "pw-test"], capture_output=True, check=True)
    return [link for link in json.loads(done.stdout or "[]") if link]


def addresses(places: Places) -> list[str]:
    """What host-local has given out, from its own files."""
    return sorted(path.name for path in (places.base / "ipam").rglob("10.*"))


async def test_pods_reach_each_other_and_leave_no_trace(pods: EmbeddedRuntime, places: Places) -> None:
    server = await pods.run_pod_sandbox(places.own_network("server", port_mappings=HOST_PORT))
    client = await pods.run_pod_sandbox(places.own_network("client"))
    assert (await pods.pod_sandbox_status(server)).ips == ("10.77.0.2", "fd77::2")
    assert (len(ports()), addresses(places)) == (2, ["10.77.0.2", "10.77.0.3"])

    www = places.base / "www"
    www.mkdir()
    (www / "index.html").write_text("hello from the server\n")
    serve = container("/bin/busybox", "httpd", "-f", "-p", "80", "-h", str(www), name="httpd")
    serving = await started(pods, server, serve)
    sockets = Path(f"/proc/{(await pods.container_status(serving)).pid}/net/tcp6")
    await until("it listens", lambda: ":0050 " in sockets.read_text())
    fetch = container(sys.executable, "-c", FETCH, "10.77.0.2", "[fd77::2]")
    assert (await ran(pods, client, fetch)).exit_code == 0
    assert places.log() == b"hello from the server\n" * 2
    reader, writer = await asyncio.open_connection("10.77.0.1", 8080)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(10):
        assert b"hello from the server" in await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_plugin_that_fails_late_leaves_no_address(pods: EmbeddedRuntime, places: Places) -> None:
    first = await pods.run_pod_sandbox(places.own_network("first", port_mappings=HOST_PORT))
    with pytest.raises(RuntimeFault, match="8080"):
        await pods.run_pod_sandbox(places.own_network("second", port_mappings=HOST_PORT))
    assert [status.id for status in await pods.list_pod_sandbox()] == [first]
    assert (len(ports()), addresses(places)) == (1, ["10.77.0.2"])
    assert [path.name for path in places.run_dir.glob("netns/*")] == [first]
