"""Tap devices outlive their maker and are made where they belong."""

from __future__ import annotations

import errno

import pytest

from podwire.kernel import links, tap
from podwire.kernel.errors import InvalidValue, KernelError
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers


@pytest.mark.kernel
def test_a_tap_in_the_pod(pod: Netns, pod_sock: RouteSocket) -> None:
    tap.create("tap0", netns=pod, owner=1234, group=5678, multi_queue=True)
    data = helpers.link("tap0", "pod")["linkinfo"]["info_data"]
    assert (data["type"], data["persist"], data["multi_queue"], data["pi"]) == ("tap", True, True, False)
    assert (data["user"], data["group"]) == (1234, 5678)
    assert helpers.link_names() == {"lo"}
    pod_sock.send(links.configure("tap0", mtu=1400, up=True, mac="02:00:00:00:00:03"))
    assert helpers.link("tap0", "pod")["address"] == "02:00:00:00:00:03"
    pod_sock.send(links.delete("tap0"))
    assert helpers.link_names("pod") == {"lo"}


@pytest.mark.kernel
def test_a_name_that_is_taken(sock: RouteSocket) -> None:
    sock.send(links.veth("tap0", "b"))
    tap.create("tap1")
    for name in ("tap0", "tap1"):
        with pytest.raises(KernelError) as caught:
            tap.create(name)
        assert caught.value.errno in {errno.EINVAL, errno.EBUSY, errno.EEXIST}
        assert caught.value.subject == name
    assert helpers.link_names() == {"lo", "tap0", "tap1", "b"}


def test_an_impossible_name() -> None:
    with pytest.raises(InvalidValue, match="tap name 'a/b'"):
        tap.create("a/b")
