"""macvlan, ptp, host-device and tap alike: what every plugin that gives a pod a link must do."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, NotAvailable
from podwire.plugins import load
from tests.conftest import CLONE_NEWNET, setns
from tests.plugins import link_lab
from tests.plugins.helpers import Host, addresses, ip, links, reaches, run, sysctl

pytestmark = pytest.mark.kernel

TYPES = tuple(link_lab.MASTER)
each_type = pytest.mark.parametrize("type", TYPES)


@pytest.fixture
def cabled(host: Host) -> Iterator[Host]:
    link_lab.cable()
    host.pod("one")
    yield host
    run("ip", "netns", "delete", "router")


def net(host: Host, type: str, *subnets: str, **options: Any) -> dict[str, Any]:
    return link_lab.config(host, type, *(subnets or link_lab.SUBNETS), **options)


@each_type
def test_the_pod_has_what_the_result_says(cabled: Host, type: str) -> None:
    config = net(cabled, type)
    result = cabled.add(config, "one")
    inside = links("one")["eth0"]
    told = result.interfaces[-1]
    assert (told.name, told.mac, told.mtu, told.sandbox) == (
        "eth0",
        inside["address"],
        inside["mtu"],
        "/run/netns/one",
    )
    assert {one.address for one in result.ips} == {"10.1.0.2/24", "fd00:1::2/64"}
    assert {one.interface for one in result.ips} == {len(result.interfaces) - 1}
    assert {one.address for one in result.ips} <= set(addresses("eth0", "one"))
    cabled.check(config, "one", result)


@pytest.mark.parametrize("type", ["macvlan", "ptp", "host-device"])
def test_traffic_of_both_families(cabled: Host, type: str) -> None:
    cabled.add(net(cabled, type), "one")
    assert reaches("one", "10.1.0.1")
    assert reaches("one", "fd00:1::1")


@each_type
def test_F01_no_address_waits_for_duplicate_detection(cabled: Host, type: str) -> None:
    cabled.add(net(cabled, type), "one")
    (link,) = ip("address", "show", "dev", "eth0", pod="one")
    mine = [one for one in link["addr_info"] if one["family"] == "inet6"]
    assert len(mine) == 2
    assert all(one.get("nodad") and not one.get("tentative") for one in mine)


def advertise(prefix: bytes) -> None:
    """Send a router's advertisement of a prefix from the router, to all nodes (RFC 4861 section 4.2)."""
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path("/run/netns/router").open("rb") as router:
        setns(router.fileno(), CLONE_NEWNET)
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as raw:
                raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
                index = socket.if_nametoindex("r0")
                option = struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 86400, 86400, 0, prefix + bytes(8))
                packet = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + option
                raw.sendto(packet, ("ff02::1", 0, 0, index))
        finally:
            setns(home.fileno(), CLONE_NEWNET)


@pytest.mark.parametrize("type", ["macvlan", "host-device"])
def test_F03_a_router_on_the_wire_adds_nothing(cabled: Host, type: str) -> None:
    """A second link on the same wire takes the advertisement, so it did arrive."""
    cabled.pod("witness")
    if type == "macvlan":
        run(
            *(
                "ip",
                "link",
                "add",
                "w0",
                "link",
                "m0",
                "netns",
                "witness",
                "type",
                "macvlan",
                "mode",
                "bridge",
            )
        )
    cabled.add(net(cabled, type), "one")
    if type == "host-device":
        run(*("ip", "-n", "one", "link", "add", "w0", "link", "eth0", "netns", "witness", "type", "macvlan"))
    run("ip", "-n", "witness", "link", "set", "w0", "up")
    limit = time.monotonic() + 5
    while not any("fd77" in one for one in addresses("w0", "witness")):
        assert time.monotonic() < limit
        advertise(bytes.fromhex("fd77000000000000"))
        time.sleep(0.05)
    assert not any("fd77" in one for one in addresses("eth0", "one"))
    assert (
        sysctl("net/ipv6/conf/eth0/accept_ra", "one") == sysctl("net/ipv6/conf/eth0/autoconf", "one") == "0"
    )


@each_type
@pytest.mark.parametrize("netns", ["", "/run/netns/never-was", "/dev/null"], ids=["E03", "E01", "E02"])
def test_a_del_needs_no_namespace(cabled: Host, type: str, netns: str) -> None:
    config = net(cabled, type)
    before = link_lab.everything(cabled)
    cabled.add(config, "one")
    cabled.delete(config, "one", netns=netns)
    cabled.delete(config, "one", netns=netns)
    assert cabled.held() == {}
    if not netns:  # the address is free, so nothing must have it any more
        assert set(links("one")) == {"lo"}
    if type in {"ptp", "host-device"}:  # those have something on the host
        assert "m0" in links()
        assert not any(name.startswith("veth") for name in links())
        assert [line for line in link_lab.everything(cabled) if "elements" in line] == [
            line for line in before if "elements" in line
        ]


@each_type
def test_E01_the_namespace_was_deleted_with_its_links(cabled: Host, type: str) -> None:
    config = net(cabled, type)
    cabled.add(config, "one")
    run("ip", "netns", "delete", "one")
    cabled.delete(config, "one")
    assert cabled.held() == {}
    assert "elements" not in run("nft", "list", "ruleset")


