"""Network configurations that are broken, given to the real command: one clear error, nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podwire.cli.__main__ import main
from podwire.kernel import netns
from tests.cli.helpers import output

pytestmark = pytest.mark.kernel
NETNS = "/run/netns/inputs"

Attach = Callable[..., str]


def network(**changes: Any) -> dict[str, Any]:
    """A network that is all right, but for ``changes``: None takes a key away."""
    return changed({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "loopback"}]}, changes)


def bridge(**changes: Any) -> dict[str, Any]:
    """A network of a bridge, with ``changes`` to the plugin's configuration."""
    plugin = {"type": "bridge", "bridge": "br-inputs", "isGateway": True, "ipam": ipam()}
    return network(plugins=[changed(plugin, changes)])


def ipam(**changes: Any) -> dict[str, Any]:
    return changed({"type": "host-local", "subnet": "10.9.0.0/24"}, changes)


def local(**changes: Any) -> dict[str, Any]:
    return bridge(ipam=ipam(**changes))


def ports(**changes: Any) -> dict[str, Any]:
    portmap = changed({"type": "portmap", "capabilities": {"portMappings": True}}, changes)
    plugins = [{"type": "bridge", "bridge": "br-inputs", "isGateway": True, "ipam": ipam()}, portmap]
    return network(plugins=plugins)


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


