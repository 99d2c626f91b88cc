"""macvlan: its options, its master, its traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment, NotAvailable
from tests.plugins import link_lab
from tests.plugins.helpers import Host, links, reaches, run

pytestmark = pytest.mark.kernel


@pytest.fixture
def cabled(host: Host) -> Iterator[Host]:
    link_lab.cable(mtu=1400)
    host.pod("one")
    yield host
    run("ip", "netns", "delete", "router")


def net(host: Host, *subnets: str, **options: Any) -> dict[str, Any]:
    return host.config(*subnets, **{"type": "macvlan", "bridge": "", "master": "m0", **options})


def inside() -> dict[str, Any]:
    return links("one")["eth0"]


@pytest.mark.parametrize("mode", ["", "bridge", "private", "vepa", "passthru"])
def test_modes(cabled: Host, mode: str) -> None:
    config = net(cabled, *link_lab.SUBNETS, mode=mode)
    result = cabled.add(config, "one")
    assert inside()["linkinfo"]["info_data"]["mode"] == (mode or "bridge")
    assert (inside()["address"] == link_lab.MAC) == (mode == "passthru")
    assert reaches("one", "10.1.0.1")
    assert reaches("one", "fd00:1::1")
    cabled.check(config, "one", result)
    other = "vepa" if mode == "private" else "private"
    with pytest.raises(CNIError, match=f"its mode is not {other}"):
        cabled.check({**config, "mode": other}, "one", result)


def test_pods_over_one_master_reach_each_other(cabled: Host) -> None:
    config = net(cabled, *link_lab.SUBNETS)
    cabled.add(config, "one")
    cabled.add(config, cabled.pod("two"))
    assert reaches("one", "10.1.0.3")
    assert reaches("two", "fd00:1::2")


def test_the_default_master_is_the_interface_of_the_default_route(cabled: Host) -> None:
    config = net(cabled, master="")
    with pytest.raises(InvalidConfig, match="no default route"):
        cabled.add(config, "one")
    with pytest.raises(NotAvailable, match="no default route"):
        cabled.call("STATUS", config)
    run("ip", "address", "add", "10.1.0.9/24", "dev", "m0")
    run("ip", "route", "add", "default", "via", "10.1.0.1")
    cabled.call("STATUS", config)
    result = cabled.add(config, "one")
    assert inside()["link_index"] == links()["m0"]["ifindex"]
    cabled.check(config, "one", result)
    run("ip", "route", "delete", "default")  # the pod does not mind
    cabled.check(config, "one", result)


def test_a_default_route_of_ipv6_will_do(cabled: Host) -> None:
    run("ip", "address", "add", "fd00:1::9/64", "dev", "m0", "nodad")
    run("ip", "-6", "route", "add", "default", "via", "fd00:1::1")
    cabled.add(net(cabled, master=""), "one")
    assert inside()["link_index"] == links()["m0"]["ifindex"]


def test_a_master_in_the_container(cabled: Host) -> None:
    run("ip", "link", "set", "m0", "netns", "one")
    run("ip", "-n", "one", "link", "set", "m0", "up")
    config = net(cabled, *link_lab.SUBNETS, linkInContainer=True)
    cabled.call("STATUS", config)
    result = cabled.add(config, "one")
    assert inside()["link"] == "m0"
    assert reaches("one", "10.1.0.1")
    cabled.check(config, "one", result)
    with pytest.raises(CNIError, match="m0: is missing"):
        cabled.check({**config, "linkInContainer": False}, "one", result)
    cabled.delete(config, "one")
    assert set(links("one")) == {"lo", "m0"}


def test_the_default_master_in_the_container(cabled: Host) -> None:
    run("ip", "link", "set", "m0", "netns", "one")
    run("ip", "-n", "one", "address", "add", "10.1.0.9/24", "dev", "m0")
    run("ip", "-n", "one", "link", "set", "m0", "up")
    run("ip", "-n", "one", "route", "add", "default", "via", "10.1.0.1")
    result = cabled.add(net(cabled, master="", linkInContainer=True), "one")
    assert inside()["link"] == "m0"
    cabled.check(net(cabled, master="", linkInContainer=True), "one", result)


def test_without_ipam_it_is_up_and_bare(cabled: Host) -> None:
    result = cabled.add(net(cabled), "one")
    assert result.ips == ()
    assert "UP" in inside()["flags"]
    cabled.check(net(cabled), "one", result)


@pytest.mark.parametrize(("mtu", "expected"), [(0, 1400), (1300, 1300), (1400, 1400)])
def test_mtu(cabled: Host, mtu: int, expected: int) -> None:
    assert cabled.add(net(cabled, mtu=mtu), "one").interfaces[0].mtu == expected
    assert inside()["mtu"] == expected


def test_the_queue_for_broadcasts(cabled: Host) -> None:
    cabled.add(net(cabled, bcqueuelen=5000), "one")
    assert inside()["linkinfo"]["info_data"]["bcqueuelen"] == 5000


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({}, "MAC=02:00:00:00:00:42"),
        ({"args": {"cni": {"mac": "02-00-00-00-00-42"}}}, "MAC=02:00:00:00:00:41"),
        (
            {
                "args": {"cni": {"mac": "02:00:00:00:00:41"}},
                "runtimeConfig": {"mac": "02:00:00:00:00:42"},
            },
            "",
        ),
    ],
)
def test_a_mac_that_is_asked_for(cabled: Host, options: dict[str, Any], args: str) -> None:
    result = cabled.add(net(cabled, **options), "one", args=args)
    assert result.interfaces[0].mac == inside()["address"] == "02:00:00:00:00:42"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"master": "nosuch0"}, 'master "nosuch0": there is no such interface'),
        ({"master": "a/b"}, "master: .*contains '/'"),
        ({"mode": "Bridge"}, 'mode "Bridge": is none of private, vepa, bridge, passthru'),
        ({"mtu": 1401}, "mtu 1401: is not between 0 and 1400, the MTU of master m0"),
        ({"mtu": -1}, "mtu -1"),
        ({"bcqueuelen": -1}, "bcqueuelen -1"),
        ({"bcqueuelen": 1 << 32}, "bcqueuelen 4294967296"),
        ({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}, 'runtimeConfig.mac "01:00:5e:00:00:01"'),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(cabled: Host, options: dict[str, Any], match: str) -> None:
    before = link_lab.everything(cabled)
    with pytest.raises(InvalidConfig, match=match):
        cabled.add(net(cabled, "10.1.0.0/24", **options), "one")
    assert link_lab.everything(cabled) == before


def test_a_mac_of_no_station_in_the_variables(cabled: Host) -> None:
    with pytest.raises(InvalidEnvironment, match="CNI_ARGS MAC"):
        cabled.add(net(cabled), "one", args="MAC=00:00:00:00:00:00")


def test_status_tells_of_a_master_that_is_missing_or_taken(cabled: Host) -> None:
    cabled.call("STATUS", net(cabled))
    with pytest.raises(NotAvailable, match="nosuch0"):
        cabled.call("STATUS", net(cabled, master="nosuch0"))
    run("ip", "link", "add", "br9", "type", "bridge")
    run("ip", "link", "set", "m0", "master", "br9")
    with pytest.raises(NotAvailable, match="belongs to a bridge or bond"):
        cabled.call("STATUS", net(cabled))


def test_a_master_that_is_gone_is_found_by_check(cabled: Host) -> None:
    config = net(cabled)
    result = cabled.add(config, "one")
    with pytest.raises(CNIError, match="m9: is missing"):
        cabled.check({**config, "master": "m9"}, "one", result)
    with pytest.raises(CNIError, match="is not over master lo"):
        cabled.check({**config, "master": "lo"}, "one", result)


def test_a_del_without_the_container_or_the_master(cabled: Host) -> None:
    config = net(cabled, "10.1.0.0/24")
    cabled.add(config, "one")
    run("ip", "link", "delete", "m0")
    cabled.delete(config, "one")
    assert cabled.held() == {}
