"""The plugins' pages: each option is there, and the example is a network that the plugins take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.cni.config import parse_list
from podwire.plugins import (
    TYPES,
    dhcp,
    firewall,
    host_local,
    load,
    pod_network,
    portmap,
    sbr,
    shaping,
    static,
    tuning,
)

PAGES = Path(__file__).parents[2] / "docs/plugins"
_ELSEWHERE = {"runtimeConfig", "args", "type"}
_GIVEN = {"portmap": {"hostPort", "containerPort", "protocol", "hostIP"}, "static": {"CNI_ARGS", "ips"}}
"""What a page has in a table beside options: what the runtime gives."""


def page(type: str) -> str:
    return (PAGES / f"{type}.md").read_text()


def options(type: str) -> set[str]:
    plugin = load(type)
    assert plugin is not None
    others: dict[str, list[Any]] = {
        "bandwidth": [shaping.Entry],
        "dhcp": [dhcp.IPAMConfig],
        "firewall": [firewall.Settings],
        "host-local": [host_local.IPAMConfig, host_local.RangeConfig],
        "podwire": [pod_network.Settings],
        "portmap": [portmap.Settings],
        "sbr": [sbr.Settings],
        "static": [static.IPAM],
        "tuning": [tuning.Configured],
    }
    structs = others.get(type, [plugin.config])
    return {one.encode_name for each in structs for one in msgspec.structs.fields(each)} - _ELSEWHERE


@pytest.mark.parametrize("type", TYPES)
def test_every_option_is_in_a_table(type: str) -> None:
    rows = [line.split("|")[1] for line in page(type).splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert options(type) <= told, f"not told: {options(type) - told}"
    keys = {"ipam"} | _GIVEN.get(type, set())
    assert told <= options(type) | keys, f"no options: {told - options(type) - keys}"


@pytest.mark.parametrize("type", TYPES)
def test_the_example_is_a_network_with_the_plugin(type: str) -> None:
    found = re.search(r"^```json\n(.*?)^```$", page(type), re.MULTILINE | re.DOTALL)
    assert found is not None
    network = parse_list(found[1].encode())
    named = {one.type for one in network.plugins} | {
        one.raw["ipam"]["type"] for one in network.plugins if "ipam" in one.raw
    }
    assert type in named
    assert named <= set(TYPES)
