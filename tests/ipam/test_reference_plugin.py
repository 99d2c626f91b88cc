"""The same directory, worked on by the reference plugin and by ours in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import AddressTaken, AlreadyAllocated
from tests.ipam.helpers import GO_PLUGINS, add, addresses, files, given, pool, release, run_go

pytestmark = pytest.mark.skipif(
    not (GO_PLUGINS / "host-local").exists(), reason="needs Debian's containernetworking-plugins"
)

IPAM: dict[str, Any] = {"ranges": [[{"subnet": "10.1.0.0/28"}], [{"subnet": "fd00:0:0:1::/64"}]]}
SETS = [pool("10.1.0.0/28"), pool("fd00:0:0:1::/64")]


def go_addresses(answer: dict[str, Any]) -> list[str]:
    return [ip["address"].partition("/")[0] for ip in answer["ips"]]


def test_both_write_the_same_directory(tmp_path: Path) -> None:
    go, ours = tmp_path / "go", tmp_path / "ours"
    mine = AddressDirectory(ours, "net")
    steps = [("ADD", "a", ""), ("ADD", "b", ""), ("ADD", "c", "10.1.0.9"), ("ADD", "d", ""), ("DEL", "b", "")]
    steps += [("ADD", f"n{n}", "") for n in range(4)] + [("DEL", "zz", ""), ("ADD", "e", "fd00:0:0:1::2:0")]
    for command, name, wish in steps:
        if command == "DEL":
            run_go("DEL", name, go, IPAM)
            release(mine, name)
        else:
            answer = run_go("ADD", name, go, IPAM, args=f"IP={wish}" if wish else "")
            assert given(add(mine, SETS, name, *[wish] if wish else [])) == go_addresses(answer)
        assert files(mine) == files(AddressDirectory(go, "net"))


def test_each_sees_and_releases_what_the_other_gave(tmp_path: Path) -> None:
    mine = AddressDirectory(tmp_path, "net")
    assert go_addresses(run_go("ADD", "theirs", tmp_path, IPAM)) == ["10.1.0.2", "fd00:0:0:1::2"]
    assert given(add(mine, SETS, "ours")) == ["10.1.0.3", "fd00:0:0:1::3"]
    with pytest.raises(AlreadyAllocated):
        add(mine, SETS, "theirs")
    with pytest.raises(RuntimeError, match="duplicate allocation is not allowed"):
        run_go("ADD", "ours", tmp_path, IPAM)
    with pytest.raises(AddressTaken, match="held by container theirs"):
        add(mine, SETS, "x", "10.1.0.2")
    with pytest.raises(RuntimeError, match=r"10\.1\.0\.3 is not available"):
        run_go("ADD", "x", tmp_path, IPAM, args="IP=10.1.0.3")
    assert release(mine, "theirs") == ["10.1.0.2", "fd00:0:0:1::2"]
    run_go("DEL", "ours", tmp_path, IPAM)
    assert addresses(mine) == {}
    with mine.locked() as leases:
        assert leases.taken(4) == leases.taken(6) == {}


def test_another_interface_of_one_container_is_released_alone(tmp_path: Path) -> None:
    mine = AddressDirectory(tmp_path, "net")
    run_go("ADD", "c", tmp_path, IPAM, ifname="eth0")
    add(mine, SETS, "c", ifname="net1")
    run_go("DEL", "c", tmp_path, IPAM, ifname="net1")
    assert set(addresses(mine).values()) == {"c\r\neth0"}
    add(mine, SETS, "c", ifname="net2")
    release(mine, "c", "eth0")
    assert set(addresses(mine).values()) == {"c\r\nnet2"}
