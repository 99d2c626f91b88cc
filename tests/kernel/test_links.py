"""Links: each request is checked by what ``ip`` sees, each reading against it."""

from __future__ import annotations

import errno
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import links
from podwire.kernel.errors import InvalidValue, KernelError, MalformedReply
from podwire.kernel.links import AddrGenMode, Link, MacvlanMode
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers

kernel = pytest.mark.kernel


def found(sock: RouteSocket, target: int | str) -> Link:
    link = links.get(sock, target)
    assert link is not None
    return link


@kernel
def test_a_veth_is_born_in_the_pod_with_its_peer_in_the_host(
    sock: RouteSocket, pod_sock: RouteSocket, host: Netns
) -> None:
    pod_sock.send(
        links.veth(
            "eth0",
            "veth1",
            peer_netns=host,
            index=7,
            mac="02:00:00:00:00:05",
            peer_mac="02:00:00:00:00:06",
            mtu=1400,
            peer_mtu=1450,
            txqlen=77,
            up=True,
        )
    )
    inside, outside = helpers.link("eth0", "pod"), helpers.link("veth1")
    assert (inside["ifindex"], inside["address"], inside["mtu"]) == (7, "02:00:00:00:00:05", 1400)
    assert inside["linkinfo"]["info_kind"] == "veth"
    assert inside["txqlen"] == outside["txqlen"] == 77
    queues = {each[key] for each in (inside, outside) for key in ("num_tx_queues", "num_rx_queues")}
    assert queues == {1}
    assert "UP" in inside["flags"]
    assert "UP" not in outside["flags"]
    assert (outside["address"], outside["mtu"], outside["link_index"]) == ("02:00:00:00:00:06", 1450, 7)
    assert found(sock, "veth1").peer_index == 7
    assert found(pod_sock, "eth0").peer_index == outside["ifindex"]


