"""Which device of the host is meant: by its name, its MAC, or where the kernel has it in /sys."""

from __future__ import annotations

from pathlib import Path

import msgspec

from podwire.cni.errors import InvalidConfig
from podwire.kernel import links
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket

SYS = Path("/sys")
_USERSPACE_DRIVERS = frozenset({"vfio-pci", "uio_pci_generic", "igb_uio"})


class Selector(msgspec.Struct, frozen=True):
    """What names the device; the first one that is set counts. ``auxiliary`` is a device of that bus."""

    device: str = ""
    hwaddr: str = ""
    kernelpath: str = ""
    pci: str = ""
    auxiliary: str = ""

    def __bool__(self) -> bool:
        return any((self.device, self.hwaddr, self.kernelpath, self.pci, self.auxiliary))

    def __str__(self) -> str:
        for field, value in (
            ("device", self.device),
            ("hwaddr", self.hwaddr),
            ("kernelpath", self.kernelpath),
            ("pciBusID", self.pci),
            ("runtimeConfig.deviceID", self.auxiliary),
        ):
            if value:
                return f'{field} "{value}"'
        return "device"


def by_device_id(device_id: str) -> Selector:
    """Return the device that a device plugin gave to the container: one of PCI, or of the auxiliary bus.

    Raises InvalidConfig (7) if it is neither.
    """
    if _safe(device_id):
        if (_bus("pci") / device_id).exists():
            return Selector(pci=device_id)
        if (_bus("auxiliary") / device_id).exists():
            return Selector(auxiliary=device_id)
    raise InvalidConfig(f'runtimeConfig.deviceID "{device_id}": there is no such device')


def has_userspace_driver(pci: str) -> bool:
    """Tell whether a program drives the device itself (DPDK), so that it is no network interface."""
    driver = _bus("pci") / pci / "driver"
    return _safe(pci) and driver.is_symlink() and driver.readlink().name in _USERSPACE_DRIVERS


def find(sock: RouteSocket, wanted: Selector) -> Link | None:
    """Return the device in the socket's namespace, or None. InvalidConfig (7) for a path that cannot be."""
    if wanted.device:
        return links.get(sock, wanted.device, details=False)
    if wanted.hwaddr:
        mac = wanted.hwaddr.lower().replace("-", ":")
        return next((link for link in links.list_links(sock) if link.mac == mac), None)
    for name in _names(wanted):
        link = links.get(sock, name, details=False)
        if link is not None:
            return link
    return None


def _names(wanted: Selector) -> list[str]:
    if wanted.kernelpath:
        path = Path(wanted.kernelpath)
        if ".." in path.parts or not path.is_relative_to("/sys/devices"):
            raise InvalidConfig(f'kernelpath "{wanted.kernelpath}": does not begin with /sys/devices/')
        return _entries(SYS / path.relative_to("/sys") / "net")
    bus, name = ("pci", wanted.pci) if wanted.pci else ("auxiliary", wanted.auxiliary)
    if not _safe(name):
        raise InvalidConfig(f"{wanted}: is no name of a device")
    home = _bus(bus) / name
    return _entries(home / "net") or [each for net in home.glob("virtio*/net") for each in _entries(net)]


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return []


def _bus(name: str) -> Path:
    return SYS / "bus" / name / "devices"


def _safe(name: str) -> bool:
    return bool(name) and "/" not in name and "\0" not in name and name not in {".", ".."}
