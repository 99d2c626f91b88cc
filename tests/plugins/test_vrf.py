"""vrf: an interface in a routing domain of its own, with its addresses and routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podwire.cni.errors import AlreadyAttached, CNIError
from podwire.cni.plugin import Result
from podwire.kernel.host import Kernel
from tests.plugins.faults import Faults
from tests.plugins.helpers import GO_PLUGINS, Host, addresses, execute, ip_batch, links, reaches, routes, run

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("vrf")]


@pytest.fixture
def bridge(host: Host) -> dict[str, Any]:
    """The network whose interface goes into a VRF."""
    config = host.config("10.1.0.0/24", "fd00:1::/64", isDefaultGateway=True)
    config["ipam"]["routes"] = [{"dst": "192.0.2.0/24"}, {"dst": "2001:db8::/32"}]
    return config


def vrf(**options: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "blue", **options}


def destinations(pod: str, table: str) -> set[str]:
    return {
        one["dst"]
        for family in ("-4", "-6")
        for one in routes(pod, family, table)
        if one.get("type", "unicast") == "unicast" and not one["dst"].startswith(("fe80", "ff00"))
    }


WHERE_TO = {"default", "192.0.2.0/24", "2001:db8::/32"}
CONNECTED = {"10.1.0.0/24", "fd00:1::/64"}


def test_addresses_and_routes_go_with_the_interface(host: Host, bridge: dict[str, Any]) -> None:
    before = host.add(bridge, host.pod("one"))
    had = sorted(addresses("eth0", "one"))
    assert destinations("one", "main") == WHERE_TO | CONNECTED
    result = host.add(vrf(table=10), "one", result=before)
    assert result == before
    seen = links("one")
    assert (seen["eth0"]["master"], seen["blue"]["linkinfo"]["info_data"]) == ("blue", {"table": 10})
    assert "UP" in seen["blue"]["flags"]
    assert sorted(addresses("eth0", "one")) == had
    assert destinations("one", "main") == set()
    assert destinations("one", "10") == WHERE_TO | CONNECTED
    run("ip", "netns", "exec", "one", "busybox", "ping", "-c", "1", "-W", "2", "-I", "blue", "10.1.0.1")
    run("ip", "netns", "exec", "one", "busybox", "ping", "-c", "1", "-W", "2", "-I", "blue", "fd00:1::1")
    assert not reaches("one", "10.1.0.1")
    host.check(bridge, "one", result)
    host.check(vrf(table=10), "one", result)
    host.delete(vrf(table=10), "one", result=result)
    assert "blue" not in links("one")
    assert "master" not in links("one")["eth0"]
    assert sorted(addresses("eth0", "one")) == had
    assert destinations("one", "main") == WHERE_TO | CONNECTED
    host.check(bridge, "one", result)
    host.delete(vrf(table=10), "one")
    host.delete(bridge, "one", result=result)
    assert list(links("one")) == ["lo"]


def test_the_vrf_stays_until_its_last_interface_goes(host: Host, bridge: dict[str, Any]) -> None:
    other = host.config("10.2.0.0/24", name="net2", bridge="pw1")
    host.pod("one")
    first = host.add(vrf(), "one", result=host.add(bridge, "one"))
    second = host.add(vrf(), "one", ifname="eth1", result=host.add(other, "one", ifname="eth1"))
    host.check(vrf(), "one", first)
    host.check(vrf(), "one", second, ifname="eth1")
    host.delete(vrf(), "one")
    assert links("one")["eth1"]["master"] == "blue"
    host.delete(vrf(), "one", ifname="eth1")
    assert "blue" not in links("one")


def test_without_a_table_it_is_the_lowest_that_is_free(host: Host, bridge: dict[str, Any]) -> None:
    host.pod("one")
    ip_batch("link add name vrf1 type vrf table 1\nlink add name vrf3 type vrf table 3\n", "one")
    host.add(vrf(), "one", result=host.add(bridge, "one"))
    assert links("one")["blue"]["linkinfo"]["info_data"] == {"table": 2}


def test_del_without_a_namespace_or_with_another_vrfname(host: Host, bridge: dict[str, Any]) -> None:
    host.add(vrf(), host.pod("one"), result=host.add(bridge, "one"))
    for netns in ("", "/run/netns/never-was"):
        host.delete(vrf(), "one", netns=netns)
    host.delete(vrf(vrfname="red"), "one")
    assert "blue" not in links("one")


def test_a_vrf_of_somebody_else_takes_the_interface_and_stays(host: Host, bridge: dict[str, Any]) -> None:
    host.pod("one")
    ip_batch("link add blue type vrf table 7\nlink set blue up\n", "one")
    result = host.add(vrf(), "one", result=host.add(bridge, "one"))
    host.check(vrf(table=7), "one", result)
    host.delete(vrf(), "one")
    assert "master" not in links("one")["eth0"]
    assert "blue" in links("one")
    host.call("GC", {**vrf(), "cni.dev/valid-attachments": []})
    assert "blue" in links("one")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vrfname": ""}, "vrfname: is missing"),
        ({"vrfname": "a/b"}, "vrfname: "),
        ({"vrfname": "lo"}, 'vrfname "lo": is no VRF in the container but a device'),
        ({"table": -1}, "table -1: "),
        ({"table": 1 << 32}, "table 4294967296: "),
        ({"table": 9}, "table 9: VRF blue of the container has table 7"),
    ],
)
def test_what_is_refused_names_the_field_and_changes_nothing(
    host: Host, bridge: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    result = host.add(bridge, host.pod("one"))
    ip_batch("link add blue type vrf table 7\n", "one")
    before = state("one")
    with pytest.raises(CNIError, match=message) as caught:
        host.add(vrf(**change), "one", result=result)
    assert caught.value.code == 7
    assert state("one") == before


def test_it_needs_an_earlier_plugin_and_its_interface(host: Host, bridge: dict[str, Any]) -> None:
    host.pod("one")
    with pytest.raises(CNIError, match="missing prevResult"):
        host.add(vrf(), "one")
    with pytest.raises(CNIError, match="interface eth0: is missing"):
        host.add(vrf(), "one", result=Result())
    assert list(links("one")) == ["lo"]


def test_an_interface_with_a_master_is_refused_and_keeps_it(host: Host, bridge: dict[str, Any]) -> None:
    result = host.add(vrf(), host.pod("one"), result=host.add(bridge, "one"))
    with pytest.raises(AlreadyAttached, match="has a master already, blue"):
        host.add(vrf(), "one", result=result)
    with pytest.raises(CNIError, match="has a master already, blue"):
        host.add(vrf(vrfname="red"), "one", result=result)
    assert "red" not in links("one")
    host.check(vrf(), "one", result)
    ip_batch("link set eth0 nomaster\nlink add br0 type bridge\nlink set eth0 master br0\n", "one")
    host.delete(vrf(), "one")
    assert links("one")["eth0"]["master"] == "br0"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("ip link delete blue", "VRF blue: is missing"),
        ("ip link set blue down", "VRF blue: is down"),
        ("ip link set eth0 nomaster", "interface eth0: is not in VRF blue"),
        ("ip link delete eth0", "interface eth0: is not in VRF blue"),
        ("ip route delete 192.0.2.0/24 table 10", r"the route to 192\.0\.2\.0/24 by 10\.1\.0\.1 is missing"),
        ("ip -6 route delete default table 10", "the route to ::/0 .*is missing"),
    ],
)
def test_check_finds(host: Host, bridge: dict[str, Any], damage: str, message: str) -> None:
    result = host.add(vrf(table=10), host.pod("one"), result=host.add(bridge, "one"))
    host.check(vrf(table=10), "one", result)
    run("ip", "netns", "exec", "one", "sh", "-c", damage)
    with pytest.raises(CNIError, match=message) as caught:
        host.check(vrf(table=10), "one", result)
    assert caught.value.code == 100


def test_check_finds_another_table(host: Host, bridge: dict[str, Any]) -> None:
    result = host.add(vrf(table=10), host.pod("one"), result=host.add(bridge, "one"))
    with pytest.raises(CNIError, match="has table 10, not 11"):
        host.check(vrf(table=11), "one", result)


def test_gc_takes_the_vrfs_that_nothing_is_in(host: Host, bridge: dict[str, Any]) -> None:
    host.add(vrf(), host.pod("one"), result=host.add(bridge, "one"))
    result = host.add(vrf(), host.pod("two"), result=host.add(bridge, "two"))
    run("ip", "-n", "one", "link", "delete", "eth0")
    listed = [{"containerID": "id-two", "ifname": "eth0"}]
    host.call("GC", {**vrf(), "cni.dev/valid-attachments": listed})
    assert list(links("one")) == ["lo"]
    host.check(vrf(), "two", result)
    host.call("STATUS", vrf())


def state(pod: str) -> list[str]:
    look = "ip -br link | grep -v @; ip -br address; ip route show table all; ip -6 route show table all"
    text = run("ip", "netns", "exec", pod, "sh", "-c", look)
    # The order of the routes of one table changes.
    return sorted(line.replace(" linkdown", "").strip() for line in text.splitlines())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_all_as_it_was(host: Host, bridge: dict[str, Any], after: bool) -> None:
    earlier = host.add(bridge, host.pod("one"))
    clean = state("one")
    failed = set()
    whole = host.kernel
    for step in range(1, 40):
        faults = Faults(step, after=after)
        try:
            with Kernel.open() as host.kernel, faults.active():
                result = host.add(vrf(), "one", result=earlier)
        except CNIError as error:
            assert "Input/output error" in str(error), f"step {step}: {error}"
            assert state("one") == clean, f"after {faults.failed}, step {step}"
            failed.add(faults.failed)
        else:
            host.kernel = whole
            host.check(vrf(), "one", result)
            if faults.count < step:
                break
            host.delete(vrf(), "one")
            host.delete(bridge, "one")
            earlier = host.add(bridge, "one")
            clean = state("one")
    assert failed >= {"NetlinkSocket.send", "NetlinkSocket.dump", "NetlinkSocket.request"}
    assert step > 8


def test_what_the_reference_plugin_made_is_checked_and_released(host: Host, bridge: dict[str, Any]) -> None:
    from podwire.cni.convert import encode_result

    result = host.add(bridge, host.pod("one"))
    config = vrf(cniVersion="1.0.0", prevResult=json.loads(encode_result(result, "1.0.0")))
    call = {"container_id": "id-one", "netns": "/run/netns/one", "ifname": "eth0"}
    made = execute(GO_PLUGINS / "vrf", "ADD", config, **call)
    assert made.returncode == 0, made.stdout
    without_routes = Result(result.interfaces, result.ips)
    host.check(vrf(), "one", without_routes)
    host.delete(vrf(), "one")
    assert "master" not in links("one")["eth0"]
