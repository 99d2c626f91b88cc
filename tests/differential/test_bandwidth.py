"""bandwidth beside the reference plugin, chained after bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.differential.harness import ABSENT, DATA, Difference, World
from tests.differential.test_bridge import DAD, PORT_ADVERTISEMENTS
from tests.differential.test_host_local import FILE_MODE

pytestmark = pytest.mark.kernel

ONE_REDIRECT = Difference(
    "bandwidth-one-redirect",
    "* / filters / <host end of * eth0> *",
    "Go makes the same redirection twice; the first one takes the packet, so the second is never met",
)
HOST_END = Difference(
    "bandwidth-del-host-end",
    "*. DEL bandwidth * / state / host / qdiscs / *",
    "a host's end without its ifb drops all that the pod sends, so a DEL takes everything from it",
    ours=ABSENT,
)
SECOND_INTERFACE = Difference(
    "bandwidth-second-interface",
    "* bandwidth one eth1 / *",
    "Go's name of the ifb has no room for a container's second interface, so its ADD fails half done",
)
TINY = Difference(
    "bandwidth-less-than-a-byte",
    "*. ADD bandwidth one eth0 / *",
    "a rate or burst below 8 bits is no byte: refused before anything is made, where Go fails half done",
)
LONG_BURST = Difference(
    "bandwidth-long-burst",
    "* / state / host / qdiscs / *",
    "a burst that takes more than the kernel can count is cut to that, 274 s; Go's is what overflows",
)
DIFFERENCES = (ONE_REDIRECT, HOST_END, SECOND_INTERFACE, TINY, LONG_BURST)

Twins = Callable[..., None]
BRIDGE = (PORT_ADVERTISEMENTS, DAD, FILE_MODE)
BOTH = {"ingressRate": 8_000_000, "ingressBurst": 4_000_000, "egressRate": 16_000_000, "egressBurst": 800_000}


def chain(**options: Any) -> list[dict[str, Any]]:
    ipam = {"type": "host-local", "dataDir": DATA, "subnet": "10.1.0.0/24"}
    bridge = {"type": "bridge", "bridge": "cni0", "ipam": ipam}
    return [bridge, {"type": "bandwidth", **options}]


@pytest.mark.parametrize(
    "options",
    [
        BOTH,
        {"runtimeConfig": {"bandWidth": BOTH}},
        {"EGRESSRATE": 8000, "egressburst": 80_000, "runtimeConfig": {"bandwidth": BOTH}},
    ],
    ids=["both", "capability", "configuration-first"],
)
def test_limits_of_two_pods(twins: Twins, options: dict[str, Any]) -> None:
    def scenario(world: World) -> None:
        net = chain(**options)
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.add(net, world.pod("two"))
        world.delete(net, "one")
        world.delete(net, "one")
        world.delete(net[1], "two", netns="")

    twins(scenario, *BRIDGE, ONE_REDIRECT, HOST_END)


def test_a_burst_that_is_left_open(twins: Twins) -> None:
    """As container runtimes ask for the annotation ``kubernetes.io/ingress-bandwidth: 10M``."""

    def scenario(world: World) -> None:
        net = chain(runtimeConfig={"bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 4294967295}})
        world.add(net, world.pod("one"))
        world.check(net, "one")

    twins(scenario, *BRIDGE, LONG_BURST)


def test_what_a_pod_receives_alone(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = chain(ingressRate=1_000_001, ingressBurst=100_003)
        world.add(net, world.pod("one"))
        world.check(net, "one")
        world.delete(net[1], "one")

    twins(scenario, *BRIDGE, HOST_END)


def test_no_limits(twins: Twins) -> None:
    def scenario(world: World) -> None:
        several: tuple[dict[str, Any], ...] = (
            {},
            {"ingressRate": 0, "ingressBurst": 0},
            {"runtimeConfig": {}},
        )
        for options in several:
            net = chain(**options)
            pod = world.pod(f"pod{len(world.pods)}")
            world.add(net, pod)
            world.delete(net[1], pod)

    twins(scenario, *BRIDGE)


@pytest.mark.parametrize(
    "options",
    [
        {"ingressRate": 8000},
        {"egressBurst": 8000},
        {"ingressRate": 8000, "ingressBurst": 1 << 35},
        {"egressRate": -8, "egressBurst": 8000},
        {"egressRate": "fast", "egressBurst": 8000},
        {"runtimeConfig": {"bandwidth": {"egressRate": 8000}}},
    ],
)
def test_what_cannot_be_is_refused(twins: Twins, options: dict[str, Any]) -> None:
    def scenario(world: World) -> None:
        net = chain(**options)
        world.add(net, world.pod("one"))

    twins(scenario, *BRIDGE)


def test_less_than_a_byte(twins: Twins) -> None:
    def scenario(world: World) -> None:
        world.add(chain(egressRate=7, egressBurst=8000), world.pod("one"))

    twins(scenario, *BRIDGE, TINY)


def test_a_second_add_and_one_without_an_interface_are_refused(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = chain(**BOTH)
        reply = world.add(net, world.pod("one"))
        world.add(net[1], "one", prev_result=reply.result)
        world.add(net[1], "one", prev_result={"cniVersion": "1.0.0", "interfaces": []})
        world.add(net[1], "one", container_id="other")

    twins(scenario, *BRIDGE, ONE_REDIRECT)


def test_a_second_interface(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = chain(egressRate=8000, egressBurst=80_000)
        world.add(net, world.pod("one"))
        world.add([{**net[0], "bridge": "cni1"}, net[1]], "one", ifname="eth1")

    eth1 = [msgspec.structs.replace(one, where=one.where.replace("eth0", "eth1")) for one in BRIDGE[:2]]
    twins(scenario, *BRIDGE, *eth1, ONE_REDIRECT, SECOND_INTERFACE)
