"""``podwire cni`` beside cnitool's rules."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwire.cli import cnitool
from podwire.cli.__main__ import main
from podwire.cli.errors import CommandError
from tests.cli.helpers import output

NETNS = "/run/netns/cni-test"
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "net",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "net0",
            "isGateway": True,
            "ipam": {"type": "host-local", "subnet": "10.5.0.0/24"},
        }
    ],
}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cni(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """``podwire cni`` with the network above in NETCONFPATH and its cache in the test's directory."""
    text = json.dumps(NETWORK).replace('"subnet"', f'"dataDir": "{tmp_path}/networks", "subnet"')
    (tmp_path / "10-net.conflist").write_text(text)
    for variable in ("CNI_PATH", "CNI_ARGS", "CAP_ARGS", "CNI_IFNAME", "PODWIRE_DEBUG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NETCONFPATH", str(tmp_path))
    monkeypatch.setenv("PODWIRE_ROOT", str(tmp_path / "root"))

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(("cni", *arguments))
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return run


@pytest.fixture
def _netns() -> Iterator[None]:
    subprocess.run(["ip", "netns", "add", "cni-test"], check=True)
    yield
    subprocess.run(["ip", "netns", "delete", "cni-test"], check=True)


def test_the_container_id_is_cnitools() -> None:
    digest = hashlib.sha512(b"/run/netns/a").hexdigest()
    assert cnitool.container_id("/run/netns/a") == f"cnitool-{digest[:20]}"


@pytest.mark.parametrize("text", ["{", "[]", "3", '"x"'])
def test_bad_capability_arguments_are_named(text: str) -> None:
    with pytest.raises(CommandError, match="CAP_ARGS"):
        cnitool.capability_args(text)


def test_what_is_named_in_cni_path_wins(tmp_path: Path) -> None:
    (tmp_path / "bridge").write_text("#!/bin/sh\n")
    assert cnitool.plugin_path({}) == (("/opt/cni/bin", "/usr/lib/cni"), False)
    path, named = cnitool.plugin_path({"CNI_PATH": f"{tmp_path}:/nowhere"})
    assert "bridge" in cnitool.own_plugins(path, named=named)
    (tmp_path / "bridge").chmod(0o755)
    assert "bridge" not in cnitool.own_plugins(path, named=named)
    assert "bridge" in cnitool.own_plugins(path, named=False)
    assert "host-local" in cnitool.own_plugins(path, named=named)


@pytest.mark.kernel
@pytest.mark.usefixtures("_netns")
def test_add_check_del(cni: Command) -> None:
    status, said, _ = cni("add", "net", NETNS, "-i", "net1")
    result = json.loads(said)
    assert (status, result["cniVersion"], result["ips"][0]["address"]) == (0, "1.0.0", "10.5.0.2/24")
    seen = json.loads(output("ip", "-n", "cni-test", "-j", "address", "show", "net1"))
    assert [entry["local"] for entry in seen[0]["addr_info"] if entry["family"] == "inet"] == ["10.5.0.2"]
    assert cni("check", "net", NETNS, "-i", "net1") == (0, "", "")
    output("ip", "-n", "cni-test", "address", "flush", "dev", "net1")
    status, said, complaint = cni("check", "net", NETNS, "-i", "net1")
    assert (status, said) == (1, "")
    assert "10.5.0.2" in complaint
    assert cni("del", "net", NETNS, "-i", "net1") == (0, "", "")
    assert "net1" not in output("ip", "-n", "cni-test", "link")
    assert cni("del", "net", NETNS, "-i", "net1") == (0, "", "")


@pytest.mark.kernel
@pytest.mark.usefixtures("_netns")
def test_the_programs_in_cni_path_do_the_same(cni: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CNI_PATH", "/usr/lib/cni")
    status, said, complaint = cni("add", "net", NETNS)
    assert (status, complaint) == (0, "")
    assert json.loads(said)["ips"][0]["address"] == "10.5.0.2/24"
    assert cni("del", "net", NETNS) == (0, "", "")


@pytest.mark.kernel
@pytest.mark.usefixtures("_netns")
def test_trace_shows_each_turn_and_leaves_stdout_alone(
    cni: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, said, told = cni("add", "net", NETNS, "--trace")
    assert (status, json.loads(said)["ips"][0]["address"]) == (0, "10.5.0.2/24")
    head, stdin, output = told.splitlines()
    assert head.startswith("ADD bridge (1 of 1, in this process): ") and head.endswith(" ms")
    assert json.loads(stdin.removeprefix("  input "))["bridge"] == "net0"
    assert json.loads(output.removeprefix("  output ")) == json.loads(said)
    script = tmp_path / "bin" / "bridge"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho too late >&2; echo \'{"code": 11, "msg": "no"}\'; exit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("CNI_PATH", str(script.parent))
    status, said, told = cni("check", "net", NETNS, "--trace", "-o", "json")
    assert (status, json.loads(said)["code"]) == (1, 11)
    step = json.loads(told)
    assert (step["command"], step["executable"], step["stderr"]) == ("CHECK", str(script), "too late")
    assert step["output"]["code"] == 11
    monkeypatch.delenv("CNI_PATH")
    assert cni("del", "net", NETNS)[0] == 0


@pytest.mark.kernel
@pytest.mark.usefixtures("_netns", "cni")
def test_two_at_once_attach_once_and_whoever_comes_second_says_so() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "podwire.cli", "cni", "add", "net", NETNS]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
        for _ in range(2)
    ]
    answers = [(process.communicate(timeout=60), process.returncode) for process in both]
    assert sorted(status for _, status in answers) == [0, 1]
    told = next(err for (_, err), status in answers if status == 1)
    assert 'already attached to network "net" as eth0' in told
    seen = json.loads(output("ip", "-n", "cni-test", "-j", "address", "show", "eth0"))
    assert [entry["local"] for entry in seen[0]["addr_info"] if entry["family"] == "inet"] == ["10.5.0.2"]
    assert output("ip", "-j", "link", "show", "type", "veth").count("ifname") == 1
    command[4] = "del"
    assert [subprocess.run(command, env=environ, check=False).returncode for _ in range(2)] == [0, 0]