@each_type
def test_E04_a_late_del_of_an_old_container_leaves_the_new_one(cabled: Host, type: str) -> None:
    config = net(cabled, type)
    cabled.add(config, "one", container_id="old")
    cabled.delete(config, "one", container_id="old")
    result = cabled.add(config, "one", container_id="new")
    for _ in range(2):
        cabled.delete(config, "one", container_id="old")
        cabled.delete(config, "one", container_id="old", netns="")
    cabled.check(config, "one", result, container_id="new")
    assert set(cabled.held().values()) == {"new"}


@each_type
def test_a_second_add_is_refused_and_the_first_stays(cabled: Host, type: str) -> None:
    config = net(cabled, type)
    result = cabled.add(config, "one")
    with pytest.raises(AlreadyAttached, match="a DEL must come before"):
        cabled.add(config, "one")
    cabled.check(config, "one", result)


@each_type
def test_a_foreign_link_of_the_name_is_left_alone(cabled: Host, type: str) -> None:
    run("ip", "-n", "one", "link", "add", "eth0", "type", "bridge")
    before = link_lab.everything(cabled)
    config = net(cabled, type)
    with pytest.raises(CNIError):
        cabled.add(config, "one")
    assert link_lab.everything(cabled) == before
    cabled.delete(config, "one")
    assert links("one")["eth0"]["linkinfo"]["info_kind"] == "bridge"


@each_type
def test_E23_no_free_address_leaves_nothing(cabled: Host, type: str) -> None:
    config = net(cabled, type, "10.1.0.0/30")
    cabled.data.joinpath("net").mkdir(parents=True)
    for address in ("10.1.0.1", "10.1.0.2"):
        cabled.data.joinpath("net", address).write_text("other\r\neth0")
    before = link_lab.everything(cabled)
    with pytest.raises(CNIError, match="no free address"):
        cabled.add(config, "one")
    assert link_lab.everything(cabled) == before
    with pytest.raises(NotAvailable, match="no free address"):
        cabled.call("STATUS", config)


@each_type
def test_a_gc_removes_what_is_not_valid_and_keeps_the_rest(cabled: Host, type: str) -> None:
    config = net(cabled, type)
    result = cabled.add(config, "one")
    cabled.call("GC", {**config, "cni.dev/valid-attachments": [{"containerID": "id-one", "ifname": "eth0"}]})
    cabled.check(config, "one", result)
    cabled.call("GC", {**config, "name": "another", "cni.dev/valid-attachments": []})
    cabled.check(config, "one", result)
    cabled.call("GC", {**config, "cni.dev/valid-attachments": []})
    assert set(links("one")) == {"lo"}
    assert cabled.held() == {}
    assert "m0" in links()
    assert not any(name.startswith("veth") for name in links())
    assert "elements" not in run("nft", "list", "ruleset")


BREAKS = {
    "ip -n one link set eth0 down": "is down",
    "ip -n one link delete eth0": "is missing",
    "ip -n one address delete 10.1.0.2/24 dev eth0": r"10\.1\.0\.2/24 is missing",
    "ip -n one address delete fd00:1::2/64 dev eth0": "fd00:1::2/64 is missing",
    "ip -n one route delete default": "route to 0.0.0.0/0",
    "ip -n one -6 route delete default": "route to ::/0",
    "ip -n one link set eth0 address 02:00:00:00:00:77": "has the MAC",
}


@each_type
@pytest.mark.parametrize("command", BREAKS)
def test_a_check_finds_what_is_missing(cabled: Host, type: str, command: str) -> None:
    config = net(cabled, type)
    config["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    result = cabled.add(config, "one")
    cabled.check(config, "one", result)
    run(*command.split())
    with pytest.raises(CNIError, match=BREAKS[command]) as caught:
        cabled.check(config, "one", result)
    assert caught.value.code == 100


@each_type
@pytest.mark.parametrize("ipam", [7, [], "host-local", {"subnet": "10.1.0.0/24"}, {"type": 5}])
def test_a_broken_ipam_is_refused_before_anything_is_done(cabled: Host, type: str, ipam: Any) -> None:
    config = {**net(cabled, type), "ipam": ipam}
    before = link_lab.everything(cabled)
    with pytest.raises(InvalidConfig, match="ipam"):
        cabled.add(config, "one")
    assert link_lab.everything(cabled) == before


def test_gc_without_a_list_does_nothing(cabled: Host) -> None:
    for type in TYPES:
        plugin = load(type)
        assert plugin is not None
        config = net(cabled, type)
        cabled.add(config, "one")
        cabled.call("GC", config)
        assert "eth0" in links("one")
        cabled.delete(config, "one")


def test_a_pod_with_a_link_of_each_kind(cabled: Host) -> None:
    """Names and marks do not meet, and each DEL takes its own."""
    for number, type in enumerate(("macvlan", "ptp", "tap")):
        cabled.add(net(cabled, type), "one", ifname=f"eth{number}")
    assert len(cabled.held()) == 6
    cabled.delete(net(cabled, "macvlan"), "one", ifname="eth0")
    cabled.delete(net(cabled, "ptp"), "one", ifname="eth1")
    assert set(links("one")) == {"lo", "eth2"}
    assert set(cabled.held().values()) == {"id-one"}
