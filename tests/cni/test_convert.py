from __future__ import annotations

import ipaddress
import itertools
import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.cni import convert, versions
from podwire.cni.errors import CNIError, DecodeFailure, IncompatibleVersion
from podwire.cni.types import DNS, Interface, IPConfig, Result, Route
from tests.cni.helpers import RESULT

DNS_INFO = DNS(("1.1.1.1",), "a<b>&c\u2028é", ("x.org",), ("ndots:5",))
FULL = msgspec.structs.replace(RESULT, dns=DNS_INFO)

EXPECTED = {
    "0.2.0": r"""{
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.1.0.5/16",
        "gateway": "10.1.0.1",
        "routes": [
            {
                "dst": "0.0.0.0/0"
            }
        ]
    },
    "ip6": {
        "ip": "fd00::5/64",
        "routes": [
            {
                "dst": "::/0",
                "gw": "fd00::1"
            }
        ]
    },
    "dns": {}
}""",
    "0.4.0": r"""{
    "cniVersion": "0.4.0",
    "interfaces": [
        {
            "name": "eth0",
            "mac": "02:00:00:00:00:01",
            "sandbox": "/run/netns/x"
        }
    ],
    "ips": [
        {
            "version": "4",
            "interface": 0,
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1"
        },
        {
            "version": "6",
            "interface": 0,
            "address": "fd00::5/64"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0",
            "gw": "fd00::1",
            "mtu": 1300
        }
    ],
    "dns": {}
}""",
    "1.1.0": r"""{
    "cniVersion": "1.1.0",
    "interfaces": [
        {
            "mac": "02:00:00:00:00:01",
            "mtu": 1400,
            "name": "eth0",
            "sandbox": "/run/netns/x"
        }
    ],
    "ips": [
        {
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1",
            "interface": 0
        },
        {
            "address": "fd00::5/64",
            "interface": 0
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0",
            "gw": "fd00::1",
            "mtu": 1300
        }
    ]
}""",
}
SAME_SHAPE = {"0.1.0": "0.2.0", "0.3.0": "0.4.0", "0.3.1": "0.4.0", "1.0.0": "1.1.0"}


def expected(version: str) -> str:
    shape = SAME_SHAPE.get(version, version)
    return EXPECTED[shape].replace(f'"{shape}"', f'"{version}"')


@pytest.mark.parametrize("version", versions.SUPPORTED)
def test_printed_as_go_prints_it(version: str) -> None:
    assert convert.encode_result(RESULT, version).decode() == expected(version)


# What is left of the result where the older of two versions could not tell more.
FROM_02 = {
    "0.2.0": EXPECTED["0.2.0"],
    "0.4.0": r"""{
    "cniVersion": "0.4.0",
    "ips": [
        {
            "version": "4",
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1"
        },
        {
            "version": "6",
            "address": "fd00::5/64"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0",
            "gw": "fd00::1"
        }
    ],
    "dns": {}
}""",
    "1.1.0": r"""{
    "cniVersion": "1.1.0",
    "ips": [
        {
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1"
        },
        {
            "address": "fd00::5/64"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0",
            "gw": "fd00::1"
        }
    ]
}""",
}
FROM_04 = {
    "0.2.0": EXPECTED["0.2.0"],
    "0.4.0": EXPECTED["0.4.0"],
    "1.1.0": r"""{
    "cniVersion": "1.1.0",
    "interfaces": [
        {
            "mac": "02:00:00:00:00:01",
            "name": "eth0",
            "sandbox": "/run/netns/x"
        }
    ],
    "ips": [
        {
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1",
            "interface": 0
        },
        {
            "address": "fd00::5/64",
            "interface": 0
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0",
            "gw": "fd00::1",
            "mtu": 1300
        }
    ]
}""",
}
CONVERTED = {"0.2.0": FROM_02, "0.4.0": FROM_04, "1.1.0": EXPECTED}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(versions.SUPPORTED, repeat=2)))
def test_every_pair_of_versions(old: str, new: str) -> None:
    shape = SAME_SHAPE.get(new, new)
    wanted = CONVERTED[SAME_SHAPE.get(old, old)][shape].replace(f'"{shape}"', f'"{new}"')
    assert convert.encode_result(convert.decode_result(expected(old)), new).decode() == wanted


