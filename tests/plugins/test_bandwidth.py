"""bandwidth, chained after bridge: what it makes, finds missing, takes away, and what traffic feels of it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from podwire.cni.errors import AlreadyAttached, CNIError
from podwire.cni.plugin import Interface, Result
from podwire.kernel import links as kernel_links
from podwire.kernel import netns
from podwire.plugins import shaping
from podwire.plugins.attachment import Identity
from tests.plugins.faults import Faults
from tests.plugins.helpers import Host, links, run
from tests.plugins.undo import add_failing_at_each_step, delete_failing_at_each_step

pytestmark = pytest.mark.kernel

RATES = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000}


def config(**options: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "bandwidth", **options}


def attached(host: Host, pod: str = "one", *subnets: str) -> Result:
    """A pod's bridge attachment, the result that bandwidth gets."""
    subnets = subnets or ("10.1.0.0/24",)
    return host.add(host.config(*subnets, isGateway=True), host.pod(pod))


def tc(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("tc", "-j", *arguments) or "[]")
    return found


def ifbs() -> list[str]:
    return [name for name, link in links().items() if link.get("linkinfo", {}).get("info_kind") == "ifb"]


def host_end(pod: str = "one", ifname: str = "eth0") -> str:
    return Identity("net", f"id-{pod}", ifname).host_end


def everything() -> str:
    return run(
        "sh",
        "-c",
        "ip -br link | sort; tc qdisc; for d in $(ls /sys/class/net); do tc filter show dev $d ingress; done",
    )


@pytest.mark.parametrize(("family", "server"), [(4, "10.1.0.1"), (6, "fd00:1::1")])
def test_traffic_is_limited_both_ways(host: Host, family: int, server: str) -> None:
    result = attached(host, "one", "10.1.0.0/24", "fd00:1::/64")
    with netns.open("/run/netns/one") as pod:
        free = transfer(pod, server, receive=True), transfer(pod, server, receive=False)
        result = host.add(config(**RATES), "one", result=result)
        limited = transfer(pod, server, receive=True), transfer(pod, server, receive=False)
        host.delete(config(**RATES), "one", result=result)
        again = transfer(pod, server, receive=True), transfer(pod, server, receive=False)
    # 400 kB less a burst of 100 kB, at 1 and 2 MB a second; what is not limited takes a few milliseconds.
    assert 0.2 < limited[0] < 1.5
    assert 0.1 < limited[1] < 1.0
    assert max(*free, *again) < 0.1


