"""ipvlan: modes, the master that is found, the result of an earlier plugin."""

from __future__ import annotations

from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.cni.plugin import Interface, IPConfig, Result, Route
from tests.plugins.helpers import (
    GO_PLUGINS,
    Host,
    addresses,
    execute,
    ip_batch,
    links,
    reaches,
    routes,
    run,
    settled,
)

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("ipvlan")]


@pytest.fixture
def net(host: Host) -> dict[str, Any]:
    """A network over m0, with a station at the other end of the cable."""
    host.pod("far")
    ip_batch("link add m0 type veth peer far netns far\nlink set m0 up\n")
    ip_batch(
        "address add 10.1.0.200/24 dev far\naddress add fd00:1::200/64 dev far nodad\nlink set far up\n",
        "far",
    )
    found = host.config("10.1.0.0/24", "fd00:1::/64", master="m0")
    del found["bridge"]
    return {**found, "type": "ipvlan"}


@pytest.mark.parametrize("mode", ["", "l2", "l3", "l3s"])
def test_containers_reach_one_another_in_every_mode(host: Host, net: dict[str, Any], mode: str) -> None:
    config = {**net, "mode": mode}
    results = {name: host.add(config, host.pod(name)) for name in ("one", "two")}
    seen = links("one")["eth0"]
    assert seen["linkinfo"]["info_data"]["mode"] == (mode or "l2")
    assert seen["address"] == links()["m0"]["address"] == results["one"].interfaces[0].mac
    assert reaches("one", "10.1.0.3")
    assert reaches("one", "fd00:1::3")
    if mode in ("", "l2"):
        settled("far", "far")
        assert reaches("one", "10.1.0.200")
        assert reaches("one", "fd00:1::200")
    for name, result in results.items():
        host.check(config, name, result)
    for name in results:
        host.delete(config, name)
        assert list(links(name)) == ["lo"]
    assert host.held() == {}


def test_link_local_addresses_differ_though_the_mac_is_the_same(host: Host, net: dict[str, Any]) -> None:
    for name in ("one", "two"):
        host.add(net, host.pod(name))
    [first] = [one for one in addresses("eth0", "one") if one.startswith("fe80:")]
    [second] = [one for one in addresses("eth0", "two") if one.startswith("fe80:")]
    assert first != second
    assert reaches("one", f"{second.split('/')[0]}%eth0")


