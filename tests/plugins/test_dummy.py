"""dummy: an interface that leads nowhere, with the addresses of an IPAM plugin."""

from __future__ import annotations

from typing import Any

import pytest

from podwire.cni.errors import CNIError
from tests.plugins.helpers import Host, addresses, links, reaches, routes, run

pytestmark = [pytest.mark.kernel, pytest.mark.other_kernel("dummy")]


@pytest.fixture
def net(host: Host) -> dict[str, Any]:
    found = host.config("10.1.0.0/24", "fd00:1::/64")
    del found["bridge"]
    found["ipam"]["routes"] = [{"dst": "192.0.2.0/24"}]
    return {**found, "type": "dummy"}


def test_the_container_has_an_interface_with_its_addresses(host: Host, net: dict[str, Any]) -> None:
    result = host.add(net, host.pod("one"))
    seen = links("one")["eth0"]
    assert (seen["linkinfo"]["info_kind"], "UP" in seen["flags"]) == ("dummy", True)
    assert (result.interfaces[0].mac, result.interfaces[0].sandbox) == (seen["address"], "/run/netns/one")
    assert [one.interface for one in result.ips] == [0, 0]
    assert addresses("eth0", "one")[:2] == ["10.1.0.2/24", "fd00:1::2/64"]
    assert {one["dst"]: one.get("gateway") for one in routes("one")} == {
        "10.1.0.0/24": None,
        "192.0.2.0/24": "10.1.0.1",
    }
    run("ip", "-n", "one", "link", "set", "lo", "up")
    assert reaches("one", "10.1.0.2")
    assert list(links()) == ["lo"]
    host.check(net, "one", result)
    host.call("STATUS", net)
    run("ip", "-n", "one", "route", "delete", "192.0.2.0/24")
    with pytest.raises(CNIError, match=r"the route to 192\.0\.2\.0/24 by 10\.1\.0\.1 is missing"):
        host.check(net, "one", result)
    host.delete(net, "one")
    host.delete(net, "one")
    assert list(links("one")) == ["lo"]
    assert host.held() == {}


def test_a_dummy_of_the_container_itself_is_left_alone(host: Host, net: dict[str, Any]) -> None:
    host.pod("one")
    run("ip", "-n", "one", "link", "add", "eth0", "type", "dummy")
    with pytest.raises(CNIError, match="it is a dummy that network net did not make"):
        host.add(net, "one")
    host.delete(net, "one")
    host.call("GC", {**net, "cni.dev/valid-attachments": []})
    assert list(links("one")) == ["lo", "eth0"]
    assert host.held() == {}


def test_without_an_ipam_plugin_it_is_refused(host: Host, net: dict[str, Any]) -> None:
    del net["ipam"]
    with pytest.raises(CNIError, match="ipam: 'type' is missing") as caught:
        host.add(net, host.pod("one"))
    assert caught.value.code == 7
    assert list(links("one")) == ["lo"]


def test_gc_takes_the_links_of_lost_containers(host: Host, net: dict[str, Any]) -> None:
    host.add(net, host.pod("one"))
    result = host.add(net, host.pod("two"))
    host.call("GC", {**net, "cni.dev/valid-attachments": [{"containerID": "id-two", "ifname": "eth0"}]})
    assert list(links("one")) == ["lo"]
    host.check(net, "two", result)
    assert set(host.held().values()) == {"id-two"}
