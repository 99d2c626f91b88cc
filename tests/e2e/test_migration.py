"""A live node switches from the reference plugins to ours, and back: no pod is started again, nothing stays.

The pods are real namespaces with connections that stay open all the while: from outside by a host port, and
from the pod to the outside with the host's address. The peers are Debian's plugins, over iptables-nft and
iptables-legacy.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.process import respond
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.plugins import load, reference_rules
from podwire.plugins.reference_rules import HOST_PORTS, MASQUERADE, Whose
from tests.plugins import nat_lab
from tests.plugins.nat_lab import Lab, sh

pytestmark = pytest.mark.kernel
GO = Path("/usr/lib/cni")
JSON = dict[str, Any]
LOOK = """
ip -br link | cut -d' ' -f1 | sed 's/@.*//' | sort
for family in -4 -6; do ip $family route | grep -v fe80 | sed 's/ linkdown//'; ip $family rule; done
"""


class Node:
    """A host whose runtime calls either set of plugins with one network: bridge, portmap, tuning."""

    def __init__(self, directory: Path, lab: Lab, program: str) -> None:
        self.lab = lab
        self.directory = directory
        self.results: dict[str, JSON] = {}
        self.more: list[JSON] = []
        """Further plugins of the network."""
        self.nft = program == "nft"
        self.path = f"{directory}/bin:{os.environ['PATH']}"
        (directory / "bin").mkdir()
        for name in ("iptables", "ip6tables"):
            found = shutil.which(f"{name}-{program}")
            assert found is not None
            (directory / "bin" / name).symlink_to(found)
        self.program = str(directory / "bin")

    def plugins(self, port: int) -> list[JSON]:
        ranges = [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]
        routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        ipam = {
            "type": "host-local",
            "dataDir": str(self.directory / "data"),
            "ranges": ranges,
            "routes": routes,
        }
        mappings = [
            {"hostPort": port, "containerPort": 80, "protocol": protocol} for protocol in ("tcp", "udp")
        ]
        return [
            {
                "type": "bridge",
                "bridge": "b0",
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": ipam,
            },
            {
                "type": "portmap",
                "snat": True,
                "capabilities": {"portMappings": True},
                "runtimeConfig": {"portMappings": mappings},
            },
            {"type": "tuning", "dataDir": str(self.directory / "tuning"), "mtu": 1400},
            *self.more,
        ]

    def call(
        self, side: str, command: str, pod: str, port: int, *, netns: str | None = None, result: bool = True
    ) -> None:
        plugins = self.plugins(port)
        previous = None if command == "ADD" or not result else self.results.get(pod)
        for plugin in reversed(plugins) if command == "DEL" else plugins:
            config = {"cniVersion": "1.0.0", "name": "net", **plugin}
            if previous is not None:
                config["prevResult"] = previous
            environ = {
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": f"id-{pod}",
                "CNI_NETNS": f"/run/netns/{pod}" if netns is None else netns,
                "CNI_IFNAME": "eth0",
                "CNI_PATH": str(GO),
                "PATH": self.path,
            }
            answer = self._execute(side, config, environ)
            if command == "ADD":
                previous = self.results[pod] = answer

    def _execute(self, side: str, config: JSON, environ: dict[str, str]) -> JSON:
        stdin = json.dumps(config).encode()
        what = f"{side} {config['type']} {environ['CNI_COMMAND']}"
        if side == "go":
            done = subprocess.run([GO / config["type"]], input=stdin, env=environ, capture_output=True)
            assert done.returncode == 0, f"{what}: {done.stdout.decode()}"
            return json.loads(done.stdout or "{}")  # type: ignore[no-any-return]
        plugin = load(config["type"])
        assert plugin is not None
        reply = respond(plugin, environ, stdin, registry=load)
        assert reply.status == 0, f"{what}: {reply.stdout.decode()}"
        return json.loads(reply.stdout or b"{}")  # type: ignore[no-any-return]

    def add(self, side: str, pod: str, port: int) -> None:
        sh("ip", "netns", "add", pod)
        sh("ip", "-n", pod, "link", "set", "lo", "up")
        # The reference plugins would wait for the end of duplicate address detection.
        sh("ip", "netns", "exec", pod, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
        self.call(side, "ADD", pod, port)

    def gc(self, *valid: str) -> None:
        attachments = [{"containerID": f"id-{pod}", "ifname": "eth0"} for pod in valid]
        for plugin in self.plugins(8080):
            config = {
                "cniVersion": "1.1.0",
                "name": "net",
                **plugin,
                "cni.dev/valid-attachments": attachments,
            }
            environ = {"CNI_COMMAND": "GC", "CNI_PATH": str(GO), "PATH": os.environ["PATH"]}
            self._execute("ours", config, environ)

    def address(self, pod: str, family: int = 4) -> str:
        texts = [str(ip["address"]).partition("/")[0] for ip in self.results[pod]["ips"]]
        return next(text for text in texts if (":" in text) == (family == 6))

    def leases(self) -> list[str]:
        home = self.directory / "data/net"
        return sorted(path.name for path in home.iterdir() if path.name[0] in "1f") if home.is_dir() else []

    def rules(self) -> list[str]:
        """The reference plugins' rules of single containers."""
        found = []
        for name in ("iptables-save", "ip6tables-save"):
            legacy = Path(self.program, "iptables").resolve().name.endswith("legacy-multi")
            text = sh(name.replace("-save", "-legacy-save") if legacy else name.replace("-save", "-nft-save"))
            found += [
                line
                for line in text.splitlines()
                if "CNI-" in line and "HOSTPORT" not in line.replace("CNI-HOSTPORT-DNAT -p", "")
            ]
        return found

    def elements(self) -> dict[str, Any]:
        return {name: held for name, held in nat_lab.all_elements().items() if name != "localnet"}

    def files(self) -> list[str]:
        home = self.directory / "tuning"
        return sorted(path.name for path in home.iterdir()) if home.is_dir() else []

    def links(self) -> list[str]:
        return subprocess.run(["sh", "-c", LOOK], capture_output=True, text=True).stdout.splitlines()


