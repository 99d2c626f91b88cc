from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment, IOFailure, NotAvailable
from podwire.cni.plugin import Result
from podwire.plugins import tuning_sysctls
from tests.plugins.helpers import GO_PLUGINS, Host, execute, links, python_plugin, reaches, run, sysctl
from tests.plugins.undo import add_failing_at_each_step, delete_failing_at_each_step
from tests.plugins.wiring import wire

pytestmark = pytest.mark.kernel
MAC = "02:00:00:00:00:77"
EVERYTHING = {"mac": MAC, "mtu": 1400, "promisc": True, "allmulti": True, "txQLen": 500}
ARP_FILTER = "net/ipv4/conf/eth0/arp_filter"


def config(host: Host, **options: Any) -> dict[str, Any]:
    plain = {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "tuning",
        "dataDir": str(host.directory / "tuning"),
    }
    return {**plain, **options}


def files(host: Host) -> list[str]:
    home = host.directory / "tuning"
    return sorted(path.name for path in home.iterdir()) if home.is_dir() else []


def interface(pod: str = "one") -> tuple[Any, ...]:
    """What `tuning` may change of eth0, as ``ip`` tells it."""
    link = links(pod)["eth0"]
    flags = {"PROMISC", "ALLMULTI"} & set(link["flags"])
    return link["address"], link["mtu"], link["txqlen"], sorted(flags)


def everything(host: Host) -> tuple[Any, ...]:
    return interface(), sysctl(ARP_FILTER, "one"), files(host)


