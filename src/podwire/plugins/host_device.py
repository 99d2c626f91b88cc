"""`host-device`: a device of the host becomes the container's interface, and comes back by DEL.

All options of the reference plugin: ``device``, ``hwaddr``, ``kernelpath``, ``pciBusID`` or
``runtimeConfig.deviceID`` (of the PCI or the auxiliary bus) say which. One that a program drives itself
(DPDK) stays where it is; the IPAM plugin's addresses are only told then.
"""

from __future__ import annotations

import msgspec

from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, NotAvailable, joined
from podwire.cni.plugin import DNS, Interface, IPConfig, Plugin, Request, Result
from podwire.cni.types import NO_DNS
from podwire.kernel import links
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import addressing, borrowed, host_devices, leasing, sublink, verification
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL, attempt, open_netns, open_netns_if_there, told
from podwire.plugins.host_devices import Selector


class RuntimeConfig(msgspec.Struct, frozen=True):
    """What the runtime may supply by the capability ``deviceID``."""

    deviceID: str = ""


class Config(msgspec.Struct, frozen=True):
    """The options of a network of one device."""

    device: str = ""
    hwaddr: str = ""
    kernelpath: str = ""
    pciBusID: str = ""
    dns: DNS = NO_DNS
    runtimeConfig: RuntimeConfig = RuntimeConfig()


def selector(config: Config) -> Selector:
    """Return which device is meant. InvalidConfig (7) for a deviceID that does not exist."""
    wanted = Selector(config.device, config.hwaddr, config.kernelpath, config.pciBusID)
    device_id = config.runtimeConfig.deviceID
    if not device_id:
        return wanted
    given = host_devices.by_device_id(device_id)
    return msgspec.structs.replace(wanted, pci=given.pci, auxiliary=given.auxiliary)


def validate(request: Request[Config]) -> Selector:
    """Return which device is meant; InvalidConfig (7) for options that cannot be."""
    sublink.optional_ipam(request)
    wanted = selector(request.config)
    if not wanted:
        raise InvalidConfig('specify either "device", "hwaddr", "kernelpath" or "pciBusID"')
    return wanted


def _is_dpdk(wanted: Selector) -> bool:
    by_pci = not (wanted.device or wanted.hwaddr or wanted.kernelpath)
    return by_pci and bool(wanted.pci) and host_devices.has_userspace_driver(wanted.pci)


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Move the device into the container and have it addressed. All or nothing."""
    wanted = validate(request)
    identity, config = sublink.identity_of(request), request.config
    with open_netns(request.netns) as container, told("host-device"):
        if _is_dpdk(wanted):
            interface = Interface(identity.ifname, sandbox=request.netns, pciID=wanted.pci)
            with sublink.addressed(request) as result:
                return _result(interface, result, config)
        with RouteSocket.open(container) as inside:
            _refuse_second(inside, identity)
        device = _find(kernel, wanted)
        if device is None:
            raise InvalidConfig(f"{wanted}: the host has no such interface")
        with (
            borrowed.lent(kernel, container, identity, device) as (inside, link),
            sublink.addressed(request) as result,
        ):
            _configure(container, inside, link, result)
    return _result(Interface(identity.ifname, link.mac, link.mtu, request.netns), result, config)


def _result(interface: Interface, addressed: Result, config: Config) -> Result:
    return Result(
        interfaces=(interface,),
        ips=tuple(IPConfig(ip.address, ip.gateway, 0) for ip in addressed.ips),
        routes=addressed.routes,
        dns=config.dns or addressed.dns,
    )


def _refuse_second(inside: RouteSocket, identity: Identity) -> None:
    link = links.get(inside, identity.ifname, details=False)
    what = f"container {identity.container_id} has an interface {identity.ifname} already"
    if borrowed.find_inside(inside, identity) is not None:
        raise AlreadyAttached(what, "a DEL must come before a second ADD", code=KERNEL)
    if link is not None:
        raise CNIError(what, f"it is a {link.kind or 'device'} of somebody else", code=KERNEL)


def _find(kernel: Kernel, wanted: Selector) -> Link | None:
    found = host_devices.find(kernel.route(), wanted)
    if found is None and wanted.device:
        found = borrowed.stray(kernel, wanted.device)
    return found


def _configure(container: Netns, inside: RouteSocket, link: Link, result: Result) -> None:
    if result.ips:
        container.run(lambda: addressing.write_sysctls(link.name, result.ips))
        local = addressing.link_local(link.mac)
        inside.send(*addressing.requests(link.index, local, result.ips, result.routes))
    else:  # what happens on it is the container's business
        inside.send(links.configure(link.index, up=True))
    sublink.await_carrier(inside, link.name)
    addressing.wait_until_local(inside, link.index, result.ips)


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the device in the container: its MAC, that it is up, its addresses and routes."""
    wanted = validate(request)
    result = request.need_prev_result()
    if request.ipam_type:
        request.delegate(request.ipam_type)
    with told("host-device"), open_netns(request.netns) as container:
        if _is_dpdk(wanted):
            return
        link = verification.container_end(container, request.ifname, result, kind=None)
        if wanted.device and link.alias != wanted.device:
            raise CNIError(f"interface {link.name}: is not the host's device {wanted.device}", code=KERNEL)