@pytest.fixture
def attach(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Attach:
    """``cni add`` of an empty namespace to the network in a file, which must fail; returns the error."""
    monkeypatch.chdir(tmp_path)
    for variable in ("CNI_PATH", "CNI_ARGS", "CAP_ARGS", "CNI_IFNAME", "PODWIRE_ROOT"):
        monkeypatch.delenv(variable, raising=False)

    def run(name: str, content: bytes | str | dict[str, Any], **variables: str) -> str:
        directory = tmp_path / "net.d"
        directory.mkdir()
        text = json.dumps(content) if isinstance(content, dict) else content
        (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setenv("NETCONFPATH", str(directory))
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        netns.create(NETNS)
        if isinstance(content, dict) and len(content.get("plugins") or ()) == 2:
            output("ip", "link", "add", "br-inputs", "type", "bridge")
            output("ip", "address", "add", "10.9.0.1/24", "dev", "br-inputs")
        try:
            before = (seen(), inside())
            status = main(["cni", "add", "net", NETNS, "--root", str(tmp_path / "root")])
            said = capfd.readouterr()
            assert (status, said.out) == (1, ""), said
            (error,) = said.err.splitlines()
            assert error.startswith("error: ")
            assert "a fault in podwire" not in error
            assert (seen(), inside()) == before
            assert not [path for path in held(tmp_path / "root") if path.is_file() and path.suffix != ".lock"]
        finally:
            netns.remove(NETNS)
        return error

    return run


def seen() -> list[str]:
    """The host, but for the bridge that is there before and stays when a later plugin of the list refuses."""
    links = [link for link in json.loads(output("ip", "-j", "link")) if link["ifname"] != "br-inputs"]
    return [json.dumps(links), output("nft", "list", "ruleset")]


def inside() -> str:
    return output("ip", "netns", "exec", "inputs", "ip", "address")


def held(root: Path) -> list[Path]:
    """What is left of an ADD: cached results, and addresses of the default directory of host-local."""
    reserved = [path for path in Path("/var/lib/cni").rglob("*") if path.name.startswith("10.")]
    return [*(root / "lib" / "cni").rglob("*"), *reserved]


FILES: list[tuple[str, bytes | str | dict[str, Any], str]] = [
    ("10.conflist", "", "10.conflist: not JSON"),
    ("10.conflist", "{", "10.conflist: not JSON"),
    ("10.conflist", "[]", "10.conflist: not a JSON object"),
    ("10.conflist", "null", "10.conflist: not a JSON object"),
    ("10.conflist", "plugins: []", "10.conflist: not JSON"),
    ("10.conflist", "[" * 100_000, "nested too deeply"),
    ("10.conflist", b'{"name": "\xff"}', "UTF-8"),
    ("10.conflist", '{"name": "\0"}', "10.conflist: not JSON"),
    ("10.conflist", '{"cniVersion": 1e999}', "10.conflist"),
    ("10.conflist", network(name=None), "no 'name'"),
    ("10.conflist", network(name=""), "name: missing"),
    ("10.conflist", network(name=5), "(it is 5)"),
    ("10.conflist", network(name="../net"), '"../net"'),
    ("10.conflist", network(name="other"), '"net"'),
    ("10.conflist", network(cniVersion="abc"), '"abc"'),
    ("10.conflist", network(cniVersion=1), "cniVersion"),
    ("10.conflist", network(cniVersion="9.9.9"), '"9.9.9"'),
    ("10.conflist", network(plugins=None), "plugins"),
    ("10.conflist", network(plugins=[]), "plugins: the list is empty"),
    ("10.conflist", network(plugins={}), "plugins"),
    ("10.conflist", network(plugins=["x"]), "plugins[0]"),
    ("10.conflist", network(plugins=[{"type": "loopback"}, {}]), "plugins[1]"),
    ("10.conflist", network(plugins=[{"type": 3}]), "plugins[0]"),
    ("10.conflist", network(plugins=[{"type": "../sh"}]), '"../sh"'),
    ("10.conflist", network(plugins=[{"type": "nonesuch"}]), '"nonesuch"'),
    ("10.conflist", network(disableCheck="x"), "disableCheck"),
    ("10.conflist", network(plugins=[{"type": "loopback", "capabilities": 5}]), "capabilities"),
    ("10.conf", {"name": "net"}, "10.conf"),
    ("10.txt", network(), '"net"'),
]


@pytest.mark.parametrize(("name", "content", "words"), FILES, ids=range(len(FILES)))
def test_a_file_that_is_no_network(
    attach: Attach, name: str, content: bytes | str | dict[str, Any], words: str
) -> None:
    assert words in attach(name, content)


PLUGINS: list[tuple[dict[str, Any], str]] = [
    (bridge(bridge=5), "bridge: Expected `str`, got `int` (it is 5)"),
    (bridge(bridge="0123456789012345"), '"0123456789012345"'),
    (bridge(bridge="a/b"), '"a/b"'),
    (bridge(bridge="a b"), '"a b"'),
    (bridge(bridge="a%d"), '"a%d"'),
    (bridge(bridge="lo"), "bridge lo"),
    (bridge(bridge="all"), 'bridge "all"'),
    (bridge(mtu=-1), "mtu -1"),
    (bridge(mtu=10**9), "mtu 1000000000"),
    (bridge(mtu=20), "mtu"),
    (bridge(mtu="1500"), '"1500"'),
    (bridge(mtu=1.5), "1.5"),
    (bridge(isGateway="yes"), "isGateway"),
    (bridge(hairpinMode=True, promiscMode=True), "hairpinMode and promiscMode"),
    (bridge(vlan=5000), "vlan 5000"),
    (bridge(vlan=-5), "vlan -5"),
    (bridge(ipMasq=True, ipMasqBackend="ipfw"), '"ipfw"'),
    (bridge(dns=5), "dns"),
    (bridge(args=5), "args"),
    (bridge(args={"cni": {"mac": "ff:ff:ff:ff:ff:ff"}}), "args.cni.mac"),
    (bridge(ipam="host-local"), 'ipam "host-local"'),
    (bridge(ipam=[]), "ipam []"),
    (bridge(ipam={"subnet": "10.9.0.0/24"}), "'type' is missing"),
    (bridge(ipam={"type": 5}), "'type' is missing"),
    (bridge(ipam={"type": "nonesuch"}), '"nonesuch"'),
    (bridge(ipam={"type": "../host-local"}), '"../host-local"'),
    (local(subnet=None), "no ranges"),
    (local(subnet=5), "ipam.subnet"),
    (local(subnet="10.9.0.0"), "'10.9.0.0'"),
    (local(subnet="10.9.0.0/33"), "'10.9.0.0/33'"),
    (local(subnet="10.9.0.1/24"), "host bits"),
    (local(subnet="224.9.0.0/24"), "multicast"),
    (local(subnet="ff02::/64"), "multicast"),
    (local(subnet="127.0.1.0/24"), "loopback"),
    (local(gateway="10.10.0.1"), "ipam.gateway '10.10.0.1'"),
    (local(gateway="fd00::1"), "ipam.gateway 'fd00::1'"),
    (local(gateway="x"), "ipam.gateway 'x'"),
    (local(rangeStart="10.10.0.1"), "ipam.rangeStart '10.10.0.1'"),
    (local(rangeStart="10.9.0.9", rangeEnd="10.9.0.3"), "rangeEnd 10.9.0.3"),
    (local(rangeStart="10.9.0.1", rangeEnd="10.9.0.1"), "ipam.rangeStart"),
    (local(rangeEnd="x"), "ipam.rangeEnd 'x'"),
    (local(ranges="x"), "ipam.ranges"),
    (local(ranges=[{"subnet": "10.3.0.0/24"}]), "ipam.ranges[0]"),
    (local(ranges=[[]]), "ipam.ranges[0]: a set of ranges is empty"),
    (local(ranges=[[{"subnet": "10.9.0.0/16"}]]), "overlaps"),
    (local(ranges=[[{"subnet": "10.3.0.0/24"}, {"subnet": "fd00::/64"}]]), "'fd00::/64'"),
    (local(routes={}), "ipam.routes"),
    (local(routes=[{}]), "ipam.routes[0]"),
    (local(routes=[{"dst": "x"}]), '"x"'),
    (local(routes=[{"dst": "10.0.0.0/8", "gw": "y"}]), '"y"'),
    (local(dataDir=5), "ipam.dataDir"),
    (local(dataDir="/dev/null"), "/dev/null"),
    (local(resolvConf="/missing"), "/missing"),
    (ports(snat="x"), "snat"),
    (ports(markMasqBit=40), "markMasqBit"),
    (ports(markMasqBit=-1), "markMasqBit"),
    (ports(conditionsV4="x"), "conditionsV4"),
    (ports(conditionsV4=["drop; flush ruleset"]), "conditionsV4"),
    (ports(backend="ipfw"), "ipfw"),
]


@pytest.mark.parametrize(("content", "words"), PLUGINS, ids=[words for _, words in PLUGINS])
def test_a_network_that_a_plugin_refuses(attach: Attach, content: dict[str, Any], words: str) -> None:
    mappings = {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}
    said = attach("10.conflist", content, CAP_ARGS=json.dumps(mappings))
    assert words in said
    assert "10.conflist: " in said


MAPPINGS: list[tuple[Any, str]] = [
    (5, "portMappings"),
    ({}, "portMappings"),
    (["x"], "portMappings[0]"),
    ([{"hostPort": "x"}], "hostPort"),
    ([{"hostPort": 70000, "containerPort": 80, "protocol": "tcp"}], "70000"),
    ([{"hostPort": -1, "containerPort": 80, "protocol": "tcp"}], "-1"),
    ([{"hostPort": 80, "containerPort": 0, "protocol": "tcp"}], "containerPort"),
    ([{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}], "icmp"),
    ([{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "x"}], "hostIP"),
    (2 * [{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}], "80"),
]


@pytest.mark.parametrize(("mappings", "words"), MAPPINGS, ids=range(len(MAPPINGS)))
def test_host_ports_that_cannot_be(attach: Attach, mappings: Any, words: str) -> None:
    assert words in attach("10.conflist", ports(), CAP_ARGS=json.dumps({"portMappings": mappings}))


ARGUMENTS = [
    ("IP=x", "IP"),
    ("IP=10.10.0.5", "10.10.0.5"),
    ("IP=10.9.0.1", "10.9.0.1"),
    ("MAC=x", "MAC"),
    ("MAC=01:00:00:00:00:01", "MAC"),
    ("IgnoreUnknown=perhaps;COLOUR=red", "IgnoreUnknown"),
]


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS)
def test_arguments_that_the_network_refuses(attach: Attach, arguments: str, words: str) -> None:
    assert words in attach("10.conflist", bridge(), CNI_ARGS=arguments)


def test_a_bridge_without_addresses_is_asked_for_by_leaving_ipam_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "10.conflist").write_text(json.dumps(bridge(ipam={})))
    monkeypatch.setenv("NETCONFPATH", str(tmp_path))
    netns.create(NETNS)
    try:
        assert main(["cni", "add", "net", NETNS, "--root", str(tmp_path / "root")]) == 0
        result = json.loads(capfd.readouterr().out)
        assert "ips" not in result
        assert main(["cni", "del", "net", NETNS, "--root", str(tmp_path / "root")]) == 0
    finally:
        netns.remove(NETNS)
