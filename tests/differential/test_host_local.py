"""host-local beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import DATA, Difference, World

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

FILE_MODE = Difference(
    "host-local-file-mode",
    "* / files / * / mode",
    "which container has which address is nobody's business (as the reference from 1.2 on)",
    go="0o644",
    ours="0o600",
)
DIFFERENCES = (FILE_MODE,)


def config(**ipam: Any) -> dict[str, Any]:
    return {"type": "host-local", "ipam": {"type": "host-local", "dataDir": DATA, **ipam}}


def test_addresses_in_turn(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config(subnet="10.1.0.0/29", routes=[{"dst": "0.0.0.0/0"}])
        for name in ("one", "two"):
            world.add(net, world.pod(name))
        world.check(net, "one")
        world.delete(net, "one")
        world.check(net, "one")
        world.add(net, world.pod("three"))
        world.delete(net, "one")
        world.delete(net, "two", netns="")

    twins(scenario, FILE_MODE)
