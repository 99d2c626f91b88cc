"""What two states differ in, and what is left out because it changes by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from podwire.conformance import snapshot


def run(*command: str, stdin: str = "") -> None:
    subprocess.run(command, input=stdin, text=True, check=True)


CHANGES = [
    ("ip link add x0 type veth peer name x1", ["+ link x0: veth, down, mtu 1500, master none"]),
    ("ip address add 10.1.0.1/24 dev lo", ["+ address 10.1.0.1/24 on lo"]),
    ("ip link set lo mtu 1400", ["+ link lo: plain, up, mtu 1400", "- link lo: plain, up, mtu 65536"]),
    ("ip route add 10.2.0.0/16 dev lo table 7", ["+ route to 10.2.0.0/16 by None on lo, table 7, metric 0"]),
    ("ip rule add from 10.3.0.0/16 table 7", ["+ rule 32765: from 10.3.0.0/16 to None table 7"]),
    ("nft add chain ip t d", ["+ nft chain ip t d"]),
    ("nft add rule ip t c accept", ['+ nft rule in ip t c: [{"accept":null}]']),
    ("nft add element ip t s { 10.4.0.1 }", ['+ nft element of ip t s: "10.4.0.1"']),
    ("nft flush chain ip t c", ["- nft rule in ip t c"]),
    (
        "tc qdisc add dev lo root handle 1: tbf rate 8kbit burst 2kb limit 2kb",
        ["+ qdisc tbf on lo, handle 00010000, 1000 bytes/s"],
    ),
    (
        "tc qdisc replace dev s0 root handle 1: tbf rate 16kbit burst 2kb limit 2kb",
        [
            "+ qdisc tbf on s0, handle 00010000, 2000 bytes/s",
            "- qdisc tbf on s0, handle 00010000, 1000 bytes/s",
        ],
    ),
    ("tc qdisc add dev lo ingress", ["+ qdisc ingress on lo, handle ffff0000"]),
    (
        "tc qdisc del dev s1 ingress",
        ["- filter u32 on s1, parent ffff0000, 1, to s0", "- qdisc ingress on s1"],
    ),
    (
        "tc filter add dev s1 ingress prio 2 u32 match u32 0 0 action mirred egress redirect dev lo",
        ["+ filter u32 on s1, parent ffff0000, 2, to lo"],
    ),
]
"""Commands, and how the lines of the difference begin."""

QUIET = [
    "ip address add fe80::5/64 dev lo nodad",
    "nft add table ip empty",
    "ping -c 1 127.0.0.1",
    "touch {}/lock",
    "touch {}/last_reserved_ip.0",
    "mkdir {}/directory",
]
"""Commands that leave nobody's resources."""


SHAPED = """\
ip link add s0 type veth peer name s1
tc qdisc add dev s0 root handle 1: tbf rate 8kbit burst 2kb limit 2kb
tc qdisc add dev s1 ingress
tc filter add dev s1 ingress prio 1 u32 match u32 0 0 action mirred egress redirect dev s0"""
"""Limits that are there before."""


@pytest.fixture
def ruleset() -> None:
    text = "add table ip t; add chain ip t c { type filter hook input priority 0; }; add set ip t s"
    run("nft", "-f", "-", stdin=f"{text} {{ type ipv4_addr; }}; add rule ip t c counter")
    for command in SHAPED.splitlines():
        run(*command.split())


@pytest.mark.kernel
@pytest.mark.usefixtures("ruleset")
@pytest.mark.parametrize(("command", "lines"), CHANGES, ids=[command for command, _ in CHANGES])
def test_a_change_is_told(command: str, lines: list[str]) -> None:
    before = snapshot.network()
    run(*command.split())
    found = snapshot.difference(before, snapshot.network())
    for line in lines:
        assert any(one.startswith(line) for one in found), found


@pytest.mark.kernel
@pytest.mark.usefixtures("ruleset")
@pytest.mark.parametrize("command", QUIET)
def test_what_changes_by_itself_is_left_out(tmp_path: Path, command: str) -> None:
    def state() -> snapshot.Snapshot:
        return snapshot.network() + snapshot.files([tmp_path])

    before = state()
    words = command.format(tmp_path).split()
    run(*(["busybox", *words] if words[0] == "ping" else words))
    assert snapshot.difference(before, state()) == ()


def test_files_but_not_those_left_out(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    before = snapshot.files([tmp_path], without=[tmp_path / "kept"])
    for name in ("10.1.0.2", "kept/other"):
        (tmp_path / name).touch()
    after = snapshot.files([tmp_path], without=[tmp_path / "kept"])
    assert snapshot.difference(before, after) == (f"+ file {tmp_path}/10.1.0.2",)


def test_lines_count_however_often_they_are_there() -> None:
    assert snapshot.difference(snapshot.Snapshot("aab"), snapshot.Snapshot("ab")) == ("- a",)
