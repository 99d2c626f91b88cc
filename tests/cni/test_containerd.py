"""Go's libcni, in containerd, and our runtime take over from each other by the result cache.

`ctr run --cni` is libcni: it ADDs when the container starts, and when it ends DELs what its cache says.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.cache import Cache
from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.plugin import Plugin
from podwire.cni.runtime import Attachment, Runtime
from podwire.kernel.host import Kernel
from podwire.plugins import load

GO = "/usr/lib/cni"
EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
HERE = Path("/run/containerd-test")
CACHE = Path("/var/lib/cni")
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "net",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "go0",
            "isGateway": True,
            "ipam": {"type": "host-local", "dataDir": f"{HERE}/data", "subnet": "10.66.0.0/24"},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
CONFIG = f"""version = 2
root = "{HERE}/root"
state = "{HERE}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{HERE}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{HERE}/opt"
"""
# libcni in ctr looks in fixed places: they are there for its own mount namespace only.
PLACES = f"""set -e
for name in etc opt; do
  mkdir -p {HERE}/$name-upper {HERE}/$name-work
  mount -t overlay overlay -o lowerdir=/$name,upperdir={HERE}/$name-upper,workdir={HERE}/$name-work /$name
done
mkdir -p /etc/cni/net.d /opt/cni/bin
ln -sf {GO}/* {EXAMPLES}/* /opt/cni/bin/
cp {HERE}/10-net.conflist /etc/cni/net.d/
exec ctr -a {HERE}/c.sock run --cni --rootfs --cgroup "" --rm --null-io {HERE}/rootfs c1 /bin/sh /run.sh
"""
RUN = "echo up > /up; read end < /end\n"

if shutil.which("containerd") and Path(GO, "bridge").exists() and os.geteuid() == 0:
    pytestmark = pytest.mark.kernel
else:
    pytestmark = pytest.mark.skip(reason="needs root, containerd and containernetworking-plugins")


@pytest.fixture
def container(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A container that Go's libcni has attached, and that ends when its file ``end`` is written.

    The fixture's parameter is the network, if it is not NETWORK.
    """
    network = getattr(request, "param", NETWORK)
    for directory in ("rootfs/bin", "rootfs/proc", "rootfs/sys", "rootfs/dev", "rootfs/tmp", "rootfs/etc"):
        (HERE / directory).mkdir(parents=True)
    shutil.copy("/bin/busybox", HERE / "rootfs/bin/sh")
    (HERE / "rootfs/run.sh").write_text(RUN)
    (HERE / "10-net.conflist").write_text(json.dumps(network))
    (HERE / "containerd.toml").write_text(CONFIG)
    os.mkfifo(HERE / "rootfs/up")
    os.mkfifo(HERE / "rootfs/end")
    with ExitStack() as stack:
        log = stack.enter_context((HERE / "log").open("wb"))
        command = ["containerd", "-c", f"{HERE}/containerd.toml"]
        containerd = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(_ended, containerd)
        # `ctr` waits for the daemon itself, by gRPC.
        # The example plugins find their Python, and it podwire, as they would where it is installed.
        found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": found, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = ["unshare", "-m", "sh", "-c", PLACES]
        ctr = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        stack.callback(_ended, ctr)
        up = os.open(HERE / "rootfs/up", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, up)
        assert select.select([up], [], [], 20)[0], (HERE / "log").read_text()
        yield ctr
        if ctr.poll() is None:
            (HERE / "rootfs/end").write_text("\n")
            ctr.wait(20)
    shutil.rmtree(HERE)
    shutil.rmtree(CACHE)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def records() -> list[str]:
    return sorted(each.name for each in (CACHE / "results").iterdir())


def held() -> list[str]:
    return sorted(each.name for each in (HERE / "data/net").glob("10.*"))


def links_inside(netns: str) -> list[str]:
    text = subprocess.run(
        ["nsenter", f"--net={netns}", "ip", "-j", "link"], check=True, capture_output=True, text=True
    ).stdout
    return [link["ifname"] for link in json.loads(text)]


def ours() -> dict[str, Plugin[Any, Any]]:
    found = {type: load(type) for type in ("bridge", "host-local", "portmap")}
    return {type: plugin for type, plugin in found.items() if plugin is not None}


@pytest.mark.parametrize("plugins", ["theirs", "ours"])
async def test_what_one_attached_the_other_detaches(container: subprocess.Popen[bytes], plugins: str) -> None:
    network: NetworkConfigList = parse_list(json.dumps(NETWORK))
    with ExitStack() as stack:
        kernel = stack.enter_context(Kernel.open()) if plugins == "ours" else None
        async with Runtime(
            ours() if plugins == "ours" else None, kernel, path=(GO,), cache_dir=CACHE, timeout=20
        ) as runtime:
            (record,) = runtime.attachments()
            assert record.key == ("net", "default-c1", "eth0")
            result = record.typed_result()
            assert result is not None and [each.address for each in result.ips] == ["10.66.0.2/24"]
            netns = result.interfaces[2].sandbox
            attachment = Attachment("default-c1", netns)
            await runtime.check(network, attachment)

            await runtime.delete("net", attachment)
            assert (records(), held(), links_inside(netns)) == ([], [], ["lo"])

            again = await runtime.add(network, attachment)
            assert [each.address for each in again.ips] == ["10.66.0.3/24"]
            assert records() == ["net-default-c1-eth0"]
            assert links_inside(netns) == ["lo", "eth0"]
    (HERE / "rootfs/end").write_text("\n")
    assert container.wait(20) == 0
    assert (records(), held()) == ([], [])


EXAMPLE = {
    "cniVersion": "1.0.0",
    "name": "net",
    "plugins": [
        {
            "type": "p2p.py",
            "mtu": 1400,
            "ipam": {"type": "host-local", "dataDir": f"{HERE}/data", "subnet": "10.66.0.0/24"},
        },
        {"type": "resolver.py", "nameservers": ["192.0.2.53"]},
    ],
}


@pytest.mark.parametrize("container", [EXAMPLE], indirect=True)
def test_containerd_runs_the_example_plugins(container: subprocess.Popen[bytes]) -> None:
    (found,) = Cache(CACHE).records()
    result = found.typed_result()
    assert result is not None and result.dns.nameservers == ("192.0.2.53",)
    seen = json.loads(subprocess.check_output(["ip", "-j", "route", "get", "10.66.0.2"]))
    assert seen[0]["dev"] == result.interfaces[0].name
    assert links_inside(result.interfaces[1].sandbox) == ["lo", "eth0"]
    (HERE / "rootfs/end").write_text("\n")
    assert container.wait(20) == 0
    assert (records(), held()) == ([], [])
    links = json.loads(subprocess.check_output(["ip", "-j", "link"]))
    assert [link["ifname"] for link in links] == ["lo"]
