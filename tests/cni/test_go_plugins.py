"""Against Debian's Go plugins: what they print we read and print alike, and our runtime drives them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from podwire.cni import convert, versions
from podwire.cni.errors import PluginFailure
from podwire.cni.plugin import IPConfig, Request, Result
from podwire.cni.runtime import Attachment, Runtime
from tests.cni.helpers import Options, Recorder, network

GO = Path("/usr/lib/cni")
GO_VERSIONS = versions.SUPPORTED[:-1]

pytestmark = pytest.mark.skipif(not (GO / "host-local").exists(), reason="needs containernetworking-plugins")


def ipam(directory: Path) -> dict[str, Any]:
    return {
        "type": "host-local",
        "dataDir": str(directory / "data"),
        "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "2001:db8::9"}],
    }


def go(plugin: str, command: str, conf: dict[str, Any]) -> bytes:
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/none/x",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(GO),
    }
    ran = subprocess.run([GO / plugin], input=json.dumps(conf).encode(), env=env, capture_output=True)
    return ran.stdout


@pytest.mark.parametrize("version", GO_VERSIONS)
def test_a_result_of_go_read_and_printed_is_the_same_text(tmp_path: Path, version: str) -> None:
    said = go("host-local", "ADD", {"cniVersion": version, "name": "n", "ipam": ipam(tmp_path)})
    ours = convert.encode_result(convert.decode_result(said, version), version)
    if versions.at_least(version, "1.0.0"):
        # This old Go still prints an empty dns at 1.0.0, and in the order of its struct.
        assert json.loads(ours) == {key: value for key, value in json.loads(said).items() if key != "dns"}
    else:
        assert ours == said


@pytest.mark.parametrize("version", GO_VERSIONS)
async def test_the_runtime_drives_a_go_plugin_in_every_version(tmp_path: Path, version: str) -> None:
    runtime = Runtime(path=(str(GO),), cache_dir=tmp_path / "cache")
    net = network({"type": "host-local", "ipam": ipam(tmp_path)}, version=version)
    attachment = Attachment("c1", "/none/x")
    result = await runtime.add(net, attachment)
    assert [ip.address for ip in result.ips] == ["10.1.0.2/24", "2001:db8::2/64"]
    taken = tmp_path / "data" / "net" / "10.1.0.2"
    assert taken.exists()
    if versions.at_least(version, "0.4.0"):
        await runtime.check(net, attachment)
    await runtime.delete("net", attachment)
    assert not taken.exists()
    assert runtime.attachments() == []


async def test_our_plugin_delegates_to_gos_ipam_and_undoes_it(tmp_path: Path) -> None:
    def add(request: Request[Options]) -> Result | None:
        with request.delegated(request.ipam_type) as result:
            assert (tmp_path / "data" / "net" / "10.1.0.2").exists()
            if request.config.mtu == 13:
                raise ValueError("no link")
            return result

    ours = Recorder("ours", acts={"ADD": add})
    runtime = Runtime({"ours": ours.plugin}, path=(str(GO),), cache_dir=tmp_path / "cache")
    with pytest.raises(PluginFailure, match="no link"):
        await runtime.add(
            network({"type": "ours", "mtu": 13, "ipam": ipam(tmp_path)}, version="1.0.0"),
            Attachment("c1", "/x"),
        )
    assert ours.commands == ["ADD", "DEL"]
    assert not (tmp_path / "data" / "net" / "10.1.0.2").exists()


async def test_versions_and_errors_of_go_plugins_come_through(tmp_path: Path) -> None:
    runtime = Runtime(path=(str(GO),), cache_dir=tmp_path / "cache")
    assert await runtime.versions("host-local") == GO_VERSIONS
    with pytest.raises(PluginFailure, match='type="host-local" failed \\(add\\): incompatible CNI versions'):
        await runtime.add(network({"type": "host-local", "ipam": ipam(tmp_path)}), Attachment("c1", "/x"))
    assert list((tmp_path / "cache" / "results").iterdir()) == []


async def test_static_answers_what_we_expect(tmp_path: Path) -> None:
    runtime = Runtime(path=(str(GO),), cache_dir=tmp_path / "cache")
    conf = {"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}]}}
    net = network(conf, version="1.0.0")
    assert await runtime.add(net, Attachment("c1", "/x", args={"IgnoreUnknown": "1"})) == Result(
        ips=(IPConfig("10.9.0.5/24"),)
    )
    assert [each.name for each in (tmp_path / "cache" / "results").iterdir()] == ["net-c1-eth0"]