def transfer(pod: netns.Netns, server: str, *, receive: bool, size: int = 400_000) -> float:
    """How many seconds ``size`` bytes take between the host and the pod by TCP."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family) as listener, pod.run(lambda: socket.socket(family)) as client:
        listener.bind((server, 0))
        listener.listen()
        client.settimeout(5)
        client.connect((server, listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            source, sink = (accepted, client) if receive else (client, accepted)
            sender = threading.Thread(target=source.sendall, args=(bytes(size),))
            start = time.monotonic()
            sender.start()
            got = 0
            while got < size:
                got += len(sink.recv(65536))
            taken = time.monotonic() - start
            sender.join()
    return taken


@pytest.mark.parametrize(
    ("options", "receive", "send"),
    [
        ({"shapedSubnets": ["10.1.0.1/32"]}, False, True),
        ({"unshapedSubnets": ["10.1.0.1/32", "fd00::/8"]}, True, False),
        ({"shapedSubnets": ["10.1.0.0/24"]}, True, True),
        ({"unshapedSubnets": ["0.0.0.0/0"]}, False, False),
    ],
)
def test_subnets_decide_by_destination(
    host: Host, options: dict[str, Any], receive: bool, send: bool
) -> None:
    result = attached(host)
    result = host.add(config(**RATES, **options), "one", result=result)
    host.check(config(**RATES, **options), "one", result)
    with netns.open("/run/netns/one") as pod:
        assert (transfer(pod, "10.1.0.1", receive=True) > 0.15) == receive
        assert (transfer(pod, "10.1.0.1", receive=False) > 0.08) == send


def test_what_is_made_for_subnets_is_what_the_reference_makes(host: Host) -> None:
    """The parameters of version 1.9: two classes of an htb, a filter for each subnet."""
    options = {
        "ingressRate": 8_000_000,
        "ingressBurst": 800_000,
        "unshapedSubnets": ["10.2.0.0/16", "fd00:2::/40"],
    }
    host.add(config(**options), "one", result=attached(host))
    [qdisc] = tc("qdisc", "show", "dev", host_end())
    assert (qdisc["kind"], qdisc["handle"], qdisc["options"]["default"]) == ("htb", "1:", "0x30")
    classes = run("tc", "class", "show", "dev", host_end())
    assert "class htb 1:30 root prio 0 rate 8Mbit ceil 16Mbit burst 100000b cburst 200000b" in classes
    assert "class htb 1:1 root prio 0 rate 800Gbit ceil 800Gbit burst 0b cburst 0b" in classes
    filters = [one for one in tc("filter", "show", "dev", host_end()) if "match" in one.get("options", {})]
    assert [(one["protocol"], one["pref"], one["options"]["flowid"]) for one in filters] == [
        ("ipv6", 15, "1:1"),
        ("ip", 16, "1:1"),
    ]


def test_the_ifb_is_ours_and_in_the_result(host: Host) -> None:
    before = attached(host)
    result = host.add(config(**RATES), "one", result=before)
    [name] = ifbs()
    ifb = links()[name]
    assert len(name) == 15
    assert ifb["ifalias"] == "podwire net id-one eth0"
    assert "UP" in ifb["flags"]
    assert ifb["mtu"] == links()[host_end()]["mtu"]
    assert result.interfaces == (*before.interfaces, Interface(name, ifb["address"]))
    assert msgspec.structs.replace(result, interfaces=before.interfaces) == before


DAMAGE: dict[str, tuple[Callable[[str, str], list[str]], str]] = {
    "host-bucket": (lambda end, _: ["tc", "qdisc", "del", "dev", end, "root"], "has no tbf"),
    "host-rate": (
        lambda end, _: (
            f"tc qdisc replace dev {end} root handle 1: tbf rate 9mbit burst 90k limit 90k".split()
        ),
        "the tbf of veth",
    ),
    "ingress": (lambda end, _: ["tc", "qdisc", "del", "dev", end, "ingress"], "no ingress discipline"),
    "filter": (lambda end, _: ["tc", "filter", "del", "dev", end, "ingress"], "no filter"),
    "ifb": (lambda _, ifb: ["ip", "link", "del", ifb], "the ifb bwp.* is missing"),
    "ifb-down": (lambda _, ifb: ["ip", "link", "set", ifb, "down"], "the ifb bwp.* is down"),
    "ifb-bucket": (lambda _, ifb: ["tc", "qdisc", "del", "dev", ifb, "root"], "bwp.* has no tbf"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_finds_damage_and_mend_repairs_it(host: Host, damage: str) -> None:
    from podwire.plugins import bandwidth

    result = host.add(config(**RATES), "one", result=attached(host))
    host.check(config(**RATES), "one", result)
    whole = [{**one, "handle": ""} for one in tc("qdisc", "show")]
    command, told = DAMAGE[damage]
    run(*command(host_end(), ifbs()[0]))
    with pytest.raises(CNIError, match=told) as caught:
        host.check(config(**RATES), "one", result)
    assert caught.value.code == 100
    request = host.request("CHECK", config(**RATES), "one", result=result)
    assert bandwidth.mend(request, host.kernel)
    host.check(config(**RATES), "one", result)
    assert [{**one, "handle": ""} for one in tc("qdisc", "show")] == whole
    assert bandwidth.mend(request, host.kernel) == []


HTB_DAMAGE = {
    "tc qdisc del dev {} root": "has no htb",
    "tc class change dev {} classid 1:30 htb rate 9mbit": "the class 1:30",
    "tc class change dev {} classid 1:1 htb rate 9mbit": "the class 1:1",
    "tc filter del dev {} parent 1: prio 16": "no filter for 10.2.0.0/16",
    "tc qdisc change dev {} root handle 1: htb default 7": "default class",
}


@pytest.mark.parametrize("command", HTB_DAMAGE)
def test_check_finds_damage_of_classes_and_their_filters(host: Host, command: str) -> None:
    options = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "unshapedSubnets": ["10.2.0.0/16"]}
    result = host.add(config(**options), "one", result=attached(host))
    host.check(config(**options), "one", result)
    try:
        run(*command.format(host_end()).split())
    except AssertionError:  # a kernel that cannot change it in place: made anew
        run("tc", "qdisc", "del", "dev", host_end(), "root")
        run("tc", "qdisc", "add", "dev", host_end(), "root", "handle", "1:", "htb", "default", "7")
    with pytest.raises(CNIError, match=HTB_DAMAGE[command]):
        host.check(config(**options), "one", result)


@pytest.mark.parametrize("how", ["plain", "no-netns", "no-result", "neither", "renamed", "other-config"])
def test_del_takes_all_of_it(host: Host, how: str) -> None:
    before = attached(host)
    clean = everything()
    result = host.add(config(**RATES), "one", result=before)
    options: dict[str, Any] = {"result": result}
    told = config(**RATES)
    if how in {"no-netns", "neither"}:
        options["netns"] = ""
    if how in {"no-result", "neither", "renamed"}:
        del options["result"]
    if how == "renamed":
        told = {**told, "name": "renamed"}
    if how == "other-config":
        told = config(ingressRate="broken")
    for _ in range(2):
        host.delete(told, "one", **options)
        assert everything() == clean


def test_del_finds_a_foreign_host_end_by_the_namespace(host: Host) -> None:
    """Without a result: the pair was made by another plugin, under a name of its own."""
    host.pod("one")
    run("ip", "link", "add", "theirs", "type", "veth", "peer", "name", "eth0", "netns", "one")
    run("ip", "link", "set", "theirs", "up")
    clean = everything()
    result = Result((Interface("theirs"), Interface("eth0", sandbox="/run/netns/one")))
    host.add(config(**RATES), "one", result=result)
    host.delete(config(**RATES), "one")
    assert everything() == clean


@pytest.mark.parametrize("first", ["eth0", "eth1"])
def test_interfaces_of_a_container_have_limits_of_their_own(host: Host, first: str) -> None:
    net = host.config("10.1.0.0/24")
    host.pod("one")
    results = {}
    for ifname in ("eth0", "eth1"):
        before = host.add(net, "one", ifname=ifname)
        results[ifname] = host.add(config(**RATES), "one", ifname=ifname, result=before)
    assert len(ifbs()) == 2
    other = {"eth0": "eth1", "eth1": "eth0"}[first]
    host.delete(config(**RATES), "one", ifname=first, result=results[first])
    host.check(config(**RATES), "one", results[other], ifname=other)
    assert len(ifbs()) == 1
    host.delete(config(**RATES), "one", ifname=other, netns="")
    assert ifbs() == []


def test_F09_a_name_that_is_taken_is_not_shared(host: Host) -> None:
    """On EEXIST the owner decides: another's device stays, and this attachment gets one of its own."""
    first, second = shaping.names(Identity("net", "id-one", "eth0"))
    run("ip", "link", "add", first, "type", "ifb")
    run("ip", "link", "set", first, "alias", "podwire other id-other eth0")
    result = host.add(config(**RATES), "one", result=attached(host))
    assert result.interfaces[-1].name == second
    host.check(config(**RATES), "one", result)
    host.delete(config(**RATES), "one", result=result)
    assert ifbs() == [first]


