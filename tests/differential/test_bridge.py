"""bridge beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import ABSENT, DATA, Difference, World
from tests.differential.test_host_local import FILE_MODE

pytestmark = pytest.mark.kernel

PORT_ADVERTISEMENTS = Difference(
    "bridge-port-advertisements",
    "* / sysctls / <host end of * eth0> / ipv6/accept_ra",
    "a port of a bridge, which the host's end is from the start, never takes an advertisement",
    go="0",
    ours="1",
)
DAD = Difference(
    "bridge-dad",
    "* / sysctls / eth0 / ipv6/accept_dad",
    "each address is given without detection; what the container adds itself keeps it",
    go="0",
    ours="1",
)
FORGOTTEN = Difference(
    "bridge-del-without-netns",
    "*. DEL bridge two eth0 / state / *",
    "a DEL without the namespace removes the pair and the rules: nobody else would",
    ours=ABSENT,
)
DIFFERENCES = (PORT_ADVERTISEMENTS, DAD, FORGOTTEN)
Twins = Callable[..., None]


def config(*subnets: str, **options: Any) -> dict[str, Any]:
    ipam = {
        "type": "host-local",
        "dataDir": DATA,
        "ranges": [[{"subnet": each}] for each in subnets],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"type": "bridge", "bridge": "cni0", **({"ipam": ipam} if subnets else {}), **options}


def test_a_gateway(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config("10.1.0.0/24", isGateway=True)
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.note("gateway", world.reaches("one", "10.1.0.1"))
        world.add(net, world.pod("two"))
        world.note("pod to pod", world.reaches("one", "10.1.0.3"))
        world.delete(net, "one")
        world.delete(net, "one")
        world.delete(net, "two", netns="")

    twins(scenario, *DIFFERENCES, FILE_MODE)
