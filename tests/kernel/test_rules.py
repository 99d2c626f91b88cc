"""Policy rules, as ``ip rule`` sees them."""

from __future__ import annotations

import errno
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import rules
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.rules import Rule
from tests.kernel import helpers

kernel = pytest.mark.kernel


@kernel
@pytest.mark.parametrize(("family", "source"), [(4, "10.1.0.0/16"), (6, "2001:db8::/64")])
def test_a_rule_is_added_read_and_deleted(sock: RouteSocket, family: int, source: str) -> None:
    rule = Rule(
        family=family,
        priority=1500,
        source=ip_network(source),
        input="eth0.5",
        mark=0x4000,
        mask=0xC000,
        table=1000,
        suppress_prefix=0,
        protocol=4,
    )
    sock.send(rules.add(rule))
    [seen] = helpers.ip(f"-{family}", "rule", "show", "priority", "1500")
    address, length = source.split("/")
    assert (seen["src"], seen["srclen"], seen["iif"]) == (address, int(length), "eth0.5")
    assert (seen["fwmark"], seen["fwmask"], seen["table"]) == ("0x4000", "0xc000", "1000")
    assert seen["suppress_prefixlen"] == 0
    assert [one for one in rules.list_rules(sock) if one.priority == 1500] == [rule]
    with pytest.raises(KernelError) as caught:
        sock.send(rules.add(rule))
    assert caught.value.errno == errno.EEXIST
    sock.send(rules.delete(rule))
    assert helpers.ip(f"-{family}", "rule", "show", "priority", "1500") == []
    with pytest.raises(KernelError) as caught:
        sock.send(rules.delete(rule))
    assert caught.value.errno == errno.ENOENT
    assert f"IPv{family} priority 1500" in str(caught.value)


@kernel
def test_inverted_and_dropping_rules(sock: RouteSocket) -> None:
    drop = Rule(
        family=4,
        priority=7,
        destination=ip_network("192.0.2.0/24"),
        output="x",
        invert=True,
        action="prohibit",
        table=0,
    )
    sock.send(rules.add(drop))
    [seen] = helpers.ip("rule", "show", "priority", "7")
    assert (seen["dst"], seen["dstlen"], seen["oif"], seen["action"]) == ("192.0.2.0", 24, "x", "prohibit")
    assert "not" in seen
    [read] = [one for one in rules.list_rules(sock, 4) if one.priority == 7]
    assert (read.invert, read.action, read.output, read.destination) == (
        True,
        "prohibit",
        "x",
        drop.destination,
    )


@kernel
def test_the_three_first_rules_are_listed(sock: RouteSocket) -> None:
    assert [(rule.priority, rule.table) for rule in rules.list_rules(sock, 4)] == [
        (0, 255),
        (32766, 254),
        (32767, 253),
    ]
    assert [(rule.priority, rule.table) for rule in rules.list_rules(sock, 6)] == [(0, 255), (32766, 254)]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule(family=5), "rule family 5"),
        (Rule(family=4, action="odd"), "rule action 'odd'"),
        (Rule(family=4, source=ip_network("2001:db8::/64")), "is not IPv4"),
        (Rule(family=4, input="a" * 16), "rule input"),
        (Rule(family=4, priority=-1), "rule priority -1"),
    ],
)
def test_impossible_rules_are_refused_before_they_are_sent(rule: Rule, says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        rules.add(rule)
    assert says in str(caught.value)


@given(st.sampled_from([2, 10, 7]), st.binary(max_size=80))
def test_random_bytes_parse_or_raise_the_typed_error(family: int, data: bytes) -> None:
    try:
        rule = rules.parse(bytes([family]) + data)
    except MalformedReply:
        return
    assert isinstance(rule, Rule)
