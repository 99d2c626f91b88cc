"""The plugin: options, results, errors; by the bridge, with the keeper in process and behind a socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.convert import encode_result
from podwire.cni.errors import CNIError
from podwire.cni.plugin import Result
from podwire.dhcp import access
from podwire.dhcp.keeper import LeaseKeeper
from podwire.dhcp.packet import Kind, Option, encode
from podwire.dhcp.service import KeeperService, listen
from tests.dhcp.helpers import Server
from tests.plugins.helpers import ROOT, Host, addresses, execute, ip, links, reaches, routes, run
from tests.plugins.test_bridge_undo import everything
from tests.plugins.undo import add_failing_at_each_step

SOCKET = "/run/dhcp-test/sock"


def config(**ipam: Any) -> dict[str, Any]:
    return {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "bridge",
        "bridge": "dh0",
        "ipam": {"type": "dhcp", "daemonSocketPath": SOCKET, **ipam},
    }


@pytest.fixture
def _bridge() -> None:
    run("ip", "link", "add", "dh0", "address", "02:88:00:00:00:01", "type", "bridge")
    run("ip", "address", "add", "10.88.0.1/24", "dev", "dh0")
    # With its first port it would get routes of IPv6.
    Path("/proc/sys/net/ipv6/conf/dh0/disable_ipv6").write_text("1")
    run("ip", "link", "set", "dh0", "up")


@pytest.fixture
def server(_bridge: None) -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture(params=["in process", "behind its socket"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaseKeeper]:
    with LeaseKeeper(tmp_path / "leases.sqlite") as made:
        if request.param == "in process":
            access.host(made)
            try:
                yield made
            finally:
                access.host(None)
        else:
            with KeeperService(made, listen(SOCKET)):
                yield made
            Path(SOCKET).unlink()


@pytest.mark.kernel
def test_a_pod_on_a_bridge_lives_with_its_lease(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    result = host.add(config(), "one")
    assert [(ip.address, ip.gateway, ip.interface) for ip in result.ips] == [
        ("10.88.0.50/24", "10.88.0.1", 2)
    ]
    assert [(route.dst, route.gw) for route in result.routes] == [("0.0.0.0/0", "10.88.0.1")]
    assert not result.dns
    assert addresses("eth0", "one") == ["10.88.0.50/24"]
    assert routes("one")[0]["gateway"] == "10.88.0.1"
    assert reaches("one", "10.88.0.1")
    mac = links("one")["eth0"]["address"]
    assert server.seen[0].mac == bytes.fromhex(mac.replace(":", ""))
    assert result.interfaces[2].mac == mac
    host.check(config(), "one", result)
    host.delete(config(), "one")
    # Given back by the pod's own interface, before that goes.
    assert server.wait_for(Kind.RELEASE).client == IPv4Address("10.88.0.50")
    assert links("one").keys() == {"lo"}
    assert keeper.leases() == {}
    host.delete(config(), "one")


def cable(name: str) -> None:
    """A device of the host, up, whose other end is on the server's bridge."""
    run("ip", "link", "add", f"{name}-far", "master", "dh0", "type", "veth", "peer", "name", name)
    run("ip", "link", "set", f"{name}-far", "up")
    run("ip", "link", "set", name, "up")


