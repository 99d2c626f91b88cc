"""Elements written by our own messages, as `nft` shows them, and what the kernel refuses."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.kernel import nftwrite
from podwire.kernel.nft import COMMENT_BYTES, Nft, NftError
from podwire.kernel.nftset import INTERFACE, IPV4, IPV6, PORT, PROTOCOL, Element, NamedSet
from podwire.kernel.nftwrite import Changes, add, create, delete

pytestmark = pytest.mark.kernel

ENDS = NamedSet("ends", (INTERFACE, IPV4), table="t")
TARGETS = NamedSet("targets", (PROTOCOL, PORT), (IPV6, PORT), table="t")
VERDICTS = NamedSet("verdicts", (IPV6,), verdict=True, table="t")
PLAIN = NamedSet("plain", (IPV4,), table="t")
TABLE = """
table inet t {
    set ends { type ifname . ipv4_addr; }
    map targets { type inet_proto . inet_service : ipv6_addr . inet_service; }
    map verdicts { type ipv6_addr : verdict; }
    set plain { type ipv4_addr; }
    chain there { counter comment "one"; }
}
"""


@pytest.fixture
def nft() -> Iterator[Nft]:
    with Nft.open() as opened:
        opened.run(TABLE)
        opened.rules("t")
        yield opened


def shown() -> dict[str, list[Any]]:
    text = subprocess.run(["nft", "-j", "list", "table", "inet", "t"], check=True, capture_output=True).stdout
    found = {}
    for item in json.loads(text)["nftables"]:
        for kind in ("set", "map"):
            if kind in item:
                found[item[kind]["name"]] = sorted(item[kind].get("elem", []), key=str)
    return found


ADDRESSES4 = st.integers(0, 2**32 - 1).map(IPv4Address)
ADDRESSES6 = st.integers(0, 2**128 - 1).map(IPv6Address)
PORTS = st.integers(0, 65535)
NAMES = st.from_regex(r"[a-z][a-z0-9.]{0,14}", fullmatch=True)
COMMENTS = st.from_regex(rf"[A-Za-z0-9/~. -]{{0,{COMMENT_BYTES - 1}}}", fullmatch=True)
CHANGES = st.tuples(
    st.builds(lambda a, b, c: create(ENDS, Element((a, b), None, c)), NAMES, ADDRESSES4, COMMENTS),
    st.builds(
        lambda a, b, c, d, e: create(TARGETS, Element((a, b), (c, d), e)),
        st.sampled_from([6, 17, 132]),
        PORTS,
        ADDRESSES6,
        PORTS,
        COMMENTS,
    ),
    st.builds(lambda a, c: add(VERDICTS, Element((a,), "there", c)), ADDRESSES6, COMMENTS),
    st.builds(lambda some: create(PLAIN, *(Element((a,)) for a in some)), st.sets(ADDRESSES4, max_size=5)),
).map(lambda parts: sum(parts, ()))


@settings(max_examples=10, deadline=None)
@given(changes=CHANGES)
def test_messages_and_text_do_the_same(changes: Changes) -> None:
    seen = []
    for as_text in (False, True):
        with Nft.open() as nft:
            nft.run(f"add table inet t\ndelete table inet t\n{TABLE}")
            if as_text:
                nft.run(nftwrite.text(changes))
            else:
                nft.write(changes)
            seen.append(shown())
            read = {change.where.name: set(nft.elements(change.where)) for change in changes}
            assert read == {change.where.name: set(change.elements) for change in changes}
            gone = tuple(
                each for change in changes for each in delete(change.where, *(e.key for e in change.elements))
            )
            nft.write(gone)
            assert not any(shown().values())
    assert seen[0] == seen[1]


def test_a_refused_change_undoes_the_whole_and_names_the_set(nft: Nft) -> None:
    one, two = Element((IPv4Address("10.0.0.1"),)), Element((IPv4Address("10.0.0.2"),))
    nft.write(create(PLAIN, two))
    with pytest.raises(NftError, match="create element of inet t plain: File exists") as caught:
        nft.write(create(PLAIN, one) + create(PLAIN, two))
    assert caught.value.errno == 17
    with pytest.raises(NftError, match="delete element of inet t plain: No such file") as caught:
        nft.write(create(PLAIN, one) + delete(PLAIN, one.key) + delete(PLAIN, one.key))
    assert caught.value.errno == 2
    assert shown()["plain"] == ["10.0.0.2"]
    nft.write(add(PLAIN, one) + add(PLAIN, two))
    assert shown()["plain"] == ["10.0.0.1", "10.0.0.2"]


def test_thousands_of_elements_are_one_transaction(nft: Nft) -> None:
    elements = [Element((IPv4Address(number),), None, "x" * 100) for number in range(1, 3001)]
    nft.write(create(PLAIN, *elements))
    # While the kernel still enlarges the set's table, by work of its own, a listing leaves some out.
    until = time.monotonic() + 5
    while set(nft.elements(PLAIN)) != set(elements):
        assert time.monotonic() < until
    with pytest.raises(NftError):
        nft.write(delete(PLAIN, *(each.key for each in elements)) + delete(PLAIN, elements[0].key))
    assert all(nft.get_all([(PLAIN, each.key) for each in elements]))


def test_it_is_written_only_in_known_rules_if_that_is_asked(nft: Nft) -> None:
    def element(number: int) -> Changes:
        return create(PLAIN, Element((IPv4Address(number),)))

    assert nft.write(element(1), in_known_rules=True)
    assert nft.write(element(2), in_known_rules=True)
    reading = nft.reading
    subprocess.run(["nft", "add", "table", "inet", "somebody"], check=True)
    assert not nft.write(element(3), in_known_rules=True)
    assert nft.reading is not reading
    assert len(nft.elements(PLAIN)) == 2
    assert [rule.comment for rule in nft.rules("t")] == ["one"]
    assert nft.write(element(3), in_known_rules=True)
    subprocess.run(["nft", "delete", "table", "inet", "somebody"], check=True)
    nft.write(element(4))
    assert len(nft.elements(PLAIN)) == 4


def test_a_foreign_interval_set_costs_a_write_nothing(nft: Nft) -> None:
    """libnftables reads such sets before each of its transactions."""
    ranges = ", ".join(f"{IPv4Address(16 * number)}/30" for number in range(1, 5001))
    text = f"""table ip foreign {{
        set s {{ type ipv4_addr; flags interval; elements = {{ {ranges} }}
        }}
    }}"""
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
    read: list[int] = []
    sock = nft._socket
    original = type(sock)._read

    def count(self: Any, message: Any) -> bytes:
        data = original(self, message)
        read.append(len(data))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sock), "_read", count)
        nft.write(create(PLAIN, Element((IPv4Address("10.0.0.1"),))))
    assert sum(read) < 1000


def test_several_elements_are_read_at_once(nft: Nft) -> None:
    nft.write(
        create(PLAIN, Element((IPv4Address(1),), None, "a"))
        + create(VERDICTS, Element((IPv6Address(2),), "there"))
    )
    wanted = [(PLAIN, (IPv4Address(1),)), (PLAIN, (IPv4Address(9),)), (VERDICTS, (IPv6Address(2),))]
    found = nft.get_all(wanted)
    assert [each and (each.comment, each.value) for each in found] == [("a", None), None, ("", "there")]
    assert nft.get_all([]) == []
