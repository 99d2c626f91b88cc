"""Our runtime drives Debian's Go plugins, chained as in practice, through ADD, CHECK and DEL."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.config import NetworkConfigList
from podwire.cni.errors import CNIError
from podwire.cni.plugin import Interface, IPConfig, Plugin, Request, Result
from podwire.cni.runtime import Attachment, Runtime, Step
from tests.cni.helpers import Options, Recorder, network

GO = "/usr/lib/cni"
NETNS = "/run/netns/pod"
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not Path(GO, "bridge").exists(), reason="needs containernetworking-plugins"),
]


def ran(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def ip(*arguments: str, pod: bool = True) -> list[dict[str, Any]]:
    text = ran("ip", *(("-n", "pod") if pod else ()), "-d", "-j", *arguments)
    found: list[dict[str, Any]] = json.loads(text or "[]")
    return [entry for entry in found if entry]


def host_links() -> set[str]:
    return {link["ifname"] for link in ip("link", "show", pod=False)}


def addresses(device: str) -> list[str]:
    found = ip("address", "show", "dev", device)
    return [f"{each['local']}/{each['prefixlen']}" for link in found for each in link["addr_info"]]


@pytest.fixture
def _pod() -> Iterator[None]:
    ran("ip", "netns", "add", "pod")
    yield
    ran("ip", "netns", "delete", "pod")


@pytest.fixture
def _uplink() -> Iterator[None]:
    """The host's way out: a link with the default route, and a neighbour behind it."""
    ran("ip", "netns", "add", "outside")
    ran("ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", "outside")
    ran("ip", "address", "add", "198.51.100.1/24", "dev", "up0")
    ran("ip", "link", "set", "up0", "up")
    ran("ip", "-n", "outside", "address", "add", "198.51.100.2/24", "dev", "eth0")
    ran("ip", "-n", "outside", "link", "set", "eth0", "up")
    ran("ip", "route", "add", "default", "via", "198.51.100.2")
    yield
    ran("ip", "netns", "delete", "outside")


def ipam(directory: Path, *, dual: bool = False) -> dict[str, Any]:
    return {
        "type": "host-local",
        "dataDir": str(directory / "data"),
        "ranges": [[{"subnet": "10.77.0.0/24"}]] + ([[{"subnet": "fd77::/64"}]] if dual else []),
        "routes": [{"dst": "0.0.0.0/0"}] + ([{"dst": "::/0"}] if dual else []),
    }


def held(directory: Path) -> list[str]:
    """The addresses that host-local has given away."""
    found = (directory / "data" / "net").glob("*")
    return sorted(each.name for each in found if each.name != "lock" and "last_" not in each.name)


class Drive:
    """ADD, CHECK and DEL of one network for the pod, each step kept."""

    def __init__(self, directory: Path, **attachment: Any) -> None:
        self.steps: list[Step] = []
        self.cache = directory / "cache"
        self.attachment = Attachment("c1", NETNS, **attachment)
        self.plugins: dict[str, Plugin[Any, Any]] = {}

    @asynccontextmanager
    async def through(self, *plugins: dict[str, Any] | str, again: bool = True) -> AsyncIterator[Result]:
        net: NetworkConfigList = network(*plugins, version="1.0.0")
        async with Runtime(
            self.plugins, path=(GO,), cache_dir=self.cache, observe=self.steps.append, timeout=30
        ) as runtime:
            result = await runtime.add(net, self.attachment)
            await runtime.check(net, self.attachment)
            yield result
            for _ in range(2 if again else 1):
                await runtime.delete(net, self.attachment)
            assert runtime.attachments() == []
        types = [plugin.type for plugin in net.plugins]
        done = [(step.command, step.plugin) for step in self.steps if step.error is None]
        assert done == [
            *(("ADD", each) for each in types),
            *(("CHECK", each) for each in types),
            *(("DEL", each) for each in [*reversed(types)] * (2 if again else 1)),
        ]


@contextmanager
def served(directory: Path, port: int) -> Iterator[None]:
    """A web server in the pod, once it listens."""
    (directory / "index.html").write_text("from the pod")
    command = ["ip", "netns", "exec", "pod", "busybox", "httpd", "-f", "-p", str(port), "-h", str(directory)]
    process = subprocess.Popen(command)
    try:
        while f":{port:04X} " not in Path(f"/proc/{process.pid}/net/tcp6").read_text():
            assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("_pod", "_uplink")
