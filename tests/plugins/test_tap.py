"""tap: its options, and frames between a program that has it open and the pod."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment, NotAvailable
from podwire.plugins import tap
from tests.conftest import CLONE_NEWNET, setns
from tests.plugins import link_lab
from tests.plugins.helpers import Host, links, run

pytestmark = pytest.mark.kernel

_TUNSETIFF = 0x400454CA
_TAP_NO_PI = 0x1002


def net(host: Host, *subnets: str, **options: Any) -> dict[str, Any]:
    return host.config(*subnets, **{"type": "tap", "bridge": "", **options})


def inside() -> dict[str, Any]:
    return links("one")["eth0"]


@pytest.fixture(autouse=True)
def _pod(host: Host) -> None:
    host.pod("one")


@contextmanager
def opened(name: str, pod: str) -> Iterator[int]:
    """Open a pod's tap as the program does that it is for."""
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path("/run/netns", pod).open("rb") as there:
        setns(there.fileno(), CLONE_NEWNET)
        try:
            fd = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_NO_PI))
        finally:
            setns(home.fileno(), CLONE_NEWNET)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize(("address", "kind"), [("10.1.0.9", 0x0806), ("fd00:1::9", 0x86DD)])
def test_frames_of_both_families_reach_the_program(host: Host, address: str, kind: int) -> None:
    host.add(net(host, *link_lab.SUBNETS), "one")
    with opened("eth0", "one") as fd:
        ping = subprocess.Popen(
            ["ip", "netns", "exec", "one", "busybox", "ping", "-c", "1", "-W", "2", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while True:
                assert select.select([fd], [], [], 5)[0], "no frame in 5 s"
                frame = os.read(fd, 2000)
                target = bytes((10, 1, 0, 9)) if kind == 0x0806 else bytes.fromhex("ff000009")
                if int.from_bytes(frame[12:14], "big") == kind and target in frame:
                    break
        finally:
            ping.kill()
            ping.wait()
    assert frame[6:12].hex(":") == inside()["address"]


def test_options(host: Host) -> None:
    config = net(host, multiQueue=True, mtu=1400, mac="02:00:00:00:00:42", owner=0, group=107)
    result = host.add(config, "one")
    data = inside()["linkinfo"]["info_data"]
    assert (data["type"], data["persist"], data["multi_queue"], data["pi"]) == ("tap", True, True, False)
    assert (data["user"], data["group"]) == ("root", 107)
    assert (inside()["mtu"], inside()["address"], "UP" in inside()["flags"]) == (
        1400,
        "02:00:00:00:00:42",
        True,
    )
    assert (result.interfaces[0].mtu, result.interfaces[0].mac) == (1400, "02:00:00:00:00:42")
    host.check(config, "one", result)
    host.delete(config, "one")
    assert set(links("one")) == {"lo"}


def test_without_options(host: Host) -> None:
    host.add(net(host), "one")
    data = inside()["linkinfo"]["info_data"]
    assert (data["multi_queue"], "user" in data, "group" in data) == (False, False, False)


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({"mac": "02:00:00:00:00:41"}, "MAC=02:00:00:00:00:42"),
        ({"mac": "02:00:00:00:00:41", "args": {"cni": {"mac": "02:00:00:00:00:42"}}}, ""),
        ({"mac": "02:00:00:00:00:41", "runtimeConfig": {"mac": "02:00:00:00:00:42"}}, ""),
    ],
)
def test_a_mac_from_elsewhere_comes_before_the_networks(
    host: Host, options: dict[str, Any], args: str
) -> None:
    assert host.add(net(host, **options), "one", args=args).interfaces[0].mac == "02:00:00:00:00:42"


def test_a_bridge_of_the_container(host: Host) -> None:
    run("ip", "-n", "one", "link", "add", "br0", "type", "bridge")
    config = net(host, bridge="br0")
    result = host.add(config, "one")
    assert inside()["master"] == "br0"
    host.check(config, "one", result)
    run("ip", "-n", "one", "link", "set", "eth0", "nomaster")
    with pytest.raises(CNIError, match="is no port of bridge br0"):
        host.check(config, "one", result)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mtu": -1}, "mtu -1"),
        ({"mtu": 70000}, "mtu 70000"),
        ({"owner": -1}, "owner -1"),
        ({"group": 1 << 32}, "group 4294967296"),
        ({"mac": "nonsense"}, '^mac "nonsense"'),
        ({"bridge": "a b"}, "bridge: "),
        ({"bridge": "nosuch0"}, 'bridge "nosuch0": the container has no such bridge'),
        ({"bridge": "lo"}, 'bridge "lo": the container has no such bridge'),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(host: Host, options: dict[str, Any], match: str) -> None:
    before = link_lab.everything(host)
    with pytest.raises((InvalidConfig, InvalidEnvironment), match=match) as caught:
        host.add(net(host, "10.1.0.0/24", **options), "one")
    assert caught.value.code == 7
    assert link_lab.everything(host) == before


def test_status(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host.call("STATUS", net(host))
    monkeypatch.setattr(tap, "DEVICE", tmp_path / "tun")
    with pytest.raises(NotAvailable, match="load the module tun"):
        host.call("STATUS", net(host))


def test_a_context_of_selinux(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without SELinux it is ignored; with it, the tap's maker runs in that context."""
    config = net(host, selinuxContext="system_u:system_r:svirt_t:s0", multiQueue=True, owner=1, group=2)
    monkeypatch.setattr(tap, "SELINUX", tmp_path / "none")
    host.add(config, "one")
    host.delete(config, "one")
    label = tmp_path / "exec"
    said = []
    label.touch()
    monkeypatch.setattr(tap, "SELINUX", label)
    monkeypatch.setattr(tap, "EXEC_LABEL", label)
    real = subprocess.run

    def watched(*args: Any, **kwargs: Any) -> Any:
        said.append(label.read_text())
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", watched)
    host.add(config, "one")
    monkeypatch.undo()
    assert said == ["system_u:system_r:svirt_t:s0"]
    assert label.read_text() == ""
    data = inside()["linkinfo"]["info_data"]
    assert (data["multi_queue"], data["persist"]) == (True, True)


def test_a_context_that_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tap, "SELINUX", tmp_path)
    monkeypatch.setattr(tap, "EXEC_LABEL", tmp_path / "no" / "exec")
    with pytest.raises(InvalidConfig, match='selinuxContext "x"'):
        host.add(net(host, selinuxContext="x"), "one")
    assert set(links("one")) == {"lo"}
