"""The shapes of results and errors, version by version."""

from __future__ import annotations

from typing import Any

import pytest

from podwire.cni import convert, versions
from podwire.cni.types import Interface, IPConfig, Result, Route
from podwire.conformance import schema

GOOD = Result(
    interfaces=(Interface("br0", "02:00:00:00:00:01"), Interface("eth0", "02:00:00:00:00:02", sandbox="/x")),
    ips=(IPConfig("10.1.0.5/16", "10.1.0.1", 1), IPConfig("2001:db8::5/64", "", 1)),
    routes=(Route("0.0.0.0/0", "10.1.0.1"), Route("::/0")),
)


def in_version(version: str, **changes: Any) -> dict[str, Any]:
    return {**convert.to_object(GOOD, version), **changes}


@pytest.mark.parametrize("version", versions.SUPPORTED)
def test_a_result_that_is_right_in_its_version(version: str) -> None:
    assert list(schema.faults(in_version(version), version)) == []


@pytest.mark.parametrize("version", versions.SUPPORTED)
def test_a_result_of_another_version(version: str) -> None:
    other = "1.0.0" if version != "1.0.0" else "0.4.0"
    found = list(schema.faults(in_version(version, cniVersion=other), version))
    assert found == [f"cniVersion is '{other}', the configuration has '{version}'"]


@pytest.mark.parametrize(
    ("version", "changes", "fault"),
    [
        (
            "1.1.0",
            {"ips": [{"address": "10.1.0.5"}]},
            "ips[0].address '10.1.0.5' is no address with a prefix",
        ),
        ("1.1.0", {"ips": [{}]}, "ips[0].address is missing"),
        ("1.1.0", {"ips": [{"address": "10.1.0.5/16", "interface": 2}]}, "ips[0].interface 2: there are 2"),
        ("1.1.0", {"ips": [{"address": "10.1.0.5/16", "interface": -1}]}, "ips[0].interface -1 is no number"),
        (
            "1.1.0",
            {"ips": [{"address": "10.1.0.5/16", "interface": True}]},
            "ips[0].interface True is no number",
        ),
        (
            "1.0.0",
            {"ips": [{"address": "10.1.0.5/16", "version": "4"}]},
            "ips[0].version: there is no such key",
        ),
        ("0.4.0", {"ips": [{"address": "10.1.0.5/16"}]}, "ips[0].version is missing"),
        (
            "0.4.0",
            {"ips": [{"address": "10.1.0.5/16", "version": "6"}]},
            "ips[0].version 6 is not that of 10.1",
        ),
        (
            "0.4.0",
            {"ips": [{"address": "10.1.0.5/16", "version": 4}]},
            'ips[0].version 4 is neither "4" nor "6"',
        ),
        ("1.1.0", {"ips": {}}, "ips is no list"),
        ("1.1.0", {"ips": ["x"]}, "ips[0] is no object"),
        ("1.1.0", {"interfaces": [{"name": ""}], "ips": []}, "interfaces[0].name '' is no string, or empty"),
        ("1.1.0", {"routes": [{"gw": "10.1.0.1"}]}, "routes[0].dst is missing"),
        ("1.1.0", {"routes": [{"dst": "::/0", "gw": "x"}]}, "routes[0].gw 'x' is no address"),
        ("1.1.0", {"routes": [{"dst": "::/0", "mtu": "1"}]}, "routes[0].mtu '1' is no number from 0"),
        ("1.1.0", {"dns": []}, "dns is no object"),
        ("1.1.0", {"dns": {"search": "a"}}, "dns.search 'a' is no list of strings"),
        ("1.1.0", {"ip4": {"ip": "10.1.0.5/16"}}, "ip4: this version has no such key"),
        ("0.2.0", {"ips": [{"address": "10.1.0.5/16"}]}, "ips: this version has no such key"),
        ("0.2.0", {"ip4": {}}, "ip4.ip is missing"),
        ("0.2.0", {"ip4": {"ip": "2001:db8::5/64"}}, "ip4.ip 2001:db8::5/64 is of the other family"),
        ("0.2.0", {"ip6": []}, "ip6 is no object"),
        ("0.2.0", {"ip4": {"ip": "10.1.0.5/16", "routes": [{}]}}, "ip4.routes[0].dst is missing"),
    ],
)
def test_what_is_wrong_is_named(version: str, changes: dict[str, Any], fault: str) -> None:
    found = list(schema.faults(in_version(version, **changes), version))
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_no_object_at_all() -> None:
    assert list(schema.faults([], "1.1.0")) == ["stdout holds no JSON object"]
    assert list(schema.faults(None, "1.1.0")) == ["stdout holds no JSON object"]


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"cniVersion": "1.1.0", "code": 7, "msg": "x"}, None),
        ({"code": 7, "msg": "x", "details": "y"}, None),
        ({"code": "7", "msg": "x"}, "error.code '7' is no number from 0"),
        ({"code": 7}, "error.msg is missing"),
        ({"code": 7, "msg": ""}, "error.msg '' is no string, or empty"),
        ({"code": 7, "msg": "x", "details": {}}, "error.details {} is no string"),
        ("x", "stdout holds no JSON object"),
    ],
)
def test_errors(error: Any, fault: str | None) -> None:
    assert list(schema.error_faults(error)) == ([] if fault is None else [fault])
