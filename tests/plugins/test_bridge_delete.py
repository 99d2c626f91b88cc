"""DEL, GC and STATUS: what is gone already is fine, what is recorded is released, nobody else is touched."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.plugins.attachment import Identity
from tests.plugins.helpers import GO_PLUGINS, Host, execute, links, reaches, run

pytestmark = pytest.mark.kernel

OPTIONS: dict[str, Any] = {"isGateway": True, "ipMasq": True, "macspoofchk": True}


def elements() -> list[str]:
    return [line.strip() for line in run("nft", "list", "ruleset").splitlines() if "elements" in line]


def gone(host: Host) -> bool:
    return not host.held() and elements() == [] and not any(name.startswith("veth") for name in links())


@pytest.fixture
def config(host: Host) -> dict[str, Any]:
    return host.config("10.1.0.0/24", "fd00:1::/64", **OPTIONS)


def test_E01_the_namespace_is_missing(host: Host, config: dict[str, Any]) -> None:
    host.add(config, host.pod("one"))
    assert not gone(host)
    host.delete(config, "one", netns="/run/netns/never-was")
    assert gone(host)
    host.delete(config, "one", netns="/proc/999999999/ns/net")


def test_E01_the_namespace_was_deleted_with_its_links(host: Host, config: dict[str, Any]) -> None:
    host.add(config, host.pod("one"))
    run("ip", "netns", "delete", "one")
    host.delete(config, "one")
    assert gone(host)


def test_E02_the_path_is_no_namespace(host: Host, config: dict[str, Any], tmp_path: Path) -> None:
    host.add(config, host.pod("one"))
    (tmp_path / "plain").touch()
    host.delete(config, "one", netns=str(tmp_path / "plain"))
    assert gone(host)
    host.delete(config, "one", netns=str(tmp_path))


def test_E03_the_path_is_empty(host: Host, config: dict[str, Any]) -> None:
    host.add(config, host.pod("one"))
    host.delete(config, "one", netns="")
    assert gone(host)
    assert list(links("one")) == ["lo"]


def test_E04_an_old_container_never_touches_the_new_one(host: Host, config: dict[str, Any]) -> None:
    host.add(config, host.pod("one"), container_id="A")
    host.delete(config, "one", container_id="A")
    result = host.add(config, "one", container_id="B")
    for _ in range(2):
        host.delete(config, "one", container_id="A")
    host.check(config, "one", result, container_id="B")
    assert reaches("one", "10.1.0.1")


def test_E21_masquerading_goes_without_a_namespace(host: Host, config: dict[str, Any]) -> None:
    host.add(config, host.pod("one"))
    assert any("10.1.0.2" in line for line in elements())
    host.delete(config, "", container_id="id-one", netns="")
    assert elements() == []


def test_rules_go_even_if_the_configuration_does_not_ask_for_them_any_more(
    host: Host, config: dict[str, Any]
) -> None:
    host.add(config, host.pod("one"))
    host.delete({**config, "ipMasq": False, "macspoofchk": False, "bridge": "other"}, "one")
    assert gone(host)


def test_F07_the_container_renamed_its_interface(host: Host, config: dict[str, Any]) -> None:
    host.add(config, host.pod("one"))
    run("ip", "-n", "one", "link", "set", "eth0", "down", "name", "renamed")
    host.delete(config, "one")
    assert gone(host)
    assert list(links("one")) == ["lo"]


def test_a_namesake_of_the_host_end_is_not_removed(host: Host, config: dict[str, Any]) -> None:
    name = Identity("net", "id-one", "eth0").host_end
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "theirs")
    host.delete(config, "one", netns="")
    assert {name, "theirs"} <= set(links())


def test_an_interface_of_another_maker_in_the_pod_is_not_removed(host: Host, config: dict[str, Any]) -> None:
    host.pod("one")
    run("ip", "-n", "one", "link", "add", "eth0", "type", "veth", "peer", "name", "theirs")
    host.delete(config, "one")
    assert "eth0" in links("one")


def test_what_the_reference_plugin_made_is_removed_by_its_result(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True, cniVersion="1.0.0")
    call = {"container_id": "id-one", "netns": "/run/netns/one", "ifname": "eth0"}
    host.pod("one")
    made = execute(GO_PLUGINS / "bridge", "ADD", config, **call)
    assert made.returncode == 0
    from podwire.cni.convert import decode_result

    result = decode_result(made.stdout, "1.0.0")
    host.check(config, "one", result)
    host.delete(config, "one", result=result)
    assert gone(host)
    assert list(links("one")) == ["lo"]


def test_what_we_made_is_removed_by_the_reference_plugin(host: Host) -> None:
    config = host.config("10.1.0.0/24", isGateway=True, cniVersion="1.0.0")
    host.add(config, host.pod("one"))
    done = execute(
        GO_PLUGINS / "bridge", "DEL", config, container_id="id-one", netns="/run/netns/one", ifname="eth0"
    )
    assert done.returncode == 0
    assert gone(host)


def test_gc_keeps_what_is_listed_and_removes_the_rest(host: Host, config: dict[str, Any]) -> None:
    long_id = "c" * 250
    results = {name: host.add(config, host.pod(name)) for name in ("one", "two", "three")}
    host.add(config, host.pod("four"), container_id=long_id)
    other = host.config("10.9.0.0/24", name="net2", bridge="pw9", isGateway=True)
    other["ipam"]["dataDir"] = str(host.data)
    foreign = host.add(other, host.pod("five"))
    listed = [{"containerID": "id-one", "ifname": "eth0"}, {"containerID": "id-two", "ifname": "eth9"}]
    host.call("GC", {**config, "cni.dev/valid-attachments": listed})
    host.check(config, "one", results["one"])
    host.check(other, "five", foreign)
    assert set(host.held().values()) == {"id-one"}
    assert sum(name.startswith("veth") for name in links()) == 2
    assert not any("10.1.0.3" in line or "10.1.0.5" in line for line in elements())
    assert any("10.1.0.2" in line for line in elements())


def test_gc_without_a_list_removes_nothing(host: Host, config: dict[str, Any]) -> None:
    result = host.add(config, host.pod("one"))
    host.call("GC", config)
    host.check(config, "one", result)


def test_status_tells_of_an_exhausted_pool_and_of_a_name_that_is_taken(host: Host) -> None:
    config = host.config("10.1.0.0/30")
    host.call("STATUS", config)
    host.add(config, host.pod("one"))
    with pytest.raises(CNIError, match="no free address") as caught:
        host.call("STATUS", config)
    assert caught.value.code == 50
    run("ip", "link", "add", "taken", "type", "veth", "peer", "name", "takenpeer")
    with pytest.raises(CNIError, match="bridge taken: exists and is no bridge but a veth") as caught:
        host.call("STATUS", host.config("10.2.0.0/24", bridge="taken"))
    assert caught.value.code == 50


def test_a_killed_add_is_cleaned_up_by_del(host: Host, config: dict[str, Any]) -> None:
    """The pair is there and has no alias yet, as kill -9 between two requests leaves it."""
    identity = Identity("net", "id-one", "eth0")
    host.pod("one")
    run(
        *("ip", "link", "add", identity.host_end, "address", identity.host_mac, "type", "veth"),
        *("peer", "name", "eth0", "netns", "one"),
    )
    host.delete(config, "one")
    assert gone(host)
    subprocess.run(["ip", "-n", "one", "link", "show", "lo"], check=True, capture_output=True)
