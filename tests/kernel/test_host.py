"""The host's side of the kernel: a socket for each thread, all closed at the end."""

from __future__ import annotations

import threading

import pytest

from podwire.kernel import links
from podwire.kernel.host import Kernel
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from tests.kernel import helpers

pytestmark = pytest.mark.kernel


def test_each_thread_has_a_socket_of_its_own_that_ends_with_it() -> None:
    before = helpers.descriptors()
    with Kernel.open() as kernel:
        mine = kernel.route()
        assert kernel.route() is mine
        opened = helpers.descriptors()
        others: list[int] = []

        def work() -> None:
            own = kernel.route()
            others.append(id(own) if own is not mine else 0)
            own.send(links.configure("lo", up=True))

        for _ in range(5):
            worker = threading.Thread(target=work)
            worker.start()
            worker.join()
        assert 0 not in others
        assert helpers.descriptors() == opened
    assert helpers.descriptors() == before


def test_it_is_the_host_for_a_thread_in_a_pod_too(pod: Netns) -> None:
    with Kernel.open() as kernel:
        pod.run(lambda: kernel.route().send(links.veth("a", "b")))
        assert helpers.link_names() == {"lo", "a", "b"}
        pod.run(lambda: kernel.links.remove("a"))
        assert helpers.link_names() == {"lo"}


def test_it_closes_once_and_after_the_sockets_of_live_threads() -> None:
    before = helpers.descriptors()
    kernel = Kernel.open()
    ready, leave = threading.Event(), threading.Event()
    sockets: list[RouteSocket] = []

    def work() -> None:
        sockets.append(kernel.route())
        ready.set()
        leave.wait(10)

    worker = threading.Thread(target=work)
    worker.start()
    ready.wait(10)
    kernel.close()
    kernel.close()
    assert sockets[0].fileno() == -1
    assert helpers.descriptors() == before
    leave.set()
    worker.join()
