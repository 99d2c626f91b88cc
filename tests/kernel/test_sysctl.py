"""Kernel parameters, here and in another namespace, whatever dots an interface's name holds."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from podwire.kernel import links, sysctl
from podwire.kernel.errors import InvalidValue, KernelError
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers


@pytest.mark.kernel
def test_f20_write_and_read_with_a_dot_in_the_name(sock: RouteSocket) -> None:
    sock.send(links.veth("eth0.100", "b"))
    key = "net/ipv4/conf/eth0.100/forwarding"
    for value in (1, "0", "1"):
        sysctl.write(key, value)
        assert Path("/proc/sys/net/ipv4/conf/eth0.100/forwarding").read_text() == f"{value}\n"
        assert sysctl.read(key) == str(value)


@pytest.mark.kernel
def test_a_pods_parameters_are_its_own(pod: Netns) -> None:
    sysctl.write("net/ipv4/ip_forward", 0)
    sysctl.write("net/ipv4/ip_forward", 1, pod)
    assert sysctl.read("net/ipv4/ip_forward", pod) == "1"
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "0\n"
    helpers.run("ip", "netns", "exec", "pod", "grep", "-qx", "1", "/proc/sys/net/ipv4/ip_forward")


@pytest.mark.kernel
def test_what_is_kept_open_tells_what_is_there_now(pod: Netns) -> None:
    before = helpers.descriptors()
    kept = sysctl.Kept(pod)
    for value in ("0", "1", "0"):
        sysctl.write("net/ipv4/ip_forward", value, pod)
        assert kept.read("net/ipv4/ip_forward") == value
    assert len(helpers.descriptors() - before) == 1
    with pytest.raises(KernelError, match="read sysctl net/nothing"):
        kept.read("net/nothing")
    for _ in range(2):
        kept.close()
    assert helpers.descriptors() == before


@pytest.mark.kernel
def test_several_are_written_in_order_until_one_is_refused(pod: Netns) -> None:
    with pytest.raises(KernelError) as caught:
        sysctl.write_all(
            {
                "net/ipv4/conf/lo/accept_local": 1,
                "net/ipv4/conf/lo/no_such": 1,
                "net/ipv4/conf/lo/rp_filter": 2,
            },
            pod,
        )
    assert (caught.value.errno, caught.value.subject) == (errno.ENOENT, "net/ipv4/conf/lo/no_such=1")
    assert sysctl.read("net/ipv4/conf/lo/accept_local", pod) == "1"
    assert sysctl.read("net/ipv4/conf/lo/rp_filter", pod) == "0"


@pytest.mark.kernel
def test_a_value_that_is_refused_is_named() -> None:
    with pytest.raises(KernelError) as caught:
        sysctl.write("net/ipv4/ip_forward", "many")
    assert caught.value.errno == errno.EINVAL
    assert "net/ipv4/ip_forward=many" in str(caught.value)
    with pytest.raises(KernelError, match="read sysctl net/nothing"):
        sysctl.read("net/nothing")


@pytest.mark.parametrize("key", ["", "/net/ipv4", "net//ipv4", "net/../../etc/passwd", "net/./x", "net\0"])
def test_a_key_cannot_leave_its_tree(key: str) -> None:
    for act in (lambda: sysctl.read(key), lambda: sysctl.write(key, 1)):
        with pytest.raises(InvalidValue) as caught:
            act()
        assert repr(key) in str(caught.value)
