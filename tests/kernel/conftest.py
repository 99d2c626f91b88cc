"""A socket in the test's host, and a pod's namespace beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from podwire.kernel import netns
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns


@pytest.fixture
def sock() -> Iterator[RouteSocket]:
    with RouteSocket.open() as opened:
        yield opened


@pytest.fixture
def host() -> Iterator[Netns]:
    with netns.current() as opened:
        yield opened


@pytest.fixture
def pod() -> Iterator[Netns]:
    """A new namespace, which ``ip -n pod`` sees too."""
    netns.create("/run/netns/pod")
    try:
        with netns.open("/run/netns/pod") as opened:
            yield opened
    finally:
        netns.remove("/run/netns/pod")


@pytest.fixture
def pod_sock(pod: Netns) -> Iterator[RouteSocket]:
    with RouteSocket.open(pod) as opened:
        yield opened
