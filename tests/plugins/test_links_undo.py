"""macvlan, ptp, host-device, tap: an ADD that fails at any step leaves nothing; so does a DEL tried again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from podwire.cni.errors import CNIError
from podwire.kernel.host import Kernel
from tests.plugins import link_lab
from tests.plugins.faults import Faults
from tests.plugins.helpers import Host, run

pytestmark = pytest.mark.kernel

TYPES = tuple(link_lab.MASTER)


@pytest.fixture
def cabled(host: Host) -> Iterator[Host]:
    link_lab.cable()
    host.pod("one")
    yield host
    run("ip", "netns", "delete", "router")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("type", TYPES)
def test_a_failure_at_any_step_leaves_nothing(cabled: Host, type: str, after: bool) -> None:
    host = cabled
    config = link_lab.config(host, type, *link_lab.SUBNETS)
    if type == "host-device":
        run("ip", "address", "add", "192.0.2.5/24", "dev", "m0")
        run("ip", "link", "set", "m0", "alias", "uplink 7")
    clean = link_lab.everything(host)
    failed = set()
    whole = host.kernel
    for step in range(1, 80):
        faults = Faults(step, after=after)
        try:
            # Opened anew each time, so that every ADD has the same steps.
            with Kernel.open() as host.kernel, faults.active():
                result = host.add(config, "one")
        except CNIError as error:
            assert "Input/output error" in str(error), f"step {step}: {error}"
            assert link_lab.everything(host) == clean, f"after {faults.failed}, step {step}"
            failed.add(faults.failed)
        else:  # past the end, or at a question whose answer was an error anyway
            host.kernel = whole
            host.check(config, "one", result)
            assert not faults.failed
            if faults.count < step:
                break
            host.delete(config, "one")
            if type == "host-device":  # a DEL leaves it as the reference does, down and empty
                run("ip", "address", "add", "192.0.2.5/24", "dev", "m0")
                run("ip", "link", "set", "m0", "alias", "uplink 7", "up")
            for family in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                run("sh", "-c", f"echo 0 > /proc/sys/net/{family}")
        finally:
            host.kernel = whole
    assert {"NetlinkSocket.send", "NetlinkSocket.request", "Leases.reserve"} <= failed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("type", TYPES)
def test_a_del_that_failed_is_completed_by_the_next(cabled: Host, type: str, after: bool) -> None:
    host = cabled
    config = link_lab.config(host, type, *link_lab.SUBNETS)
    host.add(config, "one")
    host.delete(config, "one")
    clean = link_lab.everything(host)
    for step in range(1, 40):
        host.add(config, "one")
        faults = Faults(step, after=after)
        try:
            with faults.active():
                host.delete(config, "one")
        except CNIError as error:
            assert "Input/output error" in str(error)
        host.delete(config, "one")
        assert link_lab.everything(host) == clean, f"after {faults.failed}, step {step}"
        if faults.count < step:
            break
    assert step > 3