def test_F09_both_names_taken_is_told(host: Host) -> None:
    for name in shaping.names(Identity("net", "id-one", "eth0")):
        run("ip", "link", "add", name, "type", "bridge")
    before = attached(host)
    clean = everything()
    with pytest.raises(
        CNIError, match=r"the names for an ifb are taken: bwp\w+ \(bridge\), bwp\w+ \(bridge\)"
    ):
        host.add(config(**RATES), "one", result=before)
    host.delete(config(**RATES), "one", result=before)
    assert everything() == clean


def test_a_second_add_is_refused_and_changes_nothing(host: Host) -> None:
    before = attached(host)
    host.add(config(**RATES), "one", result=before)
    made = everything()
    for options in (RATES, {"ingressRate": 8000, "ingressBurst": 8000}):
        with pytest.raises(AlreadyAttached):
            host.add(config(**options), "one", result=before)
        assert everything() == made


def test_somebody_elses_discipline_stays(host: Host) -> None:
    before = attached(host)
    run("tc", "qdisc", "add", "dev", host_end(), "clsact")
    run(*f"tc filter add dev {host_end()} ingress prio 7 u32 match u32 0 0 classid 7:7".split())
    made = everything()
    with pytest.raises(AlreadyAttached, match=f"link {host_end()} has a queueing discipline already"):
        host.add(config(**RATES), "one", result=before)
    host.delete(config(**RATES), "one", result=before)
    assert everything() == made