def test_dns_is_escaped_as_go_escapes_it() -> None:
    text = convert.encode_result(FULL, "0.4.0").decode()
    assert r'"domain": "a\u003cb\u003e\u0026c\u2028é"' in text
    assert convert.decode_result(text).dns == DNS_INFO


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_down_to_02_takes_the_first_address_of_a_family_and_needs_one(version: str) -> None:
    many = Result(ips=(IPConfig("fd00::1/64"), IPConfig("10.0.0.1/8"), IPConfig("10.0.0.2/8")))
    said = json.loads(convert.encode_result(many, version))
    assert (said["ip4"]["ip"], said["ip6"]["ip"]) == ("10.0.0.1/8", "fd00::1/64")
    with pytest.raises(IncompatibleVersion, match="cannot convert: no valid IP addresses"):
        convert.encode_result(Result(routes=(Route("10.0.0.0/8"),)), version)


def test_down_to_02_drops_routes_of_a_family_without_address() -> None:
    only4 = Result(ips=(IPConfig("10.0.0.1/8"),), routes=(Route("::/0"), Route("0.0.0.0/0", "10.0.0.9")))
    said = json.loads(convert.encode_result(only4, "0.2.0"))
    assert said["ip4"]["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.0.0.9"}]
    assert "ip6" not in said


def test_up_from_02_puts_v4_first_and_joins_routes() -> None:
    said = {"ip6": {"ip": "fd00::5/64", "routes": [{"dst": "::/0"}]}, "ip4": {"ip": "10.0.0.5/8"}}
    result = convert.decode_result(said, "0.2.0")
    assert [ip.family for ip in result.ips] == [4, 6]
    assert result.routes == (Route("::/0"),)


def test_a_result_without_version_takes_the_configurations_and_else_010() -> None:
    assert convert.decode_result({"ips": [{"address": "10.0.0.5/8"}]}, "1.0.0").ips
    assert not convert.decode_result({"ips": [{"address": "10.0.0.5/8"}]}).ips
    assert convert.decode_result({"ip4": {"ip": "10.0.0.5/8"}}).ips


def test_keys_match_whatever_their_case_and_null_is_absent() -> None:
    said = {"CniVersion": "1.0.0", "IPS": [{"ADDRESS": "10.0.0.5/8", "gateWay": None}], "dns": None}
    assert convert.decode_result(said) == Result(ips=(IPConfig("10.0.0.5/8"),))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"ips": [{"address": "10.0.0.5"}]}, "ips[0]"),
        ({"ips": [{"address": "10.0.0.5/33"}]}, "10.0.0.5/33"),
        ({"ips": [{"address": "10.0.0.05/8"}]}, "10.0.0.05"),
        ({"ips": [{"address": "fe80::1%eth0/64"}]}, "fe80::1%eth0"),
        (
            {"ips": [{"address": "10.0.0.5/8", "interface": "eth0"}]},
            "ips[0].interface: Expected `int | null`",
        ),
        ({"routes": [{"dst": "default"}]}, "routes[0]"),
        ({"routes": [{"gw": "10.0.0.1"}]}, "routes[0]"),
        ({"interfaces": {"name": "eth0"}}, "interfaces"),
        ({"cniVersion": 1}, "cniVersion"),
    ],
)
def test_a_bad_field_is_named(said: dict[str, Any], told: str) -> None:
    with pytest.raises(DecodeFailure) as caught:
        convert.decode_result(said, "1.0.0")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"a":' * 5000, b"\xff", '{"ip4":{"ip":"fd00::1/64"}}']
)
def test_what_is_no_result_is_a_decode_failure(text: str | bytes) -> None:
    with pytest.raises(DecodeFailure):
        convert.decode_result(text)


def test_unknown_versions_are_refused_both_ways() -> None:
    with pytest.raises(IncompatibleVersion):
        convert.decode_result({"cniVersion": "2.0.0"})
    with pytest.raises(IncompatibleVersion):
        convert.encode_result(RESULT, "0.5.0")


def test_addresses_are_canonical() -> None:
    assert IPConfig("FD00:0::5/64").address == "fd00::5/64"
    assert IPConfig("::ffff:10.0.0.5/104").address == "10.0.0.5/8"
    with pytest.raises(ValueError, match="mixes"):
        IPConfig("::ffff:10.0.0.5/64")


