"""Podman with its CNI backend runs containers with our plugins in its plugin directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e import image, installed
from tests.plugins.helpers import links, reaches

pytestmark = pytest.mark.kernel

HOME = Path("/run/podman-test")
LEASES = Path("/var/lib/cni/networks/pods")
# A podman without limits of its own: root of a container may not raise them.
_CONTAINERS = f"""[network]
network_backend = "cni"
cni_plugin_dirs = ["{HOME}/bin"]
network_config_dir = "{HOME}/net.d"
default_network = "pods"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
events_logger = "none"
cgroup_manager = "cgroupfs"
runtime = "runc"
"""
_STORAGE = f"""[storage]
driver = "vfs"
runroot = "{HOME}/run"
graphroot = "{HOME}/graph"
"""
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd88::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall"},
        {"type": "tuning"},
    ],
}


def podman(*arguments: str) -> str:
    environ = {
        **os.environ,
        "CONTAINERS_CONF": f"{HOME}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{HOME}/storage.conf",
    }
    done = subprocess.run(
        ["podman", "--tmpdir", f"{HOME}/tmp", *arguments], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_podman_runs_a_container_with_a_host_port_and_removes_it() -> None:
    (HOME / "net.d").mkdir(parents=True)
    (HOME / "net.d/10-pods.conflist").write_text(json.dumps(NETWORK))
    (HOME / "containers.conf").write_text(_CONTAINERS)
    (HOME / "storage.conf").write_text(_STORAGE)
    root = image.root(HOME / "root")
    with installed.agent(HOME / "podwire"):
        installed.install(HOME / "podwire", HOME / "bin", HOME / "net.d", "--no-conflist")
        _run_and_remove(root)
    shutil.rmtree(HOME)


def _run_and_remove(root: Path) -> None:
    try:
        run = ("run", "-d", "--name", "web", "--network", "pods", "-p", "8080:80", "--rootfs", str(root))
        podman(*run, "/bin/httpd", "-f", "-p", "80", "-h", image.PAGE)
        (found,) = json.loads(podman("inspect", "web"))
        network = found["NetworkSettings"]["Networks"]["pods"]
        addresses = [network["IPAddress"], network["GlobalIPv6Address"]]
        assert all(reaches("", address) for address in addresses)
        assert image.page("http://127.0.0.1:8080/") == image.CONTENT

        podman("rm", "-f", "-t", "0", "web")
        assert not any(reaches("", address) for address in addresses)
        assert sorted(links()) == ["cni0", "lo"]
        assert not {each.name for each in LEASES.iterdir()} & set(addresses)
    finally:
        podman("rm", "-f", "-t", "0", "--all")
