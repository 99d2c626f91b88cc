"""VLANs of a bridge network: a port has one of them untagged (``vlan``) or several tagged (``vlanTrunk``).

With ``isGateway`` an access VLAN has its gateway on a link of its own, ``BRIDGE.VLAN``: one end of a pair
whose other end is a port of the bridge in that VLAN. It stays as the bridge stays.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import msgspec

from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable, UnsupportedField
from podwire.kernel import bridge_vlans, devices, links
from podwire.kernel.bridge_vlans import LAST_VLAN, BridgeVlan
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.plugins import bridge_device
from podwire.plugins.attachment import MARK
from podwire.plugins.failures import KERNEL, undone_on_failure

_NAME_LENGTH = 15
_lock = threading.Lock()


class Trunk(msgspec.Struct, frozen=True):
    """An entry of ``vlanTrunk``: one VLAN, or all from ``minID`` to ``maxID``, or both."""

    id: int | None = None
    minID: int | None = None
    maxID: int | None = None


class Vlans(msgspec.Struct, frozen=True):
    """The VLANs of a port: ``access`` untagged (0: none), ``trunk`` tagged. False if there are none.

    ``keeps_default`` is whether it stays in the VLAN that every port of the bridge is born in.
    """

    access: int = 0
    trunk: tuple[tuple[int, int], ...] = ()
    keeps_default: bool = True

    def __bool__(self) -> bool:
        return bool(self.access or self.trunk)


@lru_cache(maxsize=64)
def read(vlan: int, trunk: tuple[Trunk, ...], keeps_default: bool) -> Vlans:
    """Check the options. Raises InvalidConfig (7) naming field and value."""
    if not 0 <= vlan <= LAST_VLAN:
        raise InvalidConfig(f"vlan {vlan}: is not between 0 and {LAST_VLAN}")
    ranges = [each for number, entry in enumerate(trunk) for each in _ranges(f"vlanTrunk[{number}]", entry)]
    if vlan and ranges:
        raise InvalidConfig(
            f"vlan {vlan} and vlanTrunk: a port has one VLAN untagged or several tagged, not both"
        )
    return Vlans(vlan, _joined(ranges), keeps_default)


def _ranges(field: str, entry: Trunk) -> Iterator[tuple[int, int]]:
    for name, value in (("id", entry.id), ("minID", entry.minID), ("maxID", entry.maxID)):
        if value is not None and not 0 < value <= LAST_VLAN:
            raise InvalidConfig(f"{field}.{name} {value}: is not between 1 and {LAST_VLAN}")
    if (entry.minID is None) != (entry.maxID is None):
        raise InvalidConfig(
            f"{field}: minID and maxID come together, {'minID' if entry.maxID else 'maxID'} is missing"
        )
    if entry.minID is not None and entry.maxID is not None:
        if entry.minID > entry.maxID:
            raise InvalidConfig(f"{field}: minID {entry.minID} is above maxID {entry.maxID}")
        yield entry.minID, entry.maxID
    if entry.id is not None:
        yield entry.id, entry.id


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return tuple(result)


def gateway_name(bridge: str, vlan: int) -> str:
    """Return the name of the gateway's link. Raises InvalidConfig (7) if it is too long."""
    name = f"{bridge}.{vlan}"
    if len(name) > _NAME_LENGTH:
        raise InvalidConfig(
            f"bridge {bridge}: its gateway in VLAN {vlan} would be on {name}, whose name is too long",
            f"an interface name has at most {_NAME_LENGTH} characters",
        )
    return name


def filtering(kernel: Kernel, bridge: Link) -> Link:
    """Have the bridge filter by VLAN, and return it with all details.

    One that others made and use is left as it is. Raises InvalidConfig (7) for such a one, UnsupportedField
    (2) if the kernel cannot.
    """
    host = kernel.route()
    found = links.get(host, bridge.index)
    if found is None:
        raise KernelError(errno.ENODEV, "look up link", bridge.name, "the bridge is gone again")
    if found.data.get("vlan_filtering"):
        return found
    if not bridge_device.is_ours(found) and links.list_links(host, master=found.index):
        raise InvalidConfig(
            f"bridge {bridge.name}: does not filter VLANs, and has ports of others",
            f"switch it on: ip link set {bridge.name} type bridge vlan_filtering 1",
        )
    try:
        host.send(bridge_vlans.configure(found.index, filtering=True))
    except KernelError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        text = f"vlan, vlanTrunk: this kernel has no VLANs on a bridge ({bridge.name})"
        raise UnsupportedField(text, str(error)) from error
    return links.get(host, bridge.index) or found


def require_filter(kernel: Kernel, bridge: Link) -> None:
    """Raise NotAvailable (50) if a bridge that is there does not filter VLANs and cannot be made to."""
    if "vlan_default_pvid" not in bridge.data:  # which a kernel without VLANs on bridges leaves out
        raise NotAvailable(f"vlan, vlanTrunk: this kernel has no VLANs on a bridge ({bridge.name})")
    foreign = not bridge_device.is_ours(bridge) and links.list_links(kernel.route(), master=bridge.index)
    if foreign and not bridge.data.get("vlan_filtering"):
        raise NotAvailable(f"bridge {bridge.name}: does not filter VLANs, and has ports of others")


