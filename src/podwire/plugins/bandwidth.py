"""`bandwidth`: limits what a pod receives and sends (chained after the plugin that made its veth pair).

Options: ``ingressRate``, ``ingressBurst``, ``egressRate``, ``egressBurst`` in bits (a second), and
``unshapedSubnets`` or ``shapedSubnets``; all of them also as capability ``bandwidth``, which counts where the
configuration itself has none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from podwire.cni import fields
from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable
from podwire.cni.plugin import Interface, Plugin, Request, Result
from podwire.kernel import links
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.plugins import shaping
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL, open_netns, open_netns_if_there, told
from podwire.plugins.shaping import Limits

if TYPE_CHECKING:
    from podwire.kernel.links import Link


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


def limits(request: Request[Anything]) -> Limits:
    """Decode and check the options. Raises InvalidConfig (7) naming the field and the value."""
    where, given = "", request.raw
    if not any(key.lower() in shaping.FIELDS and value is not None for key, value in given.items()):
        where, given = "runtimeConfig.bandwidth.", fields.lookup(request.runtime_config, "bandwidth") or {}
    try:
        return fields.convert(given, shaping.Entry).limits(where)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "bandwidth": {where}{error}') from None


def _identity(request: Request[Anything]) -> Identity:
    return Identity(request.name, request.container_id, request.ifname)


def host_end(request: Request[Anything], kernel: Kernel, result: Result) -> Link:
    """Return the host's end of the container's veth pair, by the result; InvalidConfig (7) if there is none.

    The host's interface that is a veth; where there are several, the peer of the container's.
    """
    listed = [one.name for one in result.interfaces if not one.sandbox and one.name != request.ifname]
    found = (links.get(kernel.route(), name, details=False) for name in dict.fromkeys(listed))
    veths = [link for link in found if link is not None and link.kind == "veth"]
    if len(veths) > 1:
        peer = _peer_index(request)
        veths = [link for link in veths if link.index == peer]
    if not veths:
        shown = ", ".join(
            f"{one.name} in {one.sandbox}" if one.sandbox else one.name for one in result.interfaces
        )
        raise InvalidConfig(
            f"prevResult.interfaces: none of the host's (those without sandbox) is the veth peer of"
            f" {request.ifname}",
            f"they are {shown or 'none'}",
        )
    return veths[0]


def _peer_index(request: Request[Anything]) -> int:
    from podwire.kernel.netlink import RouteSocket

    with open_netns(request.netns) as container, RouteSocket.open(container) as inside:
        link = links.get(inside, request.ifname, details=False)
    return link.peer_index if link is not None and link.kind == "veth" else 0


def add(request: Request[Anything], kernel: Kernel) -> Result:
    """Make the limits, all of them or none; the result is the chain's, with the ifb."""
    wanted = limits(request)
    result = request.need_prev_result()
    if not wanted:
        return result
    with told("bandwidth"):
        ifb = shaping.make(kernel, _identity(request), host_end(request, kernel, result), wanted)
    if ifb is None:
        return result
    return msgspec.structs.replace(result, interfaces=(*result.interfaces, Interface(ifb.name, ifb.mac)))


def check(request: Request[Anything], kernel: Kernel) -> None:
    """Find every discipline, class and filter, and the ifb, as ADD made them; the error names all faults."""
    wanted = limits(request)
    result = request.need_prev_result()
    if not wanted:
        return
    with told("bandwidth"):
        link = host_end(request, kernel, result)
        faults = shaping.check(kernel, _identity(request), link, wanted)
    if faults:
        raise CNIError(f"bandwidth: {'; '.join(faults)}", code=KERNEL)


def mend(request: Request[Anything], kernel: Kernel) -> list[str]:
    """Make limits again of which somebody took a part away; tell what was missing."""
    wanted = limits(request)
    result = request.need_prev_result()
    if not wanted:
        return []
    identity = _identity(request)
    with told("bandwidth"):
        link = host_end(request, kernel, result)
        faults = shaping.check(kernel, identity, link, wanted)
        if faults:
            shaping.remove(kernel, identity, [link.name])
            shaping.make(kernel, identity, link, wanted)
    return faults


def delete(request: Request[Anything], kernel: Kernel) -> None:
    """Remove the ifb and the disciplines of the host's end, if that is still there."""
    identity, result = _identity(request), request.prev_result
    listed = [one.name for one in result.interfaces if not one.sandbox] if result is not None else []
    with told("bandwidth"):
        ends = _host_ends(request, kernel, listed)
        shaping.remove(kernel, identity, ends, others=listed, deep=result is None)


def _host_ends(request: Request[Anything], kernel: Kernel, listed: list[str]) -> list[str]:
    """The names of the host's end: what the result lists, but for bridges and such; else the peer's."""
    if not listed:
        return [_identity(request).host_end, *_peer_name(request, kernel)]
    found = (links.get(kernel.route(), name, details=False) for name in listed)
    return [link.name for link in found if link is not None and link.kind == "veth"]


def _peer_name(request: Request[Anything], kernel: Kernel) -> list[str]:
    from podwire.kernel.netlink import RouteSocket

    container = open_netns_if_there(request.netns)
    if container is None:
        return []
    with container, RouteSocket.open(container) as inside:
        link = links.get(inside, request.ifname, details=False)
    if link is None or link.kind != "veth" or not link.peer_index:
        return []
    other = links.get(kernel.route(), link.peer_index, details=False)
    return [other.name] if other is not None and other.kind == "veth" else []


def gc(request: Request[Anything], kernel: Kernel) -> None:
    """Remove the ifb devices of this network's attachments that are not valid any more."""
    valid = request.valid_attachments or ()
    with told("bandwidth"):
        shaping.collect(
            kernel, request.name, (Identity(request.name, one.container_id, one.ifname) for one in valid)
        )


def status(request: Request[Anything], kernel: Kernel) -> None:
    """Let the kernel show that it has what limits need, on an ifb that is gone again at once."""
    limits(request)
    try:
        shaping.probe(kernel)
    except KernelError as error:
        raise NotAvailable(f"bandwidth: the kernel cannot limit traffic: {error}") from error


PLUGIN = Plugin(
    type="bandwidth",
    about="podwire bandwidth: limits what a pod receives and sends",
    config=Anything,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    mend=mend,
    open_kernel=Kernel.open,
)
