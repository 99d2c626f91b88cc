"""firewall, chained after bridge: who may talk to whom, what is made, found missing and taken away."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.cni.plugin import Interface, IPConfig, Result
from podwire.plugins import firewall, forwarding
from tests.plugins.helpers import Host, reaches, run
from tests.plugins.sockets import exchanges
from tests.plugins.undo import add_failing_at_each_step

pytestmark = pytest.mark.kernel

SUBNETS = ("10.1.0.0/24", "fd00:1::/64")
OUTSIDE = ("192.0.2.2", "2001:db8::2")


def config(**options: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "firewall", **options}


def attached(host: Host, pod: str = "one", bridge: str = "pw0", net: str = "1", name: str = "net") -> Result:
    """A pod on a bridge, with a way out."""
    subnets = (f"10.{net}.0.0/24", f"fd00:{net}::/64")
    options = {"isDefaultGateway": True, "bridge": bridge, "name": name}
    return host.add(host.config(*subnets, **options), host.pod(pod))


def ip_of(result: Result, family: int) -> str:
    return next(ip.address.partition("/")[0] for ip in result.ips if ip.family == family)


@pytest.fixture
def outside(host: Host) -> str:
    """A machine beyond the host, which knows the way to the pods."""
    host.pod("outside")
    run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", "outside")
    # Link-local addresses that are not looked for first, which would take a second.
    for inside, device, address in (([], "up0", "fe80::1/64"), (["-n", "outside"], "eth0", "fe80::2/64")):
        run("ip", *inside, "link", "set", device, "addrgenmode", "none", "up")
        run("ip", *inside, "address", "add", address, "dev", device, "nodad")
    for family, prefix, pods in (("-4", "192.0.2", "10.0.0.0/8"), ("-6", "2001:db8:", "fd00::/16")):
        dot = "." if family == "-4" else ":"
        size = "/24" if family == "-4" else "/64"
        nodad = [] if family == "-4" else ["nodad"]
        run("ip", family, "address", "add", f"{prefix}{dot}1{size}", "dev", "up0", *nodad)
        run("ip", "-n", "outside", family, "address", "add", f"{prefix}{dot}2{size}", "dev", "eth0", *nodad)
        run("ip", "-n", "outside", family, "route", "add", pods, "via", f"{prefix}{dot}1")
    return "outside"


@pytest.fixture
def dropping(host: Host) -> None:
    """The chain FORWARD as container engines set it up."""
    for tool in ("iptables", "ip6tables"):
        run(tool, "-P", "FORWARD", "DROP")


def gets_out(pod: str = "one", family: int = 4) -> bool:
    """Whether the pod gets an answer from the machine outside."""
    return exchanges(pod, "outside", OUTSIDE[0 if family == 4 else 1], "tcp", seconds=0.25)


def gets(client: str, server: str, result: Result, family: int = 4) -> bool:
    """Whether one pod gets an answer from another, whose result it is."""
    return exchanges(client, server, ip_of(result, family), "udp", seconds=0.25)


def elements(name: str, family: str = "inet") -> list[Any]:
    [found] = [
        one["set"]
        for one in json.loads(run("nft", "-j", "list", "set", family, "podwire", name))["nftables"]
        if "set" in one
    ]
    return [
        one["elem"]["val"] if isinstance(one, dict) and "elem" in one else one
        for one in found.get("elem", [])
    ]


def everything() -> str:
    return run("sh", "-c", "nft list ruleset | grep -E 'elements|comment|policy|chain'; ip -br link | sort")


def rules() -> int:
    listed = json.loads(run("nft", "-j", "list", "ruleset"))["nftables"]
    return sum("rule" in one for one in listed)


@pytest.mark.usefixtures("dropping", "outside")
@pytest.mark.parametrize("backend", ["iptables", "nftables", ""])
def test_a_pod_gets_out_past_a_chain_that_drops(host: Host, backend: str) -> None:
    """What it sends, and answers to it; nobody else's connections to it."""
    result = attached(host)
    assert not gets_out()
    host.add(config(backend=backend), "one", result=result)
    for address in OUTSIDE:
        assert reaches("one", address)
        for protocol in ("tcp", "udp"):
            assert exchanges("one", "outside", address, protocol)
    for family in (4, 6):
        assert not exchanges("outside", "one", ip_of(result, family), "tcp", seconds=0.2)
    host.check(config(backend=backend), "one", result)
    host.delete(config(backend=backend), "one", result=result)
    assert not gets_out()


