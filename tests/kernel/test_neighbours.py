"""Neighbours, proxies and forwarding entries, as ``ip neighbour`` and ``bridge fdb`` see them."""

from __future__ import annotations

import errno
import json
import subprocess
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import links, neighbours
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.netlink import RouteSocket
from tests.kernel import helpers

kernel = pytest.mark.kernel
MAC = "02:00:00:00:00:aa"


def fdb(device: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["bridge", "-j", "-d", "fdb", "show", "dev", device], capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture
def index(sock: RouteSocket) -> int:
    sock.send(links.veth("a", "b", index=10, peer_index=11, up=True))
    sock.send(links.configure("b", up=True))
    return 10


@kernel
@pytest.mark.parametrize("text", ["10.1.0.9", "2001:db8::9"])
def test_a_neighbour_is_told_replaced_and_forgotten(sock: RouteSocket, index: int, text: str) -> None:
    address = ip_address(text)
    sock.send(neighbours.add(index, address, MAC))
    sock.send(neighbours.add(index, address, "02:00:00:00:00:bb"))
    [seen] = helpers.ip("neighbour", "show", text, "dev", "a")
    assert (seen["lladdr"], seen["state"]) == ("02:00:00:00:00:bb", ["PERMANENT"])
    [ours] = [one for one in neighbours.list_neighbours(sock, index) if one.address == address]
    assert (ours.mac, ours.state, ours.proxy) == ("02:00:00:00:00:bb", neighbours.PERMANENT, False)
    with pytest.raises(KernelError) as caught:
        sock.send(neighbours.add(index, address, MAC, replace=False))
    assert caught.value.errno == errno.EEXIST
    sock.send(neighbours.delete(index, address))
    assert helpers.ip("neighbour", "show", text, "dev", "a") == []
    with pytest.raises(KernelError) as caught:
        sock.send(neighbours.delete(index, address))
    assert caught.value.errno == errno.ENOENT


@kernel
@pytest.mark.parametrize("text", ["10.1.0.9", "2001:db8::9"])
def test_a_proxy_is_added_and_deleted(sock: RouteSocket, index: int, text: str) -> None:
    address = ip_address(text)
    sock.send(neighbours.add_proxy(index, address))
    family = "-6" if ":" in text else "-4"
    assert [one["dst"] for one in helpers.ip(family, "neighbour", "show", "proxy", "dev", "a")] == [text]
    assert [one.address for one in neighbours.list_neighbours(sock, index, proxy=True)] == [address]
    sock.send(neighbours.delete_proxy(index, address))
    assert helpers.ip(family, "neighbour", "show", "proxy", "dev", "a") == []


@kernel
def test_forwarding_entries_of_a_vxlan(sock: RouteSocket) -> None:
    sock.send(links.vxlan("vx0", vni=1, local=ip_address("192.0.2.1"), up=True))
    vxlan = helpers.link("vx0")["ifindex"]
    unknown = "00:00:00:00:00:00"
    sock.send(
        neighbours.add_forwarding(vxlan, MAC, remote=ip_address("192.0.2.2")),
        neighbours.add_forwarding(vxlan, unknown, remote=ip_address("192.0.2.2"), append=True),
        neighbours.add_forwarding(
            vxlan, unknown, remote=ip_address("192.0.2.3"), port=8472, vni=5, append=True
        ),
    )
    seen = {(one["mac"], one["dst"], one.get("port"), one.get("vni")) for one in fdb("vx0")}
    assert seen == {
        (MAC, "192.0.2.2", None, None),
        (unknown, "192.0.2.2", None, None),
        (unknown, "192.0.2.3", 8472, 5),
    }
    ours = {(one.mac, str(one.remote), one.port, one.vni) for one in neighbours.list_forwarding(sock, vxlan)}
    assert ours == seen
    sock.send(neighbours.add_forwarding(vxlan, MAC, remote=ip_address("192.0.2.9")))
    assert [one["dst"] for one in fdb("vx0") if one["mac"] == MAC] == ["192.0.2.9"]
    sock.send(
        neighbours.delete_forwarding(vxlan, MAC),
        neighbours.delete_forwarding(vxlan, unknown, remote=ip_address("192.0.2.2")),
    )
    assert [one["dst"] for one in fdb("vx0")] == ["192.0.2.3"]


@kernel
def test_forwarding_entries_of_a_bridge_port(sock: RouteSocket, index: int) -> None:
    sock.send(links.bridge("br0", up=True, index=20), links.configure(index, master=20))
    sock.send(neighbours.add_forwarding(index, MAC, master=True))
    [seen] = [one for one in fdb("a") if one["mac"] == MAC and "vlan" not in one]
    assert (seen["master"], seen["state"]) == ("br0", "permanent")
    [ours] = [one for one in neighbours.list_forwarding(sock, index) if one.mac == MAC and not one.vlan]
    assert (ours.master, ours.remote) == (20, None)
    sock.send(neighbours.delete_forwarding(index, MAC, master=True))
    assert MAC not in {one["mac"] for one in fdb("a") if "vlan" not in one}


def test_impossible_requests_are_refused_before_they_are_sent() -> None:
    with pytest.raises(InvalidValue, match="link index -1"):
        neighbours.add(-1, ip_address("10.0.0.1"), MAC)
    with pytest.raises(InvalidValue, match="neighbour mac 'x'"):
        neighbours.add(1, ip_address("10.0.0.1"), "x")


@given(st.sampled_from([2, 10, 7]), st.binary(max_size=80))
def test_random_bytes_parse_or_raise_the_typed_error(family: int, data: bytes) -> None:
    for parse in (neighbours.parse, neighbours.parse_forwarding):
        try:
            found = parse(bytes([family]) + data)
        except MalformedReply:
            continue
        assert found is None or found.index is not None
