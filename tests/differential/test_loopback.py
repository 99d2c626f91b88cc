"""loopback beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import Difference, World

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

DEL_AGAIN = Difference(
    "loopback-del-without-netns",
    "*. DEL loopback gone lo / reply / status",
    "a DEL of what is gone succeeds",
    go=1,
    ours=0,
)
DIFFERENCES = (DEL_AGAIN,)
NET: dict[str, Any] = {"type": "loopback"}


def test_up_and_down(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.add(NET, world.pod("one"), ifname="lo")
        world.check(NET, "one", ifname="lo")
        world.delete(NET, "one", ifname="lo")
        world.delete(NET, "one", ifname="lo")
        world.add(NET, "one", ifname="lo")
        world.add(NET, "one", ifname="lo")

    twins(scenario)


def test_the_result_of_others_is_passed_on(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/one"}],
            "ips": [{"interface": 0, "address": "10.1.0.2/24"}],
        }
        world.add(NET, world.pod("one"), ifname="lo", prev_result=result)

    twins(scenario)


def test_without_a_namespace(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.add(NET, world.pod("one"), ifname="lo")
        for netns in ("", "/run/netns/never-was", "/dev/null"):
            world.delete(NET, "gone", ifname="lo", netns=netns)
        world.add(NET, "gone", ifname="lo")

    twins(scenario, DEL_AGAIN)