@pytest.mark.usefixtures("outside")
def test_without_such_a_chain_nothing_is_added_to_anybodys_table(host: Host) -> None:
    result = attached(host)
    host.add(config(), "one", result=result)
    assert "table ip filter" not in run("nft", "list", "ruleset")
    assert gets_out()
    assert exchanges("outside", "one", ip_of(result, 4), "tcp")


@pytest.mark.usefixtures("dropping")
def test_iptables_lists_saves_and_restores_our_rules(host: Host) -> None:
    run("iptables", "-A", "FORWARD", "-i", "docker0", "-j", "ACCEPT")
    result = attached(host)
    host.add(config(), "one", result=result)
    wanted = [
        '-A FORWARD -m comment --comment "podwire forward" -j PODWIRE-FORWARD',
        "-A FORWARD -i docker0 -j ACCEPT",
        '-A PODWIRE-FORWARD -m comment --comment "podwire admin CNI-ADMIN" -j CNI-ADMIN',
        '-A PODWIRE-FORWARD -m mark --mark 0x100000/0x100000 -m comment --comment "podwire accept" -j ACCEPT',
    ]
    assert [line for line in run("iptables", "-S").splitlines() if line.startswith("-A")] == wanted
    run("iptables-restore", stdin=run("iptables-save"))
    host.add(config(), host.pod("two"), result=result, container_id="two")
    assert [line for line in run("iptables", "-S").splitlines() if line.startswith("-A")] == wanted
    host.check(config(), "one", result, container_id="two")


@pytest.mark.usefixtures("dropping", "outside")
@pytest.mark.parametrize("name", ["", "MY-RULES"])
def test_the_administrators_chain_comes_first(host: Host, name: str) -> None:
    options = {"iptablesAdminChainName": name} if name else {}
    result = attached(host)
    host.add(config(**options), "one", result=result)
    assert gets_out()
    run("iptables", "-A", name or "CNI-ADMIN", "-d", OUTSIDE[0], "-j", "DROP")
    assert not gets_out()
    assert gets_out(family=6)
    other = {**config(iptablesAdminChainName="OTHER"), "name": "other"}
    host.add(other, host.pod("two"), result=result)
    assert not gets_out()
    host.check(other, "two", result)
    jumps = [line.split(" -j ")[1] for line in run("iptables", "-S", "PODWIRE-FORWARD").splitlines()[1:]]
    assert jumps == [name or "CNI-ADMIN", "OTHER", "ACCEPT"]


@pytest.mark.usefixtures("dropping", "outside")
def test_somebody_elses_mark_is_no_way_in(host: Host) -> None:
    result = attached(host)
    host.add(config(), "one", result=result)
    for tool in ("iptables", "ip6tables"):
        run(tool, "-t", "mangle", "-A", "PREROUTING", "-j", "MARK", "--set-mark", "0x100001")
    assert gets_out()
    assert not exchanges("outside", "one", ip_of(result, 4), "tcp", seconds=0.2)
    run(
        "iptables",
        "-t",
        "mangle",
        "-A",
        "POSTROUTING",
        "-m",
        "mark",
        "--mark",
        "0x100000/0x100000",
        "-j",
        "DROP",
    )
    assert gets_out()


