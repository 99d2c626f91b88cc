"""macvlan, ptp, host-device, tap: an ADD that fails at any step leaves nothing; so does a DEL tried again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins import link_lab
from tests.plugins.helpers import Host, run
from tests.plugins.undo import add_failing_at_each_step, delete_failing_at_each_step

pytestmark = pytest.mark.kernel

TYPES = tuple(link_lab.MASTER)


@pytest.fixture
def cabled(host: Host) -> Iterator[Host]:
    link_lab.cable()
    host.pod("one")
    yield host
    run("ip", "netns", "delete", "router")


def uplink() -> None:
    """What m0 carried before it was a pod's."""
    run("ip", "address", "add", "192.0.2.5/24", "dev", "m0")
    run("ip", "link", "set", "m0", "alias", "uplink 7", "up")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("type", TYPES)
def test_a_failure_at_any_step_leaves_nothing(cabled: Host, type: str, after: bool) -> None:
    host = cabled
    config = link_lab.config(host, type, *link_lab.SUBNETS)
    if type == "host-device":
        uplink()

    def tidied() -> None:
        if type == "host-device":  # a DEL leaves it as the reference does, down and empty
            uplink()
        for family in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            run("sh", "-c", f"echo 0 > /proc/sys/net/{family}")

    tried = add_failing_at_each_step(
        host, config, lambda: link_lab.everything(host), after=after, tidied=tidied
    )
    assert {"NetlinkSocket.send", "NetlinkSocket.request", "Leases.reserve"} <= set(tried.told)
    assert tried.borne == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("type", TYPES)
def test_a_del_that_failed_is_completed_by_the_next(cabled: Host, type: str, after: bool) -> None:
    host = cabled
    config = link_lab.config(host, type, *link_lab.SUBNETS)
    tried = delete_failing_at_each_step(host, config, lambda: link_lab.everything(host), after=after)
    assert len(tried.told) >= 3
