"""The generated files, the wire, users and checks: what needs no kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.runtime import checks, hosts, launch, wire
from podwire.runtime.api import (
    ContainerConfig,
    ContainerMetadata,
    DNSConfig,
    HostAlias,
    Mount,
    NetworkMode,
    SandboxConfig,
    SandboxMetadata,
)
from podwire.runtime.errors import Code, RuntimeFault

POD = SandboxConfig(SandboxMetadata("web", "u1", "shop"), hostname="web-0", log_directory="/logs")


def changed(**changes: Any) -> SandboxConfig:
    return SandboxConfig(**{**{name: getattr(POD, name) for name in POD.__slots__}, **changes})


def test_hosts_of_a_pod_with_two_addresses_and_a_subdomain() -> None:
    config = changed(
        domain="db.shop.svc.cluster.local", host_aliases=(HostAlias("10.1.1.1", ("a", "b.example")),)
    )
    lines = hosts.hosts(config, ["10.0.0.5", "fd00::5"], "1.2.3.4 machine\n").splitlines()
    assert lines[0] == "# Written by podwire for pod shop/web."
    assert "127.0.0.1\tlocalhost" in lines
    assert "::1\tlocalhost ip6-localhost ip6-loopback" in lines
    assert "10.0.0.5\tweb-0.db.shop.svc.cluster.local\tweb-0" in lines
    assert "fd00::5\tweb-0.db.shop.svc.cluster.local\tweb-0" in lines
    assert lines[-1] == "10.1.1.1\ta\tb.example"
    assert not any("machine" in line for line in lines)


def test_hosts_in_the_hosts_network_are_the_machines_and_the_aliases() -> None:
    config = changed(network=NetworkMode.NODE, host_aliases=(HostAlias("::7", ("x",)),))
    text = hosts.hosts(config, [], "1.2.3.4 machine\n")
    assert "1.2.3.4 machine\n" in text
    assert text.endswith("::7\tx\n")
    assert "localhost" not in text


def test_resolv_conf() -> None:
    dns = DNSConfig(("10.0.0.10", "fd00::10"), ("svc.local", "local"), ("ndots:5", "edns0"))
    assert hosts.resolv_conf(dns) == (
        "search svc.local local\nnameserver 10.0.0.10\nnameserver fd00::10\noptions ndots:5 edns0\n"
    )
    assert hosts.resolv_conf(DNSConfig()) == ""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hostname": ""}, "hostname"),
        ({"hostname": "a" * 65}, "hostname"),
        ({"hostname": "no_underscore"}, "no_underscore"),
        ({"sysctls": {"vm.swappiness": "1"}}, "vm.swappiness"),
        ({"sysctls": {"kernel.panic": "1"}}, "kernel.panic"),
        ({"sysctls": {"net/../vm/swappiness": "1"}}, "net/../vm/swappiness"),
        ({"sysctls": {"net.ipv4.ip_forward": "1\n0"}}, "net.ipv4.ip_forward"),
        ({"sysctls": {"net.ipv4.ip_forward": "1"}, "network": NetworkMode.NODE}, "net.ipv4.ip_forward"),
        ({"host_aliases": (HostAlias("10.0.0", ("a",)),)}, "10.0.0"),
        ({"dns": DNSConfig(servers=("dns.example",))}, "dns.example"),
        ({"dns": DNSConfig(searches=("a b",))}, "a b"),
        ({"annotations": {"kubernetes.io/ingress-bandwidth": "fast"}}, "kubernetes.io/ingress-bandwidth"),
        ({"annotations": {"kubernetes.io/egress-bandwidth": "999"}}, "kubernetes.io/egress-bandwidth"),
        ({"annotations": {"kubernetes.io/egress-bandwidth": "2P"}}, "2P"),
    ],
)
def test_a_sandbox_that_cannot_be_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        checks.check_sandbox(changed(**changes))
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert named in str(caught.value)


def test_sysctls_of_the_pod_alone_are_taken() -> None:
    keys = (
        "net.ipv4.ip_forward",
        "net/ipv4/conf/eth0.5/forwarding",
        "kernel.shmmax",
        "kernel.sem",
        "kernel.msgmax",
    )
    checks.check_sandbox(changed(sysctls=dict.fromkeys(keys, "1")))
    assert checks.sysctl_path("net.ipv4.ip_forward") == "net/ipv4/ip_forward"
    assert checks.sysctl_path("net/ipv4/conf/eth0.5/forwarding") == "net/ipv4/conf/eth0.5/forwarding"


def test_a_container_without_a_command_is_told_what_to_write() -> None:
    with pytest.raises(RuntimeFault) as caught:
        checks.check_container(ContainerConfig(ContainerMetadata("x"), (), image="nginx"))
    assert str(caught.value) == (
        'container "x": no command: the embedded runtime runs programs of this machine and pulls no images; '
        'write command: ["/usr/bin/..."] (images need containerd)'
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"envs": (("a=b", "c"),)},
        {"envs": (("", "c"),)},
        {"working_dir": "tmp"},
        {"mounts": (Mount("data", "/data"),)},
        {"mounts": (Mount("/data", "data"),)},
    ],
)
def test_a_container_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RuntimeFault) as caught:
        checks.check_container(ContainerConfig(ContainerMetadata("x"), ("/bin/true",), **changes))
    assert caught.value.code is Code.INVALID_ARGUMENT


PASSWD = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1002:Ann:/home/ann:/bin/sh\nbroken\n"
GROUP = "root:x:0:\nwheel:x:10:root,ann\nvideo:x:44:ann\nother:x:45:bob\n"


def program(tmp_path: Path, user: dict[str, Any], **changes: Any) -> launch.Program:
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "group").write_text(GROUP)
    whole = {"uid": None, "gid": None, "username": "", "supplemental_groups": [], **user}
    config = {
        "user": whole,
        "tty": False,
        "envs": [],
        "command": ["x"],
        "args": [],
        "working_dir": "",
        **changes,
    }
    return launch.program(config, "web", str(tmp_path / "passwd"), str(tmp_path / "group"))


@pytest.mark.parametrize(
    ("user", "uid", "gid", "groups", "home"),
    [
        ({}, 0, 0, (10,), "/root"),
        ({"username": "ann"}, 1001, 1002, (10, 44), "/home/ann"),
        ({"uid": 1001}, 1001, 1002, (10, 44), "/home/ann"),
        ({"uid": 1001, "gid": 7, "supplemental_groups": [3]}, 1001, 7, (3, 10, 44), "/home/ann"),
        ({"uid": 4242}, 4242, 0, (), "/"),
        ({"username": "4242"}, 4242, 0, (), "/"),
    ],
)
def test_users_are_looked_up_as_container_runtimes_do(
    tmp_path: Path, user: dict[str, Any], uid: int, gid: int, groups: tuple[int, ...], home: str
) -> None:
    found = program(tmp_path, user)
    assert (found.uid, found.gid, found.groups, found.environment["HOME"]) == (uid, gid, groups, home)


def test_an_unknown_user_is_named(tmp_path: Path) -> None:
    with pytest.raises(launch.StartFailure, match='user "zoe": no such user'):
        program(tmp_path, {"username": "zoe"})


def test_the_environment_is_the_given_one_over_the_defaults(tmp_path: Path) -> None:
    found = program(tmp_path, {}, envs=[["A", "1"], ["PATH", "/x"], ["A", "2"]], command=["a"], args=["b"])
    assert found.environment == {"PATH": "/x", "HOSTNAME": "web", "HOME": "/root", "A": "2"}
    assert found.argv == ("a", "b")
    assert found.directory == "/"


@given(
    st.lists(st.dictionaries(st.text(), st.integers() | st.text(), max_size=3), max_size=4), st.integers(1, 7)
)
def test_frames_come_whole_however_they_are_cut(frames: list[dict[str, Any]], size: int) -> None:
    data = b"".join(wire.encode(frame) for frame in frames)
    decoder = wire.Decoder()
    got = [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]
    assert got == frames


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x01x", b"\0\0\0\x02[]", b"\0\0\0\x01\xff"])
def test_what_is_no_frame_is_broken(data: bytes) -> None:
    with pytest.raises(wire.Broken):
        list(wire.Decoder().feed(data))
