"""What portmap takes and what it refuses, without a kernel: mappings, options, conditions, owners."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.errors import CNIError, InvalidConfig
from podwire.cni.plugin import Interface, IPConfig, Result, make_request
from podwire.plugins import conditions, hostports, portmap, ruleset
from podwire.plugins.hostports import HostPort
from podwire.plugins.ruleset import Owner

POD = {4: ip_interface("10.1.0.5/24"), 6: ip_interface("fd00:1::5/64")}
GOOD = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}


def wanted(*entries: Any, pod: hostports.Pod = POD) -> tuple[HostPort, ...]:
    return hostports.wanted({"portMappings": list(entries)}, pod)


def test_a_mapping_becomes_one_entry_per_family() -> None:
    four, six = wanted({**GOOD, "hostPort": 65535, "protocol": "SCTP"})
    assert four == HostPort(None, 132, 65535, ip_address("10.1.0.5"), 80, "runtimeConfig.portMappings[0]")
    assert six.target == ip_address("fd00:1::5") and six.version == 6
    assert (str(four), str(six)) == ("0.0.0.0:65535/sctp", "[::]:65535/sctp")
    assert str(wanted({**GOOD, "hostIP": "2001:db8::1"})[0]) == "[2001:db8::1]:8080/tcp"


def test_keys_are_read_whatever_their_case_and_absent_means_none() -> None:
    (entry, _) = hostports.wanted(
        {"PORTMAPPINGS": [{"HostPort": 1, "CONTAINERPORT": 2, "Protocol": "udp"}]}, POD
    )
    assert (entry.port, entry.target_port, entry.protocol) == (1, 2, 17)
    assert hostports.wanted({}, POD) == hostports.wanted({"portMappings": None}, POD) == wanted() == ()


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"hostPort": 0}, "portMappings[0].hostPort", "0"),
        ({"hostPort": -1}, "portMappings[0].hostPort", "-1"),
        ({"hostPort": 65536}, "portMappings[0].hostPort", "65536"),
        ({"hostPort": "80"}, "portMappings[0].hostPort", "'80'"),
        ({"hostPort": True}, "portMappings[0].hostPort", "True"),
        ({"hostPort": None}, "portMappings[0].hostPort", "None"),
        ({"hostPort": 80.5}, "portMappings[0].hostPort", "80.5"),
        ({"containerPort": 0}, "portMappings[0].containerPort", "0"),
        ({"containerPort": 70000}, "portMappings[0].containerPort", "70000"),
        ({"protocol": "icmp"}, "portMappings[0].protocol", "icmp"),
        ({"protocol": ""}, "portMappings[0].protocol", "''"),
        ({"protocol": 6}, "portMappings[0].protocol", "6"),
        ({"protocol": None}, "portMappings[0].protocol", "None"),
        ({"hostIP": "localhost"}, "portMappings[0].hostIP", "localhost"),
        ({"hostIP": "1.2.3"}, "portMappings[0].hostIP", "1.2.3"),
        ({"hostIP": "10.0.0.0/8"}, "portMappings[0].hostIP", "10.0.0.0/8"),
        ({"hostIP": "fe80::1%eth0"}, "portMappings[0].hostIP", "fe80::1%eth0"),
        ({"hostIP": 16909060}, "portMappings[0].hostIP", "16909060"),
        ({"hostIP": "::1"}, "portMappings[0].hostIP", "::1"),
    ],
)
def test_a_bad_mapping_is_refused_with_field_and_value(
    change: dict[str, Any], field: str, value: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        wanted({**GOOD, **change})
    assert caught.value.code == 7
    assert field in caught.value.msg and value in caught.value.msg


@pytest.mark.parametrize("entry", [None, 80, "8080:80", [8080, 80]])
def test_a_mapping_that_is_no_object_is_refused(entry: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"portMappings\[1\]: want an object"):
        wanted(GOOD, entry)
    with pytest.raises(InvalidConfig, match="portMappings: want a list"):
        hostports.wanted({"portMappings": "80:80"}, POD)


def test_a_pod_without_address_cannot_have_host_ports() -> None:
    with pytest.raises(InvalidConfig, match="no address"):
        wanted(GOOD, pod={})


def test_the_pods_addresses_are_those_of_its_interface() -> None:
    result = Result(
        (Interface("cni0"), Interface("eth0", sandbox="/x"), Interface("net1", sandbox="/x")),
        (
            IPConfig("10.9.0.1/24", interface=0),
            IPConfig("10.8.0.1/24", interface=2),
            IPConfig("10.1.0.5/24", interface=1),
            IPConfig("10.1.0.6/24", interface=1),
            IPConfig("fd00:1::5/64", interface=1),
        ),
    )
    assert hostports.addresses(result, "eth0") == POD


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "hostPort": st.integers(-1, 70000) | JSON,
        "containerPort": st.integers(-1, 70000) | JSON,
        "protocol": st.sampled_from(["tcp", "UDP", "sctp"]) | JSON,
        "hostIP": st.sampled_from(["", "0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "::ffff:1.2.3.4"]) | JSON,
    },
)


@given(st.lists(ENTRY | JSON, max_size=4) | JSON)
def test_whatever_is_asked_it_is_entries_or_one_error(value: Any) -> None:
    try:
        found = hostports.wanted({"portMappings": value}, POD)
    except InvalidConfig as error:
        assert error.code == 7 and "portMappings" in error.msg
        return
    keys = {(each.version, each.address, each.protocol, each.port) for each in found}
    assert len(keys) == len(found)
    assert all(0 < each.port < 65536 and 0 < each.target_port < 65536 for each in found)


def options(**given: Any) -> portmap.Settings:
    config = {"cniVersion": "1.0.0", "name": "net", "type": "portmap", **given}
    return portmap.settings(make_request(portmap.PLUGIN, "DEL", config, container_id="x", ifname="eth0"))


def test_options_have_their_defaults() -> None:
    assert options() == portmap.Settings()
    assert options(SNAT=False, MarkMasqBit=0) == portmap.Settings(snat=False, markMasqBit=0)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"markMasqBit": 32}, ("markMasqBit", "32")),
        ({"markMasqBit": -1}, ("markMasqBit", "-1")),
        ({"markMasqBit": "x"}, ("markMasqBit", "x")),
        ({"snat": "yes"}, ("snat", "yes")),
        ({"masqAll": 1}, ("masqAll", "1")),
        ({"backend": "ipvs"}, ("backend", "ipvs")),
        ({"markMasqBit": 5, "externalSetMarkChain": "X"}, ("markMasqBit", "externalSetMarkChain")),
    ],
)
def test_bad_options_are_refused_with_field_and_value(given: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        options(**given)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    ("words", "version", "text"),
    [
        (None, 4, ""),
        ([], 6, ""),
        (["!", "-d", "192.0.2.0/24"], 4, "ip daddr != 192.0.2.0/24"),
        (["-d", "!", "192.0.2.0/24"], 4, "ip daddr != 192.0.2.0/24"),
        (["--source", "2001:db8::/32,fd00::1"], 6, "ip6 saddr { 2001:db8::/32, fd00::1/128 }"),
        (["-i", "eth0", "!", "-s", "10.0.0.1"], 4, 'iifname "eth0" ip saddr != 10.0.0.1/32'),
        (["-i", "veth+"], 4, 'iifname "veth*"'),
        (["-p", "TCP", "-m", "tcp", "--dport", "80:90"], 4, "meta l4proto tcp th dport 80-90"),
        (["-m", "multiport", "!", "--sports", "1,2:3"], 4, "th sport != { 1, 2-3 }"),
        (["-m", "mark", "--mark", "0x1/0xff"], 4, "meta mark & 0xff == 0x1"),
        (["-m", "addrtype", "!", "--src-type", "LOCAL"], 6, "fib saddr type != local"),
        (["ip", "saddr", "!=", "10.0.0.0/8"], 4, "ip saddr != 10.0.0.0/8"),
        (["ip6 saddr != { fd00::/8, fe80::/10 }"], 6, "ip6 saddr != { fd00::/8, fe80::/10 }"),
    ],
)
def test_conditions_become_nft_matches(words: Any, version: int, text: str) -> None:
    assert conditions.translate(words, version, "conditionsV4") == text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("-d 1.2.3.4", "list of strings"),
        ([1], "list of strings"),
        (["!"], "!"),
        (["-d"], "-d"),
        (["-d", "nonsense"], "nonsense"),
        (["-d", "fd00::/8"], "fd00::/8"),
        (["-m", "recent", "--name", "x"], "recent"),
        (["-m"], "match"),
        (["-o", "eth0"], "-o"),
        (["-j", "ACCEPT"], "-j"),
        (["--dport", "99999"], "99999"),
        (["--dport", "9:1"], "9:1"),
        (["-i", "a b"], "a b"),
        (["-i", 'x"; drop'], "drop"),
        (["-p", "icmp"], "icmp"),
        (["--mark", "0x1ffffffff"], "0x1ffffffff"),
        (["--dst-type", "NOWHERE"], "NOWHERE"),
        (["-d", "1.2.3.4", "extra"], "extra"),
        (["ip", "saddr", "1.2.3.4", "drop"], "drop"),
        (["ip saddr 1.2.3.4; flush ruleset"], ";"),
        (["ip", "saddr", "1.2.3.4", "}", "chain"], "braces"),
        (["ip saddr 1.2.3.4\nflush ruleset"], "flush"),
        (["ip saddr 1.2.3.4\nip daddr 1.2.3.4"], "4\\nip"),
        (["meta", "mark", "set", "1"], "set"),
        (['iifname "a'], "quotes"),
    ],
)
def test_conditions_that_cannot_be_translated_are_refused_with_field_and_value(words: Any, part: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        conditions.translate(words, 4, "conditionsV4")
    assert caught.value.code == 7
    assert "conditionsV4" in caught.value.msg and part in caught.value.msg


@given(
    st.lists(
        st.sampled_from(["!", "-d", "-s", "-m", "mark", "--mark", "-i", "1.2.3.4", "ip", ";", "\n", "}"])
        | st.text()
    )
)
def test_no_conditions_break_out_of_their_rule(words: list[str]) -> None:
    try:
        text = conditions.translate(words, 4, "conditionsV4")
    except CNIError:
        return
    assert not any(letter in text for letter in ";\n\\#")
    assert text.count("{") == text.count("}") and text.count('"') % 2 == 0


NAME = st.text(min_size=1, max_size=150)


@given(NAME, NAME, NAME)
def test_every_owner_has_a_comment_that_nft_takes(network: str, container_id: str, ifname: str) -> None:
    owner = Owner(network, container_id, ifname)
    comment = owner.comment
    assert len(comment.encode()) < 128
    assert comment.isascii() and not set(comment) & set('"\\\n;{}')
    assert ruleset.network_of(comment) == ruleset.network_part(network)
    assert ruleset.place_of(comment) == owner.place


@given(NAME, NAME)
def test_different_containers_have_different_places(one: str, two: str) -> None:
    if one != two:
        assert Owner("net", one, "eth0").place != Owner("net", two, "eth0").place
        assert Owner("net", one, "eth0").key != Owner("net", two, "eth0").key
        assert ruleset.network_part(one) != ruleset.network_part(two)