class Live:
    """Connections of one pod that stay open: in by its host port, out as the host; of both families."""

    def __init__(self, node: Node, pod: str, port: int) -> None:
        self.node, self.pod, self.port = node, pod, port
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.servers: list[socket.socket] = []
        lab = node.lab
        for version, outer, host in ((4, "192.0.2.9", "192.0.2.1"), (6, "2001:db8::9", "2001:db8::1")):
            server = lab.listen(pod, node.address(pod, version), 80)
            self.servers.append(server)
            self._pair(server, "client", host, port)
            outside = lab.listen("client", outer, port)
            peer = self._pair(outside, pod, outer, port)
            assert peer == host, f"the outside sees {peer}"

    def _pair(self, server: socket.socket, where: str, address: str, port: int) -> str:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        client = self.node.lab.open(where, family, socket.SOCK_STREAM)
        client.connect((address, port))
        accepted, peer = server.accept()
        accepted.settimeout(nat_lab.PATIENCE)
        self.node.lab.sockets.append(accepted)
        self.pairs.append((client, accepted))
        return str(peer[0])

    def check(self) -> None:
        """Every connection passes data in both directions, and new ones come in."""
        for number, (client, accepted) in enumerate(self.pairs):
            for sender, receiver in ((client, accepted), (accepted, client)):
                sender.sendall(b"alive")
                assert receiver.recv(64) == b"alive", f"connection {number} of {self.pod}"
        for server, host in zip(self.servers, ("192.0.2.1", "2001:db8::1"), strict=True):
            self.node.lab.reach(server, "client", host, self.port)


