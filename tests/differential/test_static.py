"""static beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import Difference, World

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

DIFFERENCES: tuple[Difference, ...] = ()
DUAL = [
    {"address": "10.1.0.5/24", "gateway": "10.1.0.1"},
    {"address": "fd00:1::5/64", "gateway": "fd00:1::1"},
    {"address": "10.2.0.5/24"},
]


def config(addresses: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    ipam = {"type": "static", "addresses": addresses, **more.pop("ipam", {})}
    return {"type": "static", "ipam": ipam, **more}


def test_what_is_configured_is_answered(twins: Twins) -> None:
    dns = {"nameservers": ["10.1.0.1"], "domain": "a.test", "search": ["a.test"], "options": ["ndots:2"]}
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}, {"dst": "::/0"}]
    net = config(DUAL, ipam={"routes": routes, "dns": dns})

    def scenario(world: World) -> None:
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.delete(net, "one")
        world.delete(net, "one", netns="", prev_result=None)

    twins(scenario)


def test_what_the_runtime_asks_for_is_appended_or_replaces(twins: Twins) -> None:
    args = "IP=10.3.0.5/24, fd00:3::5/64;GATEWAY=10.3.0.1,fd00:3::1,10.1.0.7"
    by_args = {"args": {"cni": {"ips": ["10.4.0.5/24", "10.5.0.5/24"]}}}
    by_capability = {"runtimeConfig": {"ips": ["10.6.0.5/24"]}}

    def scenario(world: World) -> None:
        world.pod("one")
        for more in ({}, by_args, by_capability, {**by_args, **by_capability}):
            world.add(config(DUAL, **more), "one", args=args)
        world.add(config([], **by_capability), "one")
        world.add(config([]), "one")

    twins(scenario)


def test_what_cannot_be_is_refused_by_both(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.pod("one")
        for address in ("10.1.0.300/24", "10.1.0.5", "10.1.0.5/33", "", "x/24"):
            world.add(config([{"address": address}]), "one")
        world.add(config([{"address": "10.1.0.5/24", "gateway": "x"}]), "one")
        world.add({"type": "static"}, "one")
        world.add(config(DUAL), "one", args="IP=10.3.0.5")
        world.add(config(DUAL), "one", args="IP=10.3.0.5/24;GATEWAY=x")
        world.add(config(DUAL), "one", args="WHAT=x")
        world.add(config([], args={"cni": {"ips": ["x"]}}), "one")
        world.add(config([], runtimeConfig={"ips": ["10.1.0.5"]}), "one")
        world.add(config(DUAL, cniVersion="0.2.0"), "one")
        world.add(config(DUAL[:2], cniVersion="0.2.0"), "one")

    twins(scenario)
