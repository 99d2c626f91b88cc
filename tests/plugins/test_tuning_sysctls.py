"""Names of sysctls, and that none leads out of the pod's namespace."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.errors import CNIError, InvalidConfig
from podwire.kernel import net_parameters
from podwire.kernel.errors import KernelError
from podwire.plugins import tuning_sysctls as sysctls

IFNAMES = st.from_regex(r"[a-zA-Z0-9_@-][a-zA-Z0-9_.@-]{0,14}", fullmatch=True).filter(
    lambda name: ".." not in name
)


@pytest.mark.parametrize(
    ("key", "ifname", "parts"),
    [
        ("net.ipv4.ip_forward", "eth0", ("ipv4", "ip_forward")),
        ("net/ipv4/ip_forward", "eth0", ("ipv4", "ip_forward")),
        ("net.ipv4.conf.IFNAME.arp_filter", "eth0", ("ipv4", "conf", "eth0", "arp_filter")),
        ("net.ipv4.conf.IFNAME.arp_filter", "eth0.100", ("ipv4", "conf", "eth0.100", "arp_filter")),
        ("net/ipv4/conf/IFNAME/arp_filter", "eth0.100", ("ipv4", "conf", "eth0.100", "arp_filter")),
        ("net/ipv4/conf/eth0.100/arp_filter", "x", ("ipv4", "conf", "eth0.100", "arp_filter")),
        ("net.ipv4.conf.eth0/100.arp_filter", "x", ("ipv4", "conf", "eth0.100", "arp_filter")),
        ("net.ipv4.conf.eth0.100.arp_filter", "x", ("ipv4", "conf", "eth0.100", "arp_filter")),
        ("net.ipv6.neigh.eth0.100.mcast_solicit", "x", ("ipv6", "neigh", "eth0.100", "mcast_solicit")),
        ("net.ipv4.conf.IFNAME.100.arp_filter", "eth0", ("ipv4", "conf", "eth0.100", "arp_filter")),
        ("/net/core/somaxconn", "x", ("core", "somaxconn")),
    ],
)
def test_f20_the_dots_of_an_interface_separate_nothing(key: str, ifname: str, parts: tuple[str, ...]) -> None:
    """F20: a VLAN link's name has a dot; IFNAME is replaced after the split."""
    assert sysctls.split(key, ifname) == parts


@pytest.mark.parametrize(
    "key",
    [
        "kernel.hostname",
        "kernel/hostname",
        "net/../kernel/hostname",
        "net/ipv4/../../kernel/hostname",
        "net.ipv4/../../kernel/hostname",
        "net..kernel",
        "/etc/passwd",
        "../net/ipv4/ip_forward",
        "./net/ipv4/ip_forward",
        "net/./ipv4/ip_forward",
        "net",
        "net/",
        "",
        "/",
        "net/ipv4/ip\0forward",
        "network.x",
    ],
)
def test_a_name_that_is_not_below_net_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfig, match="sysctl "):
        sysctls.split(key, "eth0")


@given(st.text(st.sampled_from("./ netipvIFNAME0\\\0"), max_size=40), IFNAMES)
def test_whatever_the_name_it_stays_below_net(key: str, ifname: str) -> None:
    try:
        parts = sysctls.split(key, ifname)
    except InvalidConfig:
        return
    path = os.path.normpath("/proc/sys/net/" + "/".join(parts))
    assert path == "/proc/sys/net/" + "/".join(parts)
    assert len(parts) >= 1


@given(IFNAMES)
def test_ifname_is_one_part_in_every_spelling(ifname: str) -> None:
    expected = ("ipv4", "conf", ifname, "forwarding")
    assert sysctls.split("net.ipv4.conf.IFNAME.forwarding", ifname) == expected
    assert sysctls.split("net/ipv4/conf/IFNAME/forwarding", ifname) == expected
    assert sysctls.split(f"net/ipv4/conf/{ifname}/forwarding", "other") == expected


def test_two_spellings_of_one_parameter_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r'"net/ipv4/ip_forward": the same parameter as "net\.ipv4'):
        sysctls.parameters({"net.ipv4.ip_forward": "1", "net/ipv4/ip_forward": "0"}, "eth0")


@pytest.mark.parametrize(
    ("wanted", "present", "equal"),
    [
        ("1024 65000", "1024\t65000", True),
        ("01", "1", True),
        ("1", "0", False),
        ("cubic", "cubic", True),
        ("1 2", "1", False),
        ("", "", True),
    ],
)
def test_values_are_compared_as_the_kernel_means_them(wanted: str, present: str, equal: bool) -> None:
    assert sysctls.same(wanted, present) is equal


@pytest.fixture
def allowlist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysctls, "ALLOWLIST", str(tmp_path / "allowlist.conf"))
    return tmp_path / "allowlist.conf"


def test_without_a_list_everything_is_allowed(allowlist: Path) -> None:
    sysctls.check_allowed({"net.ipv4.ip_forward": "1"})
    allowlist.write_text("")
    with pytest.raises(InvalidConfig, match=r'"net\.ipv4\.ip_forward": is not allowed by'):
        sysctls.check_allowed({"net.ipv4.ip_forward": "1"})
    sysctls.check_allowed({})


def test_the_list_holds_expressions_for_names_as_they_are_written(allowlist: Path) -> None:
    allowlist.write_text("  ^net.ipv4.conf.IFNAME.[[:lower:]_]*$  \n\n^net\\.core\\.somaxconn\\z\n")
    sysctls.check_allowed({"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "5"})
    for key in ("net.ipv4.conf.eth0.arp_filter", "net.core.somaxconn2", "net.ipv4.conf.IFNAME.A"):
        with pytest.raises(InvalidConfig, match=re.escape(key)):
            sysctls.check_allowed({"net.core.somaxconn": "5", key: "1"})


def test_a_line_that_is_no_expression_is_named(allowlist: Path) -> None:
    allowlist.write_text("^net\n(\n")
    with pytest.raises(CNIError, match=r'allowlist\.conf:2: "\(" is no regular expression'):
        sysctls.check_allowed({"net.ipv4.ip_forward": "1"})


def test_a_list_that_cannot_be_read_allows_nothing(allowlist: Path) -> None:
    allowlist.mkdir()
    with pytest.raises(CNIError, match="Is a directory"):
        sysctls.check_allowed({"net.ipv4.ip_forward": "1"})


@pytest.mark.kernel
def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    """Whatever is mounted below /proc/sys/net: the file behind a link is neither read nor written."""
    (tmp_path / "secret").write_text("as it was")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "away").symlink_to("/proc/sys/kernel")
    subprocess.run(["mount", "--bind", tmp_path, "/proc/sys/net/ipv4/neigh"], check=True)
    try:
        for parts in (("ipv4", "neigh", "link"), ("ipv4", "neigh", "away", "hostname")):
            with pytest.raises(KernelError, match=r"net/ipv4/neigh/"):
                net_parameters.write(parts, "overwritten")
            with pytest.raises(KernelError, match=r"net/ipv4/neigh/"):
                net_parameters.read(parts)
    finally:
        subprocess.run(["umount", "/proc/sys/net/ipv4/neigh"], check=True)
    assert (tmp_path / "secret").read_text() == "as it was"


@pytest.mark.parametrize(
    "parts", [(), ("..", "kernel", "hostname"), ("ipv4", ""), ("ipv4/../../kernel", "hostname"), (".", "x")]
)
def test_parts_that_lead_elsewhere_are_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(KernelError, match="a part is empty"):
        net_parameters.read(parts)
