from __future__ import annotations

import json
from typing import Any

import pytest

from podwire.cni.convert import encode_result
from podwire.cni.errors import CNIError, InvalidNetns
from podwire.cni.plugin import IPConfig, Result
from tests.plugins.helpers import GO_PLUGINS, Host, addresses, execute, links, run

pytestmark = pytest.mark.kernel

CONFIG: dict[str, Any] = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}


def test_lo_is_up_with_both_addresses_and_down_after_del(host: Host) -> None:
    host.pod("one")
    assert "UP" not in links("one")["lo"]["flags"]
    result = host.add(CONFIG, "one", ifname="lo")
    assert "UP" in links("one")["lo"]["flags"]
    assert addresses("lo", "one") == ["127.0.0.1/8", "::1/128"]
    host.check(CONFIG, "one", result, ifname="lo")
    host.delete(CONFIG, "one", ifname="lo")
    assert "UP" not in links("one")["lo"]["flags"]
    with pytest.raises(CNIError, match="lo is not up"):
        host.check(CONFIG, "one", result, ifname="lo")


def test_the_answer_is_the_reference_plugins(host: Host) -> None:
    host.pod("one")
    call = {"container_id": "c", "netns": "/run/netns/one", "ifname": "lo"}
    theirs = json.loads(execute(GO_PLUGINS / "loopback", "ADD", CONFIG, **call).stdout)
    assert theirs.pop("dns") == {}  # newer releases of the reference leave it out
    run("ip", "-n", "one", "link", "set", "lo", "down")
    assert json.loads(encode_result(host.add(CONFIG, "one", ifname="lo"), "1.0.0")) == theirs


def test_an_earlier_result_is_passed_on(host: Host) -> None:
    before = Result(ips=(IPConfig("10.1.0.2/24"),))
    assert host.add(CONFIG, host.pod("one"), result=before) == before


def test_a_lost_address_is_found(host: Host) -> None:
    result = host.add(CONFIG, host.pod("one"), ifname="lo")
    run("ip", "-n", "one", "address", "delete", "127.0.0.1/8", "dev", "lo")
    with pytest.raises(CNIError, match=r"lo has lost the address 127\.0\.0\.1/8"):
        host.check(CONFIG, "one", result, ifname="lo")


def test_del_without_a_namespace_succeeds_and_add_does_not(host: Host) -> None:
    for path in ("", "/run/netns/none", "/etc/hostname"):
        host.call("DEL", CONFIG, container_id="c", netns=path, ifname="lo")
        with pytest.raises(InvalidNetns):
            host.call("ADD", CONFIG, container_id="c", netns=path, ifname="lo")
