"""The host's sysctls come back as they were."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from podwire.node import hoststate
from podwire.node.hoststate import HostState

WANTED = HostState(
    bridge="podwire0", pod_cidrs=("10.9.0.0/16", "fd09::/64"), node_name="n", boot_id=hoststate.boot_id()
)


def sysctl(key: str) -> str:
    return subprocess.run(
        ["cat", f"/proc/sys/{key}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def everything() -> dict[str, str]:
    """All of net.ipv4.conf and net.ipv6.conf, as another program reads them."""
    command = "cd /proc/sys/net && grep -s . ipv4/ip_forward ipv4/conf/*/* ipv6/conf/*/*"
    lines = subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout.splitlines()
    return dict(line.partition(":")[::2] for line in lines)


@pytest.fixture(autouse=True)
def _links() -> None:
    subprocess.run(["ip", "link", "add", "e0", "type", "veth", "peer", "name", "e1"], check=True)


@pytest.mark.kernel
def test_what_forwarding_changed_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    before = everything()
    state = hoststate.prepare(path, WANTED)
    assert sysctl("net/ipv4/ip_forward") == sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert sysctl("net/ipv6/conf/e0/accept_ra") == "2"
    assert hoststate.load(path) == state
    assert hoststate.restore(state) == {}
    assert everything() == before


@pytest.mark.kernel
def test_a_second_start_keeps_the_first_record(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    before = everything()
    hoststate.prepare(path, WANTED)
    state = hoststate.prepare(path, WANTED)
    hoststate.restore(state)
    assert everything() == before


@pytest.mark.kernel
def test_a_start_that_was_cut_short_is_put_back_too(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    before = everything()
    hoststate.save(path, msgspec.structs.replace(WANTED, before=dict(hoststate.snapshot())))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    state = hoststate.load(path)
    assert state is not None
    hoststate.restore(state)
    assert everything() == before


@pytest.mark.kernel
def test_a_value_that_somebody_else_set_stays(tmp_path: Path) -> None:
    state = hoststate.prepare(tmp_path / "host.json", WANTED)
    Path("/proc/sys/net/ipv4/conf/e0/forwarding").write_text("0")
    Path("/proc/sys/net/ipv6/conf/e1/accept_ra").write_text("0")
    foreign = hoststate.restore(state)
    assert foreign == {"net/ipv6/conf/e1/accept_ra": ("0", "1")}
    assert sysctl("net/ipv6/conf/e1/accept_ra") == "0"


@pytest.mark.kernel
def test_an_interface_that_came_later_keeps_its_value(tmp_path: Path) -> None:
    state = hoststate.prepare(tmp_path / "host.json", WANTED)
    subprocess.run(["ip", "link", "add", "later", "type", "bridge"], check=True)
    Path("/proc/sys/net/ipv4/conf/later/forwarding").write_text("1")
    hoststate.restore(state)
    assert sysctl("net/ipv4/ip_forward") == "0"
    assert sysctl("net/ipv4/conf/later/forwarding") == "1"


@pytest.mark.kernel
def test_a_host_that_forwards_already_is_left_alone(tmp_path: Path) -> None:
    for switch in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path(f"/proc/sys/net/{switch}").write_text("1")
    before = everything()
    state = hoststate.prepare(tmp_path / "host.json", WANTED)
    assert (state.before, everything()) == ({}, before)
    hoststate.restore(state)
    assert everything() == before


@pytest.mark.kernel
def test_after_a_reboot_nothing_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    state = hoststate.prepare(path, WANTED)
    now = everything()
    assert hoststate.restore(msgspec.structs.replace(state, boot_id="another")) == {}
    assert everything() == now
    hoststate.save(path, msgspec.structs.replace(state, boot_id="another"))
    assert hoststate.prepare(path, WANTED).before == {}


@pytest.mark.kernel
@pytest.mark.parametrize("text", ["", "{", "[]", '{"bridge": 3}'])
def test_an_unreadable_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(hoststate.HostStateError, match=str(path)):
        hoststate.load(path)


@pytest.mark.kernel
def test_missing_directories_are_told_outermost_first(tmp_path: Path) -> None:
    wanted = (tmp_path / "a" / "lib", tmp_path / "a" / "run")
    assert hoststate.missing_directories(*wanted) == tuple(
        str(tmp_path / name) for name in ("a", "a/lib", "a/run")
    )
    wanted[0].mkdir(parents=True)
    assert hoststate.missing_directories(*wanted) == (str(tmp_path / "a/run"),)
