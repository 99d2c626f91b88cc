"""The plugin host-local: configuration, requests, results; what the store does is tested in tests/ipam."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.convert import decode_result, encode_result
from podwire.cni.errors import CNIError
from podwire.cni.plugin import Result, call, make_request
from podwire.plugins import host_local, load
from tests.plugins.helpers import GO_PLUGINS, ROOT, execute

PLUGIN = load("host-local")
assert PLUGIN is not None


def network(data: Path, *subnets: str, **ipam: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"cniVersion": "1.1.0", "name": "net"}
    config["ipam"] = {"type": "host-local", "dataDir": str(data), **ipam}
    if subnets:
        config["ipam"]["ranges"] = [[{"subnet": subnet}] for subnet in subnets]
    return config


def ask(
    command: str, config: dict[str, Any], container_id: str = "", *, args: str = "", ifname: str = "eth0"
) -> Result | None:
    assert PLUGIN is not None
    request = make_request(
        PLUGIN, command, config, container_id=container_id, netns="/run/netns/x", ifname=ifname, args=args
    )
    return call(PLUGIN, request, None)


def add(config: dict[str, Any], container_id: str, **options: str) -> list[str]:
    result = ask("ADD", config, container_id, **options)
    assert result is not None
    return [ip.address for ip in result.ips]


def taken(data: Path) -> dict[str, str]:
    home = data / "net"
    if not home.exists():
        return {}
    return {path.name: path.read_bytes().decode() for path in home.iterdir() if path.name[0] in "1f"}


def test_the_result_has_addresses_gateways_routes_and_dns(tmp_path: Path) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(
        "# made by hand\nnameserver 192.0.2.53\nnameserver 2001:db8::53 ; the second\ndomain old.example\n"
        "search a.example\nsearch b.example c.example\noptions ndots:5\noptions edns0 trust-ad\nsortlist x\n"
    )
    config = network(
        tmp_path,
        "10.1.0.0/24",
        "fd00:1::/64",
        routes=[{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8", "gw": "fd00:1::9", "mtu": 1400}],
        resolvConf=str(resolv),
    )
    result = ask("ADD", config, "a")
    assert result is not None
    assert json.loads(encode_result(result, "1.1.0")) == {
        "cniVersion": "1.1.0",
        "ips": [
            {"address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8", "gw": "fd00:1::9", "mtu": 1400}],
        "dns": {
            "nameservers": ["192.0.2.53", "2001:db8::53"],
            "domain": "old.example",
            "search": ["b.example", "c.example"],
            "options": ["ndots:5", "edns0", "trust-ad"],
        },
    }


def test_sets_are_served_in_the_order_of_the_reference(tmp_path: Path) -> None:
    config = network(
        tmp_path, "10.3.0.0/24", subnet="10.2.0.0/24", rangeStart="10.2.0.7", rangeEnd="10.2.0.9"
    )
    config["runtimeConfig"] = {"ipRanges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.50"}]]}
    assert add(config, "a") == ["10.1.0.50/24", "10.2.0.7/24", "10.3.0.2/24"]
    assert (tmp_path / "net" / "last_reserved_ip.1").read_text() == "10.2.0.7"


@pytest.mark.parametrize(
    ("args", "cni", "runtime"),
    [
        ("IP=10.1.0.99", [], []),
        ("", ["10.1.0.99"], []),
        ("", [], ["10.1.0.99"]),
        ("", [], ["10.1.0.99/24"]),
        ("IP=10.1.0.99", ["10.1.0.99"], ["10.1.0.99/24"]),
    ],
)
def test_an_address_may_be_asked_for_in_three_places(
    tmp_path: Path, args: str, cni: list[str], runtime: list[str]
) -> None:
    config = network(tmp_path, "10.1.0.0/24", "fd00:1::/64")
    config |= {"args": {"cni": {"ips": cni}}, "runtimeConfig": {"ips": runtime}}
    assert add(config, "a", args=args) == ["10.1.0.99/24", "fd00:1::2/64"]


@pytest.mark.parametrize(
    ("args", "runtime", "code", "message"),
    [
        ("IP=x", [], 4, 'CNI_ARGS IP "x": is not an IP address'),
        ("", ["10.1.0.0/99"], 7, r'runtimeConfig.ips\[0\] "10.1.0.0/99"'),
        ("IP=10.1.0.5", [], 101, r"10\.1\.0\.5 is held by container holder \(eth0\)"),
        ("IP=10.2.0.5", [], 7, r"10\.2\.0\.5 cannot be given: it is outside of 10\.1\.0\.1-10\.1\.0\.254"),
        ("IP=10.1.0.1", [], 7, "it is a gateway"),
    ],
)
def test_C07_a_refused_request_says_why_and_takes_nothing(
    tmp_path: Path, args: str, runtime: list[str], code: int, message: str
) -> None:
    config = network(tmp_path, "10.1.0.0/24")
    add(config, "holder", args="IP=10.1.0.5")
    with pytest.raises(CNIError, match=message) as caught:
        add({**config, "runtimeConfig": {"ips": runtime}}, "a", args=args)
    assert caught.value.code == code
    assert set(taken(tmp_path)) == {"10.1.0.5"}


@pytest.mark.parametrize(
    ("ipam", "message"),
    [
        ({}, "ipam: no ranges"),
        ({"rangeStart": "10.1.0.5"}, r"ipam\.subnet: missing"),
        ({"subnet": "10.1.0.5/24"}, r"ipam\.subnet '10\.1\.0\.5/24': has host bits set"),
        ({"subnet": "10.1.0.0/24", "gateway": "10.2.0.1"}, r"ipam\.gateway '10\.2\.0\.1'"),
        ({"ranges": [[]]}, r"ipam\.ranges\[0\]: a set of ranges is empty"),
        ({"ranges": [[{"subnet": "x"}]]}, r"ipam\.ranges\[0\]\[0\]\.subnet 'x'"),
        (
            {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24", "rangeEnd": "1.2.3.4"}]]},
            r"ipam\.ranges\[1\]\[0\]\.rangeEnd '1\.2\.3\.4'",
        ),
        ({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]}, "another family"),
        ({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]}, "set 1 overlaps with set 0"),
        ({"ranges": {"subnet": "10.1.0.0/24"}}, r"ipam\.ranges"),
        ({"subnet": "10.1.0.0/24", "routes": [{"dst": "nowhere"}]}, r'ipam\.routes\[0\].*"nowhere"'),
        ({"subnet": "10.1.0.0/24", "resolvConf": "/none"}, r"ipam\.resolvConf /none: No such file"),
    ],
)
def test_a_bad_configuration_names_field_and_value_and_takes_nothing(
    tmp_path: Path, ipam: dict[str, Any], message: str
) -> None:
    with pytest.raises(CNIError, match=message) as caught:
        add(network(tmp_path, **ipam), "a")
    assert caught.value.code == 7
    assert not (tmp_path / "net").exists()


def test_C03_exhaustion_asks_to_try_later(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/29", "fd00::/64")
    for n in range(5):
        add(config, f"c{n}")
    before = taken(tmp_path)
    with pytest.raises(
        CNIError, match=r"no free address in 10\.1\.0\.1-10\.1\.0\.6: all 5 are taken"
    ) as caught:
        add(config, "late")
    assert caught.value.code == 11
    assert taken(tmp_path) == before


def test_C05_a_repeated_add_is_refused(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/24")
    add(config, "x")
    with pytest.raises(CNIError, match=r"container x \(eth0\) holds 10\.1\.0\.2 already") as caught:
        add(config, "x")
    assert caught.value.code == 102
    assert add(config, "x", ifname="net1") == ["10.1.0.3/24"]
    ask("DEL", config, "x")
    assert add(config, "x") == ["10.1.0.4/24"]


def test_C18_after_a_reboot_a_container_gets_addresses_without_a_del(tmp_path: Path) -> None:
    """C18: nothing of before the reboot is alive; its lease is no reason to refuse the same container."""
    config = network(tmp_path, "10.1.0.0/24", "fd00::/64")
    assert add(config, "a") == ["10.1.0.2/24", "fd00::2/64"]
    assert add(config, "b") == ["10.1.0.3/24", "fd00::3/64"]
    before = time.time() - float(Path("/proc/uptime").read_text().split()[0]) - 60
    os.utime(tmp_path / "net/10.1.0.2", (before, before))
    (tmp_path / "net/touched").touch()  # what changes a file in place is seen once the directory changes
    with pytest.raises(CNIError, match=r"container a .* holds"):
        add(config, "a")  # a part of it is of today
    os.utime(tmp_path / "net/fd00::2", (before, before))
    (tmp_path / "net/touched").unlink()
    assert add(config, "a") == ["10.1.0.4/24", "fd00::4/64"]
    assert sorted(taken(tmp_path)) == ["10.1.0.3", "10.1.0.4", "fd00::3", "fd00::4"]
    with pytest.raises(CNIError, match=r"container a .* holds"):
        add(config, "a")


def test_the_boot_is_in_the_past_and_stays_there() -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert host_local.booted() == pytest.approx(time.time() - uptime, abs=2)


def test_C14_a_v6_address_is_told_as_ip6_in_old_results(tmp_path: Path) -> None:
    config = {**network(tmp_path, "fd00:1::/64"), "cniVersion": "0.2.0"}
    result = ask("ADD", config, "a")
    assert result is not None
    said = json.loads(encode_result(result, "0.2.0"))
    assert said["ip6"]["ip"] == "fd00:1::2/64"
    assert "ip4" not in said


def test_C14_two_sets_of_a_family_are_refused_in_old_versions(tmp_path: Path) -> None:
    config = {**network(tmp_path, "10.1.0.0/24", "10.2.0.0/24"), "cniVersion": "0.2.0"}
    with pytest.raises(CNIError, match="more than one address a family") as caught:
        add(config, "a")
    assert caught.value.code == 1
    assert taken(tmp_path) == {}


def test_del_is_repeatable_and_makes_nothing(tmp_path: Path) -> None:
    config = network(tmp_path / "missing", "10.1.0.0/24")
    ask("DEL", config, "a")
    assert not (tmp_path / "missing").exists()
    add(config, "a")
    ask("DEL", config, "a")
    ask("DEL", config, "a")
    assert taken(tmp_path / "missing") == {}


def test_del_works_by_the_record_when_the_ranges_have_changed(tmp_path: Path) -> None:
    add(network(tmp_path, "10.1.0.0/24", "fd00:1::/64"), "a")
    ask("DEL", network(tmp_path, "192.0.2.0/24"), "a")
    assert taken(tmp_path) == {}
    add(network(tmp_path, "10.1.0.0/24"), "b")
    ask("DEL", network(tmp_path), "b")
    assert taken(tmp_path) == {}


def test_E04_del_of_an_old_container_leaves_the_new_one(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/24")
    add(config, "A")
    add(config, "B")
    ask("DEL", config, "A")
    ask("DEL", config, "A")
    assert set(taken(tmp_path)) == {"10.1.0.3"}


def checked(config: dict[str, Any], container_id: str, address: str) -> None:
    ask("CHECK", {**config, "prevResult": {"ips": [{"address": address}]}}, container_id)


def test_check_wants_the_addresses_of_the_result_held(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/24")
    with pytest.raises(CNIError, match=r"container a \(eth0\) holds no address of network net"):
        checked(config, "a", "10.1.0.2/24")
    add(config, "a")
    add(config, "b")
    checked(config, "a", "10.1.0.2/24")
    checked(config, "a", "192.0.2.1/24")  # another plugin's
    with pytest.raises(CNIError, match=r"10\.1\.0\.3 of container a \(eth0\) is held by b \(eth0\)"):
        checked(config, "a", "10.1.0.3/24")
    with pytest.raises(CNIError, match=r"10\.1\.0\.4 of container a \(eth0\) is free"):
        checked(config, "a", "10.1.0.4/24")
    ask("DEL", config, "a")
    with pytest.raises(CNIError, match="holds no address"):
        checked(config, "a", "10.1.0.2/24")


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_B11_gc_releases_what_is_not_listed(tmp_path: Path, key: str) -> None:
    config = network(tmp_path, "10.1.0.0/24", "fd00:1::/64")
    for name in ("a", "b", "c"):
        add(config, name)
    ask("GC", {**config, key: [{"containerID": "b", "ifname": "eth0"}, {"containerID": "a", "ifname": "x"}]})
    assert set(taken(tmp_path)) == {"10.1.0.3", "fd00:1::3"}
    assert {"lock", "last_reserved_ip.0", "last_reserved_ip.1"} < {
        path.name for path in (tmp_path / "net").iterdir()
    }


def test_B09_gc_without_either_key_deletes_nothing(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/24")
    add(config, "a")
    ask("GC", config)
    assert set(taken(tmp_path)) == {"10.1.0.2"}


def test_B10_gc_keeps_to_its_network(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/24")
    add(config, "a")
    ask("GC", {**config, "name": "other", "cni.dev/valid-attachments": []})
    assert set(taken(tmp_path)) == {"10.1.0.2"}


def test_status_reports_an_exhausted_pool(tmp_path: Path) -> None:
    config = network(tmp_path, "10.1.0.0/29")
    ask("STATUS", config)
    assert not (tmp_path / "net").exists()
    for n in range(5):
        add(config, f"c{n}")
    with pytest.raises(CNIError, match=r"no free address in .* of network net") as caught:
        ask("STATUS", config)
    assert caught.value.code == 50
    ask("DEL", config, "c0")
    ask("STATUS", config)


def test_status_reports_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CNIError, match="cannot be made below") as caught:
        ask("STATUS", network(tmp_path / "file" / "deeper", "10.1.0.0/24"))
    assert caught.value.code == 50


def test_keys_of_another_case_count(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "cniVersion": "1.0.0",
        "name": "net",
        "IPAM": {
            "type": "host-local",
            "DataDir": str(tmp_path),
            "SUBNET": "10.1.0.0/24",
            "RangeStart": "10.1.0.8",
        },
    }
    assert add(config, "a") == ["10.1.0.8/24"]


@pytest.mark.skipif(not (GO_PLUGINS / "host-local").exists(), reason="needs the reference plugins")
@pytest.mark.parametrize("version", ["0.2.0", "0.3.1", "0.4.0", "1.0.0"])
def test_the_executable_answers_as_the_reference_does(tmp_path: Path, version: str) -> None:
    answers = []
    for name, program in (
        ("go", [str(GO_PLUGINS / "host-local")]),
        ("ours", [sys.executable, "-m", "podwire.plugins", "host-local"]),
    ):
        config = network(tmp_path / name, "10.1.0.0/24", "fd00:1::/64", routes=[{"dst": "0.0.0.0/0"}])
        done = subprocess.run(
            program,
            input=json.dumps({**config, "cniVersion": version}).encode(),
            env={
                "CNI_COMMAND": "ADD",
                "CNI_CONTAINERID": "a",
                "CNI_NETNS": "/proc/1/ns/net",
                "CNI_IFNAME": "eth0",
                "CNI_PATH": str(GO_PLUGINS),
                "CNI_NETNS_OVERRIDE": "1",
                "PYTHONPATH": str(ROOT / "src"),
            },
            capture_output=True,
            check=True,
        )
        answer = json.loads(done.stdout)
        if version == "1.0.0" and not answer.get("dns"):  # older releases of the reference write it empty
            answer.pop("dns", None)
        answers.append(answer)
    assert answers[0] == answers[1]
    assert taken(tmp_path / "go") == taken(tmp_path / "ours")
    assert decode_result(answers[1], version).ips[0].address == "10.1.0.2/24"


def test_an_error_of_the_executable_is_json_on_stdout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "podwire.plugins", "host-local"],
        input=json.dumps(network(tmp_path, "10.1.0.7/24")).encode(),
        env={
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "a",
            "CNI_NETNS": "/x",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/x",
            "PYTHONPATH": str(ROOT / "src"),
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["code"], said["cniVersion"]) == (7, "1.1.0")
    assert "10.1.0.7/24" in said["msg"]
    assert done.stderr == b""


def test_the_helper_of_other_tests_runs_it_too(tmp_path: Path) -> None:
    done = execute(GO_PLUGINS / "host-local", "VERSION", network(tmp_path))
    assert "1.0.0" in json.loads(done.stdout)["supportedVersions"]