def test_same_bridge_keeps_bridges_apart(host: Host) -> None:
    one = attached(host)
    two = attached(host, "two")
    away = attached(host, "away", "pw1", "2", "far")
    for pod, result, name in (("one", one, "net"), ("two", two, "net"), ("away", away, "far")):
        host.add({**config(ingressPolicy="same-bridge"), "name": name}, pod, result=result)
    for family in (4, 6):
        assert gets("one", "two", two, family)
        assert not gets("away", "one", one, family)
        assert not gets("one", "away", away, family)
        assert reaches("", ip_of(one, family))
    assert elements("firewall_bridges") == ["pw0", "pw1"]


def test_same_bridge_lets_bridges_without_a_policy_in(host: Host, outside: str) -> None:
    one = attached(host)
    away = attached(host, "away", "pw1", "2", "far")
    host.add(config(ingressPolicy="same-bridge"), "one", result=one)
    host.add({**config(ingressPolicy="open"), "name": "far"}, "away", result=away)
    assert gets("away", "one", one)
    assert gets(outside, "one", one)


@pytest.mark.parametrize("br_netfilter", [0, 1])
def test_isolated_keeps_pods_of_one_bridge_apart(host: Host, outside: str, br_netfilter: int) -> None:
    for tool in ("iptables", "ip6tables"):
        run("sysctl", "-q", "-w", f"net.bridge.bridge-nf-call-{tool}={br_netfilter}")
    one, two = attached(host), attached(host, "two")
    assert gets("one", "two", two)
    for pod, result in (("one", one), ("two", two)):
        host.add(config(ingressPolicy="isolated"), pod, result=result)
        host.check(config(ingressPolicy="isolated"), pod, result)
    for family in (4, 6):
        assert not gets("one", "two", two, family)
        assert gets_out(family=family)
        assert reaches("", ip_of(one, family))
    host.call("GC", {**config(), "cni.dev/valid-attachments": []})
    assert elements("isolated", "bridge") == []
    assert gets("one", "two", two)
    assert outside


def test_isolated_holds_for_what_the_host_sends_back_to_the_bridge(host: Host) -> None:
    """Pods that reach one another by their gateway, as those of two subnets do."""
    one, two = attached(host), attached(host, "two")
    for device in ("all", "pw0"):
        run("sysctl", "-q", "-w", f"net.ipv4.conf.{device}.send_redirects=0")
    for here, there in (("one", two), ("two", one)):
        run("ip", "-n", here, "route", "add", f"{ip_of(there, 4)}/32", "via", "10.1.0.1")
    assert gets("one", "two", two)
    for pod, result in (("one", one), ("two", two)):
        host.add(config(ingressPolicy="isolated"), pod, result=result)
    assert not gets("one", "two", two)


def test_the_number_of_rules_does_not_grow(host: Host, dropping: None) -> None:
    result = attached(host)
    host.add(config(ingressPolicy="isolated"), "one", result=result)
    before = rules()
    for number in range(2, 30):
        ips = (IPConfig(f"10.1.0.{number + 50}/24"), IPConfig(f"fd00:1::{number + 50}/64"))
        more = Result((Interface("pw0"), Interface(f"veth{number}")), ips)
        host.add(config(ingressPolicy="isolated"), "one", result=more, container_id=f"id{number}")
    assert rules() == before
    assert len(elements("firewall4")) == 29


DAMAGE = {
    "nft flush ruleset": "rules of chain .* are missing",
    "nft delete table inet podwire": "10.1.0.2 is not in firewall4",
    "nft flush chain inet podwire forward": "rules of chain forward",
    "nft flush set inet podwire firewall6": "fd00:1::2 is not in firewall6",
    "nft flush map inet podwire firewall_index": "not in firewall_index",
    "nft flush set inet podwire firewall_bridges": "pw0 is not in firewall_bridges",
    "nft flush set bridge podwire isolated": "veth.* is not in isolated",
    "nft flush chain bridge podwire isolation": "rule of chain isolation",
    "iptables -F FORWARD": "'podwire forward' of chain FORWARD of table ip filter",
    "ip6tables -F PODWIRE-FORWARD": "'podwire accept' of chain PODWIRE-FORWARD of table ip6",
}


