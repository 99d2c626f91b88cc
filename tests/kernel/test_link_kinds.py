"""Links that not every kernel has: what the builders write, and what a kernel that has them makes of it."""

from __future__ import annotations

import pytest

from podwire.kernel import link_kinds, links
from podwire.kernel.link_kinds import VlanFlag
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers

kernel = pytest.mark.kernel


def link(sock: RouteSocket, name: str) -> links.Link:
    found = links.get(sock, name)
    assert found is not None
    return found


@kernel
@pytest.mark.other_kernel("vlan", "dummy")
def test_a_vlan_is_born_in_the_pod(sock: RouteSocket, pod: Netns, pod_sock: RouteSocket) -> None:
    sock.send(link_kinds.dummy("d0", mac="02:00:00:00:00:01", mtu=1400, up=True))
    parent = link(sock, "d0")
    assert (parent.kind, parent.mac, parent.mtu, parent.up) == ("dummy", "02:00:00:00:00:01", 1400, True)
    sock.send(link_kinds.vlan("v0", parent=parent.index, id=5, netns=pod))
    seen = helpers.link("v0", "pod")
    assert seen["linkinfo"]["info_data"] == {"protocol": "802.1Q", "id": 5, "flags": ["REORDER_HDR"]}
    assert (seen["address"], seen["mtu"]) == ("02:00:00:00:00:01", 1400)
    ours = link(pod_sock, "v0")
    assert (ours.kind, ours.peer_index) == ("vlan", parent.index)
    assert ours.data == {"id": 5, "protocol": 0x8100, "flags": VlanFlag.REORDER_HDR}
