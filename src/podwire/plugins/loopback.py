"""`loopback`: the container's ``lo``, up with 127.0.0.1 and ::1. Passes on the result of earlier plugins."""

from __future__ import annotations

from ipaddress import ip_interface

import msgspec

from podwire.cni.errors import CNIError
from podwire.cni.plugin import Interface, IPConfig, Plugin, Request, Result
from podwire.kernel import links
from podwire.kernel.addresses import list_addresses
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.netlink import RouteSocket
from podwire.plugins.failures import KERNEL, open_netns, open_netns_if_there, told

NAME = "lo"
_MAC = "00:00:00:00:00:00"


class Config(msgspec.Struct, frozen=True):
    """loopback takes no options."""


def add(request: Request[Config], _kernel: Kernel) -> Result:
    """Bring the container's loopback up."""
    with told("loopback"), open_netns(request.netns) as container, RouteSocket.open(container) as sock:
        sock.send(links.configure(NAME, up=True))
        link = links.get(sock, NAME)
        addresses = () if link is None else list_addresses(sock, link.index)
    if request.prev_result is not None:
        return request.prev_result
    return Result(
        interfaces=(Interface(NAME, _MAC, sandbox=request.netns),),
        ips=tuple(
            IPConfig(str(one.address), interface=0)
            for one in sorted(addresses, key=lambda one: one.address.version)
            if one.address.is_loopback
        ),
    )


def check(request: Request[Config], _kernel: Kernel) -> None:
    """Verify that the loopback is up and has its addresses."""
    with told("loopback"), open_netns(request.netns) as container, RouteSocket.open(container) as sock:
        link = links.get(sock, NAME)
        if link is None or not link.up:
            raise CNIError("loopback: lo is not up", code=KERNEL)
        held = {one.address for one in list_addresses(sock, link.index)}
    index = request.prev_result.interface_index(NAME) if request.prev_result else None
    if index is None or request.prev_result is None:
        return
    for ip in request.prev_result.ips:
        if ip.interface == index and ip_interface(ip.address) not in held:
            raise CNIError(f"loopback: lo has lost the address {ip.address}", code=KERNEL)


def delete(request: Request[Config], _kernel: Kernel) -> None:
    """Take the loopback down, where the namespace still is."""
    container = open_netns_if_there(request.netns)
    if container is None:
        return
    with container:
        try:
            with RouteSocket.open(container) as sock:
                sock.send(links.configure(NAME, up=False))
        except KernelError as error:
            raise CNIError(f"loopback: {error}", code=KERNEL) from error


PLUGIN = Plugin(
    type="loopback",
    about="Podwire loopback: the container's own lo",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    open_kernel=Kernel.open,
)
