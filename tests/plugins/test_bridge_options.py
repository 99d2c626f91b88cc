"""The options of a bridge network, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from podwire.cni.errors import CNIError
from tests.plugins.helpers import Host, addresses, ip, links, reaches, run

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"hairpinMode": True, "promiscMode": True}, 7, "hairpinMode and promiscMode"),
        ({"disableContainerInterface": True}, 7, "disableContainerInterface"),
        ({"mtu": -1}, 7, "mtu -1"),
        ({"mtu": 65536}, 7, "mtu 65536"),
        ({"mtu": "big"}, 7, "mtu"),
        ({"bridge": "a-name-that-is-too-long"}, 7, "bridge: .*too long"),
        ({"bridge": "a/b"}, 7, "bridge: "),
        ({"vlan": 4095}, 7, "vlan 4095"),
        ({"vlan": -1}, 7, "vlan -1"),
        ({"vlan": 5, "vlanTrunk": [{"id": 6}]}, 7, "vlan 5 and vlanTrunk"),
        ({"vlanTrunk": [{"id": 0}]}, 7, r"vlanTrunk\[0\]\.id 0"),
        ({"vlanTrunk": [{"id": 5}, {"id": 4095}]}, 7, r"vlanTrunk\[1\]\.id 4095"),
        ({"vlanTrunk": [{"minID": 5}]}, 7, r"vlanTrunk\[0\]: .*maxID is missing"),
        ({"vlanTrunk": [{"maxID": 5}]}, 7, r"vlanTrunk\[0\]: .*minID is missing"),
        ({"vlanTrunk": [{"minID": 6, "maxID": 5}]}, 7, r"vlanTrunk\[0\]: minID 6 is above maxID 5"),
        ({"vlanTrunk": [{"minID": 0, "maxID": 5}]}, 7, r"vlanTrunk\[0\]\.minID 0"),
        ({"vlanTrunk": {"id": 5}}, 7, "vlanTrunk"),
        ({"vlan": 4000, "isGateway": True, "bridge": "long-name-0"}, 7, "long-name-0.4000, whose name"),
        ({"ipMasqBackend": "ebpf"}, 7, 'ipMasqBackend "ebpf"'),
        ({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}, 7, 'runtimeConfig.mac "01:00:5e:00:00:01"'),
        ({"args": {"cni": {"mac": "xx"}}}, 7, 'args.cni.mac "xx"'),
        ({"runtimeConfig": {"mac": "00:00:00:00:00:00"}}, 7, "runtimeConfig.mac"),
    ],
)
def test_what_is_refused_names_the_field_and_changes_nothing(
    host: Host, options: dict[str, Any], code: int, message: str
) -> None:
    host.pod("one")
    with pytest.raises(CNIError, match=message) as caught:
        host.add(host.config("10.1.0.0/24", **options), "one")
    assert caught.value.code == code
    assert list(links()) == ["lo"]
    assert host.held() == {}


@pytest.mark.parametrize("mac", ["xx", "02:00:00:00:00", "03:00:00:00:00:01"])
def test_a_bad_mac_in_cni_args_is_a_bad_variable(host: Host, mac: str) -> None:
    with pytest.raises(CNIError, match=f'CNI_ARGS MAC "{mac}"') as caught:
        host.add(host.config("10.1.0.0/24"), host.pod("one"), args=f"MAC={mac}")
    assert caught.value.code == 4


def test_A12_unknown_args_pass_only_with_IgnoreUnknown(host: Host) -> None:
    config = host.config("10.1.0.0/24")
    with pytest.raises(CNIError, match="K8S_POD_NAME"):
        host.add(config, host.pod("one"), args="K8S_POD_NAME=x")
    host.add(config, "one", args="IgnoreUnknown=1;K8S_POD_NAME=x")


def test_hairpin_and_isolation_are_set_on_the_port(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True, hairpinMode=True, portIsolation=True)
    result = host.add(config, host.pod("one"))
    host.add(config, host.pod("two"))
    port = links()[result.interfaces[1].name]["linkinfo"]["info_slave_data"]
    assert (port["hairpin"], port["isolated"]) == (True, True)
    assert not reaches("one", "10.1.0.3")
    assert reaches("one", "10.1.0.1")
    run("bridge", "link", "set", "dev", result.interfaces[1].name, "hairpin", "off")
    with pytest.raises(CNIError, match="hairpin off"):
        host.check(config, "one", result)


def test_promiscuous_mode_also_of_an_adopted_bridge(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "bridge")
    assert "PROMISC" not in links()["pw0"]["flags"]
    host.add(host.config("10.1.0.0/24", promiscMode=True), host.pod("one"))
    assert {"PROMISC", "UP"} <= set(links()["pw0"]["flags"])
    host.add(host.config("10.2.0.0/24", name="two", bridge="pw1", promiscMode=True), host.pod("two"))
    assert "PROMISC" in links()["pw1"]["flags"]


def test_the_container_interface_may_be_left_down(host: Host) -> None:
    config = host.config(disableContainerInterface=True)
    result = host.add(config, host.pod("one"))
    assert links("one")["eth0"]["operstate"] == "DOWN"
    host.check(config, "one", result)
    run("ip", "-n", "one", "link", "set", "eth0", "up")
    with pytest.raises(CNIError, match="eth0: is up"):
        host.check(config, "one", result)


def test_macspoofchk_drops_frames_with_another_mac(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True, macspoofchk=True)
    result = host.add(config, host.pod("one"))
    second = host.add(config, host.pod("two"))
    assert reaches("one", "10.1.0.1")
    host.check(config, "one", result)
    rules = run("nft", "list", "chain", "bridge", "podwire", "antispoof").count("iifname")
    run("ip", "-n", "one", "link", "set", "eth0", "address", "02:00:00:00:00:99")
    assert not reaches("one", "10.1.0.1")
    assert reaches("two", "10.1.0.1")
    assert rules == 2
    host.delete(config, "one")
    run("nft", "flush", "chain", "bridge", "podwire", "antispoof")
    with pytest.raises(CNIError, match=r"macspoofchk: host end .* is not guarded"):
        host.check(config, "two", second)
    host.add(config, "one")
    host.check(config, "two", second)


def test_mtu_of_an_adopted_bridge_is_the_pods_too(host: Host) -> None:
    run("ip", "link", "add", "pw0", "mtu", "1400", "type", "bridge")
    result = host.add(host.config("10.1.0.0/24"), host.pod("one"))
    assert links("one")["eth0"]["mtu"] == links()[result.interfaces[1].name]["mtu"] == 1400


def test_F14_a_changed_mtu_reaches_the_bridge_and_new_pods_and_is_told_of_old_ones(host: Host) -> None:
    def mtus(*names: str) -> list[int]:
        return [links(pod)["eth0"]["mtu"] for pod in names]

    old, new = (host.config("10.1.0.0/24", isGateway=True, mtu=mtu) for mtu in (1500, 4000))
    first = host.add(old, host.pod("one"))
    host.check(old, "one", first)
    with pytest.raises(CNIError, match=r"host end veth\w+: has MTU 1500, mtu says 4000"):
        host.check(new, "one", first)
    second = host.add(new, host.pod("two"))
    assert (links()["pw0"]["mtu"], mtus("one", "two")) == (4000, [1500, 4000])
    assert second.interfaces[0].mtu == 4000
    host.check(new, "two", second)


def test_F14_the_bridge_of_others_keeps_its_mtu(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "bridge")
    run("ip", "link", "set", "pw0", "mtu", "1600")  # as said by others, and not that of its ports
    host.add(host.config("10.1.0.0/24", mtu=1400), host.pod("one"))
    assert (links()["pw0"]["mtu"], links("one")["eth0"]["mtu"]) == (1600, 1400)
    host.add({**host.config("10.1.0.0/24", bridge="pw1", mtu=1400)}, "one", ifname="eth1")
    host.add({**host.config("10.2.0.0/24", bridge="pw1", mtu=2000), "name": "other"}, "one", ifname="eth2")
    assert links()["pw1"]["mtu"] == 1400


def test_A16_a_bridge_with_the_address_of_another_network_is_refused(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "bridge")
    run("ip", "address", "add", "10.88.0.1/16", "dev", "pw0")
    with pytest.raises(CNIError, match=r"bridge pw0: has 10\.88\.0\.1/16, but .* net is 10\.1\.0\.1/24"):
        host.add(host.config("10.1.0.0/24", isGateway=True), host.pod("one"))
    assert addresses("pw0") == ["10.88.0.1/16"]
    assert "UP" not in links()["pw0"]["flags"]
    assert host.held() == {}


def test_forceAddress_replaces_the_address(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "bridge")
    run("ip", "address", "add", "10.88.0.1/16", "dev", "pw0")
    run("ip", "address", "add", "fd88::1/64", "dev", "pw0")
    run("ip", "address", "add", "fd00:1::8/48", "dev", "pw0")
    config = host.config("10.1.0.0/24", "fd00:1::/64", isGateway=True, forceAddress=True)
    host.add(config, host.pod("one"))
    kept = {each for each in addresses("pw0") if not each.startswith("fe80")}
    assert kept == {"10.1.0.1/24", "fd00:1::1/64", "fd88::1/64"}
    assert reaches("one", "10.1.0.1")


def test_F15_a_changed_network_moves_the_empty_bridge_and_is_refused_on_a_used_one(host: Host) -> None:
    old, new = (host.config(f"10.{n}.0.0/24", isGateway=True) for n in (1, 2))
    host.add(old, host.pod("one"))
    with pytest.raises(CNIError, match=r"has 10\.1\.0\.1/24, but .* is 10\.2\.0\.1/24"):
        host.add(new, host.pod("two"))
    assert set(host.held()) == {"10.1.0.2"}
    assert reaches("one", "10.1.0.1")
    host.delete(old, "one")
    host.add(new, "two")
    assert [each for each in addresses("pw0") if ":" not in each] == ["10.2.0.1/24"]
    assert reaches("two", "10.2.0.1")


def test_a_bridge_with_a_spanning_tree_is_not_waited_for(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "bridge", "stp_state", "1")
    config = host.config("10.1.0.0/24", isGateway=True)
    host.check(config, "one", host.add(config, host.pod("one")))


def test_a_bridge_name_of_another_kind_of_link_is_refused(host: Host) -> None:
    run("ip", "link", "add", "pw0", "type", "veth", "peer", "name", "other")
    with pytest.raises(CNIError, match="bridge pw0: exists already and is no bridge but a veth") as caught:
        host.add(host.config("10.1.0.0/24"), host.pod("one"))
    assert caught.value.code == 7


def test_the_gateway_comes_back_if_somebody_flushed_it(host: Host) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", isGateway=True)
    result = host.add(config, host.pod("one"))
    run("ip", "address", "flush", "dev", "pw0")
    with pytest.raises(CNIError, match=r"the gateway's address 10\.1\.0\.1/24 is missing"):
        host.check(config, "one", result)
    host.add(config, host.pod("two"))
    host.check(config, "one", result)
    assert set(addresses("pw0")) > {"10.1.0.1/24", "fd00:1::1/64"}
    assert reaches("two", "fd00:1::1")


def test_a_bridge_that_is_down_is_brought_up(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    host.add(config, host.pod("one"))
    run("ip", "link", "set", "pw0", "down")
    host.add(config, host.pod("two"))
    assert reaches("two", "10.1.0.1")


BROKEN = {
    "ip link delete pw0": "bridge pw0: is missing",
    "ip link set pw0 down": "bridge pw0: is down",
    "ip link set {host} nomaster": "is no port of bridge pw0",
    "ip link set {host} down": "{host}: is down",
    "ip link set {host} address 02:00:00:00:00:98": "{host}: has the MAC 02:00:00:00:00:98",
    "ip link delete {host}": "the host's end of the pair is missing",
    "ip -n one link set eth0 address 02:00:00:00:00:97": "eth0: has the MAC 02:00:00:00:00:97",
    "ip -n one link set eth0 down": "eth0: is down",
    "ip -n one address delete 10.1.0.2/24 dev eth0": r"the address 10.1.0.2/24 is missing",
    "ip -n one address delete fd00:1::2/64 dev eth0": "the address fd00:1::2/64 is missing",
    "ip -n one route delete default": r"the route to 0.0.0.0/0 by 10.1.0.1 is missing",
    "ip -n one -6 route delete default": "the route to ::/0 by fd00:1::1 is missing",
    "ip address delete 10.1.0.1/24 dev pw0": "address 10.1.0.1/24 is missing",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_check_tells_what_is_broken(host: Host, damage: str) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", isDefaultGateway=True)
    result = host.add(config, host.pod("one"))
    host.check(config, "one", result)
    name = result.interfaces[1].name
    run(*damage.format(host=name).split())
    with pytest.raises(CNIError, match=BROKEN[damage].format(host=name)):
        host.check(config, "one", result)


def test_check_of_a_leased_away_address_fails(host: Host) -> None:
    config = host.config("10.1.0.0/24")
    result = host.add(config, host.pod("one"))
    (host.data / "net" / "10.1.0.2").unlink()
    with pytest.raises(CNIError, match="holds no address of network net"):
        host.check(config, "one", result)


def test_ip_masquerade_is_verified(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True, ipMasq=True, ipMasqBackend="iptables")
    result = host.add(config, host.pod("one"))
    host.check(config, "one", result)
    assert "10.1.0.2" in run("nft", "list", "ruleset")
    run("nft", "flush", "ruleset")
    with pytest.raises(CNIError, match="ipMasq: "):
        host.check(config, "one", result)
    assert ip("address", "show", "dev", "eth0", pod="one")
