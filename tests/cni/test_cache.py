"""Kind B: the result cache, libcni's format, and what can be wrong with a file."""

from __future__ import annotations

import base64
import json
import shutil
import stat
from pathlib import Path

import pytest

from podwire.cni import convert
from podwire.cni.cache import Cache, Record
from podwire.cni.config import parse_list
from podwire.cni.errors import InvalidConfig, IOFailure
from tests.cni.helpers import RESULT

SAID = convert.to_object(RESULT, "1.0.0")


def record(network: str = "net", container: str = "c1", ifname: str = "eth0") -> Record:
    return Record(network, container, ifname, "/run/netns/x", b'{"name":"net"}', {"A": "1"}, {"mac": "02"})


def test_the_file_is_libcnis(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cni")
    cache.complete(cache.begin(record()), SAID)
    path = tmp_path / "cni" / "results" / "net-c1-eth0"
    said = json.loads(path.read_text())
    assert said.pop("bootID") == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert said == {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "config": base64.b64encode(b'{"name":"net"}').decode(),
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/run/netns/x",
        "cniArgs": [["A", "1"]],
        "capabilityArgs": {"mac": "02"},
        "result": SAID,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["net-c1-eth0"]


def test_a_record_written_by_go_is_read(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "net-c1-eth0").write_text(
        '{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","networkName":"net",'
        '"netns":"/x","cniArgs":[["IgnoreUnknown","1"]],"capabilityArgs":null,'
        '"result":{"cniVersion":"0.4.0","dns":{},"ips":[{"address":"10.0.0.2/8","version":"4"}]}}'
    )
    found = Cache(tmp_path).read("net", "c1", "eth0")
    assert found is not None
    assert (found.config, found.args, found.capability_args) == (b"{}", {"IgnoreUnknown": "1"}, {})
    result = found.typed_result()
    assert result is not None and result.ips[0].address == "10.0.0.2/8"
    assert not Cache(tmp_path).is_stale(found)


def test_a_record_that_containerd_wrote_is_read_and_can_be_deleted_from(tmp_path: Path) -> None:
    """The file as containerd 1.6.20 left it for a container of `ctr run --cni`."""
    (tmp_path / "results").mkdir()
    shutil.copy(Path(__file__).parent / "data" / "net-default-c1-eth0", tmp_path / "results")
    (found,) = Cache(tmp_path).records()
    assert (found.key, found.netns) == (("net", "default-c1", "eth0"), "")
    result = found.typed_result()
    assert result is not None
    assert result.ips[0].address == "10.66.0.2/24"
    assert result.interfaces[2].sandbox == "/proc/12388/ns/net"
    network = parse_list(found.config)
    assert [plugin.type for plugin in network.plugins] == ["bridge", "portmap"]
    assert network.capabilities == ("portMappings",)
    Cache(tmp_path).remove(*found.key)
    assert list((tmp_path / "results").iterdir()) == []


def test_arguments_that_libcni_recorded_are_read(tmp_path: Path) -> None:
    """The file as libcni 1.1.2 left it for an ADD with CNI_ARGS and capability arguments."""
    (tmp_path / "results").mkdir()
    shutil.copy(Path(__file__).parent / "data" / "net-c1-eth0", tmp_path / "results")
    found = Cache(tmp_path).read("net", "c1", "eth0")
    assert found is not None
    assert found.args == {"IgnoreUnknown": "1", "K8S_POD_NAME": "x"}
    assert found.capability_args == {"mac": "02:00:00:00:00:09", "other": [1]}
    assert parse_list(found.config).capabilities == ("ips", "mac")


def test_e09_a_record_without_result_is_an_add_that_began(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.begin(record())
    found = Cache(tmp_path).read("net", "c1", "eth0")
    assert found is not None
    assert (found.result, found.config, found.args) == (None, b'{"name":"net"}', {"A": "1"})


def test_a_record_cut_off_anywhere_in_its_result_still_tells_that_the_add_began(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    place = cache.begin(record())
    path = tmp_path / "results" / "net-c1-eth0"
    begun = len(path.read_bytes())
    cache.complete(place, SAID)
    whole = path.read_bytes()
    for length in range(begun + len(',"result":') - 1, len(whole)):
        path.write_bytes(whole[:length])
        found = cache.read("net", "c1", "eth0")
        assert found is not None and found.result is None and found.args == {"A": "1"}, length


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"kind":', "\0" * 100, '{"kind":"cniCacheV1"', "[" * 90000]
)
def test_b01_a_damaged_record_is_none_and_can_be_replaced_and_removed(tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    path = tmp_path / "results" / "net-c1-eth0"
    path.parent.mkdir()
    path.write_text(text)
    assert cache.read("net", "c1", "eth0") is None
    assert cache.records() == []
    cache.begin(record())
    assert cache.read("net", "c1", "eth0") == Record(
        *record().key,
        record().netns,
        record().config,
        record().args,
        record().capability_args,
        boot_id=cache.boot_id,
    )
    path.write_text(text)
    cache.remove("net", "c1", "eth0")
    assert not path.exists()
    cache.remove("net", "c1", "eth0")


def test_a_bare_result_of_an_old_libcni_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results" / "net-c1-eth0"
    path.parent.mkdir()
    path.write_bytes(convert.encode_result(RESULT, "0.4.0"))
    found = Cache(tmp_path).read("net", "c1", "eth0")
    assert found is not None and found.legacy
    result = found.typed_result()
    assert result is not None and result.ips == RESULT.ips


def test_names_with_hyphens_do_not_take_each_others_record(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    one, two = record("a-b", "c"), record("a", "b-c")
    place_one, place_two = cache.begin(one), cache.begin(two)
    cache.complete(place_one, {"cniVersion": "1.0.0"})
    cache.complete(place_two, SAID)
    assert len(list((tmp_path / "results").iterdir())) == 2
    found_one, found_two = cache.read(*one.key), cache.read(*two.key)
    assert found_one is not None and found_one.result == {"cniVersion": "1.0.0"}
    assert found_two is not None and found_two.result == SAID
    assert {each.key for each in cache.records()} == {one.key, two.key}
    cache.remove(*one.key)
    assert cache.read(*one.key) is None
    assert cache.read(*two.key) == found_two


def test_records_are_listed_by_network_and_container(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.records() == []
    for each in (record(), record("other"), record(container="c2"), record(ifname="net1")):
        cache.begin(each)
    assert len(cache.records()) == 4
    assert {each.ifname for each in cache.records(network="net", container_id="c1")} == {"eth0", "net1"}


def test_what_the_file_system_refuses_is_an_io_failure(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    cache = Cache(tmp_path)
    with pytest.raises(IOFailure, match="Not a directory"):
        cache.begin(record())
    with pytest.raises(IOFailure, match="Not a directory"):
        cache.records()
    assert cache.read("net", "c1", "eth0") is None


def test_arguments_that_json_cannot_carry_are_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(InvalidConfig):
        cache.begin(Record("net", "c1", "eth0", capability_args={"x": object()}))
    with pytest.raises(InvalidConfig):
        cache.begin(Record("net", "c1", "eth0", "/run/\udc80"))
    assert cache.records() == []
