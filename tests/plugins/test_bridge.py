"""What an attachment is, seen by ``ip``, ``bridge`` and a ping."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from podwire.cni.convert import encode_result
from podwire.cni.errors import AlreadyAttached, CNIError, InvalidNetns
from podwire.cni.plugin import IPConfig
from podwire.plugins.attachment import Identity
from tests.plugins.helpers import Host, addresses, ip, links, reaches, routes, run, sysctl

pytestmark = pytest.mark.kernel


def test_dual_stack_pods_reach_each_other_and_the_host(host: Host) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", isDefaultGateway=True)
    one, two = host.pod("one"), host.pod("two")
    first, second = host.add(config, one), host.add(config, two)
    assert [each.address for each in first.ips] == ["10.1.0.2/24", "fd00:1::2/64"]
    assert [each.address for each in second.ips] == ["10.1.0.3/24", "fd00:1::3/64"]
    for address in ("10.1.0.3", "fd00:1::3", "10.1.0.1", "fd00:1::1"):
        assert reaches(one, address)
    assert reaches("", "10.1.0.2")
    assert reaches("", "fd00:1::2")
    assert addresses("eth0", one)[:2] == ["10.1.0.2/24", "fd00:1::2/64"]
    assert set(addresses("pw0")) > {"10.1.0.1/24", "fd00:1::1/64"}
    assert [each["gateway"] for each in routes(one) if each["dst"] == "default"] == ["10.1.0.1"]
    assert [each["gateway"] for each in routes(one, "-6") if each["dst"] == "default"] == ["fd00:1::1"]


def test_the_result_names_bridge_host_end_and_container_end(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True, mtu=1400, dns={"nameservers": ["10.1.0.53"]})
    result = host.add(config, host.pod("one"))
    seen = json.loads(encode_result(result, "1.1.0"))
    outside, inside = links(), links("one")
    name = seen["interfaces"][1]["name"]
    assert seen["interfaces"] == [
        {"name": "pw0", "mac": outside["pw0"]["address"], "mtu": 1400},
        {"name": name, "mac": outside[name]["address"], "mtu": outside[name]["mtu"]},
        {
            "name": "eth0",
            "mac": inside["eth0"]["address"],
            "mtu": inside["eth0"]["mtu"],
            "sandbox": "/run/netns/one",
        },
    ]
    assert inside["eth0"]["mtu"] == outside[name]["mtu"] == 1400
    assert seen["ips"] == [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2}]
    assert seen["dns"] == {"nameservers": ["10.1.0.53"]}
    assert outside[name]["master"] == "pw0"
    assert outside[name]["operstate"] == "UP"
    assert outside[name]["ifalias"] == "podwire net id-one eth0"
    host.check(config, "one", result)


def test_B13_the_host_end_has_a_mac_of_its_own_from_the_start(host: Host) -> None:
    result = host.add(host.config("10.1.0.0/24"), host.pod("one"))
    mac = Identity("net", "id-one", "eth0").host_mac
    assert result.interfaces[1].mac == mac == links()[result.interfaces[1].name]["address"]
    assert int(mac[:2], 16) & 3 == 2


def test_F04_the_bridge_keeps_its_mac_whatever_ports_come(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    host.add(config, host.pod("one"))
    before = links()["pw0"]["address"]
    run("ip", "link", "add", "low", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "lowpeer")
    run("ip", "link", "set", "low", "master", "pw0", "up")
    assert links()["pw0"]["address"] == before


def test_F04_an_adopted_bridge_keeps_its_mac_too(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "bridge")
    host.add(host.config("10.1.0.0/24", isGateway=True), host.pod("one"))
    before = links()["pw0"]["address"]
    run("ip", "link", "add", "low", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "lowpeer")
    run("ip", "link", "set", "low", "master", "pw0", "up")
    assert links()["pw0"]["address"] == before


def test_F03_no_router_advertisement_is_taken_before_or_after(host: Host) -> None:
    host.add(host.config("10.1.0.0/24", "fd00:1::/64", isGateway=True), host.pod("one"))
    conf = "net/ipv6/conf/eth0"
    assert [sysctl(f"{conf}/{key}", "one") for key in ("accept_ra", "autoconf")] == ["0", "0"]
    assert sysctl("net/ipv6/conf/pw0/accept_ra") == "0"
    six = [
        each for link in ip("-6", "address", "show", "dev", "eth0", pod="one") for each in link["addr_info"]
    ]
    assert {each["local"] for each in six if each["scope"] == "global"} == {"fd00:1::2"}


def test_F01_no_address_waits_for_duplicate_address_detection(host: Host) -> None:
    host.add(host.config("fd00:1::/64", isGateway=True), host.pod("one"))
    for pod, device in (("one", "eth0"), ("", "pw0")):
        for link in ip("-6", "address", "show", "dev", device, pod=pod):
            assert all(each.get("nodad") and not each.get("tentative") for each in link["addr_info"])
    assert reaches("one", "fd00:1::1")


def test_enabledad_waits_until_the_addresses_are_known_to_be_alone(host: Host) -> None:
    config = host.config("fd00:1::/64", enabledad=True)
    result = host.add(config, host.pod("one"))
    for link in ip("-6", "address", "show", "dev", "eth0", pod="one"):
        assert not any(each.get("nodad") or each.get("tentative") for each in link["addr_info"])
    host.check(config, "one", result)


def test_enabledad_finds_the_other_owner_and_leaves_nothing(host: Host) -> None:
    host.add(host.config("fd00:1::/64", isGateway=True), host.pod("one"))
    run("ip", "address", "add", "fd00:1::3/64", "dev", "pw0", "nodad")
    with pytest.raises(CNIError, match="fd00:1::3 is in use by another station"):
        host.add(host.config("fd00:1::/64", enabledad=True), host.pod("two"))
    assert list(links("two")) == ["lo"]
    assert set(host.held()) == {"fd00:1::2"}


def test_a_default_route_from_ipam_stands_beside_isDefaultGateway(host: Host) -> None:
    config = host.config("10.1.0.0/24", isDefaultGateway=True)
    config["ipam"]["routes"] = [
        {"dst": "0.0.0.0/0", "gw": "10.1.0.7"},
        {"dst": "0.0.0.0/0", "gw": "10.1.0.7"},
        {"dst": "10.1.0.0/24"},
        {"dst": "192.0.2.0/24"},
        {"dst": "198.51.100.0/24", "gw": "10.1.0.9", "mtu": 1300, "priority": 50, "table": 77},
    ]
    result = host.add(config, host.pod("one"))
    host.check(config, "one", result)
    assert {(each["dst"], each.get("gateway", "")) for each in routes("one")} == {
        ("default", "10.1.0.7"),
        ("10.1.0.0/24", ""),
        ("192.0.2.0/24", "10.1.0.1"),
    }
    (special,) = routes("one", table="77")
    assert (special["dst"], special["gateway"], special["metric"]) == ("198.51.100.0/24", "10.1.0.9", 50)


def test_C10_an_ipv6_gateway_outside_of_the_subnet_works(host: Host) -> None:
    config = host.config(isDefaultGateway=True)
    ranges = [
        [{"subnet": "fd00:1::/64", "gateway": "fe80::1"}],
        [{"subnet": "fd00:2::/64", "gateway": "fd99::1"}],
    ]
    config["ipam"] = {"type": "host-local", "dataDir": str(host.data), "ranges": ranges}
    result = host.add(config, host.pod("one"))
    host.check(config, "one", result)
    assert set(addresses("pw0")) >= {"fe80::1/64", "fd99::1/128"}
    assert reaches("one", "fd99::1")
    assert reaches("", "fd00:1::1")
    assert reaches("", "fd00:2::1")


def test_C11_a_subnet_of_two(host: Host) -> None:
    config = host.config("10.255.1.0/31", isDefaultGateway=True)
    assert host.add(config, host.pod("one")).ips == (IPConfig("10.255.1.1/31", "10.255.1.0", 2),)
    assert reaches("one", "10.255.1.0")


def test_an_interface_that_exists_is_left_as_it_is(host: Host) -> None:
    host.pod("one")
    run("ip", "-n", "one", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    before = links("one")
    with pytest.raises(CNIError, match="create veth eth0: File exists"):
        host.add(host.config("10.1.0.0/24", isGateway=True), "one")
    assert links("one") == before
    assert addresses("eth0", "one") == []
    assert list(links()) == ["lo"]
    assert host.held() == {}


def test_addresses_that_a_container_holds_survive_an_add_that_is_refused_for_them(host: Host) -> None:
    config = host.config("10.7.0.0/24")
    host.add(config, host.pod("one"), type="host-local")
    with pytest.raises(AlreadyAttached, match=r"holds 10\.7\.0\.2 already"):
        host.add(config, "one")
    assert (host.data / "net" / "10.7.0.2").read_bytes() == b"id-one\r\neth0"
    assert "eth0" not in links("one")


def test_a_second_add_is_refused_and_the_first_stays_whole(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    result = host.add(config, host.pod("one"))
    with pytest.raises(CNIError, match="has eth0 on network net already"):
        host.add(config, "one")
    assert host.held() == {"10.1.0.2": "id-one"}
    host.check(config, "one", result)
    assert reaches("one", "10.1.0.1")


def test_two_interfaces_of_one_pod(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    host.add(config, host.pod("one"))
    result = host.add(config, "one", ifname="net1")
    host.delete(config, "one")
    assert list(links("one")) == ["lo", "net1"]
    assert host.held() == {"10.1.0.3": "id-one"}
    host.check(config, "one", result, ifname="net1")


def test_two_interfaces_of_one_pod_each_with_a_default_route(host: Host) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", isDefaultGateway=True)
    first = host.add(config, host.pod("one"))
    second = host.add(config, "one", ifname="net1")
    for family in ("-4", "-6"):
        defaults = [route for route in routes("one", family) if route["dst"] == "default"]
        hops = [hop for route in defaults for hop in route.get("nexthops", [route])]
        assert [hop["dev"] for hop in hops] == ["eth0", "net1"]
    host.check(config, "one", first)
    host.check(config, "one", second, ifname="net1")
    assert reaches("one", "10.1.0.1")
    host.delete(config, "one")
    assert [route["dev"] for route in routes("one") if route["dst"] == "default"] == ["net1"]
    assert reaches("one", "10.1.0.1")


@pytest.mark.parametrize("path", ["/run/netns/none", "/etc/hostname", "/run", ""])
def test_an_add_into_no_namespace_names_the_path(host: Host, path: str) -> None:
    with pytest.raises(InvalidNetns, match=path or "CNI_NETNS.*no path"):
        host.call("ADD", host.config("10.1.0.0/24"), container_id="c", netns=path)
    assert list(links()) == ["lo"]
    assert host.held() == {}


def test_the_mac_follows_from_the_address_so_that_no_neighbour_entry_gets_stale(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    first = host.add(config, host.pod("one"), args="IP=10.1.0.9")
    assert reaches("", "10.1.0.9")
    host.delete(config, "one")
    second = host.add(config, host.pod("two"), args="IP=10.1.0.9")
    assert first.interfaces[2].mac == second.interfaces[2].mac
    assert reaches("", "10.1.0.9")


def test_a_reused_address_with_another_mac_is_reached_at_once(host: Host) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", isGateway=True)
    for pod, mac in (("one", "02:00:00:00:00:0a"), ("two", "02:00:00:00:00:0b")):
        host.add(config, host.pod(pod), args=f"IP=10.1.0.9;MAC={mac}")
        assert links(pod)["eth0"]["address"] == mac
        assert reaches("", "10.1.0.9")
        host.delete(config, pod)


@pytest.mark.parametrize(
    ("args", "config_mac", "runtime_mac", "expected"),
    [
        ("MAC=02:00:00:00:00:01", "", "", "02:00:00:00:00:01"),
        ("MAC=02:00:00:00:00:01", "02:00:00:00:00:02", "", "02:00:00:00:00:02"),
        ("MAC=02:00:00:00:00:01", "02:00:00:00:00:02", "02-00-00-00-00-0F", "02:00:00:00:00:0f"),
    ],
)
def test_a_requested_mac(host: Host, args: str, config_mac: str, runtime_mac: str, expected: str) -> None:
    config = host.config("10.1.0.0/24", args={"cni": {"mac": config_mac}}, runtimeConfig={"mac": runtime_mac})
    assert host.add(config, host.pod("one"), args=args).interfaces[2].mac == expected
    assert links("one")["eth0"]["address"] == expected


def test_forwarding_is_switched_on_for_the_families_in_use(host: Host) -> None:
    assert (sysctl("net/ipv4/ip_forward"), sysctl("net/ipv6/conf/all/forwarding")) == ("0", "0")
    host.add(host.config("10.1.0.0/24"), host.pod("one"))
    assert sysctl("net/ipv4/ip_forward") == "0"
    host.add(host.config("10.2.0.0/24", name="other", bridge="pw1", isGateway=True), host.pod("two"))
    assert (sysctl("net/ipv4/ip_forward"), sysctl("net/ipv6/conf/all/forwarding")) == ("1", "0")
    host.add(host.config("fd00:3::/64", name="third", bridge="pw2", isGateway=True), host.pod("three"))
    assert sysctl("net/ipv6/conf/all/forwarding") == "1"


def test_an_l2_network_needs_no_ipam(host: Host) -> None:
    config = host.config()
    result = host.add(config, host.pod("one"))
    assert result.ips == ()
    assert addresses("eth0", "one") == []
    assert links("one")["eth0"]["operstate"] == "UP"
    host.check(config, "one", result)
    host.delete(config, "one")
    assert list(links("one")) == ["lo"]


def test_many_at_once_share_one_bridge(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    pods = [host.pod(f"p{n}") for n in range(12)]
    problems: list[Exception] = []

    def work(pod: str) -> None:
        try:
            host.check(config, pod, host.add(config, pod))
        except Exception as error:  # noqa: BLE001 - told by the assertion below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(pod,)) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(host.held()) == 12
    assert sum(link.get("master") == "pw0" for link in links().values()) == 12
    assert all(reaches("p0", address) for address, holder in host.held().items() if holder != "id-p0")


def test_ipam_of_another_maker(host: Host) -> None:
    config: dict[str, Any] = host.config(isGateway=True, cniVersion="1.0.0")
    config["ipam"] = {"type": "static", "addresses": [{"address": "10.7.0.5/24"}]}
    result = host.add(config, host.pod("one"), path=("/usr/lib/cni",))
    assert result.ips == (IPConfig("10.7.0.5/24", "10.7.0.1", 2),)
    assert reaches("one", "10.7.0.1")
    host.check(config, "one", result, path=("/usr/lib/cni",))
