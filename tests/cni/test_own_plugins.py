"""The runtime over Podwire's own plugins: field reports that only the two together can answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from podwire.cni.errors import CNIError, PluginFailure
from podwire.cni.runtime import Attachment, Runtime
from podwire.kernel.host import Kernel
from podwire.plugins import load
from tests.cni.helpers import network

pytestmark = pytest.mark.kernel
NETNS = "/run/netns/pod"
POD = Attachment("c1", NETNS)


def ip(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(subprocess.check_output(["ip", "-j", *arguments]) or "[]")
    return found


@pytest.fixture(autouse=True)
def _pod() -> Iterator[None]:
    subprocess.run(["ip", "netns", "add", "pod"], check=True)
    yield
    subprocess.run(["ip", "netns", "delete", "pod"], check=False, stderr=subprocess.DEVNULL)


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    with Kernel.open() as kernel:
        async with Runtime(load, kernel, cache_dir=tmp_path / "cache", timeout=20) as made:
            yield made


def bridge(directory: Path, subnet: str = "10.44.0.0/24", **more: Any) -> dict[str, Any]:
    ipam = {"type": "host-local", "dataDir": str(directory / "data"), "subnet": subnet}
    return {"type": "bridge", "bridge": "own0", "isGateway": True, "ipam": ipam, **more}


def files(directory: Path, name: str = "net") -> list[str]:
    return sorted(each.name for each in (directory / "data" / name).iterdir())


async def test_b13_a_check_right_after_the_add_passes(runtime: Runtime, tmp_path: Path) -> None:
    net = network(bridge(tmp_path))
    result = await runtime.add(net, POD)
    await runtime.check(net, POD)
    for interface in result.interfaces:
        where = ("-n", "pod") if interface.sandbox else ()
        assert ip(*where, "link", "show", interface.name)[0]["address"] == interface.mac
    await runtime.delete(net, POD)


async def test_e02_a_path_that_is_no_namespace_any_more_is_no_obstacle(
    runtime: Runtime, tmp_path: Path
) -> None:
    net = network(bridge(tmp_path))
    await runtime.add(net, POD)
    subprocess.run(["ip", "netns", "delete", "pod"], check=True)
    Path(NETNS).write_text("no namespace")
    await runtime.delete(net, POD)
    assert files(tmp_path) == ["last_reserved_ip.0", "lock"]
    assert [link["ifname"] for link in ip("link", "show", "type", "veth")] == []
    Path(NETNS).unlink()


async def test_a16_the_bridge_of_another_network_is_not_taken(runtime: Runtime, tmp_path: Path) -> None:
    subprocess.run(["ip", "link", "add", "own0", "type", "bridge"], check=True)
    subprocess.run(["ip", "address", "add", "10.55.0.1/16", "dev", "own0"], check=True)
    with pytest.raises(PluginFailure, match=r"own0.*10\.55\.0\.1/16"):
        await runtime.add(network(bridge(tmp_path)), POD)
    assert files(tmp_path) == ["last_reserved_ip.0", "lock"]
    assert [each["local"] for each in ip("-4", "address", "show", "dev", "own0")[0]["addr_info"]] == [
        "10.55.0.1"
    ]


async def test_b11_gc_releases_what_is_not_valid_and_keeps_the_rest(runtime: Runtime, tmp_path: Path) -> None:
    net = network(bridge(tmp_path))
    await runtime.add(net, POD)
    await runtime.add(net, Attachment("c1", NETNS, "net1"))
    # Somebody's address whose container this cache never knew.
    (tmp_path / "data" / "net" / "10.44.0.99").write_text("gone\r\neth0")
    await runtime.gc(net, [POD])
    assert files(tmp_path) == ["10.44.0.2", "last_reserved_ip.0", "lock"]
    assert [link["ifname"] for link in ip("-n", "pod", "link")] == ["lo", "eth0"]
    await runtime.check(net, POD)
    await runtime.gc(net, [])
    assert files(tmp_path) == ["last_reserved_ip.0", "lock"]


async def test_c18_a_restarted_container_is_deleted_before_it_is_added_again(
    runtime: Runtime, tmp_path: Path
) -> None:
    """C18: the same ID after a reboot, without the namespace that its record names."""
    net = network(bridge(tmp_path))
    before = await runtime.add(net, POD)
    subprocess.run(["ip", "netns", "delete", "pod"], check=True)
    subprocess.run(["ip", "netns", "add", "pod"], check=True)
    with pytest.raises(CNIError, match="c1"):
        await runtime.add(net, POD)
    await runtime.delete(net, POD)
    after = await runtime.add(net, POD)
    assert [ip.address for ip in before.ips] == ["10.44.0.2/24"]
    assert [ip.address for ip in after.ips] == ["10.44.0.3/24"]
    assert files(tmp_path) == ["10.44.0.3", "last_reserved_ip.0", "lock"]
    await runtime.delete(net, POD)