def test_add_check_and_del_put_it_there_and_back(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24", "fd00:1::5/64")
    before = everything(host)
    net = config(host, sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"}, **EVERYTHING)
    added = host.add(net, "one", result=result)
    assert interface() == (MAC, 1400, 500, ["ALLMULTI", "PROMISC"])
    assert sysctl(ARP_FILTER, "one") == "1"
    assert added.interfaces == (
        result.interfaces[0],
        msgspec.structs.replace(result.interfaces[1], mac=MAC, mtu=1400),
    )
    assert reaches("one", "10.1.0.1")
    assert reaches("one", "fd00:1::1")
    assert Path(host.directory, "tuning/id-one_eth0.json").stat().st_mode & 0o777 == 0o600
    host.check(net, "one", added)
    host.delete(net, "one", result=added)
    assert everything(host) == (before[0], "1", [])  # the sysctl ends with the namespace
    host.delete(net, "one")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (("link", "set", "eth0", "address", "02:00:00:00:00:01"), f"MAC of eth0 is 02:.*:01, not {MAC}"),
        (("link", "set", "eth0", "mtu", "1300"), "mtu of eth0 is 1300, not 1400"),
        (("link", "set", "eth0", "promisc", "off"), "promisc of eth0 is False"),
        (("link", "set", "eth0", "allmulticast", "off"), "allmulti of eth0 is False"),
        (("link", "set", "eth0", "txqueuelen", "7"), "txQLen of eth0 is 7, not 500"),
        (("link", "delete", "eth0"), "eth0 is missing|there is no net/ipv4/conf/eth0"),
    ],
)
def test_check_finds_every_value_that_differs(host: Host, spoil: tuple[str, ...], said: str) -> None:
    net = config(host, sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"}, **EVERYTHING)
    added = host.add(net, "one", result=wire(host, "one", "10.1.0.5/24"))
    host.check(net, "one", added)
    run("ip", "-n", "one", *spoil)
    with pytest.raises(CNIError, match=said):
        host.check(net, "one", added)


def test_check_finds_a_sysctl_and_tells_all_that_differs(host: Host) -> None:
    net = config(host, sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"}, mtu=1400)
    added = host.add(net, "one", result=wire(host, "one", "10.1.0.5/24"))
    run("ip", "netns", "exec", "one", "sysctl", "-qw", "net.ipv4.conf.eth0.arp_filter=0")
    run("ip", "-n", "one", "link", "set", "eth0", "mtu", "1500")
    with pytest.raises(CNIError, match=r'arp_filter is "0", not "1"; mtu of eth0 is 1500, not 1400'):
        host.check(net, "one", added)


def test_a_value_of_several_words_and_one_that_can_only_be_written(host: Host) -> None:
    sysctls = {"net.ipv4.ip_local_port_range": "20000 30000", "net.ipv4.route.flush": "1"}
    net = config(host, sysctl=sysctls)
    added = host.add(net, "one", result=wire(host, "one", "10.1.0.5/24"))
    assert sysctl("net/ipv4/ip_local_port_range", "one").split() == ["20000", "30000"]
    host.check(net, "one", added)
    assert sysctl("net/ipv4/ip_local_port_range").split() != ["20000", "30000"]


def test_f20_sysctls_of_an_interface_with_a_dot(host: Host) -> None:
    """F20: the sysctls of a VLAN link, in each spelling."""
    result = wire(host, "one", "10.1.0.5/24", ifname="eth0.100")
    for value, key in (
        ("1", "net/ipv4/conf/eth0.100/arp_filter"),
        ("0", "net.ipv4.conf.IFNAME.arp_filter"),
        ("1", "net.ipv4.conf.eth0.100.arp_filter"),
        ("0", "net/ipv4/conf/IFNAME/arp_filter"),
    ):
        net = config(host, sysctl={key: value})
        host.add(net, "one", ifname="eth0.100", result=result)
        assert sysctl("net/ipv4/conf/eth0.100/arp_filter", "one") == value
        host.check(net, "one", result, ifname="eth0.100")


@pytest.mark.parametrize(
    "key", ["kernel.hostname", "net/../kernel/hostname", "net.ipv4/../../kernel/hostname", "net/ipv4/nosuch"]
)
def test_nothing_outside_of_the_pods_network_is_ever_written(host: Host, key: str) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    hostname, before = sysctl("kernel/hostname"), everything(host)
    net = config(host, sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1", key: "changed"}, mtu=1400)
    with pytest.raises(InvalidConfig, match=r"sysctl "):
        host.add(net, "one", result=result)
    assert (sysctl("kernel/hostname"), everything(host)) == (hostname, before)


def test_the_hosts_own_value_stays(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = sysctl("net/ipv4/conf/all/log_martians")
    host.add(config(host, sysctl={"net.ipv4.conf.all.log_martians": "1"}), "one", result=result)
    assert sysctl("net/ipv4/conf/all/log_martians", "one") == "1"
    assert sysctl("net/ipv4/conf/all/log_martians") == before == "0"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, after: bool) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything(host)
    net = config(host, sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"}, **EVERYTHING)
    tried = add_failing_at_each_step(host, net, lambda: everything(host), after=after, result=result)
    assert set(tried.told) >= {
        "Netns.run",
        "NetlinkSocket.send",
        "NetlinkSocket.request",
        "Store.write",
        "podwire.kernel.net_parameters.write",
    }
    host.delete(net, "one")
    assert interface() == before[0]


def test_a_real_refusal_in_the_middle_leaves_nothing(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything(host)
    for refused in ({"mtu": 10}, {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "x"}}):
        net = config(host, **{"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, **EVERYTHING, **refused})
        with pytest.raises(CNIError, match=r"EINVAL"):
            host.add(net, "one", result=result)
        assert everything(host) == before


def test_a_del_that_failed_is_completed_by_the_next(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything(host)
    net = config(host, **EVERYTHING)
    tried = delete_failing_at_each_step(host, net, lambda: everything(host), after=False, result=result)
    assert len(tried.told) > 5
    assert everything(host) == before


def test_two_of_a_list_keep_what_was_before_both(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything(host)
    first, second = config(host, mtu=1400, mac=MAC), config(host, mtu=1300, txQLen=7)
    host.add(second, "one", result=host.add(first, "one", result=result))
    assert interface()[:3] == (MAC, 1300, 7)
    with pytest.raises(CNIError, match="EINVAL"):
        host.add(config(host, mtu=10, promisc=True), "one", result=result)
    assert interface()[:3] == (MAC, 1300, 7)
    host.delete(second, "one")
    host.delete(first, "one")
    assert everything(host) == before


def test_whose_word_counts(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    supplied = {"runtimeConfig": {"mac": "02-00-00-00-00-72"}}
    asked = {"args": {"cni": {"mac": "0200.0000.0073", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}}}
    for mac, args, more in (
        ("02:00:00:00:00:70", "", {}),
        ("02:00:00:00:00:71", "MAC=02:00:00:00:00:71", {}),
        ("02:00:00:00:00:72", "MAC=02:00:00:00:00:71", supplied),
        ("02:00:00:00:00:73", "MAC=02:00:00:00:00:71", {**supplied, **asked}),
    ):
        host.add(config(host, mac="02:00:00:00:00:70", **more), "one", args=args, result=result)
        assert interface()[0] == mac
    assert sysctl(ARP_FILTER, "one") == "1"


@pytest.mark.parametrize(
    ("options", "args", "error", "said"),
    [
        ({"mac": "02:00:00:00:00"}, "", InvalidConfig, 'mac "02:00:00:00:00": is not a MAC'),
        ({"mac": "01:00:00:00:00:01"}, "", InvalidConfig, "is not the MAC of a station"),
        ({}, "MAC=x", InvalidEnvironment, 'CNI_ARGS MAC "x"'),
        ({}, "COLOUR=red", InvalidEnvironment, "COLOUR"),
        ({"runtimeConfig": {"mac": "x"}}, "", InvalidConfig, r'runtimeConfig\.mac "x"'),
        ({"args": {"cni": {"mac": "x"}}}, "", InvalidConfig, r'args\.cni\.mac "x"'),
        ({"mtu": -1}, "", InvalidConfig, "mtu -1"),
        ({"mtu": "1400"}, "", InvalidConfig, "mtu: Expected"),
        ({"txQLen": -5}, "", InvalidConfig, "txQLen -5"),
        ({"promisc": 1}, "", InvalidConfig, "promisc: Expected"),
        ({"sysctl": {"net.ipv4.ip_forward": 1}}, "", InvalidConfig, "sysctl"),
    ],
)
def test_what_cannot_be_is_named_before_anything_is_changed(
    host: Host, options: dict[str, Any], args: str, error: type[CNIError], said: str
) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything(host)
    with pytest.raises(error, match=said):
        host.add(config(host, **options), "one", args=args, result=result)
    assert everything(host) == before
    host.delete(config(host, **options), "one", args=args, result=result)


def test_del_does_without_a_namespace_and_gc_without_a_del(host: Host) -> None:
    net = config(host, mtu=1400)
    for number, name in enumerate(("one", "two", "three", "four"), 1):
        host.add(net, name, result=wire(host, name, f"10.{number}.0.5/24", number=number))
    other = wire(host, "five", "10.5.0.5/24", number=5)
    host.add(config(host, mtu=1400, name="other"), "five", result=other)
    (host.directory / "tuning/theirs_eth0.json").write_text('{\n "mtu": 1500\n}')
    host.delete(net, "one", netns="")
    host.delete(net, "two", netns="/run/netns/none", result=None)
    assert files(host) == [f"{name}_eth0.json" for name in ("id-five", "id-four", "id-three", "theirs")]
    valid = [{"containerID": "id-four", "ifname": "eth0"}]
    host.call("GC", {**net, "cni.dev/valid-attachments": valid})
    assert files(host) == [f"{name}_eth0.json" for name in ("id-five", "id-four", "theirs")]
    host.call("GC", net)
    host.call("GC", {**net, "cni.dev/valid-attachments": []})
    assert files(host) == ["id-five_eth0.json", "theirs_eth0.json"]


def test_another_pods_interface_is_never_changed_by_an_old_file(host: Host) -> None:
    """A path of a namespace may be another one's by the time of a late DEL."""
    net = config(host, mtu=1400)
    host.add(net, "one", result=wire(host, "one", "10.1.0.5/24"))
    wire(host, "two", "10.2.0.5/24", number=2)
    run("ip", "-n", "two", "link", "set", "eth0", "mtu", "1450")
    before = interface("two")
    host.delete(net, "one", netns="/run/netns/two")
    assert interface("two") == before
    assert files(host) == []


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"mtu": "x"}', "\udcff"])
def test_a_file_that_was_never_finished_stops_nothing(host: Host, broken: str) -> None:
    net = config(host, mtu=1400)
    host.add(net, "one", result=wire(host, "one", "10.1.0.5/24"))
    (host.directory / "tuning/id-one_eth0.json").write_text(broken, errors="surrogateescape")
    host.delete(net, "one")
    assert files(host) == []


def test_a_value_that_the_interface_cannot_have_any_more_stops_nothing(host: Host) -> None:
    net = config(host, mtu=1400, txQLen=7)
    host.add(net, "one", result=wire(host, "one", "10.1.0.5/24"))
    path = host.directory / "tuning/id-one_eth0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mtu": 10}))
    done = execute_ours("DEL", net)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"mtu of eth0 is not put back" in done.stderr
    assert interface()[1:3] == (1400, 1000)
    assert files(host) == []


def execute_ours(command: str, net: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
    variables = {"CNI_COMMAND": command, "CNI_CONTAINERID": "id-one", "CNI_IFNAME": "eth0"}
    return subprocess.run(
        python_plugin("tuning"),
        input=json.dumps(net).encode(),
        env={"PATH": "/usr/bin", "CNI_NETNS": "/run/netns/one", "PYTHONPATH": "src", **variables},
        capture_output=True,
        check=False,
    )


def go(host: Host, command: str, net: dict[str, Any], result: Result) -> None:
    old = {**net, "cniVersion": "1.0.0"}
    old["prevResult"] = {"cniVersion": "1.0.0", **msgspec.to_builtins(result)}
    done = execute(
        GO_PLUGINS / "tuning", command, old, container_id="id-one", netns="/run/netns/one", ifname="eth0"
    )
    assert done.returncode == 0, done.stdout


def test_either_plugin_puts_back_what_the_other_changed(host: Host) -> None:
    result = wire(host, "one", "10.1.0.5/24")
    before = everything(host)
    net = config(host, mac=MAC, mtu=1400, promisc=True, allmulti=True)
    changed = host.add(net, "one", result=result)
    go(host, "CHECK", net, changed)
    go(host, "DEL", net, changed)
    assert everything(host) == before
    go(host, "ADD", net, result)
    host.check(net, "one", changed)
    host.delete(net, "one", result=changed)
    assert everything(host) == before


def test_status_tells_what_makes_an_add_impossible(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = config(host, mtu=1400, sysctl={"net.ipv4.ip_forward": "1"})
    host.call("STATUS", net)
    (tmp_path / "file").write_text("")
    blocked = {**net, "dataDir": str(tmp_path / "file/tuning")}
    with pytest.raises(NotAvailable, match="cannot be made in"):
        host.call("STATUS", blocked)
    result = wire(host, "one", "10.1.0.5/24")
    run("ip", "netns", "exec", "one", "sysctl", "-qw", "net.ipv4.ip_forward=0")
    with pytest.raises(IOFailure, match="Not a directory"):
        host.add(blocked, "one", result=result)
    assert sysctl("net/ipv4/ip_forward", "one") == "0"
    with pytest.raises(InvalidConfig, match="not below net"):
        host.call("STATUS", config(host, sysctl={"kernel.hostname": "x"}))
    (tmp_path / "allowlist.conf").write_text("^net.core")
    monkeypatch.setattr(tuning_sysctls, "ALLOWLIST", str(tmp_path / "allowlist.conf"))
    with pytest.raises(NotAvailable, match="is not allowed"):
        host.call("STATUS", net)
    with pytest.raises(InvalidConfig, match="is not allowed"):
        host.add(net, "one", result=result)


@pytest.mark.parametrize("gateway", ["10.1.0.1", "fd00:1::1"])
def test_a_reused_address_with_another_mac_is_reached_at_once(host: Host, gateway: str) -> None:
    """What the host remembers of an address's earlier holder does not hide the new one."""
    bridge = host.config("10.1.0.0/24", "fd00:1::/64", isGateway=True)
    address = "10.1.0.9" if "." in gateway else "fd00:1::9"
    ask = f"IP={address}"
    for number in (1, 2, 3):
        pod = host.pod(f"pod{number}")
        net = config(host, mac=f"02:00:00:00:00:7{number}")
        result = host.add(net, pod, result=host.add(bridge, pod, args=ask))
        # An old neighbour entry would be believed for 8 s.
        assert any(reaches("", address) for _ in range(3)), f"the host does not reach pod {number}"
        host.delete(net, pod, result=result)
        host.delete(bridge, pod, result=result)
