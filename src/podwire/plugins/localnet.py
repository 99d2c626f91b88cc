"""Interfaces towards pods that let 127.0.0.0/8 out (route_localnet), for host ports of the host's loopback.

Each is in the set ``localnet`` of our table, whose rule lets nothing come in by it for 127.0.0.0/8: it must
be there as long as the sysctl is on. A bridge is shared, and stays open; a pod's own link is closed with its
host ports, and the name of a link that is gone leaves the set.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwire.kernel import links, nftwrite, outgoing, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.nft import NftError
from podwire.plugins import ruleset
from podwire.plugins.failures import open_netns_if_there
from podwire.plugins.ruleset import LOCALNET

if TYPE_CHECKING:
    from podwire.cni.plugin import Request
    from podwire.kernel.host import Kernel
    from podwire.kernel.netns import Netns
    from podwire.plugins.parsed import IPAddress
    from podwire.plugins.portmap_elements import Held


def away(kernel: Kernel) -> Netns | None:
    """The host's namespace, or None if the calling thread is in it: to enter it costs a thread."""
    here = Path("/proc/thread-self/ns/net").stat()
    return None if (here.st_dev, here.st_ino) == kernel.netns.identity else kernel.netns


def towards(kernel: Kernel, target: IPAddress) -> Link | None:
    """The interface by which the host reaches a pod; None if there is none."""
    try:
        found = outgoing.lookup(kernel.route(), target)
    except KernelError as error:
        if error.errno not in {errno.ENETUNREACH, errno.EHOSTUNREACH}:
            raise
        # A network without a way from the host: others reach the pod, if at all, by another router.
        return None
    return links.get(kernel.route(), found.device) if found.device and not found.local else None


def is_open(kernel: Kernel, device: str) -> bool:
    """Tell whether 127.0.0.0/8 may leave by an interface."""
    return sysctl.read(_key(device), away(kernel)).strip() == "1"


def let_out(kernel: Kernel, device: str) -> None:
    """Let 127.0.0.0/8 out of an interface."""
    # Writing takes the lock of the whole network configuration, even if nothing changes.
    if not is_open(kernel, device):
        sysctl.write(_key(device), "1", away(kernel))


def close_own(kernel: Kernel, request: Request[Any], held: Iterable[Held]) -> None:
    """Close the pod's own link after its host ports, ``held``, are gone; a link that is gone is forgotten."""
    target = next((each.target[0] for each in held if each.version == 4 and each.target is not None), None)
    if target is None:
        return
    result = request.prev_result
    named = sorted({one.name for one in result.interfaces if not one.sandbox}) if result is not None else []
    found = kernel.nft.get_all([(LOCALNET, (name,)) for name in named])
    known = [name for name, element in zip(named, found, strict=True) if element is not None]
    for name in known:
        _close(kernel, name)
    if known:
        return
    link = towards(kernel, target)
    if link is None or kernel.nft.get(LOCALNET, (link.name,)) is None:
        # It may have been by a link that went with the pod.
        sweep(kernel)
    elif _leads_to(request, link):
        _close(kernel, link.name)


def _leads_to(request: Request[Any], link: Link) -> bool:
    """Tell whether a link of the host is the other end of the request's interface."""
    container = open_netns_if_there(request.netns) if link.kind == "veth" else None
    if container is None:
        return False
    with container, RouteSocket.open(container) as inside:
        end = links.get(inside, request.ifname)
        return end is not None and end.kind == "veth" and end.peer_index == link.index


def _close(kernel: Kernel, name: str) -> None:
    """Close a link, unless it is one that pods share."""
    link = links.get(kernel.route(), name)
    if link is not None and link.kind != "veth":
        return
    if link is not None:
        try:
            sysctl.write(_key(name), "0", away(kernel))
        except KernelError as error:
            if error.errno != errno.ENOENT:  # it is gone by now
                raise
    _forget(kernel, (name,))


def sweep(kernel: Kernel) -> None:
    """Take the names of links that are gone out of the set."""
    names = {element.key[0] for element in kernel.nft.elements(LOCALNET)}
    if names:
        there = {link.name for link in links.list_links(kernel.route())}
        _forget(kernel, *((name,) for name in sorted(names - there)))


def _forget(kernel: Kernel, *keys: tuple[str]) -> None:
    for key in keys:
        try:
            ruleset.run(kernel.nft, "", nftwrite.delete(LOCALNET, key))
        except NftError as error:
            # Somebody else was faster.
            if error.errno != errno.ENOENT:
                raise


def _key(device: str) -> str:
    return f"net/ipv4/conf/{device}/route_localnet"
