"""Main plugins whose IPAM plugin leases addresses on the container's own link, as `dhcp` does.

The interface is there and up before its address is asked for, and still there when it is given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from podwire.cni.errors import CNIError
from podwire.cni.plugin import IPConfig, Request, Route
from podwire.kernel import devices, links
from podwire.kernel.links import AddrGenMode
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import addressing
from podwire.plugins.failures import attempt, open_netns, told

_NEED_INTERFACE = frozenset({"dhcp"})


def needs_interface(request: Request[Any]) -> bool:
    """Tell whether the IPAM plugin, ours or a foreign one, works on the container's interface."""
    return request.ipam_type in _NEED_INTERFACE


def prepare(request: Request[Any]) -> None:
    """Have an interface that is still down take no addresses by itself: the IPAM plugin sets it up.

    None is there yet for main plugins whose order is another one: then the IPAM plugin says so.
    """
    with (
        told(f"interface {request.ifname}"),
        open_netns(request.netns) as container,
        RouteSocket.open(container) as inside,
    ):
        link = links.get(inside, request.ifname, details=False)
        if link is None or link.up:
            return
        container.run(lambda: addressing.write_sysctls(request.ifname, ()))
        inside.send(links.configure(link.index, addr_gen_mode=AddrGenMode.NONE))


def give_back(errors: list[CNIError], request: Request[Any], what: str) -> bool:
    """Have a leased address given back while its interface is there; False if it is no leased one.

    Any other address must not be given again before its link is gone.
    """
    if not needs_interface(request):
        return False
    attempt(errors, what, lambda: request.delegate(request.ipam_type))
    return True


def put_on(
    container: Netns,
    ifname: str,
    mac: str,
    ips: Sequence[IPConfig],
    routes: Sequence[Route],
    *,
    announce: bool,
) -> None:
    """Give an interface that is up the leased addresses, and its routes."""
    container.run(lambda: addressing.write_sysctls(ifname, ips))
    with RouteSocket.open(container) as inside:
        index = devices.index(inside, ifname)
        local = addressing.link_local(mac)
        inside.send(*addressing.requests(index, local, ips, routes, announce=announce))