async def test_the_chain_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Go's portmap looks for the rules of a pod in both families at CHECK, whichever the pod has.
    for program in ("ip", "iptables", "busybox", "tc"):
        found = shutil.which(program)
        assert found is not None
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    drive = Drive(
        tmp_path,
        args={"IgnoreUnknown": "1", "K8S_POD_NAME": "x"},
        capability_args={
            "portMappings": [{"hostPort": 8088, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 8_000_000},
        },
    )
    before = host_links()
    chain = drive.through(
        {"type": "bridge", "bridge": "go0", "isGateway": True, "ipMasq": True, "ipam": ipam(tmp_path)},
        {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}, "mtu": 1400},
    )
    async with chain as result:
        assert addresses("eth0")[0] == "10.77.0.2/24"
        assert [each.address for each in result.ips_of("eth0")] == ["10.77.0.2/24"]
        assert ip("link", "show", "eth0")[0]["mtu"] == 1400
        veth = next(each.name for each in result.interfaces if each.name.startswith("veth"))
        assert "tbf" in ran("tc", "qdisc", "show", "dev", veth)
        assert held(tmp_path) == ["10.77.0.2"]
        with served(tmp_path, 80):
            fetch = "printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 3 198.51.100.1 8088"
            assert ran("ip", "netns", "exec", "outside", "/bin/sh", "-c", fetch).endswith("from the pod")
    assert held(tmp_path) == []
    assert host_links() - before == {"go0"}
    assert "eth0" not in {link["ifname"] for link in ip("link", "show")}


@pytest.mark.usefixtures("_pod", "_uplink")
async def test_ptp_in_two_families_with_masquerading_and_firewall(tmp_path: Path) -> None:
    before = host_links()
    conf = {"type": "ptp", "ipMasq": True, "mtu": 1450, "ipam": ipam(tmp_path, dual=True)}
    firewall = {"type": "firewall", "backend": "iptables"}
    async with Drive(tmp_path).through(conf, firewall) as result:
        assert "-d 10.77.0.2/32" in ran("iptables", "-S", "CNI-FORWARD")
        assert [each.address for each in result.ips] == ["10.77.0.2/24", "fd77::2/64"]
        assert addresses("eth0")[:2] == ["10.77.0.2/24", "fd77::2/64"]
        # The neighbour has no route to the pod: it answers a masqueraded address only.
        ran("ip", "netns", "exec", "pod", "busybox", "ping", "-c", "1", "-W", "2", "198.51.100.2")
    assert (held(tmp_path), host_links()) == ([], before)
    assert "10.77.0.2" not in ran("iptables", "-S", "CNI-FORWARD")


@pytest.mark.usefixtures("_pod", "_uplink")
async def test_macvlan_with_static_addresses_and_tuning(tmp_path: Path) -> None:
    static = {"type": "static", "addresses": [{"address": "198.51.100.9/24"}]}
    async with Drive(tmp_path, ifname="net1").through(
        {"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": static},
        {"type": "tuning", "mac": "02:11:22:33:44:55", "promisc": True},
    ) as result:
        assert addresses("net1")[0] == "198.51.100.9/24"
        link = ip("link", "show", "net1")[0]
        assert (link["address"], link["linkinfo"]["info_kind"]) == ("02:11:22:33:44:55", "macvlan")
        assert result.interfaces[0].mac == "02:11:22:33:44:55"
        ran("ip", "netns", "exec", "pod", "busybox", "ping", "-c", "1", "-W", "2", "198.51.100.2")
    assert [link["ifname"] for link in ip("link", "show")] == ["lo"]


@pytest.mark.usefixtures("_pod")
async def test_gos_sbr_behind_a_plugin_of_ours(tmp_path: Path) -> None:
    """No Go plugin can go before sbr: their CHECK looks for the routes that it moves away."""

    def add(_request: Request[Options]) -> Result:
        ran("ip", "link", "add", "eth0", "netns", "pod", "type", "veth", "peer", "name", "host0")
        ran("ip", "-n", "pod", "address", "add", "198.51.100.9/24", "dev", "eth0")
        ran("ip", "-n", "pod", "link", "set", "eth0", "up")
        ran("ip", "-n", "pod", "route", "add", "default", "via", "198.51.100.2")
        interface = Interface("eth0", sandbox=NETNS)
        return Result((interface,), (IPConfig("198.51.100.9/24", "198.51.100.2", 0),))

    drive = Drive(tmp_path)
    drive.plugins = {"rec": Recorder("rec", acts={"ADD": add}).plugin}
    async with drive.through("rec", "sbr"):
        assert [rule["src"] for rule in ip("rule", "show") if rule["table"] == "100"] == ["198.51.100.9"]
        assert ip("route", "show", "table", "100", "default")[0]["gateway"] == "198.51.100.2"
        assert ip("route", "show", "default") == []
    assert [rule for rule in ip("rule", "show") if rule["table"] == "100"] == []


