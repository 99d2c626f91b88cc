"""Connection tracking: what we delete is what `conntrack -L` no longer shows, and nothing else."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from podwire.kernel import conntrack
from podwire.kernel.errors import KernelError
from podwire.kernel.message import Message
from podwire.kernel.nft import NetfilterSocket

pytestmark = pytest.mark.kernel


def insert(source: str, destination: str, sport: int, dport: int, proto: str = "udp", dnat: str = "") -> None:
    state = ["--state", "ESTABLISHED"] if proto == "tcp" else []
    command = ["conntrack", "-I", "-p", proto, "-s", source, "-d", destination, "--sport", str(sport)]
    command += ["--dport", str(dport), "-t", "300", *state]
    if dnat:
        address, port = dnat.rsplit(",", 1)
        command += ["--reply-src", address, "--reply-dst", source]
        command += ["--reply-port-src", port, "--reply-port-dst", str(sport)]
    subprocess.run(command, check=True, capture_output=True)


def shown(family: str = "ipv4") -> list[str]:
    run = subprocess.run(["conntrack", "-L", "-f", family], check=True, capture_output=True, text=True)
    return sorted(line for line in run.stdout.splitlines() if line.strip())


def test_deletes_by_protocol_and_original_port() -> None:
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    insert("192.0.2.1", "192.0.2.9", 1001, 53)
    insert("192.0.2.1", "192.0.2.2", 1002, 54)
    insert("192.0.2.1", "192.0.2.2", 1003, 53, "tcp")
    assert conntrack.delete(protocol=17, original_port=53) == 2
    left = shown()
    assert len(left) == 2
    assert "dport=54" in " ".join(left) and "tcp" in " ".join(left)


def test_deletes_by_original_destination() -> None:
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    insert("192.0.2.1", "192.0.2.3", 1001, 53)
    count = conntrack.delete(protocol=17, original_destination=IPv4Address("192.0.2.3"), original_port=53)
    assert count == 1
    assert "dst=192.0.2.2" in shown()[0] and len(shown()) == 1


@pytest.mark.parametrize(
    ("client", "host", "pod", "other", "family"),
    [
        ("192.0.2.1", "192.0.2.2", "10.0.0.5", "10.0.0.6", "ipv4"),
        ("2001:db8::1", "2001:db8::2", "fd00::5", "fd00::6", "ipv6"),
    ],
)
def test_deletes_by_who_answers(client: str, host: str, pod: str, other: str, family: str) -> None:
    insert(client, host, 1000, 8125, dnat=f"{pod},9000")
    insert(client, host, 1001, 8125, dnat=f"{other},9000")
    insert(client, host, 1002, 8125, dnat=f"{pod},9001")
    assert conntrack.delete(protocol=17, reply_source=ip_address(pod), reply_port=9000) == 1
    left = " ".join(shown(family))
    assert "sport=1000" not in left
    assert "sport=1001" in left and "sport=1002" in left


def test_the_family_is_not_crossed() -> None:
    insert("2001:db8::1", "2001:db8::2", 1000, 53)
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    assert conntrack.delete(protocol=17, family=6, original_port=53) == 1
    assert shown("ipv6") == [] and len(shown()) == 1


def test_without_a_family_both_go() -> None:
    insert("2001:db8::1", "2001:db8::2", 1000, 53)
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    assert len(conntrack.list_flows()) == 2
    assert conntrack.delete(protocol=17, original_port=53) == 2
    assert shown("ipv6") == shown() == []


def test_where_judges_each_flow() -> None:
    insert("192.0.2.1", "192.0.2.2", 1000, 53, dnat="10.0.0.5,5353")
    insert("192.0.2.1", "192.0.2.2", 1001, 53)
    seen: list[conntrack.Flow] = []

    def translated(flow: conntrack.Flow) -> bool:
        seen.append(flow)
        return flow.reply_source != flow.destination

    assert conntrack.delete(protocol=17, original_port=53, where=translated) == 1
    assert len(seen) == 2
    assert "sport=1001" in shown()[0]


def test_flows_are_read_as_conntrack_shows_them() -> None:
    insert("2001:db8::1", "2001:db8::2", 1000, 53, dnat="fd00::5,5353")
    (flow,) = conntrack.list_flows(family=6, protocol=17)
    assert flow == conntrack.Flow(
        17,
        IPv6Address("2001:db8::1"),
        IPv6Address("2001:db8::2"),
        1000,
        53,
        IPv6Address("fd00::5"),
        IPv6Address("2001:db8::1"),
        5353,
        1000,
    )


def test_nothing_to_delete_is_no_error() -> None:
    assert conntrack.delete(protocol=17, original_port=1) == 0


def test_an_entry_that_ends_meanwhile_is_no_error() -> None:
    insert("192.0.2.1", "192.0.2.2", 1000, 53)

    def ends(flow: conntrack.Flow) -> bool:
        subprocess.run(["conntrack", "-F"], check=True, capture_output=True)
        return flow.destination_port == 53

    assert conntrack.delete(protocol=17, original_port=53, where=ends) == 1
    assert shown() == []


def test_the_kernel_itself_leaves_out_what_does_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in range(50):
        insert("192.0.2.1", "192.0.2.2", 1000 + port, 60)
    insert("192.0.2.1", "192.0.2.2", 999, 53)
    dumped: list[int] = []
    dump = NetfilterSocket.dump

    def count(self: NetfilterSocket, message: Message) -> list[tuple[int, bytes]]:
        entries = dump(self, message)
        dumped.append(len(entries))
        return entries

    monkeypatch.setattr(NetfilterSocket, "dump", count)
    assert conntrack.delete(protocol=17, family=4, original_port=53) == 1
    assert dumped == [1]


def test_a_refusal_names_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    monkeypatch.setattr(conntrack, "_DELETE", (1 << 8) | 99)
    with pytest.raises(KernelError) as caught:
        conntrack.delete(protocol=17, original_port=53)
    assert "192.0.2.1" in str(caught.value) and caught.value.operation == "delete"


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many times the kernel's table was walked."""
    done: list[int] = []
    dump = NetfilterSocket.dump

    def count(self: NetfilterSocket, message: Message) -> list[tuple[int, bytes]]:
        done.append(message.type)
        return dump(self, message)

    monkeypatch.setattr(NetfilterSocket, "dump", count)
    return done


