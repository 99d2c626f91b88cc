"""nftables: transactions are all or nothing, errors carry their errno, and reads see what `nft -j` sees."""

from __future__ import annotations

import errno
import json
import subprocess
import threading
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from podwire.kernel import netns, nft
from podwire.kernel.message import Message
from podwire.kernel.nft import NetfilterSocket, Nft, NftError, NftUnavailable, Rule
from podwire.kernel.nftset import INTERFACE, IPV4, IPV6, PORT, PROTOCOL, Element, NamedSet

kernel = pytest.mark.kernel

TARGETS = NamedSet("targets", (IPV4, PROTOCOL, PORT), (IPV4, PORT))
SOURCES = NamedSet("sources", (IPV6,), verdict=True)
NAMES = NamedSet("names", (INTERFACE,))
TABLE = """
table inet podwire {
    map targets { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    map sources { type ipv6_addr : verdict; }
    set names { type ifname; }
    chain one {
        ip daddr 192.0.2.1 return comment "first"
        return
    }
}
"""
ELEMENT = Element((IPv4Address("192.0.2.1"), 132, 80), (IPv4Address("10.0.0.5"), 8080), "net/abc/eth0")


def ruleset() -> list[dict[str, Any]]:
    text = subprocess.run(["nft", "-j", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
    return [item for item in json.loads(text)["nftables"] if "metainfo" not in item]


def elements(name: str) -> list[Any]:
    (found,) = [v for item in ruleset() for v in item.values() if v.get("name") == name]
    return list(found.get("elem", []))


@kernel
def test_a_transaction_is_done_as_a_whole() -> None:
    with Nft() as ours:
        ours.run(TABLE + TARGETS.create(ELEMENT))
    ((key, value),) = elements("targets")
    assert key["elem"] == {"val": {"concat": ["192.0.2.1", "sctp", 80]}, "comment": "net/abc/eth0"}
    assert value == {"concat": ["10.0.0.5", 8080]}


@kernel
def test_a_refused_transaction_leaves_nothing() -> None:
    with Nft() as ours:
        ours.run(TABLE + TARGETS.create(ELEMENT))
        with pytest.raises(NftError) as caught:
            ours.run(NAMES.add(Element(("eth0",))) + TARGETS.create(ELEMENT))
    assert caught.value.errno == errno.EEXIST
    assert caught.value.detail
    assert elements("names") == []


@kernel
def test_errno_tells_missing_from_malformed() -> None:
    with Nft() as ours:
        ours.run(TABLE)
        with pytest.raises(NftError) as missing:
            ours.run(TARGETS.delete(ELEMENT.key))
        with pytest.raises(NftError) as malformed:
            ours.run("table inet {")
        with pytest.raises(NftError) as no_table:
            ours.run("delete element inet nowhere s { 1 }")
    assert missing.value.errno == errno.ENOENT
    assert malformed.value.errno == errno.EINVAL and "syntax error" in malformed.value.detail
    assert no_table.value.errno in {errno.EINVAL, errno.ENOENT}


@kernel
def test_create_refuses_an_equal_element_and_add_does_not() -> None:
    with Nft() as ours:
        ours.run(TABLE + TARGETS.create(ELEMENT))
        ours.run(TARGETS.add(ELEMENT))
        with pytest.raises(NftError):
            ours.run(TARGETS.create(ELEMENT))
        with pytest.raises(NftError):
            ours.run(TARGETS.add(ELEMENT._replace(value=(IPv4Address("10.0.0.6"), 8080))))
    assert len(elements("targets")) == 1


@kernel
def test_check_asks_the_kernel_and_changes_nothing() -> None:
    with Nft() as ours:
        ours.check(TABLE)
        assert ruleset() == []
        ours.run(TABLE + TARGETS.create(ELEMENT))
        with pytest.raises(NftError) as caught:
            ours.check(TARGETS.create(ELEMENT))
        assert caught.value.errno == errno.EEXIST
        ours.run(TARGETS.delete(ELEMENT.key))
    assert elements("targets") == []


@kernel
def test_elements_are_read_as_they_were_written() -> None:
    chain = Element((IPv6Address("fd00::5"),), "one", "who")
    name = Element(("cni0",))
    with Nft() as ours:
        ours.run(TABLE + TARGETS.create(ELEMENT) + SOURCES.create(chain) + NAMES.add(name))
        assert ours.get(TARGETS, ELEMENT.key) == ELEMENT
        assert ours.get(SOURCES, chain.key) == chain
        assert ours.get(NAMES, name.key) == name
        assert ours.get(TARGETS, (IPv4Address("192.0.2.1"), 6, 80)) is None
        assert ours.elements(SOURCES) == [chain]


@kernel
def test_the_kernels_elements_of_another_writer_are_read() -> None:
    with Nft() as ours:
        ours.run(TABLE)
        many = ", ".join(f"10.0.{i >> 8}.{i & 255} . tcp . 80 : 10.1.0.1 . {i + 1}" for i in range(2000))
        subprocess.run(
            ["nft", "-f", "-"], input=f"add element inet podwire targets {{ {many} }}", text=True, check=True
        )
        found = ours.elements(TARGETS)
    assert {element.key[0]: element.value for element in found} == {
        IPv4Address(0x0A000000 + i): (IPv4Address("10.1.0.1"), i + 1) for i in range(2000)
    }


@kernel
def test_a_listing_of_a_set_that_was_sorted_anew_meanwhile_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel goes on after as many elements as it gave, in an order that is another one by then."""
    names = [Element((f"eth{number}",)) for number in range(600)]
    with Nft() as ours:
        ours.run(TABLE + NAMES.add(*names))
        dump = NetfilterSocket.dump
        readings: list[int] = []

        def unsteady(sock: NetfilterSocket, message: Message) -> list[tuple[int, bytes]]:
            first, *others = dump(sock, message)
            assert others
            readings.append(len(others))
            return [first, *others] if len(readings) == 3 else [first, first, *others[1:]]

        monkeypatch.setattr(NetfilterSocket, "dump", unsteady)
        assert sorted(ours.elements(NAMES)) == sorted(names)
        assert len(readings) == 3
        monkeypatch.setattr(NetfilterSocket, "dump", lambda sock, message: dump(sock, message)[:1] * 2)
        with pytest.raises(NftError) as caught:
            ours.elements(NAMES)
    assert caught.value.errno == errno.EAGAIN


@kernel
def test_what_is_not_there_reads_as_nothing() -> None:
    with Nft() as ours:
        assert ours.get(TARGETS, ELEMENT.key) is None
        assert ours.elements(TARGETS) == []
        assert ours.rules("podwire") == []
        assert not ours.has_table("podwire")
        ours.run(TABLE)
        assert ours.has_table("podwire")
        assert not ours.has_table("podwire", "ip")


@kernel
def test_a_chain_is_there_or_not() -> None:
    with Nft() as ours:
        assert not ours.has_chain("filter", "FORWARD", "ip")
        ours.run("add table ip filter\nadd chain ip filter FORWARD")
        assert ours.has_chain("filter", "FORWARD", "ip")
        assert not ours.has_chain("filter", "INPUT", "ip")
        assert not ours.has_chain("filter", "FORWARD", "ip6")


@kernel
def test_rules_are_listed_with_their_comments_for_one_table() -> None:
    with Nft() as ours:
        ours.run(TABLE)
        ours.run(
            "table inet other {\n chain c {\n accept\n }\n}\ntable ip podwire {\n chain d {\n accept\n }\n}\n"
        )
        assert ours.rules("podwire") == [Rule("one", "first"), Rule("one", "")]


@kernel
def test_rules_are_read_again_only_after_a_transaction_that_could_change_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dumps: list[str] = []
    dump = nft.NetfilterSocket.dump

    def count(self: nft.NetfilterSocket, message: Message) -> list[tuple[int, bytes]]:
        dumps.append(message.subject)
        return dump(self, message)

    monkeypatch.setattr(nft.NetfilterSocket, "dump", count)
    with Nft() as ours:
        ours.run(TABLE)
        before = ours.rules("podwire")
        assert ours.rules("podwire") == before and len(dumps) == 1
        ours.run(NAMES.add(Element(("a",))), keeps_rules=True)
        assert ours.rules("podwire") == before and len(dumps) == 1
        # Somebody else's transaction comes between reading and ours.
        subprocess.run(["nft", "add rule inet podwire one counter comment second"], check=True)
        ours.run(NAMES.add(Element(("b",))), keeps_rules=True)
        assert ours.rules("podwire") == [*before, Rule("one", "second")]
        ours.run("flush chain inet podwire one")
        assert ours.rules("podwire") == []


@kernel
def test_query_answers_what_nft_answers() -> None:
    with Nft() as ours:
        ours.run(TABLE)
        assert ours.query("list ruleset") == ruleset()
        assert ours.query("list tables")[0]["table"]["name"] == "podwire"


@kernel
def test_a_context_stays_in_the_namespace_that_it_was_opened_in() -> None:
    netns.create("/run/netns/other")
    try:
        with netns.open("/run/netns/other") as other, Nft.open(other) as there, Nft() as here:
            there.run(TABLE + TARGETS.create(ELEMENT))
            assert there.get(TARGETS, ELEMENT.key) == ELEMENT
            assert there.rules("podwire")
            assert here.rules("podwire") == []
            assert ruleset() == []
            text = other.run(
                lambda: subprocess.run(["nft", "list", "tables"], capture_output=True, text=True)
            )
            assert text.stdout.strip() == "table inet podwire"
    finally:
        netns.remove("/run/netns/other")


@kernel
def test_threads_share_one_context() -> None:
    failures: list[Exception] = []
    with Nft() as ours:
        ours.run(TABLE)

        def work(number: int) -> None:
            try:
                for port in range(20):
                    key = (IPv4Address(number), 6, port)
                    ours.run(TARGETS.create(Element(key, (IPv4Address("10.0.0.1"), port), f"t{number}")))
                    found = ours.get(TARGETS, key)
                    assert found is not None and found.comment == f"t{number}"
            except (AssertionError, NftError) as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
    assert len(elements("targets")) == 80


@kernel
def test_a_closed_context_says_so() -> None:
    ours = Nft()
    ours.close()
    ours.close()
    with pytest.raises(NftError, match="closed"):
        ours.run(TABLE)
    with pytest.raises(NftError, match="closed"):
        ours.rules("podwire")


@kernel
def test_a_nul_byte_is_refused_instead_of_cutting_the_transaction() -> None:
    with Nft() as ours:
        with pytest.raises(NftError):
            ours.run("add table inet a\0\nadd table inet b")
        assert ruleset() == []


@kernel
def test_a_missing_library_is_told_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with Nft() as complete:
        complete.run(TABLE + TARGETS.create(ELEMENT))
    monkeypatch.setattr(nft, "LIBRARY", "libnftables-is-not-here.so.1")
    monkeypatch.setattr(nft, "_loaded", None)
    with Nft() as ours:
        assert ours.get(TARGETS, ELEMENT.key) == ELEMENT
        with pytest.raises(NftUnavailable) as caught:
            ours.run(TABLE)
    assert caught.value.errno == errno.ELIBACC
    assert "install the Debian package libnftables1" in str(caught.value)


def test_text_and_bytes_of_a_key() -> None:
    assert TARGETS.create(ELEMENT) == (
        "create element inet podwire targets "
        '{ 192.0.2.1 . 132 . 80 comment "net/abc/eth0" : 10.0.0.5 . 8080 }\n'
    )
    assert TARGETS.pack_key(ELEMENT.key) == bytes.fromhex("c0000201 84000000 00500000")
    assert TARGETS.unpack_key(TARGETS.pack_key(ELEMENT.key)) == ELEMENT.key
    assert NAMES.pack_key(("eth0",)) == b"eth0" + bytes(12)
    assert SOURCES.delete() == "" and NAMES.add() == ""
