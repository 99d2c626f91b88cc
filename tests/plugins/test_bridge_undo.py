"""An ADD that fails at any step leaves nothing; so does a DEL that is tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.cni.plugin import IPConfig
from podwire.kernel import netns
from podwire.kernel.errors import KernelError
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.plugins import addressing, attachment
from podwire.plugins.attachment import Identity
from tests.plugins.faults import Faults
from tests.plugins.helpers import Host, reaches, run
from tests.plugins.undo import add_failing_at_each_step, delete_failing_at_each_step

pytestmark = pytest.mark.kernel

FULL: dict[str, Any] = {"isDefaultGateway": True, "macspoofchk": True, "ipMasq": True, "hairpinMode": True}


LOOK = """
ip -br link | cut -d' ' -f1 | sort
ip -n one -br link | cut -d' ' -f1 | sort
ip address show dev lo
ip route show table all | sed 's/ linkdown//'
ip -6 route show table all | sed 's/ linkdown//'
nft list ruleset | grep elements
cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding
"""


def test_a_pair_whose_batch_fails_is_known_for_ours(host: Host) -> None:
    host.pod("one")
    identity = Identity("net", "one", "eth0")
    ip = IPConfig("10.1.0.5/24")

    def within(index: int) -> list[Message]:
        return addressing.requests(index, "02:00:00:00:00:05", (ip, ip), ())

    def make(within: attachment.Within | None) -> list[Callable[[], object]]:
        undo: list[Callable[[], object]] = []
        with (
            netns.open("/run/netns/one") as pod,
            RouteSocket.open(pod) as inside,
            pytest.raises(KernelError) as caught,
        ):
            attachment.make_pair(host.kernel, inside, identity, undo, mac="02:00:00:00:00:05", within=within)
        assert caught.value.errno == errno.EEXIST
        return undo

    (step,) = make(within)
    assert make(None) == []  # its names are taken: by whomever
    step()
    assert identity.host_end not in run("ip", "link")


def everything(host: Host) -> list[str]:
    """All that an ADD may touch, as independent observers see it."""
    return [*run("sh", "-c", LOOK).splitlines(), *sorted(host.held())]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("options", [{}, FULL], ids=["plain", "full"])
def test_a_failure_at_any_step_leaves_nothing(host: Host, options: dict[str, Any], after: bool) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", **options)
    host.pod("one")

    def tidied() -> None:
        run("ip", "link", "delete", "pw0")
        if options:
            run("sysctl", "-q", "-w", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")

    tried = add_failing_at_each_step(host, config, lambda: everything(host), after=after, tidied=tidied)
    failed = set(tried.told)
    assert failed >= {"NetlinkSocket.send", "NetlinkSocket.open", "Netns.run", "Leases.reserve"}
    assert len(failed) >= (9 if options else 7), failed
    assert len(tried.told) > 15
    if options:
        assert reaches("one", "10.1.0.1")
    host.delete(config, "one")
    assert host.held() == {}


def test_a_real_refusal_in_the_middle_leaves_nothing(host: Host) -> None:
    """The kernel refuses a route whose gateway is no station."""
    config = host.config("10.1.0.0/24", isGateway=True)
    config["ipam"]["routes"] = [{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]
    host.pod("one")
    clean = everything(host)
    with pytest.raises(CNIError, match=r"add route 192\.0\.2\.0/24: "):
        host.add(config, "one")
    assert everything(host) == clean


def test_E23_an_ipam_failure_leaves_nothing(host: Host) -> None:
    config = host.config("10.1.0.0/30", isGateway=True)
    host.add(config, host.pod("zero"))
    host.pod("one")
    clean = everything(host)
    with pytest.raises(CNIError, match=r"no free address in 10\.1\.0\.1-10\.1\.0\.2") as caught:
        host.add(config, "one")
    assert caught.value.code == 11
    assert everything(host) == clean


def test_a_bridge_in_use_by_others_stays_when_an_add_fails(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True)
    result = host.add(config, host.pod("zero"))
    host.pod("one")
    for step in range(4, 12):
        with pytest.raises(CNIError, match="injected"), Faults(step, after=False).active():
            host.add(config, "one")
    host.check(config, "zero", result)
    assert reaches("zero", "10.1.0.1")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_del_that_failed_is_completed_by_the_next(host: Host, after: bool) -> None:
    config = host.config("10.1.0.0/24", "fd00:1::/64", **FULL)
    host.pod("one")
    tried = delete_failing_at_each_step(host, config, lambda: everything(host), after=after)
    assert len(tried.told) >= 3