def test_b15_the_containers_interface_is_found_by_name_with_or_without_sandbox() -> None:
    """B15: results whose interfaces have no sandbox."""
    host, inside = Interface("eth0"), Interface("eth0", sandbox="/run/netns/x")
    ips = (IPConfig("10.0.0.5/8", interface=0), IPConfig("10.0.0.6/8", interface=1), IPConfig("10.0.0.7/8"))
    assert Result((host,), ips).interface_index("eth0") == 0
    assert Result((host, inside), ips).ips_of("eth0") == ips[1:]
    assert Result((host,), ips).interface_index("eth1") is None


def test_a_result_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(FULL)) == FULL


octet = st.integers(0, 255)
v4 = st.builds(lambda *parts: ".".join(map(str, parts)), octet, octet, octet, octet)
v6 = st.integers(1 << 64, (1 << 128) - 1).map(lambda n: str(ipaddress.IPv6Address(n)))
prefix = st.one_of(
    st.builds("{}/{}".format, v4, st.integers(0, 32)), st.builds("{}/{}".format, v6, st.integers(0, 128))
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
gateway = st.one_of(st.just(""), v4, v6)
small = st.integers(0, 1 << 31)
results = st.builds(
    Result,
    st.lists(st.builds(Interface, text, text, small, text, text, text), max_size=3).map(tuple),
    st.lists(st.builds(IPConfig, prefix, gateway, st.none() | st.integers(0, 3)), max_size=4).map(tuple),
    st.lists(
        st.builds(Route, prefix, gateway, small, small, small, st.none() | small, st.none() | small),
        max_size=3,
    ).map(tuple),
    st.builds(DNS, st.lists(text, max_size=2).map(tuple), text, st.lists(text, max_size=2).map(tuple)),
)


@settings(max_examples=80, deadline=None)
@given(results, st.sampled_from(versions.SUPPORTED))
def test_down_and_up_loses_only_what_the_version_cannot_say(result: Result, version: str) -> None:
    try:
        back = convert.decode_result(convert.encode_result(result, version))
    except IncompatibleVersion:
        assert not result.ips and not versions.at_least(version, "0.3.0")
        return
    assert back.dns == result.dns
    if versions.at_least(version, "1.0.0"):
        assert back == result
    elif versions.at_least(version, "0.3.0"):
        assert (back.ips, back.routes) == (result.ips, result.routes)
        assert [(i.name, i.mac, i.sandbox) for i in back.interfaces] == [
            (i.name, i.mac, i.sandbox) for i in result.interfaces
        ]
    else:
        firsts = [next((ip for ip in result.ips if ip.family == family), None) for family in (4, 6)]
        assert back.ips == tuple(IPConfig(ip.address, ip.gateway) for ip in firsts if ip)
        families = {ip.family for ip in back.ips}
        kept = [route for family in (4, 6) for route in result.routes if route.family == family]
        assert back.routes == tuple(Route(r.dst, r.gw) for r in kept if r.family in families)
    assert convert.encode_result(back, version) == convert.encode_result(result, version)


pairs = st.tuples(st.sampled_from(versions.SUPPORTED), st.sampled_from(versions.SUPPORTED)).map(sorted)


@settings(max_examples=80, deadline=None)
@given(results, pairs)
def test_up_and_down_again_is_the_same_text(result: Result, pair: list[str]) -> None:
    old, new = pair
    try:
        text = convert.encode_result(result, old)
    except IncompatibleVersion:
        return
    newer = convert.encode_result(convert.decode_result(text), new)
    assert convert.encode_result(convert.decode_result(newer), old) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    [
        "cniVersion",
        "ip4",
        "ip6",
        "ip",
        "ips",
        "interfaces",
        "routes",
        "dns",
        "address",
        "gateway",
        "dst",
        "gw",
        "name",
        "interface",
        "IPS",
    ]
)
near_results = st.dictionaries(
    keys,
    json_values | st.lists(st.dictionaries(keys, json_values | prefix, max_size=3), max_size=2),
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(near_results, st.sampled_from(versions.SUPPORTED))
def test_any_json_is_a_result_or_a_cni_error(said: dict[str, Any], version: str) -> None:
    try:
        result = convert.decode_result(said, version)
    except CNIError:
        return
    assert isinstance(result, Result)
