"""ipMasq on a throwaway host: who the other side sees, and what `nft -j` shows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_interface, ip_network

import pytest

from podwire.plugins import masquerade
from podwire.plugins.attachment import Identity
from tests.plugins import nat_lab
from tests.plugins.nat_lab import Lab, Pod, sh

pytestmark = pytest.mark.kernel

NETS = (ip_network("10.1.0.0/24"), ip_network("fd00:1::/64"))


@pytest.fixture
def lab() -> Iterator[Lab]:
    built = nat_lab.build()
    yield built
    nat_lab.tear_down(built)


@pytest.fixture
def pod(lab: Lab) -> Pod:
    return lab.pod("one", "10.1.0.5/24", "fd00:1::5/64")


def identity(pod: Pod, network: str = "net") -> Identity:
    return Identity(network, pod.container_id, "eth0")


def add(lab: Lab, pod: Pod, *subnets: str, network: str = "net") -> None:
    own = [ip_network(each) for each in subnets] or NETS
    masquerade.add(lab.kernel, identity(pod, network), [ip_interface(each) for each in pod.addresses], own)


def check(lab: Lab, pod: Pod, network: str = "net") -> list[str]:
    addresses = [ip_interface(each) for each in pod.addresses]
    return masquerade.check(lab.kernel, identity(pod, network), addresses, NETS)


def masqueraded() -> dict[str, str]:
    return {
        key["elem"]["val"]: key["elem"]["comment"]
        for name in ("masquerade4", "masquerade6")
        for key, _ in nat_lab.elements(name)
    }


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_the_outside_sees_the_host(lab: Lab, pod: Pod, kind: socket.SocketKind) -> None:
    outside4, outside6 = (
        lab.listen("client", "192.0.2.9", 80, kind),
        lab.listen("client", "2001:db8::9", 80, kind),
    )
    assert lab.reach(outside4, "one", "192.0.2.9", 80) == "10.1.0.5"
    assert lab.reach(outside6, "one", "2001:db8::9", 80) == "fd00:1::5"
    add(lab, pod)
    assert lab.reach(outside4, "one", "192.0.2.9", 80) == "192.0.2.1"
    assert lab.reach(outside6, "one", "2001:db8::9", 80) == "2001:db8::1"


def test_pods_of_the_own_network_and_the_host_see_the_pod(lab: Lab, pod: Pod) -> None:
    add(lab, pod)
    second = lab.pod("two", "10.1.0.6/24", "fd00:1::6/64")
    assert lab.reach(lab.listen("two", second.v4, 80), "one", second.v4, 80) == "10.1.0.5"
    assert lab.reach(lab.listen("two", second.v6, 80), "one", second.v6, 80) == "fd00:1::5"
    assert lab.reach(lab.listen(None, "192.0.2.1", 80), "one", "192.0.2.1", 80) == "10.1.0.5"


def test_pods_without_it_and_answers_are_left_alone(lab: Lab, pod: Pod) -> None:
    add(lab, pod)
    lab.pod("two", "10.1.0.6/24")
    assert lab.reach(lab.listen("client", "192.0.2.9", 80), "two", "192.0.2.9", 80) == "10.1.0.6"
    assert lab.reach(lab.listen("one", "10.1.0.5", 80), "client", "10.1.0.5", 80) == "192.0.2.9"


def test_each_network_spares_its_own_subnet(lab: Lab, pod: Pod) -> None:
    outside = lab.listen("client", "192.0.2.9", 80)
    second = lab.pod("two", "10.1.0.6/24")
    add(lab, pod)
    add(lab, second, "10.1.0.0/24", "192.0.2.0/24", network="wide")
    assert lab.reach(outside, "one", "192.0.2.9", 80) == "192.0.2.1"
    assert lab.reach(outside, "two", "192.0.2.9", 80) == "10.1.0.6"


def test_multicast_keeps_the_pods_address(lab: Lab, pod: Pod) -> None:
    add(lab, pod)
    for chain, spared in (("masquerade-10.1.0.0/24", "224.0.0.0/4"), ("masquerade-fd00.1../64", "ff00::/8")):
        text = sh("nft", "list", "chain", "inet", "podwire", chain)
        assert f"daddr {spared} return" in text
        assert text.index("return") < text.index("masquerade comment")


def test_rules_grow_per_subnet_and_not_per_pod(lab: Lab) -> None:
    counts = []
    for number in range(1, 41):
        add(lab, Pod(f"p{number}", (f"10.1.0.{number}/24", f"fd00:1::{number}/64"), f"{number:064}"))
        counts.append(nat_lab.rules())
    assert len(set(counts)) == 1
    assert len(masqueraded()) == 80


def test_add_and_remove_are_one_transaction_each(lab: Lab, pod: Pod) -> None:
    before = nat_lab.generation()
    add(lab, pod)  # makes the table as well
    masquerade.remove(lab.kernel, identity(pod))
    add(lab, pod)
    assert set(masqueraded()) == {pod.v4, pod.v6}
    assert nat_lab.generation() - before == 3


def test_e21_remove_needs_neither_namespace_nor_addresses(lab: Lab, pod: Pod) -> None:
    add(lab, pod)
    masquerade.remove(lab.kernel, identity(pod, "renamed"))
    assert nat_lab.all_elements() == {}
    masquerade.remove(lab.kernel, identity(pod, "renamed"))


@pytest.mark.parametrize("damage", ["flush ruleset", "flush map inet podwire masquerade4"])
def test_g14_remove_succeeds_on_what_is_gone(lab: Lab, pod: Pod, damage: str) -> None:
    masquerade.remove(lab.kernel, identity(pod))
    assert nat_lab.ruleset() == []
    add(lab, pod)
    sh("nft", damage)
    masquerade.remove(lab.kernel, identity(pod))
    assert nat_lab.all_elements() == {}


def test_e22_the_same_attachment_again_with_other_addresses_leaves_nothing_of_the_first(
    lab: Lab, pod: Pod
) -> None:
    add(lab, pod)
    add(lab, Pod("one", ("10.1.0.77/24",), pod.container_id))
    assert masqueraded() == {"10.1.0.77": f"net/{pod.container_id}/eth0"}
    assert len(nat_lab.elements("masquerade_index")) == 1


def test_an_address_that_has_a_new_owner_stays_when_the_old_one_is_removed(lab: Lab, pod: Pod) -> None:
    add(lab, pod)
    successor = Pod("two", pod.addresses, "f" * 64)
    add(lab, successor)
    masquerade.remove(lab.kernel, identity(pod))
    assert set(masqueraded().values()) == {f"net/{'f' * 64}/eth0"}
    assert check(lab, successor) == []


@pytest.mark.parametrize(
    "damage",
    [
        "flush chain inet podwire postrouting",
        "flush chain inet podwire masquerade-10.1.0.0/24",
        "flush map inet podwire masquerade6",
        "flush map inet podwire masquerade_index",
        "flush ruleset",
    ],
)
def test_b12_check_finds_what_is_missing_and_the_next_add_restores_the_rules(
    lab: Lab, pod: Pod, damage: str
) -> None:
    add(lab, pod)
    wanted = nat_lab.rules()
    assert check(lab, pod) == []
    sh("nft", damage)
    assert check(lab, pod)
    add(lab, pod)
    assert check(lab, pod) == []
    assert nat_lab.rules() == wanted


def test_check_tells_another_owner_and_another_chain(lab: Lab, pod: Pod) -> None:
    add(lab, pod)
    faults = check(lab, Pod("x", ("10.1.0.5/24",), "e" * 64))
    assert any(pod.container_id in fault for fault in faults)
    addresses = [ip_interface("10.1.0.5/24")]
    wide = [ip_network("10.0.0.0/8")]
    assert any(
        "masquerade-10.0.0.0/8" in fault
        for fault in masquerade.check(lab.kernel, identity(pod), addresses, wide)
    )


def test_collect_keeps_valid_attachments_and_other_networks(lab: Lab) -> None:
    pods = [Pod(f"p{i}", (f"10.1.0.{i}/24", f"fd00:1::{i}/64"), f"{i}" * 64) for i in range(1, 4)]
    add(lab, pods[0])
    add(lab, pods[1], "10.0.0.0/8", "fd00::/16")
    add(lab, pods[2], network="other")
    assert masquerade.collect(lab.kernel, "net", [(pods[0].container_id, "eth0")]) == 2
    assert set(masqueraded()) == {"10.1.0.1", "fd00:1::1", "10.1.0.3", "fd00:1::3"}
    chains = {item["chain"]["name"] for item in nat_lab.ruleset() if "chain" in item}
    assert {name for name in chains if name.startswith("masquerade-")} == {
        "masquerade-10.1.0.0/24",
        "masquerade-fd00.1../64",
    }


def test_several_addresses_of_one_family_and_none(lab: Lab) -> None:
    many = Pod("many", ("10.1.0.5/24", "10.2.0.5/24"))
    add(lab, many, "10.1.0.0/24", "10.2.0.0/24")
    assert set(masqueraded()) == {"10.1.0.5", "10.2.0.5"}
    masquerade.remove(lab.kernel, identity(many))
    assert nat_lab.all_elements() == {}
    masquerade.add(lab.kernel, identity(many), [])
    assert nat_lab.all_elements() == {}