@pytest.mark.usefixtures("dropping")
@pytest.mark.parametrize("command", DAMAGE)
def test_F19_check_finds_damage_and_mend_repairs_it(host: Host, command: str) -> None:
    """Rules that a firewall's restart or another program took away come back."""
    told = config(ingressPolicy="isolated")
    result = attached(host)
    host.add(told, "one", result=result)
    host.check(told, "one", result)
    run(*command.split())
    with pytest.raises(CNIError, match=DAMAGE[command]) as caught:
        host.check(told, "one", result)
    assert caught.value.code == 100
    request = host.request("CHECK", told, "one", result=result)
    assert firewall.mend(request, host.kernel)
    host.check(told, "one", result)
    assert firewall.mend(request, host.kernel) == []


def test_F19_a_chain_that_drops_and_came_later_is_found(host: Host, outside: str) -> None:
    result = attached(host)
    host.add(config(), "one", result=result)
    run("iptables", "-P", "FORWARD", "DROP")
    assert not gets_out()
    request = host.request("CHECK", config(), "one", result=result)
    assert firewall.mend(request, host.kernel)
    assert gets_out()
    assert outside


@pytest.mark.parametrize("how", ["plain", "no-netns", "no-result", "renamed", "broken-config"])
def test_G06_del_takes_all_of_it(host: Host, how: str) -> None:
    result = attached(host)
    told = config()
    host.add(told, "two", result=Result(ips=(IPConfig("10.9.0.1/24"),)), netns="/run/netns/one")
    before = elements("firewall4"), elements("firewall6"), elements_of_index()
    host.add(told, "one", result=result)
    assert elements("firewall4") != before[0]
    options: dict[str, Any] = {} if how in {"no-result", "renamed"} else {"result": result}
    if how == "no-netns":
        options["netns"] = ""
    if how == "renamed":
        told = {**told, "name": "renamed"}
    if how == "broken-config":
        told = {**told, "backend": 7, "firewalldZone": []}
    for _ in range(2):
        host.delete(told, "one", **options)
        assert (elements("firewall4"), elements("firewall6"), elements_of_index()) == before


def elements_of_index() -> list[Any]:
    listed = json.loads(run("nft", "-j", "list", "map", "inet", "podwire", "firewall_index"))["nftables"]
    [found] = [one["map"] for one in listed if "map" in one]
    return list(found.get("elem", []))


@pytest.mark.usefixtures("dropping", "outside")
def test_a_late_del_leaves_the_new_holder_of_the_address_alone(host: Host) -> None:
    result = attached(host)
    host.add(config(), "one", result=result, container_id="old")
    host.add(config(), "one", result=result, container_id="new")
    host.delete(config(), "one", result=result, container_id="old")
    host.check(config(), "one", result, container_id="new")
    assert gets_out()
    assert len(elements_of_index()) == 2


@pytest.mark.parametrize("command", ["nft flush ruleset", "nft flush set inet podwire firewall4"])
def test_G14_del_after_a_flush_succeeds(host: Host, command: str) -> None:
    result = attached(host)
    host.add(config(), "one", result=result)
    run(*command.split())
    host.delete(config(), "one", result=result)
    host.delete(config(), "one", result=result)


def test_gc_takes_what_is_not_valid_and_at_the_end_our_rules_from_iptables(
    host: Host, dropping: None
) -> None:
    before = run("iptables", "-S")
    for pod in ("one", "two"):
        host.add(config(ingressPolicy="same-bridge"), pod, result=attached(host, pod))
    host.call("GC", {**config(), "name": "other", "cni.dev/valid-attachments": []})
    assert len(elements("firewall4")) == 2
    valid = [{"containerID": "id-two", "ifname": "eth0"}]
    host.call("GC", {**config(), "cni.dev/valid-attachments": valid})
    assert len(elements("firewall4")) == len(elements("firewall6")) == 1
    assert elements("firewall_bridges") == ["pw0"]
    host.call("GC", {**config(), "cni.dev/valid-attachments": []})
    assert elements("firewall4") == elements("firewall_bridges") == elements("firewall_within") == []
    # The administrator's chain is theirs now.
    assert run("iptables", "-S").replace("-N CNI-ADMIN\n", "") == before


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, after: bool, dropping: None) -> None:
    result = attached(host)
    told = config(ingressPolicy="isolated")
    host.add(told, "one", result=result)
    host.delete(told, "one", result=result)
    tried = add_failing_at_each_step(host, told, everything, after=after, result=result)
    assert len(tried.told) > 5


