"""``podwire install``: programs for other runtimes, and a network when the agent can serve."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire.cli.__main__ import main
from podwire.cni.config import parse_list
from podwire.plugins import TYPES, conflist
from tests.agent.helpers import Process
from tests.cli.helpers import output
from tests.plugins.test_installing import contents, foreign
from tests.shim.helpers import in_tree

NAMES = {*TYPES, "podwire-standalone"}


@pytest.fixture(scope="module", autouse=True)
def _shim() -> None:
    in_tree()


class Node:
    """Directories of a runtime, and the command."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.bin, self.conf = home / "root", home / "bin", home / "net.d"
        self.socket = self.root / "run" / "agent.sock"
        self.network = self.conf / conflist.NAME
        self._capfd = capfd
        self._said = ("", "")

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run ``podwire install``; what it printed, and keep what it complained of in ``complaint``."""
        self._capfd.readouterr()
        words = ["--bin-dir", str(self.bin), "--conf-dir", str(self.conf), "--root", str(self.root)]
        found = main(["install", *words, *arguments])
        said, self.complaint = self._capfd.readouterr()
        assert found == status, f"{found}\n{said}\n{self.complaint}"
        return said

    def all(self) -> dict[str, Any]:
        return {"bin": contents(self.bin), "conf": contents(self.conf)}

    @contextmanager
    def ready(self, *answers: tuple[int, bytes]) -> Iterator[list[str]]:
        """An agent that answers ``answers`` to ``/readyz`` one after the other, the last one for ever."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        asked: list[str] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.socket))
            listener.listen()

            def serve() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        asked.append(connection.recv(4096).split(b"\r\n")[0].decode())
                        status, body = answers[min(len(asked), len(answers)) - 1]
                        head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n"
                        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield asked
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()
                self.socket.unlink()


GOOD = (200, b'{"ready": true, "problems": []}')
BAD = (503, b'{"ready": false, "problems": [{"what": "ADD is refused", "why": "the disk is full"}]}')


@pytest.fixture
def node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, capfd)


def test_with_an_agent_that_can_serve_programs_and_network_appear_and_go(node: Node) -> None:
    with node.ready(GOOD) as asked:
        said = node.run()
        assert asked == ["GET /readyz HTTP/1.1"]
        assert set(contents(node.bin)) == NAMES
        assert f"made {node.bin}/bridge\n" in said
        assert f"made {node.network}\n" in said
        assert node.complaint == ""
        before = node.all()
        assert node.run() == f"nothing to do in {node.bin} and {node.conf}\n"
        assert node.all() == before
    assert stat.S_IMODE(node.network.stat().st_mode) == 0o644
    said = node.run("--uninstall")
    assert said.index(f"removed {node.network}") < said.index(f"removed {node.bin}/bridge")
    assert node.all() == {"bin": {}, "conf": {}}
    assert node.run("--uninstall") == f"nothing to do in {node.bin} and {node.conf}\n"