def test_the_table_is_walked_only_where_an_entry_may_be_meant(walks: list[int]) -> None:
    assert conntrack.delete(protocol=17, original_port=53) == 0
    insert("192.0.2.1", "192.0.2.2", 1000, 530)
    insert("2001:db8::1", "2001:db8::2", 1000, 54)
    assert conntrack.delete(protocol=17, original_port=53) == 0
    assert conntrack.delete(protocol=6, original_port=530) == 0
    assert conntrack.delete(protocol=17, family=4, original_port=54) == 0
    assert walks == []
    assert conntrack.delete(protocol=17, family=6, original_port=54) == 1
    assert conntrack.delete(protocol=17, family=4, original_port=530) == 1
    assert len(walks) == 2


@pytest.mark.parametrize("lack", ["_LIST", "_COUNT"])
def test_without_the_list_or_with_a_long_one_it_is_walked(
    monkeypatch: pytest.MonkeyPatch, walks: list[int], lack: str
) -> None:
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    monkeypatch.setattr(conntrack, lack, Path("/proc/nosuch"))
    assert conntrack.delete(protocol=17, family=4, original_port=53) == 1
    monkeypatch.undo()
    insert("192.0.2.1", "192.0.2.2", 1000, 53)
    monkeypatch.setattr(conntrack, "_LIST_MAX", 0)
    assert conntrack.delete(protocol=17, family=4, original_port=54) == 0
    assert conntrack.delete(protocol=17, family=4, original_port=53) == 1