WRONG = [
    ({"backend": "ebtables"}, 'backend "ebtables": is none of iptables, nftables, firewalld'),
    ({"backend": 7}, "backend: .*it is 7"),
    ({"ingressPolicy": "closed"}, 'ingressPolicy "closed": is none of open, same-bridge, isolated'),
    ({"iptablesAdminChainName": "a b; flush ruleset"}, "iptablesAdminChainName"),
    ({"iptablesAdminChainName": "x" * 29}, "iptablesAdminChainName"),
    ({"firewalldZone": "--panic-on"}, "firewalldZone"),
]


@pytest.mark.parametrize(("options", "told"), WRONG)
@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS"])
def test_what_cannot_be_is_refused_before_anything_is_made(
    host: Host, command: str, options: dict[str, Any], told: str
) -> None:
    result = Result((Interface("pw0"),), (IPConfig("10.1.0.2/24"),))
    with pytest.raises(CNIError, match=told) as caught:
        host.call(command, config(**options), "one", netns="", result=None if command == "STATUS" else result)
    assert caught.value.code == 7
    assert run("nft", "list", "ruleset") == ""


def test_a_policy_needs_a_bridge(host: Host) -> None:
    result = Result((Interface("eth0", sandbox="/run/netns/one"),), (IPConfig("10.1.0.2/24"),))
    with pytest.raises(CNIError, match=r"prevResult\.interfaces has no bridge") as caught:
        host.add(config(ingressPolicy="same-bridge"), "one", netns="", result=result)
    assert caught.value.code == 7


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_B19_without_prev_result_it_says_so(host: Host, command: str) -> None:
    with pytest.raises(CNIError, match="prevResult"):
        host.call(command, config(), "one", netns="")


STAND_IN = """#!/bin/sh
# What firewall-cmd does with sources, with a directory for each zone.
state={state}
echo "$@" >> $state/calls
case "$1" in --state) test -e $state/running || exit 252; exit 0;; esac
test -e $state/running || {{ echo "FirewallD is not running" >&2; exit 252; }}
zone=$state/zones/${{1#--zone=}}
test -d $zone || {{ echo "Error: INVALID_ZONE: ${{1#--zone=}}" >&2; exit 112; }}
source=$(echo "${{2#*=}}" | tr / _)
case "$2" in
--change-source=*) rm -f $state/zones/*/$source; : > $zone/$source;;
--remove-source=*) test -e $zone/$source || exit 30; rm $zone/$source;;
--query-source=*) test -e $zone/$source;;
*) exit 2;;
esac
"""


