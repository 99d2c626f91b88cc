"""host-device: the device goes there and comes back, whatever the container does and becomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable
from podwire.kernel import altnames
from podwire.kernel.errors import KernelError
from podwire.plugins import host_devices
from tests.plugins import link_lab
from tests.plugins.helpers import GO_PLUGINS, Host, addresses, execute, links, run

pytestmark = pytest.mark.kernel


@pytest.fixture
def cabled(host: Host) -> Iterator[Host]:
    link_lab.cable()
    host.pod("one")
    yield host
    run("ip", "netns", "delete", "router")


def net(host: Host, *subnets: str, **options: Any) -> dict[str, Any]:
    return host.config(*subnets, **{"type": "host-device", "bridge": "", "device": "m0", **options})


def is_back(name: str = "m0") -> bool:
    link = links().get(name, {})
    return link.get("address") == link_lab.MAC and not link.get("ifalias") and not link.get("altnames")


def test_F06_a_del_that_finds_its_name_taken_can_be_tried_again(cabled: Host) -> None:
    config = net(cabled, "10.1.0.0/24")
    result = cabled.add(config, "one")
    run("ip", "link", "add", "m0", "type", "bridge")
    with pytest.raises(CNIError, match="cannot have its name m0 back"):
        cabled.delete(config, "one")
    cabled.check(config, "one", result)
    assert set(cabled.held()) == {"10.1.0.2"}
    run("ip", "link", "delete", "m0")
    cabled.delete(config, "one")
    assert is_back()
    assert cabled.held() == {}


def test_F07_the_container_renamed_its_interface(cabled: Host) -> None:
    config = net(cabled)
    cabled.add(config, "one")
    run("ip", "-n", "one", "link", "set", "eth0", "down")
    run("ip", "-n", "one", "link", "set", "eth0", "name", "wan")
    cabled.delete(config, "one")
    assert is_back()
    assert set(links("one")) == {"lo"}


def test_F07_the_container_changed_the_alias(cabled: Host) -> None:
    config = net(cabled)
    cabled.add(config, "one")
    run("ip", "-n", "one", "link", "set", "eth0", "alias", "mine now")
    cabled.delete(config, "one")
    assert is_back()


def test_F08_the_container_has_a_link_of_the_devices_name(cabled: Host) -> None:
    run("ip", "-n", "one", "link", "add", "m0", "type", "bridge")
    config = net(cabled, "10.1.0.0/24")
    result = cabled.add(config, "one")
    assert links("one")["eth0"]["address"] == link_lab.MAC
    cabled.check(config, "one", result)
    cabled.delete(config, "one")
    assert is_back()
    assert links("one")["m0"]["linkinfo"]["info_kind"] == "bridge"


def test_the_host_has_a_link_of_the_containers_name(cabled: Host) -> None:
    run("ip", "link", "add", "eth0", "type", "bridge")
    config = net(cabled)
    cabled.add(config, "one")
    cabled.delete(config, "one")
    assert is_back()
    assert links()["eth0"]["linkinfo"]["info_kind"] == "bridge"


def die(host: Host, config: dict[str, Any]) -> None:
    """Have the pod end as it ends for hardware: the device is on the host, under the pod's name for it."""
    host.add(config, "one")
    run("ip", "netns", "add", "self")  # a way to name the host's namespace
    run("umount", "/run/netns/self")
    run("mount", "--bind", "/proc/self/ns/net", "/run/netns/self")
    run("ip", "-n", "one", "link", "set", "eth0", "netns", "self")
    run("ip", "netns", "delete", "self")
    run("ip", "netns", "delete", "one")
    assert links()["eth0"]["ifalias"] == "m0"


def test_a_del_restores_a_device_that_outlived_its_pod(cabled: Host) -> None:
    config = net(cabled, "10.1.0.0/24")
    die(cabled, config)
    run("ip", "link", "set", "eth0", "up")
    cabled.delete(config, "one")
    assert is_back()
    assert "UP" in links()["m0"]["flags"]
    assert cabled.held() == {}


def test_a_gc_restores_a_device_that_outlived_its_pod(cabled: Host) -> None:
    config = net(cabled, "10.1.0.0/24")
    die(cabled, config)
    kept = {**config, "cni.dev/valid-attachments": [{"containerID": "id-one", "ifname": "eth0"}]}
    cabled.call("GC", kept)
    assert "eth0" in links()
    cabled.call("GC", {**config, "cni.dev/valid-attachments": []})
    assert is_back()
    assert cabled.held() == {}


def test_an_add_takes_a_device_that_outlived_its_pod(cabled: Host) -> None:
    config = net(cabled)
    die(cabled, config)
    result = cabled.add(config, cabled.pod("two"))
    cabled.check(config, "two", result)
    cabled.delete(config, "one")  # late, and of nothing any more
    cabled.check(config, "two", result)


def test_a_failed_add_puts_back_what_the_device_had(cabled: Host) -> None:
    run("ip", "link", "add", "br9", "type", "bridge")
    run("ip", "address", "add", "192.0.2.7/24", "dev", "m0")
    run("ip", "link", "set", "m0", "master", "br9", "alias", "to the office")
    with pytest.raises(CNIError):
        cabled.add(net(cabled, "10.1.0.0/24", ipam={"type": "host-local", "subnet": "10.1.0.0/33"}), "one")
    after = links()["m0"]
    assert (after["master"], after["ifalias"], "UP" in after["flags"]) == ("br9", "to the office", True)
    assert "192.0.2.7/24" in addresses("m0")