@kernel
def test_indexes_of_a_new_pair_can_be_chosen(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b", index=41, peer_index=42))
    assert helpers.link("a")["ifindex"] == 41
    assert helpers.link("b")["ifindex"] == 42
    with pytest.raises(KernelError) as caught:
        sock.send(links.veth("c", "d", index=41))
    assert caught.value.errno == errno.EEXIST


@kernel
def test_a_bridge_has_what_was_asked_for(sock: RouteSocket) -> None:
    sock.send(
        links.bridge(
            "br0",
            mac="02:00:00:00:00:01",
            mtu=1400,
            up=True,
            forward_delay=200,
            ageing_time=12_000,
            stp=True,
            mcast_snooping=False,
        )
    )
    seen = helpers.link("br0")
    data = seen["linkinfo"]["info_data"]
    assert (seen["address"], seen["mtu"], seen["linkinfo"]["info_kind"]) == (
        "02:00:00:00:00:01",
        1400,
        "bridge",
    )
    assert (data["forward_delay"], data["ageing_time"]) == (200, 12_000)
    assert (data["stp_state"], data["mcast_snooping"]) == (1, 0)
    ours = found(sock, "br0").data
    assert (ours["forward_delay"], ours["ageing_time"], ours["stp"]) == (200, 12_000, 1)


@kernel
def test_a_port_is_enslaved_set_up_and_freed(sock: RouteSocket) -> None:
    sock.send(links.bridge("br0", up=True), links.veth("a", "b"))
    bridge = found(sock, "br0").index
    sock.send(links.configure("a", master=bridge, up=True))
    sock.send(
        links.bridge_port(
            "a",
            hairpin=True,
            isolated=True,
            learning=False,
            unicast_flood=False,
            mcast_flood=False,
            bcast_flood=False,
            neigh_suppress=True,
            guard=True,
            cost=9,
            priority=17,
        )
    )
    seen = helpers.link("a")
    assert seen["master"] == "br0"
    data = seen["linkinfo"]["info_slave_data"]
    assert (data["hairpin"], data["isolated"], data["guard"], data["neigh_suppress"]) == (True,) * 4
    assert (data["learning"], data["flood"], data["mcast_flood"], data["bcast_flood"]) == (False,) * 4
    assert (data["cost"], data["priority"]) == (9, 17)
    ours = found(sock, "a")
    assert (ours.master, ours.port["hairpin"], ours.port["isolated"], ours.port["cost"]) == (
        bridge,
        True,
        True,
        9,
    )
    assert [link.name for link in links.list_links(sock, master=bridge)] == ["a"]
    sock.send(links.bridge_port(ours.index, hairpin=False))
    assert helpers.link("a")["linkinfo"]["info_slave_data"]["hairpin"] is False
    assert helpers.link("a")["linkinfo"]["info_slave_data"]["isolated"] is True
    sock.send(links.configure("a", master=0))
    assert "master" not in helpers.link("a")


@kernel
def test_a_link_that_is_no_port_is_refused_port_options(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"))
    with pytest.raises(KernelError) as caught:
        sock.send(links.bridge_port("a", hairpin=True))
    assert caught.value.operation == "change bridge port"


@kernel
@pytest.mark.parametrize("mode", MacvlanMode)
def test_a_macvlan_is_born_in_the_pod(
    sock: RouteSocket, pod_sock: RouteSocket, pod: Netns, mode: MacvlanMode
) -> None:
    sock.send(links.veth("up", "other", up=True))
    parent = found(sock, "up").index
    sock.send(
        links.macvlan("eth0", parent=parent, mode=mode, mac="02:00:00:00:00:09", mtu=1300, netns=pod, index=5)
    )
    seen = helpers.link("eth0", "pod")
    # A passthru macvlan is its parent, address and all.
    mac = helpers.link("up")["address"] if mode is MacvlanMode.PASSTHRU else "02:00:00:00:00:09"
    assert (seen["address"], seen["mtu"], seen["ifindex"]) == (mac, 1300, 5)
    assert seen["linkinfo"]["info_data"]["mode"] == mode.name.lower()
    ours = found(pod_sock, "eth0")
    assert (ours.kind, ours.data["mode"], ours.peer_index) == ("macvlan", mode, parent)
    assert helpers.link_names() == {"lo", "up", "other"}


@kernel
def test_an_ifb(sock: RouteSocket) -> None:
    sock.send(links.ifb("bw0", mtu=1400, up=True, txqlen=32))
    seen = helpers.link("bw0")
    assert (seen["linkinfo"]["info_kind"], seen["mtu"], seen["txqlen"]) == ("ifb", 1400, 32)
    assert "UP" in seen["flags"]


@kernel
@pytest.mark.parametrize("local", ["192.0.2.1", "2001:db8::1"])
def test_a_vxlan(sock: RouteSocket, local: str) -> None:
    sock.send(links.veth("under", "other", up=True))
    parent = found(sock, "under").index
    sock.send(
        links.vxlan(
            "vx0",
            vni=4097,
            port=8472,
            parent=parent,
            local=ip_address(local),
            mac="02:00:00:00:00:07",
            mtu=1400,
        )
    )
    seen = helpers.link("vx0")
    data = seen["linkinfo"]["info_data"]
    assert (data["id"], data["port"], data["link"], data["learning"]) == (4097, 8472, "under", False)
    assert data["local6" if ":" in local else "local"] == local
    assert (seen["address"], seen["mtu"]) == ("02:00:00:00:00:07", 1400)
    ours = found(sock, "vx0").data
    assert (ours["vni"], ours["port"]) == (4097, 8472)


@kernel
def test_everything_that_configure_changes(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"))
    index = found(sock, "a").index
    sock.send(links.configure(index, addr_gen_mode=AddrGenMode.NONE))
    sock.send(
        links.configure(
            index,
            name="a.100",
            mac="02:00:00:00:00:08",
            mtu=1334,
            alias="podwire: pod x",
            promisc=True,
            allmulti=True,
            arp=False,
            txqlen=5,
            group=99,
            up=True,
        )
    )
    seen = helpers.link("a.100")
    assert (seen["address"], seen["mtu"], seen["txqlen"]) == ("02:00:00:00:00:08", 1334, 5)
    assert (seen["ifalias"], seen["group"], seen["inet6_addr_gen_mode"]) == ("podwire: pod x", "99", "none")
    assert {"UP", "PROMISC", "ALLMULTI", "NOARP"} <= set(seen["flags"])
    ours = found(sock, index)
    assert (ours.name, ours.alias, ours.group, ours.mtu) == ("a.100", "podwire: pod x", 99, 1334)
    assert (ours.up, ours.promisc, ours.allmulti, ours.txqlen) == (True, True, True, 5)
    assert ours.addr_gen_mode is AddrGenMode.NONE
    sock.send(links.configure("a.100", alias="", promisc=False, allmulti=False, arp=True, group=0))
    seen = helpers.link("a.100")
    assert "ifalias" not in seen
    assert not {"PROMISC", "ALLMULTI", "NOARP"} & set(seen["flags"])
    assert "UP" in seen["flags"]
    sock.send(links.configure("a.100", up=False))
    assert "UP" not in helpers.link("a.100")["flags"]


@kernel
def test_a_link_moves_to_the_pod(sock: RouteSocket, pod: Netns) -> None:
    sock.send(links.veth("a", "b"))
    sock.send(links.configure(found(sock, "a").index, name="eth7", netns=pod))
    assert "eth7" in helpers.link_names("pod")
    assert helpers.link_names() == {"lo", "b"}


@kernel
def test_no_ipv6_address_makes_itself_once_the_mode_is_none(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"), links.configure("a", addr_gen_mode=AddrGenMode.NONE))
    sock.send(links.configure("a", up=True), links.configure("b", up=True))
    assert not [entry for entry in helpers.ip("address", "show", "dev", "a") if entry.get("addr_info")]
    assert [entry for entry in helpers.ip("address", "show", "dev", "b") if entry.get("addr_info")]


@kernel
def test_delete_by_name_and_by_index(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"), links.veth("c", "d"))
    sock.send(links.delete("a"), links.delete(found(sock, "d").index))
    assert helpers.link_names() == {"lo"}
    assert links.get(sock, "a") is None
    assert links.get(sock, 12_345) is None
    with pytest.raises(KernelError) as caught:
        sock.send(links.delete("a"))
    assert (caught.value.errno, caught.value.subject) == (errno.ENODEV, "a")


@kernel
def test_the_list_is_what_ip_lists(sock: RouteSocket) -> None:
    sock.send(links.bridge("br0", up=True), links.veth("a", "b", up=True), links.ifb("i0"))

    def listed() -> dict[str, tuple[object, ...]]:
        return {
            link.name: (link.index, link.mac, link.mtu, link.up, link.operstate.upper())
            for link in links.list_links(sock)
        }

    while True:  # until the kernel has noticed the carriers, by work of its own
        ours = listed()
        theirs = {
            seen["ifname"]: (
                seen["ifindex"],
                seen["address"],
                seen["mtu"],
                "UP" in seen["flags"],
                seen["operstate"],
            )
            for seen in helpers.ip("link", "show")
        }
        if ours == listed():
            break
    assert ours == theirs
    assert {link.name for link in links.list_links(sock, kind="veth")} == {"a", "b"}
    assert links.list_links(sock, kind="nosuch") == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: links.veth("a" * 16, "b"), "link name"),
        (lambda: links.veth("a", "b/c"), "link name 'b/c'"),
        (lambda: links.veth("a", "b", mac="nonsense"), "link mac 'nonsense'"),
        (lambda: links.veth("a", "b", mtu=-5), "link mtu -5"),
        (lambda: links.bridge("b", ageing_time=-1), "bridge ageing_time -1"),
        (lambda: links.configure("a", name="b"), "renamed by its index"),
        (lambda: links.configure(0, up=True), "link index 0"),
        (lambda: links.configure(-1, up=True), "link index -1"),
        (lambda: links.delete(2**31), "link index 2147483648"),
        (lambda: links.delete(""), "1 to 15 bytes"),
        (lambda: links.delete_group(0), "link group 0"),
        (lambda: links.vxlan("v", vni=2**24), "vxlan vni 16777216"),
        (lambda: links.vxlan("v", vni=1, port=70_000), "vxlan port 70000"),
    ],
)
def test_impossible_requests_are_refused_before_they_are_sent(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidValue) as caught:
        make()
    assert says in str(caught.value)


@given(st.binary(max_size=160))
def test_random_bytes_parse_or_raise_the_typed_error(data: bytes) -> None:
    try:
        link = links.parse(data)
    except MalformedReply:
        return
    assert isinstance(link, Link)


@kernel
def test_a_bridge_forwards_by_a_port_that_is_up(sock: RouteSocket) -> None:
    for number in range(20):
        name = f"p{number}"
        sock.send(links.bridge("br0", up=True), links.veth(name, "peer"))
        bridge = helpers.link("br0")["ifindex"]
        sock.send(links.configure(name, master=bridge, up=True), links.configure("peer", up=True))
        while links.state(sock, name) != ("up", True):
            pass
        assert helpers.link(name)["linkinfo"]["info_slave_data"]["state"] == "forwarding"
        assert helpers.link("br0")["operstate"] in {"UP", "UNKNOWN"}
        sock.send(links.delete(name), links.delete("br0"))


@kernel
def test_the_state_without_a_carrier_and_with_one(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"), links.configure("a", up=True))
    while links.state(sock, "a")[0] == "unknown":
        pass
    assert links.state(sock, "a") == ("lowerlayerdown", False)
    assert helpers.link("a")["operstate"] == "LOWERLAYERDOWN"
    sock.send(links.configure("b", up=True))
    while links.state(sock, "a") != ("up", True):
        pass
    assert helpers.link("a")["operstate"] == "UP"
    with pytest.raises(KernelError) as caught:
        links.state(sock, "nosuch")
    assert (caught.value.errno, caught.value.subject) == (errno.ENODEV, "nosuch")