@pytest.fixture(params=["nft", "legacy"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    with machine(tmp_path, request.param) as made:
        yield made


@pytest.fixture
def nft_node(tmp_path: Path) -> Iterator[Node]:
    with machine(tmp_path, "nft") as made:
        yield made


@contextmanager
def machine(directory: Path, program: str) -> Iterator[Node]:
    lab = nat_lab.build()
    sh("ip", "link", "delete", "cni0")
    sh("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
    try:
        yield Node(directory, lab, program)
    finally:
        nat_lab.tear_down(lab)


def test_pods_of_the_reference_plugins_live_on_with_ours(node: Node) -> None:
    """Their connections stay, ours beside them get other addresses, CHECK and GC take them for their own."""
    node.add("go", "one", 8080)
    node.add("go", "other", 8082)
    live, other = Live(node, "one", 8080), Live(node, "other", 8082)
    before = node.rules()
    for pod, port in (("one", 8080), ("other", 8082)):
        node.call("ours", "CHECK", pod, port)
    node.add("ours", "two", 8081)
    assert len({node.address(pod) for pod in ("one", "other", "two")}) == 3
    ours = Live(node, "two", 8081)
    node.gc("one", "other", "two")
    assert node.rules() == before
    for each in (live, other, ours):
        each.check()
    assert sh("ip", "netns", "exec", "one", "busybox", "ping", "-c1", "-W1", node.address("two"))

    node.call("ours", "DEL", "one", 8080)
    assert not [line for line in node.rules() if "id-one" in line]
    assert node.lab.refused("client", "192.0.2.1", 8080)
    assert node.lab.refused("client", "2001:db8::1", 8080)
    assert node.leases() == sorted([node.address(pod, v) for pod in ("other", "two") for v in (4, 6)])
    assert node.files() == ["id-other_eth0.json", "id-two_eth0.json"]
    other.check()
    ours.check()
    node.call("ours", "CHECK", "other", 8082)
    for pod, port in (("one", 8080), ("other", 8082), ("two", 8081)):
        node.call("ours", "DEL", pod, port)
    assert (node.rules(), node.elements(), node.leases(), node.files()) == ([], {}, [], [])


@pytest.mark.parametrize(
    ("node", "how"),
    [("nft", "gone"), ("nft", "empty"), ("nft", "no result"), ("nft", "twice"), ("legacy", "gone")],
    indirect=["node"],
)
def test_what_the_reference_plugins_made_goes_whatever_is_known_of_it(node: Node, how: str) -> None:
    node.add("go", "one", 8080)
    clean = [line for line in node.links() if not line.startswith("veth")]
    Live(node, "one", 8080).check()
    assert len(node.rules()) > 6
    if how == "gone":
        sh("ip", "netns", "delete", "one")
    node.call(
        "ours", "DEL", "one", 8080, netns="" if how == "empty" else None, result=how in {"gone", "twice"}
    )
    if how == "twice":
        node.call("ours", "DEL", "one", 8080)
    assert (node.rules(), node.leases(), node.files()) == ([], [], [])
    assert node.lab.refused("client", "192.0.2.1", 8080)
    if how == "twice":
        assert sorted(node.links()) == sorted(clean)
    elif how != "gone":
        sh("ip", "netns", "delete", "one")  # and its pair with it: nothing of ours named the host's end


def test_del_takes_what_let_a_pod_of_the_reference_firewall_pass(node: Node) -> None:
    """G06: rules that stay let the address's next holder pass, whoever that is."""
    node.more = [{"type": "firewall"}]
    for pod, port in (("old", 8080), ("stays", 8081)):
        node.add("go", pod, port)

    def passed(pod: str) -> list[str]:
        own = {f"{node.address(pod, 4)}/32", f"{node.address(pod, 6)}/128"}
        return [line for line in node.rules() if "CNI-FORWARD" in line and own & set(line.split())]

    kept = passed("stays")
    assert (len(passed("old")), len(kept)) == (4, 4)
    node.call("ours", "CHECK", "old", 8080)
    node.call("ours", "DEL", "old", 8080)
    assert (passed("old"), passed("stays")) == ([], kept)
    for _ in range(2):
        node.call("ours", "DEL", "old", 8080)
    assert passed("stays") == kept
    node.call("ours", "CHECK", "stays", 8081)
    sh("iptables-nft" if node.nft else "iptables-legacy", "-F", "CNI-FORWARD")
    with pytest.raises(AssertionError, match="is not in firewall4"):
        node.call("ours", "CHECK", "stays", 8081)


def test_gc_takes_the_rules_of_lost_pods_of_the_reference_plugins(node: Node) -> None:
    node.add("go", "one", 8080)
    node.add("go", "two", 8081)
    two = Live(node, "two", 8081)
    sh("ip", "netns", "delete", "one")
    node.gc("two")
    assert not [line for line in node.rules() if "id-one" in line]
    assert node.leases() == sorted([node.address("two"), node.address("two", 6)])
    two.check()
    node.gc()
    assert (node.rules(), node.leases()) == ([], [])


def test_a_udp_client_does_not_stay_with_a_deleted_pod(nft_node: Node) -> None:
    """G01 for host ports that the reference plugin made."""
    node = nft_node
    node.add("go", "one", 8080)
    server = node.lab.listen("one", "0.0.0.0", 80, socket.SOCK_DGRAM)
    client = node.lab.open("client", socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(("192.0.2.1", 8080))
    client.send(b"one")
    assert server.recvfrom(64)[0] == b"one"
    server.close()
    assert any("dport=8080" in flow for flow in nat_lab.flows())
    node.call("ours", "DEL", "one", 8080)
    assert not any("dport=8080" in flow for flow in nat_lab.flows())
    node.add("ours", "two", 8080)
    server = node.lab.listen("two", "0.0.0.0", 80, socket.SOCK_DGRAM)
    client.send(b"two")
    assert server.recvfrom(64)[0] == b"two"


def test_pods_of_ours_live_on_with_the_reference_plugins(nft_node: Node) -> None:
    """And back: they are checked and deleted; at most elements of our table stay, for our GC to take."""
    node = nft_node
    node.add("ours", "one", 8080)
    node.add("ours", "other", 8082)
    live, other = Live(node, "one", 8080), Live(node, "other", 8082)
    node.add("go", "two", 8081)
    theirs = Live(node, "two", 8081)
    assert len({node.address(pod) for pod in ("one", "other", "two")}) == 3
    for each in (live, other, theirs):
        each.check()
    go_checks(node, "one")
    go_deletes(node, "one", 8080)
    assert node.leases() == sorted([node.address(pod, v) for pod in ("other", "two") for v in (4, 6)])
    assert node.files() == ["id-other_eth0.json", "id-two_eth0.json"]
    assert "veth" not in sh("ip", "-n", "one", "link")
    other.check()
    theirs.check()
    left = json.dumps(node.elements())
    assert "id-one" in left and "id-other" in left
    node.gc("other", "two")
    assert "id-one" not in json.dumps(node.elements())
    other.check()
    theirs.check()
    go_deletes(node, "other", 8082)
    node.call("go", "DEL", "two", 8081)
    node.gc()
    assert (node.rules(), node.elements(), node.leases(), node.files()) == ([], {}, [], [])
    assert [line for line in node.links() if line.startswith("veth")] == []


def go_deletes(node: Node, pod: str, port: int) -> None:
    """DEL as a runtime sends it, again after an error: release 1.1.1 wants its iptables chain there once."""
    with pytest.raises(AssertionError, match=r"Chain 'CNI-[0-9a-f]+' does not exist"):
        node.call("go", "DEL", pod, port)
    node.call("go", "DEL", pod, port)


def go_checks(node: Node, pod: str) -> None:
    """CHECK of bridge, host-local and tuning; that of portmap looks for rules of iptables."""
    whole = node.plugins

    def without_portmap(port: int) -> list[JSON]:
        return [plugin for plugin in whole(port) if plugin["type"] != "portmap"]

    node.plugins = without_portmap  # type: ignore[method-assign]
    node.call("go", "CHECK", pod, 8080)
    node.plugins = whole  # type: ignore[method-assign]


def test_check_does_not_take_an_empty_chain_or_a_lost_jump_for_rules(nft_node: Node) -> None:
    node = nft_node
    node.add("go", "one", 8080)
    whose = Whose("net", "id-one", "eth0")
    with Kernel.open() as kernel:
        for kind in (MASQUERADE, HOST_PORTS):
            assert reference_rules.there(kernel, kind, whose)
            for family in ("iptables-nft", "ip6tables-nft"):
                sh(family, "-t", "nat", "-F", whose.chain(kind))
            assert not reference_rules.there(kernel, kind, whose)
        assert not reference_rules.there(kernel, MASQUERADE, Whose("net", "id-two", "eth0"))


def test_the_guard_of_macspoofchk_is_checked_and_goes(
    nft_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nft_node
    plain = node.plugins
    monkeypatch.setattr(
        node, "plugins", lambda port: [{**plain(port)[0], "macspoofchk": True}, *plain(port)[1:]]
    )
    clean = sh("nft", "list", "tables", "bridge")
    for pod, port in (("one", 8080), ("other", 8081)):
        node.add("go", pod, port)
        node.call("ours", "CHECK", pod, port)
    sh("nft", "flush", "chain", "bridge", "nat", "cni-br-iface-id-one-eth0-mac")
    with pytest.raises(AssertionError, match="is not guarded for"):
        node.call("ours", "CHECK", "one", 8080)
    node.call("ours", "DEL", "one", 8080)
    left = sh("nft", "list", "table", "bridge", "nat")
    assert "id-one" not in left
    assert "id-other" in left
    node.call("ours", "DEL", "other", 8081)
    assert "cni-br" not in sh("nft", "list", "ruleset")
    assert clean == ""


def test_rules_in_nftables_tables_of_the_reference_plugins_go_too(nft_node: Node) -> None:
    """As 1.6 and newer make them with ``ipMasqBackend`` and ``backend`` nftables."""
    table = """
table inet cni_plugins_masquerade {{
  chain masq_checks {{
    ip saddr == 10.1.0.2 masquerade comment "{one}, net: net, if: eth0, id: id-one"
    ip saddr == 10.1.0.3 masquerade comment "{two}, net: net, if: eth0, id: id-two"
    ip saddr == 10.2.0.3 masquerade comment "{three}, net: other, if: eth0, id: id-one"
  }}
}}
table ip cni_hostport {{
  chain hostports {{
    tcp dport 8080 counter comment "id-one"
    tcp dport 8081 counter comment "id-one2"
    tcp dport 8082 counter comment "x-id-one"
  }}
}}
"""

    def comment(network: str, container_id: str) -> str:
        digest = reference_rules._digest
        return f"{digest(network)[:16]}-{digest(f'eth0:{container_id}')[:16]}"

    def comments() -> set[str]:
        rules = [item["rule"] for item in nat_lab.ruleset() if "rule" in item]
        return {rule["comment"].rpartition(", ")[2] for rule in rules if rule["table"].startswith("cni_")}

    names = {"one": ("net", "id-one"), "two": ("net", "id-two"), "three": ("other", "id-one")}
    text = table.format(**{key: comment(*whose) for key, whose in names.items()})
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
    one = Whose("net", "id-one", "eth0")
    with Kernel.open() as kernel:
        assert reference_rules.there(kernel, MASQUERADE, one)
        assert reference_rules.remove(kernel, MASQUERADE, one)
        assert not reference_rules.remove(kernel, MASQUERADE, one)
        assert sum(comment.startswith("id: ") for comment in comments()) == 2
        assert reference_rules.remove(kernel, HOST_PORTS, one)
        assert comments() == {"id: id-two", "id: id-one", "id-one2", "x-id-one"}
        reference_rules.collect(kernel, MASQUERADE, "net", {"id-two"})
        assert comments() == {"id: id-two", "id: id-one", "id-one2", "x-id-one"}
        reference_rules.collect(kernel, MASQUERADE, "net", set())
        assert comments() == {"id: id-one", "id-one2", "x-id-one"}


def test_where_there_is_nothing_of_them_a_question_or_two_are_asked(
    nft_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DEL that finds nothing of ours costs a system call more; two where others use iptables."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a list of rules was read, or a program was run")

    monkeypatch.setattr(reference_rules, "_socket", never)
    monkeypatch.setattr(reference_rules, "_iptables", never)
    asked: list[Any] = []
    with Kernel.open() as kernel:
        exist = kernel.nft.exist

        def counted(places: Any) -> list[bool]:
            asked.append(places)
            return exist(places)

        monkeypatch.setattr(kernel.nft, "exist", counted)
        for kind in (MASQUERADE, HOST_PORTS):
            assert not reference_rules.remove(kernel, kind, Whose("net", "id-one", "eth0"))
        assert len(asked) == 2
        sh("iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "10.9.0.0/16", "-j", "MASQUERADE")
        for kind in (MASQUERADE, HOST_PORTS):
            assert not reference_rules.remove(kernel, kind, Whose("net", "id-one", "eth0"))
        assert len(asked) == 6


def test_legacy_tables_without_the_program_stop_no_del(
    nft_node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where the agent has a file system of its own, and another container uses iptables-legacy."""
    sh("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-s", "10.9.0.0/16", "-j", "MASQUERADE")
    whose = Whose("net", "id-one", "eth0")
    with Kernel.open() as kernel:
        assert reference_rules._legacy(kernel) == ["ip"]
        assert not reference_rules.remove(kernel, MASQUERADE, whose)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert not reference_rules.remove(kernel, MASQUERADE, whose)
        (tmp_path / "iptables-legacy").write_text("#!/bin/sh\necho held >&2; exit 4\n")
        (tmp_path / "iptables-legacy").chmod(0o755)
        with pytest.raises(KernelError, match="held"):
            reference_rules.remove(kernel, MASQUERADE, whose)
