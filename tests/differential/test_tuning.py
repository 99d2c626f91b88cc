"""tuning beside the reference plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.differential.harness import ABSENT, DATA, Difference, World
from tests.differential.wiring import wire

pytestmark = pytest.mark.kernel
Twins = Callable[..., None]

BACKUP = Difference(
    "tuning-backup-owner",
    "* / files / tuning/* / text",
    "the file names its network and namespace: a garbage collection knows whose it is, and no other "
    "container's interface is ever changed by it (the reference reads over both)",
)
QUEUE = Difference(
    "tuning-tx-queue",
    "* / one / links / eth0 / txqlen",
    "txQLen, which 1.1.1 does not know yet",
    go=1000,
    ours=500,
)
CHECK_NAMES = Difference(
    "tuning-check-names",
    "* / reply / status",
    "CHECK looks at what ADD has set: IFNAME is replaced, and a MAC may be written in capitals",
    go=1,
    ours=0,
)
FAILED_ADD = Difference(
    "tuning-failed-add",
    "* / files / tuning/*",
    "a failed ADD leaves nothing behind",
    ours=ABSENT,
)
FAILED_ADD_SYSCTLS = Difference(
    "tuning-failed-add", "* / seen", "and sysctls as they were", go="1\n", ours="0\n"
)
PROMISC = Difference(
    "tuning-check-promisc",
    "* / reply / status",
    "promisc false asks for nothing: a tcpdump in a pod is no fault of its network",
    go=1,
    ours=0,
)
VLAN_NAMES = Difference(
    "tuning-dots",
    "* / reply / *",
    "the dots of an interface's name separate nothing: a VLAN's sysctls can be set",
)
NO_NETNS = Difference(
    "tuning-backup-without-netns",
    "* / files / tuning/*",
    "a DEL without namespace removes the file too",
    ours=ABSENT,
)
ALLOWLIST = Difference(
    "tuning-allow-list",
    "2. ADD tuning * / reply / *",
    "/etc/cni/tuning/allowlist.conf, which 1.1.1 does not know yet",
)
DIFFERENCES = (
    BACKUP,
    ALLOWLIST,
    QUEUE,
    CHECK_NAMES,
    FAILED_ADD,
    FAILED_ADD_SYSCTLS,
    PROMISC,
    VLAN_NAMES,
    NO_NETNS,
)
MAC = "02:00:00:00:00:77"


def config(**options: Any) -> dict[str, Any]:
    return {"type": "tuning", "dataDir": f"{DATA}/tuning", **options}


def test_everything_of_the_interface(twins: Twins) -> None:
    def scenario(world: World) -> None:
        net = config(mac=MAC, mtu=1400, promisc=True, allmulti=True, txQLen=500)
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(net, "one", prev_result=result)
        world.note("the gateway answers", world.reaches("one", "10.1.0.1"))
        world.check(net, "one")
        world.delete(net, "one")
        world.delete(net, "one")

    twins(scenario, BACKUP, QUEUE)


SYSCTLS = {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/conf/all/log_martians": "1"}


def test_sysctls(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(config(sysctl=SYSCTLS), "one", prev_result=result)
        for key in ("eth0/arp_filter", "all/log_martians"):
            world.note(key, world.sh("cat", f"/proc/sys/net/ipv4/conf/{key}", pod="one"))
        world.check(config(sysctl={"net/ipv4/conf/all/log_martians": "1"}), "one", prev_result=result)
        world.check(config(sysctl={"net/ipv4/conf/all/log_martians": "0"}), "one", prev_result=result)
        world.check(config(sysctl=SYSCTLS), "one", prev_result=result)
        world.delete(config(sysctl=SYSCTLS), "one")

    twins(scenario, CHECK_NAMES)


def test_what_check_tolerates(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(config(mac="02:00:00:00:00:aa"), "one", prev_result=result)
        world.check(config(mac="02:00:00:00:00:AA"), "one", prev_result=result)
        world.check(config(mac=MAC), "one", prev_result=result)
        world.check(config(mtu=1500), "one", prev_result=result)
        world.sh("ip", "link", "set", "eth0", "promisc", "on", pod="one")
        world.check(config(mtu=1500), "one", prev_result=result)
        world.check(config(mtu=1400), "one", prev_result=result)
        world.check(config(allmulti=True), "one", prev_result=result)

    twins(scenario, BACKUP, CHECK_NAMES, PROMISC)


def test_f20_an_interface_with_dots_in_its_name(twins: Twins) -> None:
    """F20: ``net/ipv4/conf/eth0.100/...``, and IFNAME is replaced after the split."""

    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24", ifname="eth0.100")
        for key in ("net.ipv4.conf.IFNAME.arp_filter", "net/ipv4/conf/eth0.100/arp_filter"):
            world.add(config(sysctl={key: "1"}), "one", ifname="eth0.100", prev_result=result)

    twins(scenario, VLAN_NAMES)


def test_del_without_a_namespace(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(config(mtu=1400), "one", prev_result=result)
        world.delete(config(mtu=1400), "one", netns="")

    twins(scenario, BACKUP, NO_NETNS)


def test_whose_word_counts(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        supplied = {"runtimeConfig": {"mac": "02:00:00:00:00:71"}}
        asked = {"args": {"cni": {"mac": "02:00:00:00:00:72", "mtu": 1300, "promisc": True}}}
        for more in ({}, supplied, asked, {**supplied, **asked}):
            net = config(mac="02:00:00:00:00:73", mtu=1400, **more)
            world.add(net, "one", prev_result=result, args="MAC=02:00:00:00:00:74")
            world.delete(net, "one")

    twins(scenario, BACKUP)


def test_what_cannot_be_is_refused_by_both(twins: Twins) -> None:
    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        for options in (
            {"sysctl": {"kernel.hostname": "x"}},
            {"sysctl": {"net.ipv4.nosuch": "1"}},
            {"sysctl": {"net/../kernel/hostname": "x"}},
            {"sysctl": {"net.ipv4.conf.eth0.arp_filter": "x"}},
            {"sysctl": {"net.ipv4.conf.eth0.arp_filter": 1}},
            {"mac": "02:00:00:00:00"},
            {"mac": "01:00:00:00:00:01"},
            {"mtu": 10},
            {"mtu": "x"},
        ):
            world.add(config(**options), "one", prev_result=result)
        world.add(config(mtu=1400), "one", ifname="eth1", prev_result=result)
        world.add(config(mtu=1400), "one")
        net = config(sysctl={"net.ipv4.conf.eth0.arp_filter": "1"}, mac="01:00:00:00:00:01")
        world.add(net, "one", prev_result=result)
        key = "/proc/sys/net/ipv4/conf/eth0/arp_filter"
        world.note("arp_filter", world.sh("cat", key, pod="one"))

    twins(scenario, FAILED_ADD, FAILED_ADD_SYSCTLS)


def test_the_allow_list(twins: Twins, own_etc: Path) -> None:
    place = own_etc / "cni/tuning"
    place.mkdir(parents=True)
    (place / "allowlist.conf").write_text("^net.ipv4.conf.IFNAME.[a-z_]*$\n\n  log_martians\n")

    def scenario(world: World) -> None:
        result = wire(world, world.pod("one"), "10.1.0.5/24")
        world.add(config(sysctl=SYSCTLS), "one", prev_result=result)
        world.add(config(sysctl={"net.ipv4.conf.eth0.arp_filter": "1"}), "one", prev_result=result)
        world.add(config(mtu=1400), "one", prev_result=result)

    twins(scenario, BACKUP, ALLOWLIST)