def test_somebody_elses_filter_beside_ours_stays(host: Host) -> None:
    result = host.add(config(**RATES), "one", result=attached(host))
    run(*f"tc filter add dev {host_end()} ingress prio 7 u32 match u32 0 0 classid 7:7".split())
    host.delete(config(**RATES), "one", result=result)
    filters = tc("filter", "show", "dev", host_end(), "ingress")
    assert {one["pref"] for one in filters} == {7}


def test_what_the_reference_plugin_made_is_found_and_taken(host: Host) -> None:
    """A node that changes over: CHECK accepts it, DEL removes it."""
    from tests.plugins.helpers import GO_PLUGINS, execute

    before = attached(host)
    clean = everything()
    told = {**config(**RATES), "cniVersion": "1.0.0"}
    previous = json.loads(execute_result(before))
    done = execute(
        GO_PLUGINS / "bandwidth",
        "ADD",
        {**told, "prevResult": previous},
        container_id="id-one",
        netns="/run/netns/one",
        ifname="eth0",
    )
    assert done.returncode == 0, done.stdout
    result = host_result(done.stdout)
    host.check(told, "one", result)
    host.delete(told, "one", result=result)
    assert everything() == clean


def execute_result(result: Result) -> bytes:
    from podwire.cni.convert import encode_result

    return encode_result(result, "1.0.0")


def host_result(text: bytes) -> Result:
    from podwire.cni.convert import decode_result

    return decode_result(text, "1.0.0")


def test_gc_removes_what_is_not_valid(host: Host) -> None:
    for pod in ("one", "two"):
        host.add(config(**RATES), pod, result=attached(host, pod))
    run("ip", "link", "add", "bwptheirs", "type", "ifb")
    other = {**config(**RATES), "name": "net2"}
    host.call("GC", {**other, "cni.dev/valid-attachments": []})
    assert len(ifbs()) == 3
    valid = [{"containerID": "id-two", "ifname": "eth0"}]
    host.call("GC", {**config(**RATES), "cni.dev/valid-attachments": valid})
    left = shaping.names(Identity("net", "id-two", "eth0"))[0]
    assert sorted(ifbs()) == sorted(["bwptheirs", left])


@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_long_identifiers_are_found_again(host: Host, command: str) -> None:
    before = attached(host)
    long = {"container_id": "c" * 250}
    host.add(config(**RATES), "one", result=before, **long)
    if command == "DEL":
        host.delete(config(**RATES), "one", **long)
    else:
        host.call("GC", {**config(**RATES), "cni.dev/valid-attachments": []})
    assert ifbs() == []