@pytest.mark.kernel
def test_a_macvlan_lives_with_its_lease(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    cable("m0")
    host.pod("one")
    net = {**config(), "type": "macvlan", "master": "m0"}
    result = host.add(net, "one")
    assert addresses("eth0", "one") == ["10.88.0.50/24"]
    assert result.interfaces[0].mac == links("one")["eth0"]["address"]
    assert reaches("one", "10.88.0.1")
    assert run("ip", "netns", "exec", "one", "cat", "/proc/sys/net/ipv6/conf/eth0/accept_ra") == "0\n"
    host.check(net, "one", result)
    host.delete(net, "one")
    assert server.wait_for(Kind.RELEASE).mac == server.seen[0].mac
    assert links("one").keys() == {"lo"}


@pytest.mark.kernel
def test_a_device_of_the_host_lives_with_its_lease(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    cable("d0")
    host.pod("one")
    net = {**config(), "type": "host-device", "device": "d0"}
    result = host.add(net, "one")
    assert addresses("eth0", "one") == ["10.88.0.50/24"]
    host.check(net, "one", result)
    host.delete(net, "one")
    server.wait_for(Kind.RELEASE)
    assert links("one").keys() == {"lo"}
    assert "d0" in links()


@pytest.mark.kernel
def test_no_advertisement_is_taken_and_no_other_address_there(
    host: Host, server: Server, keeper: LeaseKeeper
) -> None:
    """F03: also between the interface's coming up for the lease and its address."""
    host.pod("one")
    seen: list[list[str]] = []
    proper = server.proper

    def look(asked: Any) -> list[bytes]:
        seen.append(addresses("eth0", "one"))
        return proper(asked)

    server.answer = look
    host.add(config(), "one")
    assert seen == [[], []]
    assert addresses("eth0", "one") == ["10.88.0.50/24"]
    assert run("ip", "netns", "exec", "one", "cat", "/proc/sys/net/ipv6/conf/eth0/accept_ra") == "0\n"


@pytest.mark.kernel
def test_a_lease_that_never_comes_leaves_nothing(
    host: Host, server: Server, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.silent = True
    monkeypatch.setattr("podwire.cni.request.DEFAULT_SECONDS", 0.5)
    host.pod("one")
    before = everything(host)
    with pytest.raises(CNIError, match="no server answered") as caught:
        host.add(config(), "one")
    assert caught.value.code == 11
    assert everything(host) == before
    assert keeper.leases() == {}


@pytest.mark.kernel
def test_a_failure_after_the_lease_gives_it_back(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    server.more[Option.CLASSLESS_ROUTES] = b"\x18\x01\x02\x03\xe0\0\0\x01"  # by a multicast address
    before = everything(host)
    with pytest.raises(CNIError):
        host.add(config(), "one")
    server.wait_for(Kind.RELEASE)
    assert everything(host) == before
    assert keeper.leases() == {}


@pytest.mark.kernel
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_nothing(
    host: Host, server: Server, tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of the keeper's thread: what it cannot do once, it tries again or gives back."""
    monkeypatch.setattr(access, "_hosted", None)
    host.pod("one")
    with LeaseKeeper(tmp_path / "leases.sqlite") as keeper:
        access.host(keeper)
        tried = add_failing_at_each_step(
            host, config(isDefaultGateway=True), lambda: [everything(host), keeper.leases()], after=after
        )
        host.delete(config(), "one")
    assert {"NetlinkSocket.send", "NetlinkSocket.request", "Netns.run"} <= set(tried.told)


@pytest.mark.kernel
def test_every_option(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    server.more |= {
        Option.CLASSLESS_ROUTES: b"\x18\n\1\2\0\0\0\0" + b"\0\n\x58\0\x01",
        Option.NAME_SERVERS: b"\n\x58\0\x35",
        Option.DOMAIN_NAME: b"example.org",
        Option.SEARCH: b"\3one\0",
    }
    wanted = config(
        provide=[
            {"option": "host-name", "fromArg": "K8S_POD_NAME"},
            {"option": "vendor-class-identifier", "value": "podwire", "fromArg": "MISSING"},
            {"option": "77", "value": "users"},
        ],
        request=[{"option": "121"}, {"option": "domain-name-servers"}, {"option": "15"}, {"option": "119"}],
        priority=99,
    )
    result = host.add(wanted, "one", args="K8S_POD_NAME=web;IgnoreUnknown=1")
    options = server.seen[0].options
    assert (options[12], options[60], options[77]) == (b"web", b"podwire", b"users")
    assert options[55] == bytes((121, 6, 15, 119, 3, 1, 58, 59))
    # As the reference: a route on the link has the unspecified gateway and the scope of the link.
    assert [(one.dst, one.gw, one.scope, one.priority) for one in result.routes] == [
        ("10.1.2.0/24", "0.0.0.0", 253, 99),
        ("0.0.0.0/0", "10.88.0.1", None, 99),
    ]
    assert (result.dns.nameservers, result.dns.domain, result.dns.search) == (
        ("10.88.0.53",),
        "example.org",
        ("one",),
    )
    made = {one["dst"]: one for one in routes("one")}
    assert made["10.1.2.0/24"]["scope"] == "link"
    assert (made["default"]["gateway"], made["default"]["metric"]) == ("10.88.0.1", 99)
    host.check(wanted, "one", result)


@pytest.mark.kernel
def test_skip_default_asks_for_the_others_only(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    host.add(config(request=[{"skipDefault": True}, {"option": "subnet-mask"}]), "one")
    assert server.seen[0].options[55] == b"\1"


@pytest.mark.kernel
def test_suppress_leaves_out_the_gateway(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    server.more[Option.STATIC_ROUTES] = b"\xac\x10\0\0\n\x58\0\7"
    result = host.add(config(suppress=["gateway"]), "one")
    assert [ip.gateway for ip in result.ips] == [""]
    assert [route.dst for route in result.routes] == ["172.16.0.0/16"]


@pytest.mark.kernel
def test_check_finds_a_lost_or_another_lease(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    result = host.add(config(), "one")
    other = json.loads(encode_result(result, "1.1.0"))
    other["ips"][0]["address"] = "10.88.0.51/24"
    with pytest.raises(CNIError, match=r"has leased 10\.88\.0\.50/24, which its result does not have"):
        host.call("CHECK", {**config(), "prevResult": other}, "one", type="dhcp")
    (key,) = keeper.leases()
    keeper.release(key)
    with pytest.raises(CNIError, match="no DHCP lease is held"):
        host.check(config(), "one", result)


@pytest.mark.kernel
def test_gc_keeps_the_valid_ones(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    for name, address in (("one", "10.88.0.51"), ("two", "10.88.0.52")):
        host.pod(name)
        server.address = IPv4Address(address)
        host.add(config(), name)
    listed = [{"containerID": "id-two", "ifname": "eth0"}]
    host.call("GC", {**config(), "cni.dev/valid-attachments": listed})
    assert [key.container_id for key in keeper.leases()] == ["id-two"]
    host.call("GC", config())
    assert len(keeper.leases()) == 1


@pytest.mark.kernel
def test_status_with_a_keeper(host: Host, keeper: LeaseKeeper) -> None:
    host.call("STATUS", config(), type="dhcp")


@pytest.mark.kernel
def test_without_a_keeper_every_command_says_how_to_start_one(host: Host) -> None:
    host.pod("one")
    for command in ("ADD", "DEL"):
        with pytest.raises(CNIError, match="nobody keeps leases at /run/dhcp-test/sock") as caught:
            host.call(command, config(), "one", type="dhcp")
        assert caught.value.code == 11
        assert "python -m podwire.plugins dhcp daemon" in caught.value.details
    with pytest.raises(CNIError, match="nobody keeps leases") as caught:
        host.check(config(), "one", Result(), type="dhcp")
    with pytest.raises(CNIError) as caught:
        host.call("STATUS", config(), type="dhcp")
    assert caught.value.code == 50


BAD: list[tuple[dict[str, Any], str, int, str]] = [
    ({"provide": [{"option": "nosuch", "value": "x"}]}, "", 7, r'ipam.provide\[0\].option "nosuch"'),
    ({"provide": [{"option": "0", "value": "x"}]}, "", 7, r'ipam.provide\[0\].option "0"'),
    ({"provide": [{"option": "255", "value": "x"}]}, "", 7, r'option "255"'),
    ({"provide": [{"option": "53", "value": "x"}]}, "", 7, "is the message type"),
    ({"provide": [{"option": "12", "value": "x" * 256}]}, "", 7, r"ipam.provide\[0\].value: has 256 bytes"),
    ({"provide": [{"option": "12", "fromArg": "A"}]}, f"A={'x' * 256}", 4, "CNI_ARGS A: has 256 bytes"),
    ({"provide": "x"}, "", 7, "ipam.provide"),
    ({"provide": [{"option": 12}]}, "", 7, r"ipam.provide\[0\].option"),
    ({"request": [{"option": "x"}]}, "", 7, r'ipam.request\[0\].option "x"'),
    ({"request": [{"skipDefault": 1}]}, "", 7, r"ipam.request\[0\].skipDefault"),
    ({"priority": -1}, "", 7, "ipam.priority -1"),
    ({"suppress": ["routes"]}, "", 7, r'ipam.suppress\[0\] "routes"'),
    ({"daemonSocketPath": 1}, "", 7, "ipam.daemonSocketPath"),
]


@pytest.mark.kernel
@pytest.mark.parametrize(("ipam", "args", "code", "said"), BAD)
def test_bad_options_are_named(host: Host, ipam: dict[str, Any], args: str, code: int, said: str) -> None:
    host.pod("one")
    with pytest.raises(CNIError, match=said) as caught:
        host.call("ADD", config(**ipam), "one", type="dhcp", args=args)
    assert caught.value.code == code


@pytest.mark.kernel
@pytest.mark.parametrize("netns", ["/run/netns/nosuch", "relative", "/etc/passwd"])
def test_a_namespace_that_is_none_is_told(host: Host, keeper: LeaseKeeper, netns: str) -> None:
    with pytest.raises(CNIError) as caught:
        host.call("ADD", config(), "one", type="dhcp", netns=netns)
    assert caught.value.code == 8


@pytest.mark.kernel
def test_a_missing_interface_is_told(host: Host, keeper: LeaseKeeper) -> None:
    host.pod("one")
    with pytest.raises(CNIError, match=r"interface eth0 is not in /run/netns/one") as caught:
        host.call("ADD", config(), "one", type="dhcp")
    assert caught.value.code == 100


@pytest.mark.kernel
def test_missing_fields_are_no_crash(host: Host, keeper: LeaseKeeper) -> None:
    """The reference's daemon and plugin panic without ``ipam``."""
    host.pod("one")
    bare = {"cniVersion": "1.0.0", "name": "net", "type": "dhcp"}
    with pytest.raises(CNIError) as caught:
        host.call("ADD", bare, "one")
    assert caught.value.code in {11, 100}
    odd: tuple[Any, ...] = (None, {}, {"type": "dhcp", "provide": None, "request": [{}]})
    for ipam in odd:
        with pytest.raises(CNIError):
            host.call("ADD", {**bare, "ipam": ipam}, "one")


@pytest.mark.kernel
def test_as_a_program_with_its_daemon(host: Host, server: Server, tmp_path: Path) -> None:
    """Two processes, as on a host without the agent: Go's bridge calls it as its IPAM plugin."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    script = bin_dir / "dhcp"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -m podwire.plugins dhcp "$@"\n'
    )
    script.chmod(0o755)
    pid = tmp_path / "pid"
    flags = ["-socketpath", SOCKET, f"-pidfile={pid}", "-broadcast=true", "--store", str(tmp_path / "db")]
    daemon = subprocess.Popen([str(script), "daemon", *flags, "-timeout", "10s", "-resendtimeout", "1m30s"])
    try:
        while not (pid.exists() and pid.read_text()):
            assert daemon.poll() is None
        assert pid.read_text() == str(daemon.pid)
        host.pod("one")
        given = {**config(), "cniVersion": "1.0.0"}
        environment = {"container_id": "id-one", "netns": "/run/netns/one", "ifname": "eth0"}
        done = execute(
            "/usr/lib/cni/bridge", "ADD", given, **environment, path=f"{bin_dir}:/usr/lib/cni"
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert addresses("eth0", "one")[0] == "10.88.0.50/24"
        assert server.seen[0].broadcast
        previous = {**given, "prevResult": json.loads(done.stdout)}
        done = execute("/usr/lib/cni/bridge", "CHECK", previous, **environment, path=str(bin_dir))
        assert done.returncode == 0, done.stdout
        done = execute("/usr/lib/cni/bridge", "DEL", previous, **environment, path=str(bin_dir))
        assert done.returncode == 0, done.stdout
        assert [one["ifname"] for one in ip("link", "show", pod="one")] == ["lo"]
    finally:
        daemon.terminate()
        assert daemon.wait(5) == 0
    assert not Path(SOCKET).exists()
    assert not pid.exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("1m30s", 90), ("1h", 3600), ("1.5s", 1.5), ("250ms", 0.25), ("0", 0)]
)
def test_durations_as_go_writes_them(text: str, seconds: float) -> None:
    from podwire.plugins.dhcp_daemon import duration

    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "1x", "-1s", "1s x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    from podwire.plugins.dhcp_daemon import duration

    with pytest.raises(ValueError, match=f"^{text}$"):
        duration(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["-nosuch"], "nosuch"), (["-timeout", "x"], "timeout"), (["-pidfile", "relative"], "no absolute path")],
)
def test_bad_flags_of_the_daemon_are_told(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "podwire.plugins", "dhcp", "daemon", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.kernel
def test_a_malformed_answer_never_reaches_the_pod(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    host.pod("one")
    proper = server.proper
    server.answer = lambda asked: [b"\2" * 300, encode(server.reply(asked, Kind.OFFER))[:239], *proper(asked)]
    assert host.add(config(), "one").ips[0].address == "10.88.0.50/24"