@pytest.mark.usefixtures("_pod")
async def test_loopback(tmp_path: Path) -> None:
    assert "UP" not in ip("link", "show", "lo")[0]["flags"]
    async with Drive(tmp_path, ifname="lo").through("loopback") as result:
        assert "UP" in ip("link", "show", "lo")[0]["flags"]
        assert [each.address for each in result.ips] == ["127.0.0.1/8", "::1/128"]


@pytest.mark.usefixtures("_pod")
async def test_host_device_goes_and_comes_back(tmp_path: Path) -> None:
    ran("ip", "link", "add", "dev0", "type", "veth", "peer", "name", "dev1")
    ran("ip", "link", "set", "dev1", "up")
    drive = Drive(tmp_path)
    # Go's does not find the link at a second DEL, which is to succeed: F07.
    async with drive.through({"type": "host-device", "device": "dev0", "ipam": ipam(tmp_path)}, again=False):
        assert addresses("eth0")[0] == "10.77.0.2/24"
        assert "dev0" not in host_links()
    assert "dev0" in host_links()
    assert held(tmp_path) == []


UDHCPD = """start 10.88.0.10
end 10.88.0.20
interface go0
lease_file {0}/leases
pidfile {0}/pid
option subnet 255.255.255.0
option router 10.88.0.1
option lease 600
"""


@contextmanager
def dhcp(directory: Path) -> Iterator[str]:
    """A DHCP server on the bridge, and the plugin's daemon; yields the daemon's socket."""
    ran("ip", "link", "add", "go0", "type", "bridge")
    ran("ip", "address", "add", "10.88.0.1/24", "dev", "go0")
    ran("ip", "link", "set", "go0", "up")
    (directory / "leases").touch()
    (directory / "udhcpd.conf").write_text(UDHCPD.format(directory))
    socket = directory / "dhcp.sock"
    commands = (
        ["busybox", "udhcpd", "-f", "-a", "1", str(directory / "udhcpd.conf")],
        [f"{GO}/dhcp", "daemon", "-socketpath", str(socket)],
    )
    quiet = subprocess.DEVNULL
    running = [subprocess.Popen(each, stdout=quiet, stderr=quiet) for each in commands]
    try:
        while not socket.exists():
            assert running[1].poll() is None
        yield str(socket)
    finally:
        for process in running:
            process.terminate()
            process.wait()


@pytest.mark.usefixtures("_pod")
async def test_dhcp_with_its_daemon(tmp_path: Path) -> None:
    # Its socket's path must fit into sockaddr_un.
    directory = Path("/run/dhcp-test")
    directory.mkdir()
    with dhcp(directory) as socket:
        conf = {"type": "bridge", "bridge": "go0", "ipam": {"type": "dhcp", "daemonSocketPath": socket}}
        async with Drive(tmp_path).through(conf) as result:
            leased = result.ips[0].address
            assert leased.startswith("10.88.0.") and addresses("eth0")[0] == leased
    shutil.rmtree(directory)


@pytest.mark.usefixtures("_pod")
async def test_what_a_failing_go_chain_left_is_undone(tmp_path: Path) -> None:
    """The Go plugins leave their links behind when a later plugin fails: the runtime sends the DELs."""
    net = network(
        {"type": "bridge", "bridge": "go0", "isGateway": True, "ipam": ipam(tmp_path)},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.no_such_key": "1"}},
        version="1.0.0",
    )
    async with Runtime(path=(GO,), cache_dir=tmp_path / "cache") as runtime:
        with pytest.raises(CNIError, match=r'type="tuning" \(2 of 2 in the list\) failed \(add\)'):
            await runtime.add(net, Attachment("c1", NETNS))
        assert runtime.attachments() == []
    assert held(tmp_path) == []
    assert [link["ifname"] for link in ip("link", "show")] == ["lo"]
    assert {name for name in host_links() if name.startswith("veth")} == set()


@pytest.mark.usefixtures("_pod")
async def test_e01_a_namespace_that_is_gone_is_no_obstacle_to_del(tmp_path: Path) -> None:
    net = network(
        {"type": "bridge", "bridge": "go0", "isGateway": True, "ipam": ipam(tmp_path)},
        {"type": "firewall", "backend": "iptables"},
        version="1.0.0",
    )
    async with Runtime(path=(GO,), cache_dir=tmp_path / "cache") as runtime:
        attachment = Attachment("c1", NETNS)
        await runtime.add(net, attachment)
        ran("ip", "netns", "delete", "pod")
        await runtime.delete("net", attachment)
        assert (held(tmp_path), runtime.attachments()) == ([], [])
        await runtime.delete("net", attachment)
    ran("ip", "netns", "add", "pod")