@pytest.mark.kernel
@pytest.mark.usefixtures("_netns", "cni")
def test_an_interrupted_add_is_undone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "host-local"
    log, up = tmp_path / "log", tmp_path / "up"
    body = f"echo $CNI_COMMAND >> {log}\n[ $CNI_COMMAND = DEL ] && exit\necho up > {up}\nexec sleep 600\n"
    slow.write_text(f"#!/bin/sh\n{body}")
    slow.chmod(0o755)
    os.mkfifo(up)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CNI_PATH": str(slow.parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "podwire.cli", "cni", "add", "net", NETNS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    assert up.read_text() == "up\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, b"Traceback" in err) == (130, b"", False)
    assert log.read_text().split()[:2] == ["ADD", "DEL"]
    assert "eth0" not in output("ip", "-n", "cni-test", "link")
    assert output("ip", "-j", "link", "show", "type", "veth").count("ifname") == 0


@pytest.mark.kernel
@pytest.mark.usefixtures("_netns")
def test_gc_keeps_what_has_a_namespace_or_is_named(cni: Command) -> None:
    output("ip", "netns", "add", "other")
    cni("add", "net", NETNS)
    cni("add", "net", "/run/netns/other")
    one, other = cnitool.container_id(NETNS), cnitool.container_id("/run/netns/other")
    assert cni("gc", "net") == (0, "", "")
    output("ip", "netns", "delete", "other")
    assert cni("gc", "net", NETNS) == (0, "", f"removed {other} eth0\n")
    cni("add", "net", NETNS, "-i", "net1")
    status, said, _ = cni("gc", "net", "--keep", f"{one}/net1", "-o", "json")
    assert (status, json.loads(said)) == (
        0,
        {
            "kept": [{"containerID": one, "ifname": "net1"}],
            "removed": [{"containerID": one, "ifname": "eth0"}],
        },
    )
    links = output("ip", "-n", "cni-test", "link")
    assert "net1" in links and "eth0" not in links
    assert cni("gc", "net", "--keep", "/eth0")[0] == 2
    assert cni("gc", "net", "--keep-none") == (0, "", f"removed {one} net1\n")
    assert "net1" not in output("ip", "-n", "cni-test", "link")


@pytest.mark.kernel
def test_status_version_and_validate(cni: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cni("status", "net") == (0, "", "")
    status, said, _ = cni("version", "net")
    assert status == 0
    assert [line.split()[0] for line in said.splitlines()] == ["bridge", "host-local"]
    assert said.splitlines()[0].endswith(" 1.0.0 1.1.0")
    status, said, told = cni("validate", "net")
    assert (status, said) == (0, "net: valid, cniVersion 1.0.0, plugins bridge\n")
    assert told == '10-net.conflist has the name "net"\n'
    (tmp_path / "20-more.conflist").write_text(
        '{"cniVersion": "1.1.0", "name": "more", "plugins": [{"type": "p", "capabilities": {"mac": true}}]}'
    )
    assert cni("validate", "more")[0] == 1
    plugin = tmp_path / "p"
    plugin.write_text(
        '#!/bin/sh\n[ $CNI_COMMAND = STATUS ] || exec echo \'{"supportedVersions": ["1.1.0"]}\'\n'
        'echo \'{"code": 50, "msg": "no daemon"}\'; exit 1\n'
    )
    plugin.chmod(0o755)
    monkeypatch.setenv("CNI_PATH", str(tmp_path))
    status, said, _ = cni("validate", "more", "-o", "json")
    assert (status, json.loads(said)) == (
        0,
        {
            "name": "more",
            "cniVersion": "1.1.0",
            "source": f"{tmp_path}/20-more.conflist",
            "plugins": ["p"],
            "capabilities": ["mac"],
        },
    )
    status, said, _ = cni("version", "more", "-o", "json")
    assert json.loads(said)["plugins"] == [{"type": "p", "supportedVersions": ["1.1.0"]}]
    status, said, told = cni("status", "more", "/ignored")
    assert (status, said) == (1, "")
    assert "no daemon" in told


@pytest.mark.kernel
def test_failures_are_one_error_in_words_or_in_json(cni: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cni("add", "net", NETNS)[0] == 1
    status, said, complaint = cni("add", "other", "/proc/self/ns/net")
    assert (status, said) == (1, "")
    assert '"other"' in complaint
    status, said, complaint = cni("add", "other", "/proc/self/ns/net", "-o", "json")
    assert (status, complaint) == (1, "")
    assert json.loads(said)["code"] == 7
    for name, value in (("CNI_ARGS", "nonsense"), ("CAP_ARGS", "nonsense"), ("CNI_IFNAME", "a/b")):
        monkeypatch.setenv(name, value)
        status, said, complaint = cni("add", "net", "/proc/self/ns/net")
        assert (status, said) == (1, "")
        assert value in complaint, complaint
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETCONFPATH", "/nowhere")
    assert "/nowhere" in cni("add", "net", "/proc/self/ns/net")[2]


@pytest.mark.kernel
def test_a_namespace_that_is_gone_is_no_reason_to_fail_del(cni: Command) -> None:
    assert cni("del", "net", "/run/netns/never") == (0, "", "")
    status, _, complaint = cni("add", "net", "never")
    assert status == 1
    assert "never: no such network namespace" in complaint
