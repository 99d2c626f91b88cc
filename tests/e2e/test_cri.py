"""A real containerd runs pods by `podwire install` and `podwire agent`, as a kubelet would have it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import cri, image, installed
from tests.plugins.helpers import ip, links, reaches
from tests.waiting import until

pytestmark = pytest.mark.kernel

HOME = Path("/run/cri")
BIN = HOME / "bin"
CONF = HOME / "net.d"
HOST = ("192.0.2.1/32", "2001:db8::1/128")
SUBNETS = ("10.88.0.0/24", "fd88::/64")
CHAIN: list[dict[str, Any]] = [
    {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": subnet}] for subnet in SUBNETS],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    },
    {"type": "portmap", "capabilities": {"portMappings": True}},
    {"type": "bandwidth", "capabilities": {"bandwidth": True}},
]
ALONE: list[dict[str, Any]] = [
    {
        "type": "podwire",
        "mode": "routed",
        "subnets": list(SUBNETS),
        "capabilities": {"portMappings": True, "bandwidth": True},
    }
]
SERVE = ("/bin/httpd", "-f", "-p", "80", "-h", image.PAGE)
BANDWIDTH = {"kubernetes.io/ingress-bandwidth": "20M", "kubernetes.io/egress-bandwidth": "10M"}


@pytest.fixture
def client() -> Iterator[cri.Client]:
    # The host's own address: a routed pod's packets find back to it, whatever it is on.
    for address in HOST:
        ip("address", "add", address, "dev", "lo")
    CONF.mkdir(parents=True)
    with (
        installed.agent(HOME / "podwire"),
        cri.containerd(HOME / "containerd", bin_dir=BIN, conf_dir=CONF) as client,
    ):
        yield client
    shutil.rmtree(HOME)
    shutil.rmtree("/var/lib/cni", ignore_errors=True)


def configure(client: cri.Client, plugins: list[dict[str, Any]]) -> None:
    installed.install(HOME / "podwire", BIN, CONF, "--no-conflist")
    text = json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
    (CONF / "10-pods.conflist").write_text(text)
    until(lambda: client.network_ready()[0], lambda: client.network_ready()[1])


@pytest.mark.parametrize("plugins", [CHAIN, ALONE], ids=["chain", "podwire"])
def test_containerd_runs_pods_with_host_ports_and_bandwidth(
    client: cri.Client, plugins: list[dict[str, Any]]
) -> None:
    assert not client.network_ready()[0]
    before = sorted(links())
    configure(client, plugins)
    sandbox = client.run_pod(ports={8080: (80, "tcp")}, annotations=BANDWIDTH)
    other = client.run_pod()
    first, second = client.addresses(sandbox), client.addresses(other)
    assert len({*first, *second}) == 4
    assert all(reaches("", address) for address in (*first, *second))

    client.run(sandbox, *SERVE)
    inside = client.run(other, "/bin/sleep", "1000")
    assert image.page(f"http://{first[0]}/") == image.CONTENT
    assert image.page("http://127.0.0.1:8080/") == image.CONTENT
    for address in (first[0], f"[{first[1]}]"):
        status, said = client.execute(inside, "/bin/wget", "-qO-", f"http://{address}/")
        assert (status, said) == (0, image.CONTENT.decode())
    assert rates() == ["10Mbit", "20Mbit"]

    client.remove_pod(sandbox)
    assert not reaches("", first[0]) and reaches("", second[0])
    assert rates() == []
    client.remove_pod(other)
    assert sorted(set(links()) - {"cni0"}) == before
    assert not [each for each in held() if each in {*first, *second}]


def test_a_node_is_ready_when_the_agent_serves_and_not_before(client: cri.Client) -> None:
    """The network that `podwire install` writes: dual-stack, and there only when pods can have it."""
    root = HOME / "podwire"
    assert not client.network_ready()[0]
    installed.install(root, BIN, CONF)
    until(lambda: client.network_ready()[0], lambda: client.network_ready()[1])
    sandbox = client.run_pod(ports={8080: (80, "tcp")})
    client.run(sandbox, *SERVE)
    addresses = client.addresses(sandbox)
    assert len(addresses) == 2
    assert image.page(f"http://[{addresses[1]}]/") == image.CONTENT
    assert image.page(f"http://{HOST[0].partition('/')[0]}:8080/") == image.CONTENT
    client.remove_pod(sandbox)

    installed.install(root, BIN, CONF, "--uninstall")
    until(lambda: not client.network_ready()[0])
    assert list(BIN.iterdir()) == list(CONF.iterdir()) == []


def rates() -> list[str]:
    lines = subprocess.check_output(["tc", "qdisc", "show"], text=True).splitlines()
    words = [line.split() for line in lines if "tbf" in line.split()]
    return sorted(each[each.index("rate") + 1] for each in words)


def held() -> list[str]:
    return [each.name for each in Path("/var/lib/cni/networks/pods").iterdir()]


def test_a_refused_attachment_is_told_by_containerd_and_leaves_nothing(client: cri.Client) -> None:
    """What is wrong reaches whoever asks at night: containerd's error has our words; nothing stays."""
    configure(client, [{**CHAIN[0], "mtu": 70000}, *CHAIN[1:]])
    with pytest.raises(Exception, match="mtu 70000: is not between 0 and 65535"):
        client.run_pod(ports={8080: (80, "tcp")})
    assert [link["ifname"] for link in ip("link")] == ["lo"]