def test_the_programs_call_the_socket_of_that_root(node: Node) -> None:
    node.run("--no-conflist")
    called = subprocess.run(
        [node.bin / "bridge"], env={"CNI_COMMAND": "STATUS"}, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert json.loads(called.stdout)["code"] == 6  # the standalone program says that stdin is no JSON
    node.run("--no-conflist", "--no-standalone")
    called = subprocess.run(
        [node.bin / "bridge"],
        env={"CNI_COMMAND": "STATUS", "PODWIRE_TIMEOUT": "0.1"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert json.loads(called.stdout)["msg"].startswith(f"podwire agent on {node.socket}: not running")
    node.run("--no-conflist", "--socket", "/run/other.sock")
    assert b"/run/other.sock\0" in (node.bin / "bridge").read_bytes()


def test_without_agent_the_programs_are_python_and_take_the_place_of_the_others(node: Node) -> None:
    node.run("--no-conflist")
    node.run("--no-agent")
    assert set(contents(node.bin)) == set(TYPES)
    assert contents(node.conf) == {"": ("missing",)}
    called = subprocess.run(
        [node.bin / "host-local"],
        env={"CNI_COMMAND": "VERSION"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert "1.1.0" in json.loads(called.stdout)["supportedVersions"]
    node.run("--uninstall")
    assert contents(node.bin) == {}


@pytest.mark.parametrize("why", ["absent", "not ready", "no agent"])
def test_without_an_agent_that_can_serve_the_network_stays_out(node: Node, why: str) -> None:
    """The programs are there: they tell a runtime to try later, or serve it by themselves."""
    answers = {"not ready": BAD, "no agent": (200, b"<html>")}
    if why == "absent":
        node.run("--wait", "0", status=1)
    else:
        with node.ready(answers[why]):
            node.run("--wait", "0.2", status=1)
    assert set(contents(node.bin)) == NAMES
    assert contents(node.conf) == {"": ("missing",)}
    error, hint = node.complaint.strip().split("\n")[-2:]
    assert error.startswith(f"error: {node.network} is not written: ")
    reason = {
        "absent": f"no agent answers on {node.socket}: No such file or directory",
        "not ready": "is not ready: ADD is refused: the disk is full",
        "no agent": "the agent's answer cannot be read",
    }[why]
    assert reason in error
    assert "podwire agent" in hint
    assert "run this again" in hint


def test_an_agent_that_starts_is_waited_for_and_the_wait_is_told(node: Node) -> None:
    with node.ready(BAD, BAD, GOOD) as asked:
        node.run("--wait", "20")
    assert len(asked) == 3
    assert node.network.exists()
    assert f"waiting for the agent on {node.socket} (20 s at most)" in node.complaint


def test_the_network_is_what_was_asked_for(node: Node) -> None:
    with node.ready(GOOD):
        node.run("--subnet", "10.7.0.0/16", "--mode", "bridge", "--mtu", "1400")
        found = json.loads(node.network.read_text())
        (plugin,) = found["plugins"]
        assert (found["name"], found["cniVersion"], plugin["type"]) == ("podwire", "1.0.0", "podwire")
        assert (plugin["mode"], plugin["mtu"]) == ("bridge", 1400)
        assert plugin["capabilities"]["portMappings"] is True
        assert plugin["subnets"] == ["10.7.0.0/16"]
        parsed = parse_list(node.network.read_bytes())
        assert (parsed.name, parsed.cni_version) == ("podwire", "1.1.0")
        assert f"replaced {node.network}" in node.run()
    found = json.loads(node.network.read_text())["plugins"][0]
    assert (found["mode"], "mtu" in found) == ("routed", False)
    assert found["subnets"] == ["10.202.0.0/16", "fd5a:202::/64"]


def test_a_network_of_somebody_else_that_comes_first_is_told(node: Node) -> None:
    node.conf.mkdir()
    (node.conf / "20-other.conflist").write_text("{}")
    (node.conf / "00-notes.txt").write_text("")
    with node.ready(GOOD):
        node.run()
        assert node.complaint == ""
        (node.conf / "05-other.conf").write_text("{}")
        node.run()
    assert f"{node.conf}/05-other.conf comes before 10-podwire.conflist" in node.complaint


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--subnet", "10.0.0.1/16"], "10.0.0.1/16"),
        (["--subnet", "10.0.0.0/16,10.1.0.0/16"], "one range of each family"),
        (["--subnet", "x"], "'x'"),
        (["--mode", "magic"], "--mode 'magic'"),
        (["--mtu", "-1"], "--mtu"),
        (["--wait", "-1"], "--wait"),
        (["--wait", "nan"], "--wait"),
        (["--socket", "relative"], "--socket relative"),
        (["--socket", "/" + "x" * 108], "--socket /x"),
        (["--output", "yaml"], "--output 'yaml'"),
        (["--bin-dir", "/dev/null"], "--bin-dir /dev/null"),
        (["--conf-dir", ""], "--conf-dir"),
    ],
)
def test_an_argument_that_makes_no_sense_changes_nothing(
    node: Node, arguments: list[str], named: str
) -> None:
    node.run(*arguments, status=2)
    assert named in node.complaint
    assert node.all() == {"bin": {"": ("missing",)}, "conf": {"": ("missing",)}}


def test_somebody_elses_files_are_named_and_nothing_changes(node: Node) -> None:
    node.bin.mkdir()
    foreign(node.bin / "bridge", "file")
    foreign(node.bin / "portmap", "link")
    before = node.all()
    with node.ready(GOOD):
        node.run(status=1)
        assert f"{node.bin}/bridge" in node.complaint
        assert f"{node.bin}/portmap" in node.complaint
        assert "--force" in node.complaint
        assert node.all() == before
        assert f"replaced {node.bin}/bridge (before: {node.bin}/bridge.before-podwire)" in node.run("--force")
    assert f"restored {node.bin}/bridge" in node.run("--uninstall")
    assert node.all() == {"bin": before["bin"], "conf": {}}


def test_an_edited_network_is_not_written_over_and_no_edit_is_lost(node: Node) -> None:
    """Nor does it come back when the plugin that it names has gone."""
    kept = node.network.with_name(f"{conflist.NAME}.before-podwire")
    with node.ready(GOOD):
        node.run()
        edited = json.loads(node.network.read_text())
        edited["plugins"][0]["mtu"] = 9000
        node.network.write_text(json.dumps(edited))
        before = node.all()
        node.run(status=1)
        assert f"error: {node.network}: not podwire's" in node.complaint
        assert node.all() == before
        node.run("--force")
        assert json.loads(node.network.read_text()) != edited
    node.run("--uninstall")
    assert {path.name for path in node.conf.iterdir()} == {kept.name}
    assert json.loads(kept.read_text()) == edited
    kept.rename(node.network)
    assert node.run("--uninstall") == f"removed {node.network} (before: {kept})\n"
    assert {path.name for path in node.conf.iterdir()} == {kept.name}
    assert json.loads(kept.read_text()) == edited


def test_a_network_of_somebody_else_under_our_name_comes_back(node: Node) -> None:
    node.conf.mkdir()
    node.network.write_text('{"name": "theirs"}')
    before = contents(node.conf)
    with node.ready(GOOD):
        node.run("--force")
    node.network.write_text(node.network.read_text().replace('"routed"', '"bridge"'))
    assert f"restored {node.network}" in node.run("--uninstall")
    assert contents(node.conf) == before


def test_a_refused_network_is_found_before_the_programs_are_written(node: Node) -> None:
    node.conf.mkdir()
    node.network.write_text("{}")
    before = node.all()
    with node.ready(GOOD):
        node.run(status=1)
    assert node.all() == before
    node.run("--no-conflist")
    assert node.all()["conf"] == before["conf"]
    node.run("--uninstall")
    assert node.all() == {**before, "bin": {}}


def test_a_dry_run_tells_and_does_nothing(node: Node) -> None:
    node.bin.mkdir()
    foreign(node.bin / "bridge", "file")
    before = node.all()
    said = node.run("--dry-run", "--force")
    assert f"would be replaced {node.bin}/bridge (before: {node.bin}/bridge.before-podwire)" in said
    assert f"would be made {node.network}" in said
    node.run("--dry-run", status=1)
    assert node.all() == before
    node.run("--no-conflist", "--force")
    before = node.all()
    assert f"would be restored {node.bin}/bridge" in node.run("--dry-run", "--uninstall")
    assert node.all() == before


def test_json_tells_what_became_of_each_file(node: Node) -> None:
    node.bin.mkdir()
    foreign(node.bin / "bridge", "file")
    found = json.loads(node.run("--force", "--no-conflist", "-o", "json"))
    assert found["socket"] == str(node.socket)
    assert found["notReady"] == ""
    changes = {Path(change.pop("path")).name: change for change in found["changes"]}
    assert changes.keys() == NAMES
    assert changes["portmap"] == {"action": "made"}
    assert changes["bridge"] == {"action": "replaced", "backup": str(node.bin / "bridge.before-podwire")}
    found = json.loads(node.run("--force", "--wait", "0", "-o", "json", status=1))
    assert "no agent answers" in found["notReady"]


@contextmanager
def _nobody() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.kernel
def test_without_the_right_to_write_it_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        node = Node(Path(name), capfd)
        node.run("--dry-run")  # loads what nobody may not read
        node.bin.mkdir()
        with _nobody():
            node.run("--no-conflist", status=1)
        assert f"error: {node.bin}" in node.complaint
        assert "Permission denied" in node.complaint
        assert "sudo" in node.complaint
        assert contents(node.bin) == {}


@pytest.mark.kernel
def test_a_read_only_directory_is_told(node: Node) -> None:
    node.bin.mkdir()
    output("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(node.bin))
    try:
        node.run("--no-conflist", status=1)
        assert f"error: {node.bin}/bandwidth: Read-only file system" in node.complaint
    finally:
        output("umount", str(node.bin))


@pytest.mark.kernel
def test_installed_programs_and_the_real_agent_serve_a_pod_also_when_the_agent_dies(node: Node) -> None:
    """E12: the agent is gone at DEL; the standalone program takes the pod's network down."""
    agent = Process(node.root).started()
    try:
        node.run("--no-conflist")
        output("ip", "netns", "add", "pod")
        config = json.dumps(
            {
                "cniVersion": "1.0.0",
                "name": "net",
                "type": "bridge",
                "bridge": "pw0",
                "isGateway": True,
                "ipam": {"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": str(node.root / "leases")},
            }
        ).encode()

        def call(command: str) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [node.bin / "bridge"],
                input=config,
                capture_output=True,
                env={
                    "PATH": os.environ["PATH"],
                    "CNI_COMMAND": command,
                    "CNI_CONTAINERID": "c1",
                    "CNI_NETNS": "/run/netns/pod",
                    "CNI_IFNAME": "eth0",
                    "CNI_PATH": str(node.bin),
                },
            )

        added = call("ADD")
        assert added.returncode == 0, added.stdout
        assert json.loads(added.stdout)["ips"][0]["address"] == "10.9.0.2/24"
        assert len(agent.attachments()) == 1
        output("ip", "netns", "exec", "pod", "busybox", "ping", "-c", "1", "-W", "1", "10.9.0.1")
        agent.kill()
        removed = call("DEL")
        assert (removed.returncode, removed.stdout) == (0, b""), removed.stderr
        assert "eth0" not in output("ip", "-n", "pod", "link")
        assert not [path for path in (node.root / "leases" / "net").iterdir() if path.name[0].isdigit()]
    finally:
        agent.kill()
        subprocess.run(["ip", "netns", "delete", "pod"])


@pytest.mark.kernel
@pytest.mark.parametrize("mode", ["routed", "bridge"])
def test_the_installed_network_serves_pods_through_programs_and_agent(node: Node, mode: str) -> None:
    agent = Process(node.root).started()
    try:
        node.run("--mode", mode)
        network = parse_list(node.network.read_bytes())
        (plugin,) = json.loads(node.network.read_text())["plugins"]
        config = {"cniVersion": network.cni_version, "name": network.name, **plugin}
        config["dataDir"] = str(node.root / "leases")

        def call(command: str, pod: str) -> dict[str, Any]:
            done = subprocess.run(
                [node.bin / "podwire"],
                input=json.dumps(config).encode(),
                capture_output=True,
                env={
                    "PATH": os.environ["PATH"],
                    "CNI_COMMAND": command,
                    "CNI_CONTAINERID": pod,
                    "CNI_NETNS": f"/run/netns/{pod}",
                    "CNI_IFNAME": "eth0",
                    "CNI_PATH": str(node.bin),
                },
            )
            assert (done.returncode, done.stderr) == (0, b""), done.stdout
            found: dict[str, Any] = json.loads(done.stdout or b"{}")
            return found

        for pod in ("a", "b"):
            output("ip", "netns", "add", pod)
        addresses = {pod: call("ADD", pod)["ips"] for pod in ("a", "b")}
        for ip in addresses["b"]:
            address = ip["address"].split("/")[0]
            output("ip", "netns", "exec", "a", "busybox", "ping", "-c", "1", "-W", "2", address)
        assert len(addresses["b"]) == 2
        for pod in ("a", "b"):
            call("DEL", pod)
        assert agent.attachments() == []
    finally:
        agent.kill()
        for pod in ("a", "b"):
            subprocess.run(["ip", "netns", "delete", pod])
