"""Quick questions about a device, beside what ip says."""

from __future__ import annotations

import errno

import pytest

from podwire.kernel import devices, links
from podwire.kernel.errors import KernelError
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers

pytestmark = pytest.mark.kernel


def test_flags_and_index_are_what_ip_says(sock: RouteSocket) -> None:
    sock.send(links.veth("a", "b"), links.configure("a", up=True), links.configure("b", up=True))
    assert devices.index(sock, "a") == helpers.link("a")["ifindex"]
    assert devices.flags(sock, "a") & 0x1
    assert not devices.flags(sock, "lo") & 0x2
    for ask in (devices.flags, devices.index):
        with pytest.raises(KernelError) as caught:
            ask(sock, "nosuch")
        assert (caught.value.errno, caught.value.subject) == (errno.ENODEV, "nosuch")


def test_a_device_is_asked_about_in_the_namespace_of_the_socket(
    sock: RouteSocket, pod: Netns, pod_sock: RouteSocket
) -> None:
    pod_sock.send(links.veth("inside", "peer", index=77))
    assert devices.index(pod_sock, "inside") == 77
    with pytest.raises(KernelError):
        devices.index(sock, "inside")


def test_a_device_is_found_by_its_name_and_no_other(sock: RouteSocket, pod_sock: RouteSocket) -> None:
    pod_sock.send(links.veth("inside", "peer"))
    sock.send(links.veth("fifteen-letters", "other", index=55))
    assert devices.find(sock, "fifteen-letters") == 55
    assert [devices.find(sock, name) for name in ("fifteen-letters+", "inside", "nosuch", "", "lo")] == [
        0,
        0,
        0,
        0,
        1,
    ]