def port(bridge: Link, index: int, vlans: Vlans) -> list[Message]:
    """Return what gives a new port of the bridge its VLANs."""
    default = bridge.data.get("vlan_default_pvid", 0)
    messages = []
    if default and not vlans.keeps_default:
        messages.append(bridge_vlans.delete(index, default))
    if vlans.access:
        messages.append(bridge_vlans.add(index, vlans.access, pvid=True, untagged=True))
    messages += [bridge_vlans.add(index, first, last) for first, last in vlans.trunk]
    return messages


def check_port(kernel: Kernel, bridge: Link, link: Link, vlans: Vlans) -> None:
    """Verify that the bridge filters, and the VLANs of a port. Raises CNIError (100)."""
    if not vlans:
        return
    if not bridge.data.get("vlan_filtering"):
        raise CNIError(f"bridge {bridge.name}: does not filter VLANs", code=KERNEL)
    held = bridge_vlans.list_vlans(kernel.route()).get(link.index, [])
    if vlans.access and BridgeVlan(vlans.access, vlans.access, True, True) not in held:
        raise CNIError(f"port {link.name}: VLAN {vlans.access} is not its untagged one", code=KERNEL)
    for first, last in vlans.trunk:
        if not any(one.first <= first and last <= one.last and not one.untagged for one in held):
            raise CNIError(
                f"port {link.name}: of the VLANs {first}-{last} one is missing or untagged", code=KERNEL
            )
    default = bridge.data.get("vlan_default_pvid", 0)
    wanted = vlans.access == default or any(first <= default <= last for first, last in vlans.trunk)
    unwanted = default and not vlans.keeps_default and not wanted
    if unwanted and any(one.first <= default <= one.last for one in held):
        raise CNIError(f"port {link.name}: is in the default VLAN {default}", code=KERNEL)


@contextmanager
def gateway(kernel: Kernel, bridge: Link, vlans: Vlans) -> Iterator[Link]:
    """Have the link with the gateway of an access VLAN there and up for the length of a block.

    If it was made here and the block fails, it goes again, unless others use it by then. Raises InvalidConfig
    (7) if another link has its name.
    """
    name = gateway_name(bridge.name, vlans.access)
    with bridge_device.shared(
        kernel,
        name,
        lambda: _ensure_gateway(kernel, bridge, name, vlans),
        lambda: _remove_unused(kernel, bridge, name, vlans.access),
    ) as link:
        yield link


def find_gateway(kernel: Kernel, bridge: Link, vlans: Vlans) -> Link:
    """Return the link with the gateway of an access VLAN, verified. Raises CNIError (100)."""
    name = gateway_name(bridge.name, vlans.access)
    link = links.get(kernel.route(), name)
    end = links.get(kernel.route(), link.peer_index) if link is not None and link.kind == "veth" else None
    if link is None or end is None or end.master != bridge.index:
        raise CNIError(f"gateway {name}: is missing, or does not lead to bridge {bridge.name}", code=KERNEL)
    if not link.up or not end.up:
        raise CNIError(f"gateway {name}: is down", code=KERNEL)
    check_port(kernel, bridge, end, Vlans(vlans.access))
    return link


def _ensure_gateway(kernel: Kernel, bridge: Link, name: str, vlans: Vlans) -> tuple[Link, bool]:
    with _lock:
        return _ensured(kernel, bridge, name, vlans)


def _ensured(kernel: Kernel, bridge: Link, name: str, vlans: Vlans) -> tuple[Link, bool]:
    host = kernel.route()
    link = links.get(host, name)
    if link is not None:
        if link.kind != "veth":
            kind = link.kind or "device"
            raise InvalidConfig(f"vlan {vlans.access}: {name} is to have its gateway and is a {kind} already")
        return link, False
    end = f"vgw{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    with undone_on_failure() as undo:
        undo.append(lambda: kernel.links.remove(name))
        host.send(links.veth(name, end, mtu=bridge.mtu or None))
        bridge_device.refuse_advertisements(kernel, name)
        host.send(
            links.configure(name, addr_gen_mode=AddrGenMode.NONE),
            links.configure(end, addr_gen_mode=AddrGenMode.NONE),
            links.configure(name, alias=f"{MARK}: gateway in VLAN {vlans.access} of {bridge.name}"),
            links.configure(end, alias=f"{MARK}: way to {name}", master=bridge.index),
            *port(bridge, devices.index(host, end), vlans),
            links.configure(end, up=True),
            links.configure(name, up=True),
        )
        link = links.get(host, name)
        if link is None:
            raise KernelError(errno.ENODEV, "look up link", name, "it is gone again")
    return link, True


def _remove_unused(kernel: Kernel, bridge: Link, name: str, vlan: int) -> None:
    host = kernel.route()
    link = links.get(host, name)
    if link is None or link.kind != "veth":
        return
    ports = {one.index for one in links.list_links(host, master=bridge.index)} - {link.peer_index}
    used = BridgeVlan(vlan, vlan, True, True)
    if not any(used in held for index, held in bridge_vlans.list_vlans(host).items() if index in ports):
        kernel.links.remove(link)
