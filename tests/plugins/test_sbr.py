from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, TryLater
from podwire.plugins import sbr
from tests.plugins.helpers import GO_PLUGINS, Host, execute, reaches, run
from tests.plugins.undo import add_failing_at_each_step, delete_failing_at_each_step
from tests.plugins.wiring import wire

pytestmark = pytest.mark.kernel
OWN_RULES = {0, 32766, 32767}


def config(**options: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "sbr", **options}


def rules(pod: str = "one") -> list[tuple[str, str]]:
    """The (source, table) of the rules that a namespace does not have by itself."""
    found = []
    for family in ("-4", "-6"):
        for rule in json.loads(run("ip", "-n", pod, family, "-j", "rule", "show") or "[]"):
            if rule["priority"] not in OWN_RULES:
                found.append((rule["src"], rule["table"]))
    return sorted(found)


def routes(table: str, pod: str = "one", family: str = "-4") -> set[tuple[str, str, str]]:
    """(destination, gateway, interface) of a table's routes."""
    text = run("ip", "-n", pod, family, "-j", "route", "show", "table", table, check=False)
    listed = json.loads(text) if text.strip().endswith("]") else []  # a table that was never used has no list
    return {(one["dst"], one.get("gateway", ""), one["dev"]) for one in listed if one}


def everything(pod: str = "one") -> list[str]:
    script = "ip rule; ip -6 rule; ip -d route show table all; ip -d -6 route show table all"
    return run("ip", "netns", "exec", pod, "sh", "-c", script).splitlines()


def leaves_by(source: str, destination: str, pod: str = "one") -> str:
    """The interface that a packet leaves by, as the kernel decides."""
    found = json.loads(run("ip", "-n", pod, "-j", "route", "get", destination, "from", source))
    return str(found[0]["dev"])


def test_what_leaves_from_an_address_leaves_by_its_interface(host: Host) -> None:
    wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    result = wire(host, "one", "10.2.0.5/24", "fd00:2::5/64", ifname="net1", number=2)
    before = everything()
    assert leaves_by("10.2.0.5", "192.0.2.1") == "eth0"
    added = host.add(config(), "one", ifname="net1", result=result)
    assert added == result
    assert rules() == [("10.2.0.5", "100"), ("fd00:2::5", "101")]
    assert routes("100") == {("default", "10.2.0.1", "net1"), ("10.2.0.0/24", "", "net1")}
    assert routes("101", family="-6") == {("default", "fd00:2::1", "net1"), ("fd00:2::/64", "", "net1")}
    assert all(device == "eth0" for _, _, device in routes("main"))
    for source, other, far in (
        ("10.2.0.5", "10.1.0.5", "192.0.2.1"),
        ("fd00:2::5", "fd00:1::5", "2001:db8::1"),
    ):
        assert leaves_by(source, far) == "net1"
        assert leaves_by(other, far) == "eth0"
    assert reaches("one", "10.1.0.1")
    run("ip", "netns", "exec", "one", "busybox", "ping", "-c1", "-W1", "-I", "10.2.0.5", "10.2.0.1")
    run("ip", "netns", "exec", "one", "busybox", "ping", "-c1", "-W1", "-I", "fd00:2::5", "fd00:2::1")
    host.check(config(), "one", result, ifname="net1")
    host.delete(config(), "one", ifname="net1", result=result)
    assert everything() == before
    host.delete(config(), "one", ifname="net1", result=result)


def test_several_interfaces_and_addresses_of_one_subnet_have_tables_of_their_own(host: Host) -> None:
    first = wire(host, "one", "10.1.0.5/24")
    second = wire(host, "one", "10.1.0.6/24", "10.2.0.6/24", ifname="net1", number=2)
    before = everything()
    run("ip", "-n", "one", "rule", "add", "from", "203.0.113.1", "table", "100")
    run("ip", "-n", "one", "route", "add", "blackhole", "203.0.113.0/24", "table", "102")
    host.add(config(), "one", ifname="net1", result=second)
    host.add(config(name="first"), "one", result=first)
    assert rules() == [
        ("10.1.0.5", "104"),
        ("10.1.0.6", "101"),
        ("10.2.0.6", "103"),
        ("203.0.113.1", "100"),
    ]
    assert {leaves_by(source, "192.0.2.1") for source in ("10.1.0.6", "10.2.0.6")} == {"net1"}
    assert leaves_by("10.1.0.5", "192.0.2.1") == "eth0"
    host.check(config(name="first"), "one", first)
    host.delete(config(), "one", ifname="net1", result=second)
    assert rules() == [("10.1.0.5", "104"), ("203.0.113.1", "100")]
    host.check(config(name="first"), "one", first)
    host.delete(config(name="first"), "one", result=first)
    run("ip", "-n", "one", "rule", "delete", "from", "203.0.113.1", "table", "100")
    run("ip", "-n", "one", "route", "delete", "blackhole", "203.0.113.0/24", "table", "102")
    assert sorted(everything()) == sorted(before)