def test_check_finds_another_mode_and_master(host: Host, net: dict[str, Any]) -> None:
    result = host.add(net, host.pod("one"))
    with pytest.raises(CNIError, match="has mode l2, not l3s"):
        host.check({**net, "mode": "l3s"}, "one", result)
    run("ip", "link", "add", "m1", "type", "veth", "peer", "m2")
    with pytest.raises(CNIError, match="is not over master m1"):
        host.check({**net, "master": "m1"}, "one", result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "l4"}, 'mode "l4": is none of l2, l3 and l3s'),
        ({"master": "nosuch0"}, 'master "nosuch0"'),
        ({"mtu": 1501}, "mtu 1501: .*1500"),
        ({"mtu": -1}, "mtu -1"),
        ({"ipam": {}}, "ipam {}"),
        ({"master": ""}, "no default route"),
    ],
)
def test_what_is_refused_names_the_field(
    host: Host, net: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    host.pod("one")
    with pytest.raises(CNIError, match=message) as caught:
        host.add({**net, **change}, "one")
    assert caught.value.code == 7
    assert list(links("one")) == ["lo"]
    assert host.held() == {}


def test_without_a_master_it_is_the_interface_of_the_default_route(host: Host, net: dict[str, Any]) -> None:
    ip_batch("address add 10.1.0.100/24 dev m0\nroute add default via 10.1.0.200\n")
    del net["master"]
    result = host.add(net, host.pod("one"))
    settled("far", "far")
    assert reaches("one", "10.1.0.200")
    host.check(net, "one", result)
    host.call("STATUS", net)
    host.delete(net, "one")


def test_without_a_master_in_the_container_it_is_that_of_its_default_route(
    host: Host, net: dict[str, Any]
) -> None:
    host.pod("one")
    ip_batch("link set m0 netns one\n")
    ip_batch(
        "link set m0 up\naddress add fd00:1::100/64 dev m0 nodad\nroute add default via fd00:1::200\n", "one"
    )
    inside = {**net, "linkInContainer": True, "mtu": 1400}
    del inside["master"]
    result = host.add(inside, "one")
    assert links("one")["eth0"]["mtu"] == result.interfaces[0].mtu == 1400
    host.check({**inside, "master": "m0"}, "one", result)
    settled("far", "far")
    assert reaches("one", "10.1.0.200")
    host.delete(inside, "one")
    assert sorted(links("one")) == ["lo", "m0"]


def test_after_another_plugin_it_takes_over_addresses_routes_and_master(
    host: Host, net: dict[str, Any]
) -> None:
    earlier = Result(
        (Interface("m0"),),
        (IPConfig("10.1.0.7/24", "10.1.0.200"), IPConfig("fd00:1::7/64", "fd00:1::200", 0)),
        (Route("0.0.0.0/0"), Route("192.0.2.0/24", "10.1.0.200")),
    )
    chained = {key: value for key, value in net.items() if key not in ("ipam", "master")}
    result = host.add(chained, host.pod("one"), result=earlier)
    assert [one.name for one in result.interfaces] == ["eth0"]
    assert [(one.address, one.interface) for one in result.ips] == [("10.1.0.7/24", 0), ("fd00:1::7/64", 0)]
    assert result.routes == earlier.routes
    assert addresses("eth0", "one")[:2] == ["10.1.0.7/24", "fd00:1::7/64"]
    assert {one["dst"] for one in routes("one")} >= {"default", "192.0.2.0/24"}
    settled("far", "far")
    assert reaches("one", "10.1.0.200")
    host.check(chained, "one", result)
    host.delete(chained, "one", result=result)
    assert list(links("one")) == ["lo"]


def test_after_another_plugin_a_master_must_be_clear(host: Host, net: dict[str, Any]) -> None:
    chained = {key: value for key, value in net.items() if key not in ("ipam", "master")}
    ips = (IPConfig("10.1.0.7/24"),)
    host.pod("one")
    for interfaces in ((), (Interface("a"), Interface("b"))):
        with pytest.raises(CNIError, match="master: is missing, and prevResult") as caught:
            host.add(chained, "one", result=Result(interfaces, ips))
        assert caught.value.code == 7
    named = {**chained, "master": "m0"}
    result = host.add(named, "one", result=Result((Interface("a"), Interface("b")), ips))
    host.check(named, "one", result)


def test_an_address_that_another_container_has_is_refused_and_nothing_stays(
    host: Host, net: dict[str, Any]
) -> None:
    """The kernel gives the links of one master no address twice."""
    chained = {key: value for key, value in net.items() if key != "ipam"}
    earlier = Result((Interface("m0"),), (IPConfig("10.1.0.7/24"),))
    host.add(chained, host.pod("one"), result=earlier)
    with pytest.raises(CNIError, match=r"add address 10\.1\.0\.7/24"):
        host.add(chained, host.pod("two"), result=earlier)
    assert list(links("two")) == ["lo"]


def test_what_the_reference_plugin_made_is_checked_and_removed(host: Host, net: dict[str, Any]) -> None:
    from podwire.cni.convert import decode_result

    net["cniVersion"] = "1.0.0"
    host.pod("one")
    call = {"container_id": "id-one", "netns": "/run/netns/one", "ifname": "eth0"}
    made = execute(GO_PLUGINS / "ipvlan", "ADD", net, **call)
    assert made.returncode == 0, made.stdout
    result = decode_result(made.stdout, "1.0.0")
    host.check(net, "one", result)
    host.delete(net, "one", result=result)
    assert list(links("one")) == ["lo"]