def test_status_is_silent_and_leaves_nothing(host: Host) -> None:
    clean = everything()
    host.call("STATUS", config(**RATES))
    assert everything() == clean
    with Faults(2, after=False).active(), pytest.raises(CNIError) as caught:
        host.call("STATUS", config(**RATES))
    assert caught.value.code == 50
    assert everything() == clean


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("options", [{}, {"shapedSubnets": ["10.2.0.0/16"]}], ids=["tbf", "htb"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, options: dict[str, Any], after: bool) -> None:
    before = attached(host)
    clean = everything()
    told = config(**RATES, **options)
    tried = add_failing_at_each_step(host, told, everything, after=after, result=before)
    assert len(tried.told) >= 9
    host.delete(told, "one")
    assert everything() == clean


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_del_that_failed_is_completed_by_the_next(host: Host, after: bool) -> None:
    before = attached(host)
    clean = everything()
    tried = delete_failing_at_each_step(host, config(**RATES), everything, after=after, result=before)
    assert len(tried.told) > 4
    assert everything() == clean


def test_B16_a_wrong_sandbox_is_told(host: Host) -> None:
    before = attached(host)
    wrong = tuple(msgspec.structs.replace(one, sandbox="eth0") for one in before.interfaces)
    with pytest.raises(CNIError, match=r"prevResult\.interfaces: none of the host's") as caught:
        host.add(config(**RATES), "one", result=msgspec.structs.replace(before, interfaces=wrong))
    assert caught.value.code == 7
    assert f"{host_end()} in eth0" in str(caught.value)


def test_the_peer_is_taken_of_several_pairs(host: Host) -> None:
    before = attached(host)
    run("ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1")
    many = msgspec.structs.replace(before, interfaces=(Interface("other0"), *before.interfaces))
    host.add(config(**RATES), "one", result=many)
    assert "tbf" not in [one["kind"] for one in tc("qdisc", "show", "dev", "other0")]
    assert "tbf" in [one["kind"] for one in tc("qdisc", "show", "dev", host_end())]


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_without_prev_result_it_says_so(host: Host, command: str) -> None:
    host.pod("one")
    with pytest.raises(CNIError, match="prevResult") as caught:
        host.call(command, config(**RATES), "one")
    assert caught.value.code == 7


@pytest.mark.parametrize("options", [{}, {"runtimeConfig": {"bandwidth": None}}, {"egressRate": 0}])
def test_no_limits_make_nothing(host: Host, options: dict[str, Any]) -> None:
    before = attached(host)
    clean = everything()
    assert host.add(config(**options), "one", result=before) == before
    host.check(config(**options), "one", before)
    assert everything() == clean


WRONG = [
    ({"ingressRate": 8000}, "ingressRate 8000: needs ingressBurst"),
    ({"egressBurst": 8000}, "egressBurst 8000: needs egressRate"),
    ({"egressRate": 7, "egressBurst": 80}, "egressRate 7: is less than a byte"),
    ({"egressRate": 80, "egressBurst": 7}, "egressBurst 7: is less than a byte"),
    ({"egressRate": -1, "egressBurst": 7}, "egressRate -1: is not a number of bits"),
    ({"egressRate": 1 << 64, "egressBurst": 7}, "egressRate 18446744073709551616: "),
    ({"ingressRate": 80, "ingressBurst": 8 * 0xFFFFFFFF}, "ingressBurst 34359738360: is not below 4 GiB"),
    ({"ingressRate": "1M", "ingressBurst": 8}, 'ingressRate: .* \\(it is "1M"\\)'),
    ({**RATES, "shapedSubnets": ["10.1.0.0"]}, 'shapedSubnets "10.1.0.0": is not a subnet'),
    ({**RATES, "unshapedSubnets": ["10.1.0.0/33"]}, 'unshapedSubnets "10.1.0.0/33": is not a subnet'),
    ({**RATES, "unshapedSubnets": ["::/0"], "shapedSubnets": ["::/0"]}, "exclude each other"),
    ({"runtimeConfig": {"bandwidth": {"egressRate": 80}}}, "runtimeConfig.bandwidth.egressRate 80: needs"),
    ({"runtimeConfig": {"bandwidth": 5}}, "runtimeConfig.bandwidth"),
]


@pytest.mark.parametrize(("options", "told"), WRONG, ids=[told for _, told in WRONG])
@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS"])
def test_what_cannot_be_is_refused_before_anything_is_made(
    host: Host, command: str, options: dict[str, Any], told: str
) -> None:
    clean = everything()
    prev = Result((Interface("nosuch0"), Interface("eth0", sandbox="/run/netns/one")))
    with pytest.raises(CNIError, match=told) as caught:
        host.call(command, config(**options), "one", result=None if command == "STATUS" else prev)
    assert caught.value.code == 7
    assert everything() == clean


def test_limits_before_the_link_is_up(host: Host) -> None:
    """As a plugin does that makes the pair itself."""
    run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
    link = kernel_links.get(host.kernel.route(), "near")
    assert link is not None
    identity, wanted = Identity("net", "a", "eth0"), shaping.Entry(8000, 80_000, 8000, 80_000).limits()
    assert shaping.make(host.kernel, identity, link, wanted) is not None
    run("ip", "link", "set", "near", "up")
    assert shaping.check(host.kernel, identity, link, wanted) == []
    shaping.remove(host.kernel, identity, ["near"])
    assert ifbs() == []
