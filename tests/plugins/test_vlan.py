"""vlan, and with it what it shares with ipvlan and dummy: a link for one container over a master."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import AlreadyAttached, CNIError
from tests.plugins.helpers import (
    GO_PLUGINS,
    Host,
    addresses,
    execute,
    ip,
    ip_batch,
    links,
    reaches,
    run,
    settled,
    sysctl,
)
from tests.plugins.undo import add_failing_at_each_step

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("vlan")]


def config(host: Host, *subnets: str, **options: Any) -> dict[str, Any]:
    found = host.config(
        *(subnets or ("10.1.0.0/24", "fd00:1::/64")), **{"master": "m0", "vlanId": 5, **options}
    )
    found.pop("bridge")
    return {**found, "type": "vlan"}


@pytest.fixture
def net(host: Host) -> dict[str, Any]:
    """A network over m0, whose cable leads to a station on VLAN 5 and one on VLAN 6."""
    host.pod("switch")
    ip_batch("link add m0 mtu 1400 type veth peer far netns switch\nlink set m0 up\n")
    ip_batch("link set far up\n", "switch")
    for vlan in (5, 6):
        pod = host.pod(f"vlan{vlan}")
        ip_batch(f"link add link far name far.{vlan} netns {pod} type vlan id {vlan}\n", "switch")
        ip_batch(
            f"""address add 10.1.0.{200 + vlan}/24 dev far.{vlan}
            address add fd00:1::{200 + vlan}/64 dev far.{vlan} nodad
            link set far.{vlan} up
            """,
            pod,
        )
    return config(host)


def everything(host: Host) -> list[str]:
    look = "ip -br link; ip -n one -br address; ip -n one route show table all; ip -n one -6 route"
    return [*run("sh", "-c", look).splitlines(), *sorted(host.held())]


def test_packets_have_the_tag_of_the_vlan(host: Host, net: dict[str, Any]) -> None:
    net["ipam"]["routes"] = [{"dst": "0.0.0.0/0", "gw": "10.1.0.205"}, {"dst": "::/0", "gw": "fd00:1::205"}]
    result = host.add(net, host.pod("one"))
    seen = links("one")["eth0"]
    assert seen["linkinfo"]["info_kind"] == "vlan"
    assert seen["linkinfo"]["info_data"]["id"] == 5
    assert (seen["mtu"], seen["ifalias"]) == (1400, "podwire net id-one eth0")
    assert [one.name for one in result.interfaces] == ["eth0"]
    assert (result.interfaces[0].mac, result.interfaces[0].mtu) == (seen["address"], 1400)
    assert [one.interface for one in result.ips] == [0, 0]
    assert addresses("eth0", "one")[:2] == ["10.1.0.2/24", "fd00:1::2/64"]
    settled("far.5", "vlan5")
    assert reaches("one", "10.1.0.205")
    assert reaches("one", "fd00:1::205")
    assert not reaches("one", "10.1.0.206")
    assert sysctl("net/ipv6/conf/eth0/accept_ra", "one") == "0"
    host.check(net, "one", result)
    host.delete(net, "one")
    assert list(links("one")) == ["lo"]
    assert host.held() == {}
    host.delete(net, "one")


def test_a_name_that_the_host_has_too(host: Host, net: dict[str, Any]) -> None:
    """The master is the host's eth0, and the container's interface is to be eth0."""
    ip_batch("link set m0 down\nlink set m0 name eth0\nlink set eth0 up\n")
    net["master"] = "eth0"
    result = host.add(net, host.pod("one"))
    host.check(net, "one", result)
    settled("far.5", "vlan5")
    assert reaches("one", "10.1.0.205")
    host.delete(net, "one")
    assert "eth0" in links()


def test_the_mtu_is_at_most_that_of_the_master(host: Host, net: dict[str, Any]) -> None:
    host.add({**net, "mtu": 1300}, host.pod("one"))
    assert links("one")["eth0"]["mtu"] == 1300
    host.pod("two")
    for mtu in (1401, -1):
        with pytest.raises(CNIError, match=rf"mtu {mtu}: .*1400.*m0") as caught:
            host.add({**net, "vlanId": 6, "mtu": mtu}, "two")
        assert caught.value.code == 7
    assert list(links("two")) == ["lo"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"master": ""}, "master: is missing"),
        ({"master": "nosuch0"}, 'master "nosuch0": there is no such interface'),
        ({"vlanId": 4095}, "vlanId 4095: "),
        ({"vlanId": -1}, "vlanId -1: "),
        ({"vlanId": "5"}, "vlanId"),
        ({"ipam": {}}, "ipam {}: 'type' is missing"),
        ({"ipam": {"type": 5}}, "ipam .*: 'type' is missing"),
    ],
)
def test_what_is_refused_names_the_field_and_changes_nothing(
    host: Host, net: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    host.pod("one")
    before = everything(host)
    with pytest.raises(CNIError, match=message) as caught:
        host.add({**net, **change}, "one")
    assert caught.value.code == 7
    assert everything(host) == before


def test_the_master_may_be_in_the_container(host: Host, net: dict[str, Any]) -> None:
    host.pod("one")
    run("ip", "link", "set", "m0", "netns", "one")
    run("ip", "-n", "one", "link", "set", "m0", "up")
    inside = {**net, "linkInContainer": True}
    with pytest.raises(CNIError, match='master "m0"'):
        host.add(net, "one")
    result = host.add(inside, "one")
    settled("far.5", "vlan5")
    assert reaches("one", "10.1.0.205")
    host.check(inside, "one", result)
    host.call("STATUS", inside)
    host.delete(inside, "one")
    assert sorted(links("one")) == ["lo", "m0"]


def test_an_interface_that_is_there_already_is_left_alone(host: Host, net: dict[str, Any]) -> None:
    result = host.add(net, host.pod("one"))
    with pytest.raises(AlreadyAttached, match="has an interface eth0 already"):
        host.add(net, "one")
    host.check(net, "one", result)
    host.pod("two")
    run("ip", "-n", "two", "link", "add", "eth0", "type", "veth", "peer", "theirs")
    with pytest.raises(CNIError, match="it is a veth that network net did not make") as caught:
        host.add({**net, "vlanId": 6}, "two")
    assert caught.value.code == 100
    host.delete({**net, "vlanId": 6}, "two")
    assert "eth0" in links("two")
    assert set(host.held().values()) == {"id-one"}


def test_a_second_container_cannot_have_the_vlan_and_loses_nothing(host: Host, net: dict[str, Any]) -> None:
    result = host.add(net, host.pod("one"))
    with pytest.raises(CNIError, match="create vlan"):
        host.add(net, host.pod("two"))
    assert list(links("two")) == ["lo"]
    assert set(host.held().values()) == {"id-one"}
    host.check(net, "one", result)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("ip link delete eth0", "interface eth0: is missing"),
        ("ip link set eth0 down", "interface eth0: is down"),
        ("ip address delete 10.1.0.2/24 dev eth0", "address 10.1.0.2/24 is missing"),
        ("ip address delete fd00:1::2/64 dev eth0", "address fd00:1::2/64 is missing"),
        ("ip route delete default", "the route to 0.0.0.0/0 .*is missing"),
        ("ip -6 route delete default", "the route to ::/0 .*is missing"),
        ("ip link set eth0 address 02:00:00:00:00:09", "has the MAC 02:00:00:00:00:09"),
        ("ip link delete eth0; ip link add eth0 type dummy", "is a dummy and no vlan"),
    ],
)
def test_check_finds(host: Host, net: dict[str, Any], damage: str, message: str) -> None:
    net["ipam"]["routes"] = [{"dst": "0.0.0.0/0", "gw": "10.1.0.205"}, {"dst": "::/0", "gw": "fd00:1::205"}]
    result = host.add(net, host.pod("one"))
    host.check(net, "one", result)
    run("ip", "netns", "exec", "one", "sh", "-c", damage)
    with pytest.raises(CNIError, match=message) as caught:
        host.check(net, "one", result)
    assert caught.value.code == 100


def test_check_finds_another_vlan_or_master(host: Host, net: dict[str, Any]) -> None:
    result = host.add(net, host.pod("one"))
    with pytest.raises(CNIError, match="is VLAN 5, not vlanId 6"):
        host.check({**net, "vlanId": 6}, "one", result)
    run("ip", "link", "add", "m1", "type", "veth", "peer", "m2")
    with pytest.raises(CNIError, match="is not over master m1"):
        host.check({**net, "master": "m1"}, "one", result)
    with pytest.raises(CNIError, match="master m9: is missing"):
        host.check({**net, "master": "m9"}, "one", result)
    host.call("CHECK", net, "one", result=result)
    host.call("DEL", net, "one")


def test_E01_E02_E03_del_without_a_namespace_frees_the_addresses(
    host: Host, net: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "plain").touch()
    for netns in ("", "/run/netns/never-was", str(tmp_path / "plain")):
        host.add(net, host.pod("one"))
        run("ip", "netns", "delete", "one")
        host.delete(net, "one", netns=netns)
        assert host.held() == {}


def test_E04_an_old_container_never_touches_the_new_one(host: Host, net: dict[str, Any]) -> None:
    host.add(net, host.pod("one"), container_id="A")
    host.delete(net, "one", container_id="A")
    result = host.add(net, "one", container_id="B")
    for _ in range(2):
        host.delete(net, "one", container_id="A")
    host.check(net, "one", result, container_id="B")


def test_F07_the_container_renamed_its_interface(host: Host, net: dict[str, Any]) -> None:
    host.add(net, host.pod("one"))
    ip_batch("link set eth0 down\nlink set eth0 name renamed\n", "one")
    host.delete({**net, "vlanId": 7, "master": "other"}, "one")
    assert list(links("one")) == ["lo"]


def test_a_killed_add_is_cleaned_up_by_del(host: Host, net: dict[str, Any]) -> None:
    """The link is there, and has neither its name nor its alias yet."""
    host.add(net, host.pod("one"))
    from podwire.plugins.attachment import Identity
    from podwire.plugins.sublink import first_name

    name = first_name(Identity("net", "id-one", "eth0"))
    ip_batch(f'link set eth0 down alias ""\nlink set eth0 name {name}\n', "one")
    host.delete(net, "one")
    assert list(links("one")) == ["lo"]


def test_what_the_reference_plugin_made_is_checked_and_removed(host: Host, net: dict[str, Any]) -> None:
    from podwire.cni.convert import decode_result

    net["cniVersion"] = "1.0.0"
    host.pod("one")
    call = {"container_id": "id-one", "netns": "/run/netns/one", "ifname": "eth0"}
    made = execute(GO_PLUGINS / "vlan", "ADD", net, **call)
    assert made.returncode == 0, made.stdout
    result = decode_result(made.stdout, "1.0.0")
    host.check(net, "one", result)
    host.delete(net, "one", container_id="another")
    assert "eth0" in links("one")
    host.delete(net, "one", result=result)
    assert list(links("one")) == ["lo"]


def test_gc_removes_what_lost_containers_have_and_keeps_the_rest(host: Host, net: dict[str, Any]) -> None:
    result = host.add(net, host.pod("one"))
    host.add({**net, "vlanId": 6}, host.pod("two"))
    other = {**net, "name": "other", "vlanId": 8}
    foreign = host.add(other, host.pod("three"))
    host.call("GC", net)
    assert "eth0" in links("two")
    listed = [{"containerID": "id-one", "ifname": "eth0"}]
    host.call("GC", {**net, "cni.dev/valid-attachments": listed})
    host.check(net, "one", result)
    host.check(other, "three", foreign)
    assert list(links("two")) == ["lo"]
    assert set(host.held().values()) == {"id-one"}


def test_status_tells_of_a_missing_master_and_of_an_exhausted_pool(host: Host, net: dict[str, Any]) -> None:
    host.call("STATUS", net)
    with pytest.raises(CNIError, match='master "nosuch0": there is no such interface') as caught:
        host.call("STATUS", {**net, "master": "nosuch0"})
    assert caught.value.code == 50
    small = config(host, "10.3.0.0/30", name="small")
    host.add(small, host.pod("one"))
    with pytest.raises(CNIError, match="no free address") as caught:
        host.call("STATUS", small)
    assert caught.value.code == 50


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, net: dict[str, Any], after: bool) -> None:
    host.pod("one")
    tried = add_failing_at_each_step(host, net, lambda: everything(host), after=after)
    wanted = {"NetlinkSocket.send", "NetlinkSocket.open", "NetlinkSocket.request", "Leases.reserve"}
    assert wanted <= set(tried.told)
    assert len(tried.told) > 10
    host.delete(net, "one")


def test_a_real_refusal_at_the_end_leaves_nothing(host: Host, net: dict[str, Any]) -> None:
    net["ipam"]["routes"] = [{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]
    host.pod("one")
    clean = everything(host)
    with pytest.raises(CNIError, match=r"add route 192\.0\.2\.0/24: "):
        host.add(net, "one")
    assert everything(host) == clean


def test_the_link_is_not_over_a_master_of_the_same_index_in_the_container(
    host: Host, net: dict[str, Any]
) -> None:
    """An index counts in a namespace: the container's own link may have that of the host's master."""
    result = host.add(net, host.pod("one"))
    [peer] = {one["link_index"] for one in ip("link", "show", "dev", "eth0", pod="one")}
    assert peer == links()["m0"]["ifindex"]
    with pytest.raises(CNIError, match="master m0: is missing"):
        host.check({**net, "linkInContainer": True}, "one", result)