def test_routes_beside_the_default_one_move_too(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    for route in ("192.0.2.0/24 via 10.1.0.9", "198.51.100.0/24 via 203.0.113.9 onlink", "203.0.113.0/24"):
        run("ip", "-n", "one", "route", "add", *route.split(), "dev", "eth0", "metric", "9", "mtu", "1300")
    before = everything()
    host.add(config(), "one", result=result)
    assert routes("main") == set()
    assert {destination for destination, _, _ in routes("100")} == {
        "default",
        "10.1.0.0/24",
        "192.0.2.0/24",
        "198.51.100.0/24",
        "203.0.113.0/24",
    }
    host.delete(config(), "one")
    assert sorted(everything()) == sorted(before)


def test_a_default_route_that_was_not_there_goes_again(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    run("ip", "-n", "one", "route", "delete", "default")
    before = everything()
    host.add(config(), "one", result=result)
    assert ("default", "10.1.0.1", "eth0") in routes("100")
    host.delete(config(), "one")
    assert everything() == before


def test_a_gateway_outside_of_the_subnet_and_a_single_address(host: Host) -> None:
    """As ptp leaves it, or a routed pod: a /32, whose gateway is reached by the link alone."""
    result = wire(host, "one", "10.1.0.5/24")
    run("ip", "-n", "one", "address", "flush", "dev", "eth0")
    run("ip", "-n", "one", "address", "add", "10.1.0.5/32", "dev", "eth0")
    run("ip", "-n", "one", "route", "add", "169.254.1.1", "dev", "eth0")
    run("ip", "-n", "one", "route", "add", "default", "via", "169.254.1.1", "dev", "eth0")
    ips = (msgspec.structs.replace(result.ips[0], address="10.1.0.5/32", gateway="169.254.1.1"),)
    result = msgspec.structs.replace(result, ips=ips, routes=())
    before = everything()
    host.add(config(), "one", result=result)
    assert routes("100") == {("default", "169.254.1.1", "eth0"), ("169.254.1.1", "", "eth0")}
    host.check(config(), "one", result)
    host.delete(config(), "one")
    assert everything() == before


def test_a_table_of_somebody_else_gets_rules_only(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    before = everything()
    net = config(table=300)
    host.add(net, "one", result=result)
    assert rules() == [("10.1.0.5", "300"), ("fd00:1::5", "300")]
    assert routes("300") == set()
    host.check(net, "one", result)
    run("ip", "-n", "one", "rule", "delete", "from", "10.1.0.5")
    with pytest.raises(CNIError, match=r"rule from 10\.1\.0\.5 to table 300 is missing"):
        host.check(net, "one", result)
    host.delete(config(), "one")  # whatever the configuration says now
    assert everything() == before


def test_gateways_and_source_hints(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    run("ip", "-n", "one", "route", "delete", "default")
    before = everything()
    net = config(gateways=["10.1.0.7", "fd00:1::7"], addSourceHints=True)
    host.add(net, "one", result=result)
    assert ("default", "10.1.0.7", "eth0") in routes("100")
    assert routes("main") == {("10.1.0.0/24", "", "eth0")}
    kept = run("ip", "-n", "one", "route", "show", "table", "main")
    assert "src 10.1.0.5" in kept
    host.delete(net, "one")
    assert sorted(everything()) == sorted(before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": 0}, "table 0: is not between"),
        ({"table": "x"}, "table: Expected"),
        ({"gateways": ["x"]}, r'gateways\[0\] "x": is not an IP'),
        ({"gateways": ["10.1.0.1", "10.1.0.2"]}, r"gateways\[1\]"),
    ],
)
def test_what_cannot_be_is_named(host: Host, options: dict[str, Any], said: str) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything()
    for command in ("ADD", "STATUS"):
        with pytest.raises(InvalidConfig, match=said):
            host.call(command, config(**options), "one", result=result)
    host.delete(config(**options), "one")
    assert everything() == before


def test_no_address_and_no_interface(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    with pytest.raises(InvalidConfig, match="eth0 has no address"):
        host.add(config(), "one", result=msgspec.structs.replace(result, ips=()))
    with pytest.raises(CNIError, match="net1 is missing"):
        renamed = msgspec.structs.replace(result.interfaces[1], name="net1")
        moved = msgspec.structs.replace(result, interfaces=(result.interfaces[0], renamed))
        host.add(config(), "one", ifname="net1", result=moved)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("rule delete from 10.1.0.5", r"rule from 10\.1\.0\.5 is missing"),
        ("-6 rule delete from fd00:1::5", "rule from fd00:1::5 is missing"),
        ("route delete default table 100", r"has no route to 0\.0\.0\.0/0 by 10\.1\.0\.1"),
        ("route delete 10.1.0.0/24 table 100", r"has no route to 10\.1\.0\.0/24"),
        ("route delete 192.0.2.0/24 table 100", r"has no route to 192\.0\.2\.0/24 by 10\.1\.0\.9"),
        ("-6 route flush table 101", "has no route to fd00:1::/64; .* no route to ::/0 by fd00:1::1"),
        ("link delete eth0", "interface eth0 is missing"),
    ],
)
def test_check_finds_every_rule_and_route_that_is_missing(host: Host, spoil: str, said: str) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    run("ip", "-n", "one", "route", "add", "192.0.2.0/24", "via", "10.1.0.9")
    more = msgspec.convert({"dst": "192.0.2.0/24", "gw": "10.1.0.9"}, type(result.routes[0]))
    result = msgspec.structs.replace(result, routes=(*result.routes, more))
    host.add(config(), "one", result=result)
    host.check(config(), "one", result)
    run("ip", "-n", "one", *spoil.split())
    with pytest.raises(CNIError, match=said):
        host.check(config(), "one", result)


@pytest.mark.parametrize("table", [None, 300])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, after: bool, table: int | None) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    tried = add_failing_at_each_step(
        host, config(table=table), lambda: sorted(everything()), after=after, result=result
    )
    assert {"NetlinkSocket.open", "NetlinkSocket.send", "NetlinkSocket.dump"} <= set(tried.told)


def test_a_refusal_in_the_middle_leaves_nothing(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    run("ip", "-n", "one", "route", "delete", "default")
    before = everything()
    with pytest.raises(CNIError, match=r"add route 0\.0\.0\.0/0 table 100"):
        host.add(config(gateways=["224.0.0.1"]), "one", result=result)
    assert sorted(everything()) == sorted(before)


def test_a_second_add_is_refused_and_changes_nothing(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    host.add(config(), "one", result=result)
    before = everything()
    with pytest.raises(AlreadyAttached, match="has a rule already"):
        host.add(config(), "one", result=result)
    assert everything() == before
    host.delete(config(), "one")
    host.add(config(), "one", result=result)


def test_del_without_namespace_interface_or_result(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    host.add(config(), "one", result=result)
    for path in ("", "/run/netns/none", "/etc/hostname"):
        host.delete(config(), "one", netns=path)
    assert rules() == [("10.1.0.5", "100")]
    run("ip", "-n", "one", "link", "delete", "eth0")
    host.delete(config(), "one", result=result)
    assert rules() == []
    host.delete(config(), "one")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_del_that_failed_is_completed_by_the_next(host: Host, after: bool) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    before = sorted(everything())
    tried = delete_failing_at_each_step(
        host, config(), lambda: sorted(everything()), after=after, result=result
    )
    assert len(tried.told) > 5
    assert sorted(everything()) == before


def test_rules_of_others_stay(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    for rule in ("from 10.1.0.0/24 table 77", "from 10.1.0.5 table 78 protocol static", "fwmark 5 table 79"):
        run("ip", "-n", "one", "rule", "add", *rule.split())
    before = everything()
    host.add(config(), "one", result=result)
    host.delete(config(), "one", result=result)
    assert everything() == before


def test_the_reference_plugins_lock_is_taken(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbr, "LOCK_SECONDS", 0.05)
    result = wire(host, "one", "10.1.0.5/24")
    with Path("/run/netns/one").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(TryLater, match="locked by another operation"):
            host.add(config(), "one", result=result)
        assert time.monotonic() - began < 2
    host.add(config(), "one", result=result)


def test_either_plugin_removes_what_the_other_made(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    before = everything()

    def go(command: str) -> None:
        old = {**config(), "cniVersion": "1.0.0"}
        old["prevResult"] = {"cniVersion": "1.0.0", **msgspec.to_builtins(result)}
        call = {"container_id": "id-one", "netns": "/run/netns/one", "ifname": "eth0"}
        done = execute(GO_PLUGINS / "sbr", command, old, **call)
        assert done.returncode == 0, done.stdout

    go("ADD")
    host.check(config(), "one", result)
    host.delete(config(), "one", result=result)
    assert [line.split("proto")[0] for line in sorted(everything())] == [
        line.split("proto")[0] for line in sorted(before)
    ]
    host.add(config(), "one", result=result)
    go("DEL")
    assert rules() == []


def test_a_bridges_check_tolerates_it(host: Host) -> None:
    """CHECK of the plugin before it: the routes are in another table now, by the work of a later plugin."""
    net = host.config("10.1.0.0/24", "fd00:1::/64", isDefaultGateway=True)
    result = host.add(net, host.pod("one"))
    host.add(config(), "one", result=result)
    host.check(net, "one", result)
    run("ip", "netns", "exec", "one", "busybox", "ping", "-c1", "-W1", "-I", "10.1.0.2", "10.1.0.1")
    run("ip", "-n", "one", "route", "delete", "default", "table", "100")
    with pytest.raises(CNIError, match=r"the route to 0\.0\.0\.0/0"):
        host.check(net, "one", result)
