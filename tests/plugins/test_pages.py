"""The plugins' pages: each option is there, and the example is a network that the plugins take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.cni.config import parse_list
from podwire.plugins import TYPES, load, portmap
from podwire.plugins.host_local import IPAMConfig, RangeConfig

PAGES = Path(__file__).parents[2] / "docs/plugins"
OWN = ("bridge", "host-device", "host-local", "loopback", "macvlan", "portmap", "ptp", "tap")
_ELSEWHERE = {"runtimeConfig", "args", "type"}


def page(type: str) -> str:
    return (PAGES / f"{type}.md").read_text()


def options(type: str) -> set[str]:
    plugin = load(type)
    assert plugin is not None
    others: dict[str, list[Any]] = {
        "host-local": [IPAMConfig, RangeConfig],
        "portmap": [portmap.Settings],
    }
    structs = others.get(type, [plugin.config])
    return {one.encode_name for each in structs for one in msgspec.structs.fields(each)} - _ELSEWHERE


@pytest.mark.parametrize("type", OWN)
def test_every_option_is_in_a_table(type: str) -> None:
    rows = [line.split("|")[1] for line in page(type).splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert options(type) <= told, f"not told: {options(type) - told}"
    keys = {"hostPort", "containerPort", "protocol", "hostIP", "ipam"}
    assert told <= options(type) | keys, f"no options: {told - options(type) - keys}"


@pytest.mark.parametrize("type", OWN)
def test_the_example_is_a_network_with_the_plugin(type: str) -> None:
    found = re.search(r"^```json\n(.*?)^```$", page(type), re.MULTILINE | re.DOTALL)
    assert found is not None
    network = parse_list(found[1].encode())
    named = {one.type for one in network.plugins} | {
        one.raw["ipam"]["type"] for one in network.plugins if "ipam" in one.raw
    }
    assert type in named
    assert named <= set(TYPES)
