"""A link that a main plugin makes for one container: over a master (macvlan, ipvlan, vlan) or over nothing.

It is made from the master's namespace, the host's or the container's own, straight into the container's, and
carries an alias there that says whose it is. So a DEL takes away only what is ours, and a GC finds what is
left in the namespaces of lost containers; with a namespace its link goes by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from ipaddress import IPv6Interface
from pathlib import Path
from typing import Any

import msgspec

from podwire.cni import fields
from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, NotAvailable, TryLater, joined
from podwire.cni.plugin import DNS, Interface, IPConfig, Request, Result
from podwire.cni.types import NO_DNS
from podwire.kernel import devices, link_kinds, links, netns, routes
from podwire.kernel.errors import KernelError, NetnsError
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import addressing, attachment, leasing, verification
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import (
    KERNEL,
    attempt,
    open_netns,
    open_netns_if_there,
    told,
    undone_on_failure,
)

NETNS_DIRECTORY = Path("/run/netns")
"""Where runtimes pin the namespaces of their containers; a GC looks there for links of lost ones."""


class Sublink(msgspec.Struct, frozen=True):
    """The link that is wanted.

    ``build`` is the request that makes it, of its first name, the master's index (0 without a master) and the
    namespace where it is born (None: the socket's own); or it makes the link itself and returns None.
    ``inside`` says that the master is in the container's namespace (linkInContainer). ``mtu`` is the one that
    is asked for, 0 for none. ``local`` is its link-local address (None: the one of its MAC); ``announce`` has
    it tell its addresses to its neighbours.
    """

    kind: str
    build: Callable[[str, int, Netns | None], Message | None]
    master: str = ""
    inside: bool = False
    mtu: int = 0
    local: IPv6Interface | None = None
    announce: bool = False


def identity_of(request: Request[Any]) -> Identity:
    """Return which attachment a request is about."""
    return Identity(request.name, request.container_id, request.ifname)


def require_ipam(request: Request[Any]) -> None:
    """Raise InvalidConfig (7) unless the configuration names an IPAM plugin."""
    ipam = fields.lookup(request.raw, "ipam")
    if not isinstance(ipam, Mapping) or not request.ipam_type:
        shown = "" if ipam is None else f" {msgspec.json.encode(ipam).decode()}"
        raise InvalidConfig(f"ipam{shown}: 'type' is missing or is not a plugin's name")


def optional_ipam(request: Request[Any]) -> None:
    """Raise InvalidConfig (7) for a broken ``ipam``: for no addresses it is left out, or empty."""
    ipam = fields.lookup(request.raw, "ipam")
    if ipam is not None and ipam != {}:
        require_ipam(request)


@contextmanager
def source(kernel: Kernel, container: Netns, inside: bool) -> Iterator[RouteSocket]:
    """Have a socket in the master's namespace: the container's (``inside``) or the host's."""
    with RouteSocket.open(container) if inside else nullcontext(kernel.route()) as sock:
        yield sock


def default_master(sock: RouteSocket) -> str:
    """Return the link of the default route, IPv4's before IPv6's, as the master where none is named.

    Raises InvalidConfig (7) if there is no such route.
    """
    for route in routes.list_routes(sock, table=routes.TABLE_MAIN):
        if route.destination.prefixlen == 0 and route.type == "unicast":
            device = route.device or next((one.device for one in route.nexthops), 0)
            link = links.get(sock, device, details=False) if device else None
            if link is not None:
                return link.name
    raise InvalidConfig("master: is missing, and there is no default route whose interface it could be")


def find_master(sock: RouteSocket, name: str) -> Link:
    """Return the master; InvalidConfig (7) if there is none."""
    link = links.get(sock, name, details=False)
    if link is None:
        raise InvalidConfig(f'master "{name}": there is no such interface')
    return link


def check_mtu(mtu: int, master: Link) -> None:
    """Raise InvalidConfig (7) for an MTU that the master cannot carry; 0 is the master's own."""
    if not 0 <= mtu <= master.mtu:
        raise InvalidConfig(f"mtu {mtu}: is not between 0 and {master.mtu}, the MTU of master {master.name}")


class Made(msgspec.Struct, frozen=True):
    """A new link, a socket in its namespace, and whether its master carries packets."""

    sock: RouteSocket
    link: Link
    carrier: bool


@contextmanager
def made(kernel: Kernel, container: Netns, identity: Identity, wanted: Sublink) -> Iterator[Made]:
    """Have the link in the container, named and marked, but down; it goes again if the block fails.

    Raises InvalidConfig (7) for a master that is not there or has a smaller MTU, AlreadyAttached (100) if the
    attachment has its link already, and CNIError (100) if the container has another link of that name.
    """
    with RouteSocket.open(container) as inside, undone_on_failure() as undo:
        _refuse_second(inside, identity, wanted.kind)
        with source(kernel, container, wanted.inside) as sock:
            parent, carrier = 0, True
            if wanted.master:
                master = find_master(sock, wanted.master)
                check_mtu(wanted.mtu, master)
                parent, carrier = master.index, master.carrier
            # Under its own name it could be taken for a link of the host, since the kernel looks there too.
            name = first_name(identity)
            undo.append(lambda: remove(inside, identity, wanted.kind))
            request = wanted.build(name, parent, None if wanted.inside else container)
            if request is not None:
                sock.send(request)
        index = devices.index(inside, name)
        inside.send(links.configure(index, name=identity.ifname, alias=identity.alias))
        link = links.get(inside, index, details=False)
        if link is None:
            raise KernelError(errno.ENODEV, "look up link", identity.ifname, "it is gone again")
        yield Made(inside, link, carrier)


def first_name(identity: Identity) -> str:
    """Return the name that the attachment's link has for a moment."""
    return f"new-{identity.host_end[4:]}"


def _refuse_second(inside: RouteSocket, identity: Identity, kind: str) -> None:
    link = links.get(inside, identity.ifname, details=False)
    if link is None:
        return
    what = f"container {identity.container_id} has an interface {identity.ifname} already"
    if link.kind == kind and link.alias == identity.alias:
        raise AlreadyAttached(what, "a DEL must come before a second ADD", code=KERNEL)
    raise CNIError(
        what, f"it is a {link.kind or 'device'} that network {identity.network} did not make", code=KERNEL
    )


@contextmanager
def addressed(request: Request[Any]) -> Iterator[Result]:
    """Have the IPAM plugin's addresses for the length of a block; they are given back if it fails.

    No addresses without an IPAM plugin. Raises InvalidConfig (7) if the plugin returned none.
    """
    if not request.ipam_type:
        yield Result()
        return
    if leasing.needs_interface(request):
        leasing.prepare(request)
    with request.delegated(request.ipam_type) as result:
        if not result.ips:
            raise InvalidConfig(f'ipam plugin "{request.ipam_type}" returned no address')
        yield result


def configure(container: Netns, made: Made, wanted: Sublink, result: Result) -> None:
    """Give the link its addresses and routes and set it up; returns when packets pass, if they can."""
    link = made.link
    announce = wanted.announce and bool(result.ips)
    container.run(lambda: addressing.write_sysctls(link.name, result.ips))
    local = wanted.local or addressing.link_local(link.mac)
    made.sock.send(*addressing.requests(link.index, local, result.ips, result.routes, announce=announce))
    if made.carrier:
        await_carrier(made.sock, link.name)
    addressing.wait_until_local(made.sock, link.index, result.ips)


def await_carrier(sock: RouteSocket, name: str) -> None:
    """Wait until a link passes packets, if it has a carrier: that is not ours to make, and may come later."""
    if not links.state(sock, name)[1]:
        return
    with suppress(TryLater):
        addressing.wait_until_up(sock, name, addressing.OPERATIONAL)


def add(
    request: Request[Any],
    kernel: Kernel,
    wanted: Sublink,
    *,
    given: Result | None = None,
    dns: DNS = NO_DNS,
) -> Result:
    """Make the link, have it addressed (by the IPAM plugin, or as ``given``), and return the result.

    ``dns`` stands in for the IPAM plugin's. All or nothing.
    """
    identity = identity_of(request)
    with (
        told(f"{wanted.kind} {identity.ifname}"),
        open_netns(request.netns) as container,
        made(kernel, container, identity, wanted) as new,
        nullcontext(given) if given is not None else addressed(request) as result,
    ):
        configure(container, new, wanted, result)
    link = new.link
    return Result(
        interfaces=(Interface(identity.ifname, link.mac, link.mtu, request.netns),),
        ips=tuple(IPConfig(ip.address, ip.gateway, 0) for ip in result.ips),
        routes=result.routes,
        dns=dns or result.dns,
    )


def check(request: Request[Any], kernel: Kernel, wanted: Sublink) -> Link:
    """Verify the link: there, of its kind, up, over its master, every address, every route; return it.

    The IPAM plugin's CHECK comes first.
    """
    result = request.need_prev_result()
    if request.ipam_type:
        request.delegate(request.ipam_type)
    with told(f"{wanted.kind} {request.ifname}"), open_netns(request.netns) as container:
        link = verification.container_end(container, request.ifname, result, kind=wanted.kind)
        if wanted.master:
            with source(kernel, container, wanted.inside) as sock:
                master = links.get(sock, wanted.master, details=False)
            if master is None:
                raise CNIError(f"master {wanted.master}: is missing", code=KERNEL)
            if link.peer_index != master.index or (link.peer_netns_id is None) != wanted.inside:
                raise CNIError(f"interface {link.name}: is not over master {wanted.master}", code=KERNEL)
    return link


def remove(inside: RouteSocket, identity: Identity, kind: str) -> bool:
    """Delete the attachment's link, whatever its name is by now. False if there is none."""
    first = first_name(identity)
    found = [
        link
        for link in links.list_links(inside, kind=kind)
        if link.alias == identity.alias or link.name == first
    ]
    for link in found:
        _delete(inside, link)
    return bool(found)


def _delete(inside: RouteSocket, link: Link) -> None:
    try:
        inside.send(links.delete(link.index))
    except KernelError as error:
        if error.errno != errno.ENODEV:
            raise


def delete(request: Request[Any], kind: str) -> None:
    """Remove the link, then free the addresses; what is gone already is fine.

    One that another plugin made goes by its name, kind and MAC, if ``prevResult`` has it.
    """
    errors: list[CNIError] = []
    what = f"{kind} {request.ifname}"
    leased = leasing.give_back(errors, request, what)
    unlinked = attempt(errors, what, lambda: _unlink(request, kind))
    # An address whose link is still there must not be given again.
    if unlinked and request.ipam_type and not leased:
        attempt(errors, what, lambda: request.delegate(request.ipam_type))
    if errors:
        raise joined(errors)


def _unlink(request: Request[Any], kind: str) -> None:
    container = open_netns_if_there(request.netns)
    if container is None:
        if not request.netns:
            _unlink_anywhere(identity_of(request), kind)
        return
    with container, RouteSocket.open(container) as inside:
        if remove(inside, identity_of(request), kind):
            return
        result = request.prev_result
        index = result.interface_index(request.ifname) if result else None
        if result is None or index is None or not result.interfaces[index].mac:
            return
        link = links.get(inside, request.ifname, details=False)
        theirs = link is not None and not link.alias.startswith(f"{attachment.MARK} ")
        if (
            link is not None
            and theirs
            and link.kind == kind
            and link.mac == result.interfaces[index].mac.lower()
        ):
            _delete(inside, link)


def _unlink_anywhere(identity: Identity, kind: str) -> None:
    """The runtime does not say where the container is, but its namespace may be pinned all the same."""
    for container in containers():
        with container, RouteSocket.open(container) as inside:
            if remove(inside, identity, kind):
                return


def gc(request: Request[Any], kind: str) -> None:
    """Remove the links of this network that no valid attachment has, and have the IPAM plugin do so."""
    if request.valid_attachments is None:
        return
    keep = {Identity(request.name, one.container_id, one.ifname).alias for one in request.valid_attachments}
    marks = attachment.marks(request.name)
    errors: list[CNIError] = []
    for container in containers():
        with container:
            attempt(errors, kind, partial(_collect, container, kind, marks, keep))
    # An address whose link may still be there must not be given again.
    if request.ipam_type and not errors:
        attempt(errors, kind, lambda: request.delegate(request.ipam_type))
    if errors:
        raise joined(errors)


def _collect(container: Netns, kind: str, marks: tuple[str, ...], keep: set[str]) -> None:
    with RouteSocket.open(container) as inside:
        for link in links.list_links(inside, kind=kind):
            if link.alias.startswith(marks) and link.alias not in keep:
                _delete(inside, link)


def containers() -> Iterator[Netns]:
    """Open the namespaces that are pinned where runtimes do so; whoever takes one closes it."""
    try:
        paths = sorted(NETNS_DIRECTORY.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            yield netns.open(path)
        except NetnsError:
            continue


def status(request: Request[Any], kernel: Kernel, wanted: Sublink) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed: no such links, no master, no address left."""
    with told(wanted.kind):
        require_kind(kernel, wanted.kind)
        wanted_here = wanted.master and not wanted.inside
        if wanted_here and links.get(kernel.route(), wanted.master, details=False) is None:
            raise NotAvailable(f'master "{wanted.master}": there is no such interface')
    if request.ipam_type:
        request.delegate(request.ipam_type)


def require_kind(kernel: Kernel, kind: str) -> None:
    """Raise NotAvailable (50) if the kernel has no links of a kind."""
    if not link_kinds.is_known(kernel.route(), kind):
        raise NotAvailable(f"this kernel has no links of kind {kind}")
