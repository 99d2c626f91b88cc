"""The plugins in examples/plugins are short, whole, and run under any runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError, InvalidConfig, PluginFailure
from podwire.cni.runtime import Attachment, Runtime
from tests.cni.helpers import network

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
GO = "/usr/lib/cni"
NETNS = "/run/netns/pod"


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `env python3` find this Python, and it podwire."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def _pod() -> Iterator[None]:
    subprocess.run(["ip", "netns", "add", "pod"], check=True)
    yield
    subprocess.run(["ip", "netns", "delete", "pod"], check=True)


@pytest.mark.parametrize(("name", "most"), [("p2p.py", 40), ("resolver.py", 12)])
def test_a_whole_plugin_is_short(name: str, most: int) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env python3"
    assert os.access(EXAMPLES / name, os.X_OK)
    assert len([line for line in lines if line.strip()]) <= most


def test_the_examples_are_typed() -> None:
    files = sorted(str(each) for each in EXAMPLES.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", *files]
    source = str(EXAMPLES.parents[1] / "src")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": source})
    assert done.returncode == 0, done.stdout


def said(name: str, command: str, conf: dict[str, Any]) -> dict[str, Any]:
    env = {
        **os.environ,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/none/x",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": GO,
    }
    done = subprocess.run([EXAMPLES / name], input=json.dumps(conf).encode(), env=env, capture_output=True)
    assert done.stderr == b""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_they_tell_their_versions_and_refuse_what_they_do_not_know() -> None:
    assert "1.1.0" in said("resolver.py", "VERSION", {})["supportedVersions"]
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "p2p.py", "mru": 3}
    answer = said("p2p.py", "ADD", conf)
    assert answer["code"] == 7
    assert "mru" in answer["msg"]
    assert said("resolver.py", "ADD", {**conf, "nameservers": []})["code"] == 7


def ipam(directory: Path) -> dict[str, Any]:
    return {
        "type": "host-local",
        "dataDir": str(directory / "data"),
        "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }


def held(directory: Path) -> list[str]:
    return sorted(each.name for each in (directory / "data" / "net").glob("[0-9f]*"))


def inside(*arguments: str) -> str:
    return subprocess.check_output(["ip", "-n", "pod", *arguments], text=True)


@pytest.mark.kernel
@pytest.mark.usefixtures("_pod")
async def test_p2p_and_resolver_do_as_they_say(tmp_path: Path) -> None:
    net = network(
        {"type": "p2p.py", "mtu": 1400, "ipam": ipam(tmp_path)},
        {"type": "resolver.py", "nameservers": ["192.0.2.53"]},
        version="1.0.0",
    )
    attachment = Attachment("c1", NETNS)
    async with Runtime(path=(str(EXAMPLES), GO), cache_dir=tmp_path / "cache") as runtime:
        result = await runtime.add(net, attachment)
        assert [each.address for each in result.ips_of("eth0")] == ["10.77.0.2/24", "fd77::2/64"]
        assert result.dns.nameservers == ("192.0.2.53",)
        for address in ("10.77.0.2", "fd77::2"):
            subprocess.run(["busybox", "ping", "-c", "1", "-W", "2", address], check=True)
        await runtime.check(net, attachment)
        inside("address", "delete", "10.77.0.2/24", "dev", "eth0")
        with pytest.raises(PluginFailure, match=r"eth0 has lost the address 10\.77\.0\.2/24"):
            await runtime.check(net, attachment)
        inside("address", "add", "10.77.0.2/24", "dev", "eth0")
        inside("route", "add", "default", "via", "10.77.0.1")
        await runtime.check(net, attachment)
        inside("-6", "route", "delete", "default")
        with pytest.raises(PluginFailure, match="route to ::/0 via fd77::1 is gone"):
            await runtime.check(net, attachment)
        await runtime.delete(net, attachment)
        await runtime.delete(net, attachment)
        assert held(tmp_path) == []
        assert "eth0" not in inside("link")


@pytest.mark.kernel
@pytest.mark.usefixtures("_pod")
async def test_a_second_add_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    net = network({"type": "p2p.py", "ipam": ipam(tmp_path)}, version="1.0.0")
    attachment = Attachment("c1", NETNS)
    path = (str(EXAMPLES), GO)
    async with (
        Runtime(path=path, cache_dir=tmp_path / "cache") as one,
        Runtime(path=path, cache_dir=tmp_path / "other") as forgetful,
    ):
        await one.add(net, attachment)
        before = held(tmp_path)
        outcome = said_by_p2p(net.plugins[0].execution("net", "1.0.0"))
        assert "eth0 is there already" in outcome["msg"]
        assert held(tmp_path) == before
        await one.check(net, attachment)
        await forgetful.delete(net, attachment)
        assert held(tmp_path) == []


def said_by_p2p(conf: dict[str, Any]) -> dict[str, Any]:
    env = {
        **os.environ,
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": NETNS,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": GO,
    }
    done = subprocess.run(
        [EXAMPLES / "p2p.py"], input=json.dumps(conf).encode(), env=env, capture_output=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.kernel
@pytest.mark.usefixtures("_pod")
async def test_p2p_gives_the_addresses_back_when_it_fails(tmp_path: Path) -> None:
    inside("link", "add", "eth0", "type", "veth", "peer", "name", "other")
    net = network({"type": "p2p.py", "ipam": ipam(tmp_path)}, version="1.0.0")
    async with Runtime(path=(str(EXAMPLES), GO), cache_dir=tmp_path / "cache") as runtime:
        with pytest.raises(CNIError, match="File exists"):
            await runtime.add(net, Attachment("c1", NETNS))
    assert held(tmp_path) == []
    assert "p2p" not in subprocess.check_output(["ip", "link"], text=True)


def test_b16_verify_names_what_is_missing_or_wrong() -> None:
    from podwire.cni import verify
    from podwire.cni.plugin import Interface, IPConfig, Result, Route, make_request
    from tests.cni.helpers import RESULT, Recorder

    def request(result: Result, ifname: str = "eth0") -> Any:
        conf = {"cniVersion": "1.1.0", "name": "net"}
        return make_request(
            Recorder().plugin, "CHECK", conf, prev_result=result, container_id="c1", netns="/n", ifname=ifname
        )

    assert verify.interface_of(request(RESULT)) == RESULT.interfaces[0]
    with pytest.raises(InvalidConfig, match="no interface net1"):
        verify.interface_of(request(RESULT, "net1"))
    wrong = Result((Interface("eth0", sandbox="eth0"),))
    with pytest.raises(InvalidConfig, match=r'interfaces\[0\]\.sandbox: want the path.*it is "eth0"'):
        verify.interface_of(request(wrong))
    verify.has_addresses(request(RESULT), ["10.1.0.5/16", "FD00:0::5/64", "192.0.2.1/32"])
    with pytest.raises(CNIError, match="lost the address fd00::5/64"):
        verify.has_addresses(request(RESULT), ["10.1.0.5/16"])
    verify.has_routes(request(RESULT), [("0.0.0.0/0", "10.1.0.1"), ("::/0", "fd00::1")])
    with pytest.raises(CNIError, match="route to ::/0 via fd00::1 is gone"):
        verify.has_routes(request(RESULT), [("0.0.0.0/0", "10.1.0.1"), ("::/0", "fd00::9")])
    plain = Result((), (IPConfig("10.1.0.5/16"),), (Route("10.9.0.0/16"),))
    verify.has_routes(request(plain), [("10.9.0.0/16", "")])
    # As `ip route` writes them.
    verify.has_routes(request(RESULT), [("default", "10.1.0.1"), ("default", "fd00::1"), ("10.1.0.9", "")])
    with pytest.raises(CNIError, match=r"route to 10\.9\.0\.0/16 is gone"):
        verify.has_routes(request(plain), [])
