"""host-local beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.harness import ABSENT, DATA, Difference, World

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

FILE_MODE = Difference(
    "host-local-file-mode",
    "* / files / * / mode",
    "which container has which address is nobody's business (as the reference from 1.2 on)",
    go="0o644",
    ours="0o600",
)
SMALL = Difference(
    "host-local-small-subnets",
    "*. ADD host-local three eth0 / reply / status",
    "both addresses of a /31 or /127 can be used (RFC 3021, RFC 6164), and the one of a /32",
    go=1,
    ours=0,
)
SMALL_RESULT = Difference(
    "host-local-small-subnets", "*. ADD host-local three eth0 / reply / result", "as above", go=ABSENT
)
GATEWAY = Difference(
    "host-local-gateway-outside",
    "7. ADD host-local one eth0 / reply / *",
    "an IPv4 gateway that the subnet does not have is a mistake, told before pods are cut off",
)
DIFFERENCES = (FILE_MODE, SMALL, SMALL_RESULT, GATEWAY)


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


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bounds": {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12"},
    "gateway inside": {"subnet": "10.1.0.0/29", "gateway": "10.1.0.3"},
    "ipv6": {"subnet": "fd00:1::/126"},
    "dual stack": {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]},
    "two ranges of a set": {"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30"}]]},
    "subnet and ranges": {"subnet": "10.1.0.0/24", "ranges": [[{"subnet": "10.2.0.0/24"}]]},
    "routes": {
        "subnet": "10.1.0.0/24",
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}, {"dst": "::/0"}],
    },
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_ranges(twins: Twins, name: str) -> None:
    def scenario(world: World) -> None:
        net = config(**CONFIGURATIONS[name])
        pods = [world.pod(f"pod{number}") for number in range(4)]
        for pod in pods:
            world.add(net, pod)
        world.add(net, pods[0])
        world.add(net, pods[0], ifname="net1")
        world.delete(net, pods[1])
        world.add(net, pods[1], container_id="another")
        world.delete(net, pods[0], ifname="net1")
        world.check(net, pods[0])

    twins(scenario, FILE_MODE)


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({}, "IP=10.1.0.77"),
        ({"args": {"cni": {"ips": ["10.1.0.78"]}}}, ""),
        ({"runtimeConfig": {"ips": ["10.1.0.79/24"]}, "capabilities": {"ips": True}}, ""),
        ({"runtimeConfig": {"ipRanges": [[{"subnet": "10.3.0.0/24"}]]}}, ""),
        ({}, "IP=10.1.0.1"),
        ({}, "IP=10.9.0.1"),
        ({}, "IP=nonsense"),
        ({}, "COLOUR=red"),
        ({}, "IgnoreUnknown=1;COLOUR=red"),
    ],
)
def test_addresses_that_are_asked_for(twins: Twins, options: dict[str, Any], args: str) -> None:
    def scenario(world: World) -> None:
        net = {**config(subnet="10.1.0.0/24"), **options}
        world.add(net, world.pod("one"), args=args)
        world.add(net, world.pod("two"), args=args)
        world.delete(net, "one", args="IgnoreUnknown=1")

    twins(scenario, part="reply")


def test_what_cannot_be(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.pod("one")
        for broken in (
            {},
            {"subnet": "nonsense"},
            {"subnet": "10.1.0.5/24"},
            {"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"},
            {"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.1"},
            {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.5"},
            {"subnet": "10.1.0.0/24", "gateway": "10.2.0.1"},
            {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]},
            {"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]},
            {"subnet": "10.1.0.0/24", "resolvConf": "/no/such/file"},
        ):
            world.add(config(**broken), "one")

    twins(scenario, GATEWAY, part="reply")


def test_a_full_pool_and_a_small_subnet(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config(subnet="10.1.0.0/30")
        for name in ("one", "two", "three"):
            world.add(net, world.pod(name))
        for prefix in ("10.2.0.0/31", "10.2.0.0/32", "fd00::/127"):
            world.add({**config(subnet=prefix), "name": f"small{prefix[-2:]}"}, "three")

    twins(scenario, SMALL, SMALL_RESULT, part="reply")


def test_a_resolver(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.data.mkdir()
        (world.data / "resolv.conf").write_text(
            "# ours\nnameserver 192.0.2.53\nnameserver 2001:db8::53\ndomain example.org\n"
            "search a.example b.example\noptions ndots:5 edns0\n"
        )
        world.add(config(subnet="10.1.0.0/24", resolvConf=f"{DATA}/resolv.conf"), world.pod("one"))

    twins(scenario, FILE_MODE)
