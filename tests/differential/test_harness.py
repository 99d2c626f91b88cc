"""The harness itself: what differs is told, what is declared must show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.differential.harness import COMMON, Difference, Side, World, differences
from tests.differential.wiring import host_local

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]


def unlike(world: World) -> None:
    """The sides differ in a note, and in a link that only one of them has; random parts do not count."""
    world.pod("one")
    name = "vethA1" if world.side is Side.GO else "vethB2"
    world.sh("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", "one")
    if world.side is Side.GO:
        world.sh("ip", "link", "add", "extra", "type", "bridge")
    world.note("who", world.side.value)
    world.state("links")


NOTE = Difference("test-note", "1. who / seen", "they are two", go="go", ours="ours")
LINK = Difference("test-link", "2. links / state / host / * / extra", "only one has it", ours="(absent)")


def test_what_is_declared_may_differ(twins: Twins) -> None:
    twins(unlike, NOTE, LINK)


def test_what_is_not_declared_is_told(twins: Twins) -> None:
    with pytest.raises(AssertionError, match=r'1\. who / seen: "go" \| "ours"'):
        twins(unlike, LINK)
    with pytest.raises(AssertionError, match=r"2\. links / state / host / links / extra: .* \| \(absent\)"):
        twins(unlike, NOTE)


def test_a_declaration_must_fit_the_values(twins: Twins) -> None:
    with pytest.raises(AssertionError, match=r"1\. who / seen"):
        twins(unlike, Difference("test-note", "1. who / seen", "", go="nobody"), LINK)


def test_what_is_declared_must_show(twins: Twins) -> None:
    stale = Difference("test-stale", "1. who / never", "it was fixed")
    with pytest.raises(AssertionError, match=r"there is no such difference: test-stale \(1\. who / never\)"):
        twins(unlike, NOTE, LINK, stale)


def test_only_a_part(twins: Twins) -> None:
    twins(unlike, LINK, part="state")


def test_what_is_common_to_all_plugins_shows(tmp_path: Path) -> None:
    net = {"type": "ptp", "ipam": host_local("10.1.0.0/24", "fd00:1::/64")}
    plain = {"type": "ptp", "ipam": host_local("10.1.0.0/24")}

    def scenario(world: World) -> None:
        world.add({**net, "mtu": 10}, world.pod("one"))
        world.add(net, "one")
        world.add(plain, world.pod("two"))

    found = differences(scenario, tmp_path)
    assert [one.id for one in COMMON if not any(one.matches(delta) for delta in found)] == []
