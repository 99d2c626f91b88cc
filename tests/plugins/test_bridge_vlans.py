"""bridge's vlan, vlanTrunk and preserveDefaultVlan."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.errors import CNIError
from podwire.kernel.host import Kernel
from podwire.plugins import bridge_vlans
from podwire.plugins.bridge_vlans import Trunk
from tests.plugins.faults import Faults
from tests.plugins.helpers import Host, addresses, ip_batch, links, reaches, run
from tests.uml import kinds

kernel = pytest.mark.kernel
other = pytest.mark.other_kernel("bridge-vlan", "vlan")

BOTH = ["PVID", "Egress Untagged"]


def vlans(port: str) -> list[tuple[int, int, list[str]]]:
    """What ``bridge vlan`` sees of a port."""
    shown = json.loads(run("bridge", "-j", "-compressvlans", "vlan", "show", "dev", port))
    return [
        (one["vlan"], one.get("vlanEnd", one["vlan"]), one.get("flags", []))
        for entry in shown
        for one in entry["vlans"]
    ]


@given(st.lists(st.tuples(st.integers(1, 4094), st.integers(1, 4094), st.booleans())))
def test_trunks_are_the_union_of_their_entries(entries: list[tuple[int, int, bool]]) -> None:
    trunk = [
        Trunk(id=one) if single else Trunk(minID=min(one, two), maxID=max(one, two))
        for one, two, single in entries
    ]
    wanted = {
        vlan
        for one, two, single in entries
        for vlan in ([one] if single else range(min(one, two), max(one, two) + 1))
    }
    ranges = bridge_vlans.read(0, tuple(trunk), True).trunk
    assert {vlan for first, last in ranges for vlan in range(first, last + 1)} == wanted
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))


@kernel
def test_a_kernel_that_does_not_filter_says_so_and_nothing_stays(host: Host) -> None:
    config = host.config("10.1.0.0/24", vlan=100)
    if not kinds.lacks("bridge-vlan"):
        host.add(config, host.pod("one"))
        return
    with pytest.raises(CNIError, match=r"this kernel has no VLANs on a bridge \(pw0\)") as caught:
        host.add(config, host.pod("one"))
    assert caught.value.code == 2
    assert list(links()) == ["lo"]
    assert host.held() == {}
    host.call("STATUS", config)
    run("ip", "link", "add", "pw0", "type", "bridge")
    with pytest.raises(CNIError, match="no VLANs on a bridge") as caught:
        host.call("STATUS", config)
    assert caught.value.code == 50


@kernel
@other
def test_an_access_port_is_in_its_vlan_alone(host: Host) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", vlan=100, preserveDefaultVlan=False)
    results = {name: host.add(config, host.pod(name)) for name in ("one", "two")}
    other = host.add({**config, "vlan": 200}, host.pod("three"))
    assert links()["pw0"]["linkinfo"]["info_data"]["vlan_filtering"] == 1
    assert vlans(results["one"].interfaces[1].name) == [(100, 100, BOTH)]
    assert vlans(other.interfaces[1].name) == [(200, 200, BOTH)]
    assert reaches("one", "10.1.0.3")
    assert reaches("one", "fd00:1::3")
    assert not reaches("one", "10.1.0.4")
    for name, result in results.items():
        host.check(config, name, result)
        host.delete(config, name)
    assert set(host.held().values()) == {"id-three"}


@kernel
@other
def test_the_default_vlan_is_kept_unless_it_is_not_wanted(host: Host) -> None:
    result = host.add(host.config("10.1.0.0/24", vlan=100), host.pod("one"))
    assert vlans(result.interfaces[1].name) == [(1, 1, ["Egress Untagged"]), (100, 100, BOTH)]
    host.check(host.config("10.1.0.0/24", vlan=100), "one", result)
    with pytest.raises(CNIError, match="is in the default VLAN 1"):
        host.check(host.config("10.1.0.0/24", vlan=100, preserveDefaultVlan=False), "one", result)


@kernel
@other
def test_a_trunk_passes_the_tags_that_it_has(host: Host) -> None:
    trunk = host.config(
        vlanTrunk=[{"id": 5}, {"minID": 100, "maxID": 199}, {"minID": 150, "maxID": 250, "id": 251}],
        preserveDefaultVlan=False,
    )
    result = host.add(trunk, host.pod("router"))
    assert vlans(result.interfaces[1].name) == [(5, 5, []), (100, 251, [])]
    for vlan in (5, 6):
        host.add(host.config("10.1.0.0/24", vlan=vlan), host.pod(f"pod{vlan}"))
        ip_batch(f"link add link eth0 name v{vlan} type vlan id {vlan}\nlink set v{vlan} up\n", "router")
    run("ip", "-n", "router", "address", "add", "10.1.0.50/24", "dev", "v5")
    assert reaches("router", "10.1.0.2")
    run("ip", "-n", "router", "address", "del", "10.1.0.50/24", "dev", "v5")
    run("ip", "-n", "router", "address", "add", "10.1.0.50/24", "dev", "v6")
    assert not reaches("router", "10.1.0.3")
    host.check(trunk, "router", result)
    run("bridge", "vlan", "del", "dev", result.interfaces[1].name, "vid", "120")
    with pytest.raises(CNIError, match="of the VLANs 100-251 one is missing"):
        host.check(trunk, "router", result)


@kernel
@other
def test_the_gateway_of_a_vlan_is_on_a_link_of_its_own(host: Host) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", vlan=100, isDefaultGateway=True)
    results = {name: host.add(config, host.pod(name)) for name in ("one", "two")}
    result = results["one"]
    assert [one.name for one in result.interfaces] == ["pw0", result.interfaces[1].name, "eth0", "pw0.100"]
    assert [one.interface for one in result.ips] == [2, 2]
    gateway = links()["pw0.100"]
    assert (gateway["address"], gateway["linkinfo"]["info_kind"]) == (result.interfaces[3].mac, "veth")
    assert vlans(gateway["link"]) == [(1, 1, ["Egress Untagged"]), (100, 100, BOTH)]
    assert addresses("pw0.100")[:2] == ["10.1.0.1/24", "fd00:1::1/64"]
    assert not [one for one in addresses("pw0") if not one.startswith("fe80")]
    assert reaches("one", "10.1.0.1")
    assert reaches("one", "fd00:1::1")
    assert reaches("one", "10.1.0.3")
    second = host.config("10.2.0.0/24", name="net2", vlan=200, isGateway=True)
    host.add(second, host.pod("three"))
    assert reaches("three", "10.2.0.1")
    host.check(config, "one", result)
    host.delete(config, "one")
    host.check(config, "two", results["two"])
    assert reaches("two", "10.1.0.1")


@kernel
@other
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("bridge vlan del dev {host} vid 100", "VLAN 100 is not its untagged one"),
        ("bridge vlan add dev {host} vid 100", "VLAN 100 is not its untagged one"),
        ("bridge vlan add dev {host} vid 1", "is in the default VLAN 1"),
        ("ip link set pw0 type bridge vlan_filtering 0", "bridge pw0: does not filter VLANs"),
        ("ip link delete pw0.100", "gateway pw0.100: is missing"),
        ("ip link set pw0.100 down", "gateway pw0.100: is down"),
        ("bridge vlan del dev {way} vid 100", "VLAN 100 is not its untagged one"),
        ("ip link set {way} nomaster", "gateway pw0.100: is missing, or does not lead"),
        (
            "ip address del 10.1.0.1/24 dev pw0.100",
            r"pw0\.100: the gateway's address 10\.1\.0\.1/24 is missing",
        ),
    ],
)
def test_check_finds(host: Host, damage: str, message: str) -> None:
    config = host.config("10.1.0.0/24", vlan=100, isGateway=True, preserveDefaultVlan=False)
    result = host.add(config, host.pod("one"))
    host.check(config, "one", result)
    names = {"host": result.interfaces[1].name, "way": links()["pw0.100"]["link"]}
    run("sh", "-c", damage.format(**names))
    with pytest.raises(CNIError, match=message) as caught:
        host.check(config, "one", result)
    assert caught.value.code == 100


@kernel
@other
def test_an_adopted_bridge_must_filter_if_others_use_it(host: Host) -> None:
    config = host.config("10.1.0.0/24", vlan=100)
    ip_batch(
        "link add pw0 address 02:00:00:00:00:01 type bridge\n"
        "link add port0 type veth peer port1\nlink set port0 master pw0\n"
    )
    with pytest.raises(
        CNIError, match="bridge pw0: does not filter VLANs, and has ports of others"
    ) as caught:
        host.add(config, host.pod("one"))
    assert caught.value.code == 7
    assert list(links("one")) == ["lo"]
    with pytest.raises(CNIError, match="bridge pw0: does not filter VLANs") as caught:
        host.call("STATUS", config)
    assert caught.value.code == 50
    run("ip", "link", "set", "pw0", "type", "bridge", "vlan_filtering", "1")
    host.call("STATUS", config)
    host.check(config, "one", host.add(config, "one"))


@kernel
@other
def test_a_bridge_of_ours_without_vlans_gets_them(host: Host) -> None:
    plain = host.config("10.1.0.0/24", isGateway=True)
    first = host.add(plain, host.pod("one"))
    config = host.config("10.2.0.0/24", name="net2", vlan=100, isGateway=True)
    second = host.add(config, host.pod("two"))
    host.check(plain, "one", first)
    host.check(config, "two", second)
    assert reaches("one", "10.1.0.1")
    assert reaches("two", "10.2.0.1")


@kernel
@other
def test_what_others_took_away_is_put_back(host: Host) -> None:
    config = host.config("10.1.0.0/24", vlan=100, isGateway=True, preserveDefaultVlan=False)
    result = host.add(config, host.pod("one"))
    run("ip", "link", "set", result.interfaces[1].name, "nomaster")
    run("ip", "link", "delete", "pw0.100")
    mended = mend_of(host, config, result)
    assert any("on bridge pw0" in one for one in mended)
    host.check(config, "one", result)


def mend_of(host: Host, config: dict[str, Any], result: Any) -> list[str]:
    from podwire.cni.convert import encode_result
    from podwire.cni.plugin import make_request
    from podwire.plugins import bridge, load

    request = make_request(
        bridge.PLUGIN,
        "CHECK",
        {**config, "prevResult": json.loads(encode_result(result, "1.1.0"))},
        container_id="id-one",
        netns="/run/netns/one",
        ifname="eth0",
        registry=load,
    )
    return bridge.mend(request, host.kernel)


def everything(host: Host) -> list[str]:
    look = "ip -br link; ip -n one -br address; bridge vlan; sysctl net.ipv4.ip_forward"
    return [*run("sh", "-c", look).splitlines(), *sorted(host.held())]


@kernel
@other
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, after: bool) -> None:
    config = host.config("10.1.0.0/24", vlan=100, isGateway=True, preserveDefaultVlan=False)
    host.pod("one")
    clean = everything(host)
    failed = set()
    whole = host.kernel
    for step in range(1, 80):
        faults = Faults(step, after=after)
        try:
            with Kernel.open() as host.kernel, faults.active():
                result = host.add(config, "one")
        except CNIError as error:
            assert "Input/output error" in str(error), f"step {step}: {error}"
            assert everything(host) == clean, f"after {faults.failed}, step {step}"
            failed.add(faults.failed)
        else:
            host.kernel = whole
            host.check(config, "one", result)
            if faults.count < step:
                break
            host.delete(config, "one")
            ip_batch("link delete pw0.100\nlink delete pw0\n")
            run("sysctl", "-q", "-w", "net.ipv4.ip_forward=0")
    assert failed >= {"NetlinkSocket.send", "NetlinkSocket.open", "NetlinkSocket.request", "Leases.reserve"}
    assert step > 20