@pytest.fixture
def firewalld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for firewall-cmd; returns where its zones are."""
    state = tmp_path / "firewalld"
    for zone in ("trusted", "pods", "public"):
        (state / "zones" / zone).mkdir(parents=True)
    (state / "running").touch()
    program = tmp_path / "bin/firewall-cmd"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(state=state))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    yield state / "zones"


def sources(zones: Path) -> dict[str, list[str]]:
    return {
        zone.name: sorted(one.name.replace("_", "/") for one in zone.iterdir())
        for zone in zones.iterdir()
        if any(zone.iterdir())
    }


BOTH = ["10.1.0.2/32", "fd00:1::2/128"]


@pytest.mark.parametrize(("options", "zone"), [({}, "trusted"), ({"firewalldZone": "pods"}, "pods")])
def test_firewalld_gets_the_addresses_into_its_zone(
    host: Host, firewalld: Path, options: dict[str, Any], zone: str
) -> None:
    told = config(backend="firewalld", **options)
    result = attached(host)
    (firewalld / "public" / "10.1.0.2_32").touch()
    host.call("STATUS", told)
    host.add(told, "one", result=result)
    assert sources(firewalld) == {zone: BOTH}
    host.check(told, "one", result)
    (firewalld / zone / "10.1.0.2_32").unlink()
    with pytest.raises(CNIError, match=f"10.1.0.2 is not in firewalld's zone {zone}"):
        host.check(told, "one", result)
    assert firewall.mend(host.request("CHECK", told, "one", result=result), host.kernel)
    assert sources(firewalld) == {zone: BOTH}
    host.delete(told, "one")
    host.delete(told, "one")
    assert sources(firewalld) == {}


def test_firewalld_is_used_where_it_runs_and_no_backend_is_named(host: Host, firewalld: Path) -> None:
    result = attached(host)
    host.add(config(), "one", result=result)
    assert sources(firewalld) == {}
    run("nft", "add", "table", "inet", "firewalld")
    host.add(config(), "one", result=result)
    assert sources(firewalld) == {"trusted": BOTH}
    host.add(config(backend="iptables"), "one", result=result, container_id="new")
    host.delete(config(), "one")
    assert sources(firewalld) == {"trusted": BOTH}
    host.call("GC", {**config(), "cni.dev/valid-attachments": []})
    assert sources(firewalld) == {}


def test_G06_what_the_reference_plugin_put_into_a_zone_leaves_it(host: Host, firewalld: Path) -> None:
    """By the result alone, and not once a pod of ours has the address."""
    told = config(backend="firewalld")
    result = attached(host)
    for name in BOTH:
        (firewalld / "trusted" / name.replace("/", "_")).touch()
    host.add(told, "one", result=result, container_id="new")
    host.delete(told, "one", result=result)
    assert sources(firewalld) == {"trusted": BOTH}
    host.delete(told, "one", result=result, container_id="new")
    for name in BOTH:
        (firewalld / "trusted" / name.replace("/", "_")).touch()
    host.delete(told, "one", result=result)
    assert sources(firewalld) == {}


def test_firewalld_that_does_not_run_is_told_and_nothing_stays(host: Host, firewalld: Path) -> None:
    told = config(backend="firewalld")
    result = attached(host)
    (firewalld.parent / "running").unlink()
    with pytest.raises(CNIError, match=r"firewall-cmd --zone=trusted .*FirewallD is not running") as caught:
        host.add(told, "one", result=result)
    assert caught.value.code == 100
    assert elements("firewall4") == []
    with pytest.raises(CNIError, match='backend "firewalld"') as caught:
        host.call("STATUS", told)
    assert caught.value.code == 50
    host.delete(told, "one", result=result)


def test_a_zone_that_does_not_exist_is_told_and_nothing_stays(host: Host, firewalld: Path) -> None:
    told = config(backend="firewalld", firewalldZone="nosuch")
    with pytest.raises(CNIError, match="INVALID_ZONE: nosuch"):
        host.add(told, "one", result=attached(host))
    assert sources(firewalld) == {}
    assert elements("firewall4") == []


def test_without_firewall_cmd_it_says_so(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = attached(host)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CNIError, match="No such file or directory: 'firewall-cmd'"):
        host.add(config(backend="firewalld"), "one", result=result)


def test_our_rules_are_taken_from_iptables_again(host: Host, dropping: None) -> None:
    before = run("iptables", "-S")
    forwarding.ensure(host.kernel.nft, [4, 6], "CNI-ADMIN", float("inf"))
    assert forwarding.faults(host.kernel.nft, [4, 6], "CNI-ADMIN") == []
    forwarding.remove(host.kernel.nft)
    forwarding.remove(host.kernel.nft)
    assert run("iptables", "-S").replace("-N CNI-ADMIN\n", "") == before