def test_a_device_of_the_reference_plugin_comes_back(cabled: Host) -> None:
    config = {**net(cabled, "10.1.0.0/24"), "cniVersion": "1.0.0"}
    done = execute(
        GO_PLUGINS / "host-device",
        "ADD",
        config,
        container_id="id-one",
        netns="/run/netns/one",
        ifname="eth0",
    )
    assert done.returncode == 0, done.stdout
    cabled.delete(config, "one")
    assert is_back()
    assert cabled.held() == {}


def test_the_reference_plugin_brings_ours_back(cabled: Host) -> None:
    config = {**net(cabled, "10.1.0.0/24"), "cniVersion": "1.0.0"}
    cabled.add(config, "one")
    done = execute(
        GO_PLUGINS / "host-device",
        "DEL",
        config,
        container_id="id-one",
        netns="/run/netns/one",
        ifname="eth0",
    )
    assert done.returncode == 0, done.stdout
    assert links()["m0"]["address"] == link_lab.MAC
    result = cabled.add(config, cabled.pod("two"))  # what that left of our mark is no obstacle
    cabled.check(config, "two", result)


def test_a_kernel_without_alternative_names(cabled: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int, name: str) -> Any:
        raise KernelError(95, "add alternative name", name)

    monkeypatch.setattr(altnames, "add", refuse)
    config = net(cabled, "10.1.0.0/24")
    result = cabled.add(config, "one")
    cabled.check(config, "one", result)
    cabled.delete(config, "one", result=result)
    assert is_back()


def test_a_missing_device(cabled: Host) -> None:
    with pytest.raises(InvalidConfig, match='device "nosuch0": the host has no such interface'):
        cabled.add(net(cabled, device="nosuch0"), "one")
    with pytest.raises(NotAvailable, match="nosuch0"):
        cabled.call("STATUS", net(cabled, device="nosuch0"))
    with pytest.raises(InvalidConfig, match='specify either "device", "hwaddr", "kernelpath" or "pciBusID"'):
        cabled.add(net(cabled, device=""), "one")
    cabled.call("STATUS", net(cabled, device=""))  # the runtime names one at ADD


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /sys in which m0 is a network card, a virtio one, one of the auxiliary bus; and a card of DPDK."""
    root = tmp_path / "sys"
    for path in (
        "devices/pci0000:00/0000:00:1f.6/net/m0",
        "bus/pci/devices/0000:00:1f.6/net/m0",
        "bus/pci/devices/0000:00:02.0/virtio1/net/m0",
        "bus/auxiliary/devices/mlx5_core.sf.2/net/m0",
        "bus/pci/devices/0000:00:03.0",
        "bus/pci/drivers/vfio-pci",
    ):
        root.joinpath(path).mkdir(parents=True)
    root.joinpath("bus/pci/devices/0000:00:03.0/driver").symlink_to("../../drivers/vfio-pci")
    monkeypatch.setattr(host_devices, "SYS", root)
    return root


@pytest.mark.parametrize(
    "options",
    [
        {"hwaddr": link_lab.MAC.upper()},
        {"kernelpath": "/sys/devices/pci0000:00/0000:00:1f.6"},
        {"pciBusID": "0000:00:1f.6"},
        {"pciBusID": "0000:00:02.0"},
        {"runtimeConfig": {"deviceID": "0000:00:1f.6"}},
        {"runtimeConfig": {"deviceID": "mlx5_core.sf.2"}},
        {"pciBusID": "0000:00:03.0", "runtimeConfig": {"deviceID": "0000:00:02.0"}},
    ],
)
@pytest.mark.usefixtures("sysfs")
def test_the_device_is_found(cabled: Host, options: dict[str, Any]) -> None:
    config = net(cabled, device="", **options)
    cabled.call("STATUS", config)
    result = cabled.add(config, "one")
    assert result.interfaces[0].mac == link_lab.MAC
    cabled.check(config, "one", result)
    cabled.delete(config, "one")
    assert is_back()


@pytest.mark.parametrize(
    "options",
    [
        {"kernelpath": "/etc/passwd"},
        {"kernelpath": "/sys/devices/../bus/pci/devices/0000:00:1f.6"},
        {"pciBusID": "../../devices"},
        {"pciBusID": "0000:ff:00.0"},
        {"runtimeConfig": {"deviceID": "0000:ff:00.0"}},
        {"runtimeConfig": {"deviceID": "../x"}},
        {"hwaddr": "02:ff:ff:ff:ff:ff"},
    ],
)
@pytest.mark.usefixtures("sysfs")
def test_a_device_that_cannot_be_is_refused_by_its_field(cabled: Host, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        cabled.add(net(cabled, device="", **options), "one")
    assert is_back()


@pytest.mark.usefixtures("sysfs")
def test_a_device_that_a_program_drives_stays_and_has_its_address_told(cabled: Host) -> None:
    config = net(cabled, "10.1.0.0/24", device="", pciBusID="0000:00:03.0")
    result = cabled.add(config, "one")
    assert result.interfaces[0].pciID == "0000:00:03.0"
    assert [one.address for one in result.ips] == ["10.1.0.2/24"]
    assert set(links("one")) == {"lo"}
    cabled.check(config, "one", result)
    cabled.delete(config, "one")
    assert cabled.held() == {}