def delete(request: Request[Config], kernel: Kernel) -> None:
    """Give the device back to the host, then free the addresses; what is gone already is fine."""
    errors: list[CNIError] = []
    leased = leasing.give_back(errors, request, "host-device")
    returned = attempt(errors, "host-device", lambda: _return(request, kernel))
    # An address whose device is still there must not be given again.
    if returned and request.ipam_type and not leased:
        attempt(errors, "host-device", lambda: request.delegate(request.ipam_type))
    if errors:
        raise joined(errors)


def _return(request: Request[Config], kernel: Kernel) -> None:
    identity, fallback = sublink.identity_of(request), request.config.device
    marked = borrowed.mark(identity)
    container = open_netns_if_there(request.netns)
    if container is None:
        if not borrowed.restore(kernel, identity, fallback):
            _return_from_anywhere(kernel, identity, fallback)
        return
    with container, RouteSocket.open(container) as inside:
        link = borrowed.find_inside(inside, identity)
        if link is None and not borrowed.restore(kernel, identity, fallback):
            link = borrowed.foreign(inside, identity.ifname, _mac(request), fallback)
        if link is not None:
            borrowed.give_back(kernel, inside, link, borrowed.original_name(link, fallback), marked)


def _return_from_anywhere(kernel: Kernel, identity: Identity, fallback: str) -> None:
    """The runtime does not say where the container is, but its namespace may be pinned all the same."""
    for container in sublink.containers():
        with container, RouteSocket.open(container) as inside:
            link = borrowed.find_inside(inside, identity)
            if link is not None:
                name = borrowed.original_name(link, fallback)
                borrowed.give_back(kernel, inside, link, name, borrowed.mark(identity))
                return


def _mac(request: Request[Config]) -> str:
    result = request.prev_result
    index = result.interface_index(request.ifname) if result else None
    return result.interfaces[index].mac if result is not None and index is not None else ""


def gc(request: Request[Config], kernel: Kernel) -> None:
    """Give back the devices of this network that no valid attachment has, and have the IPAM do its part."""
    if request.valid_attachments is None:
        return
    valid = {
        borrowed.mark(Identity(request.name, one.container_id, one.ifname))
        for one in request.valid_attachments
    }
    errors: list[CNIError] = []
    with told("host-device"):
        borrowed.collect(kernel, request.name, valid, errors)
    if not errors and request.ipam_type:
        attempt(errors, "host-device", lambda: request.delegate(request.ipam_type))
    if errors:
        raise joined(errors)


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if the device is not on the host, or what the IPAM plugin's STATUS raises."""
    sublink.optional_ipam(request)
    wanted = selector(request.config)
    if wanted and not _is_dpdk(wanted):  # without: the runtime names one at ADD
        with told("host-device"):
            if host_devices.find(kernel.route(), wanted) is None:
                raise NotAvailable(f"{wanted}: the host has no such interface, or a container has it")
    if request.ipam_type:
        request.delegate(request.ipam_type)


PLUGIN = Plugin(
    type="host-device",
    about="Podwire host-device: a device of the host as a pod's interface",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
