"""host-device addressed by dhcp: the device is there and up before its lease is asked for, and given back."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from podwire.dhcp.keeper import LeaseKeeper
from podwire.dhcp.packet import Kind
from tests.dhcp.helpers import Server
from tests.plugins.helpers import Host, addresses, links, reaches, run
from tests.plugins.test_dhcp import SOCKET, _bridge, keeper, server

__all__ = ["_bridge", "keeper", "server"]  # fixtures
pytestmark = pytest.mark.kernel


def test_a_device_lives_with_its_lease(host: Host, server: Server, keeper: LeaseKeeper) -> None:
    run("ip", "link", "add", "dev0", "type", "veth", "peer", "name", "port0")
    run("ip", "link", "set", "port0", "master", "dh0", "up")
    host.pod("one")
    config: dict[str, Any] = {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "host-device",
        "device": "dev0",
        "ipam": {"type": "dhcp", "daemonSocketPath": SOCKET},
    }
    result = host.add(config, "one")
    assert addresses("eth0", "one") == [result.ips[0].address] == ["10.88.0.50/24"]
    assert reaches("one", "10.88.0.1")
    host.check(config, "one", result)
    host.delete(config, "one")
    assert server.wait_for(Kind.RELEASE).client == IPv4Address("10.88.0.50")
    assert "dev0" in links()
    assert keeper.leases() == {}
