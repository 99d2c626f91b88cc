"""`vrf`: puts the interface of earlier plugins into a VRF (a routing domain) of the container.

The VRF is made with its first interface and deleted with its last one. Its routes are in a table of its own:
those that the interface had in the main table move there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from podwire.cni.args import check_ifname
from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, TryLater
from podwire.cni.plugin import Plugin, Request, Result
from podwire.kernel import addresses, link_kinds, links, routes
from podwire.kernel.addresses import Address
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.routes import Route
from podwire.plugins import addressing, sublink, verification
from podwire.plugins.attachment import MARK
from podwire.plugins.failures import KERNEL, open_netns, open_netns_if_there, told, undone_on_failure

_KIND = "vrf"
_ALIAS = f"{MARK} vrf "
_TABLES = 1 << 32
_RESERVED = frozenset({253, 254, 255})
"""The tables default, main and local."""
_BY_THEMSELVES = frozenset({2, 9})
"""Routes that come back by themselves: RTPROT_KERNEL and RTPROT_RA."""


class Config(msgspec.Struct, frozen=True):
    """The options of a vrf; table 0 is the lowest that no VRF of the container has."""

    vrfname: str = ""
    table: int = 0


def _validate(config: Config) -> None:
    if not config.vrfname:
        raise InvalidConfig("vrfname: is missing")
    try:
        check_ifname(config.vrfname)
    except CNIError as error:
        raise InvalidConfig(f"vrfname: {error}") from None
    if not 0 <= config.table < _TABLES:
        raise InvalidConfig(f"table {config.table}: is not between 0 and {_TABLES - 1}")


def add(request: Request[Config], _kernel: Kernel) -> Result:
    """Put the interface into the VRF, which is made at need."""
    config = request.config
    _validate(config)
    result = request.need_prev_result()
    with (
        told(f"vrf {config.vrfname}"),
        open_netns(request.netns) as container,
        RouteSocket.open(container) as inside,
        undone_on_failure() as undo,
    ):
        link = links.get(inside, request.ifname, details=False)
        if link is None:
            raise CNIError(f"interface {request.ifname}: is missing in the container", code=KERNEL)
        vrf = links.get(inside, config.vrfname)
        _refuse(config, link, vrf, inside)
        if vrf is None:
            undo.append(lambda: _delete_if_empty(inside, config.vrfname))
            vrf = _make(inside, config, request.name)
        held = _holdings(inside, link, routes.TABLE_MAIN)
        undo.append(lambda: _join(inside, held, 0, routes.TABLE_MAIN))
        _join(inside, held, vrf.index, vrf.data["table"])
    return result


def _refuse(config: Config, link: Link, vrf: Link | None, inside: RouteSocket) -> None:
    if vrf is not None and vrf.kind != _KIND:
        raise InvalidConfig(
            f'vrfname "{config.vrfname}": is no VRF in the container but a {vrf.kind or "device"}'
        )
    if vrf is not None and config.table and vrf.data["table"] != config.table:
        raise InvalidConfig(
            f"table {config.table}: VRF {config.vrfname} of the container has table {vrf.data['table']}"
        )
    if not link.master:
        return
    master = links.get(inside, link.master, details=False)
    name = master.name if master is not None else f"index {link.master}"
    text = f"interface {link.name}: has a master already, {name}"
    if vrf is not None and link.master == vrf.index:
        raise AlreadyAttached(text, "a DEL must come before a second ADD", code=KERNEL)
    raise CNIError(text, code=KERNEL)


def _make(inside: RouteSocket, config: Config, network: str) -> Link:
    table = config.table or _free_table(links.list_links(inside, kind=_KIND))
    inside.send(
        link_kinds.vrf(config.vrfname, table=table),
        links.configure(config.vrfname, alias=f"{_ALIAS}{network}"[:255], up=True),
    )
    made = links.get(inside, config.vrfname)
    if made is None:
        raise CNIError(f"VRF {config.vrfname}: is gone again", code=KERNEL)
    return made


def _free_table(vrfs: Iterable[Link]) -> int:
    taken = {vrf.data["table"] for vrf in vrfs} | _RESERVED
    return next(table for table in range(1, _TABLES) if table not in taken)


class _Holdings(msgspec.Struct, frozen=True):
    """A link and what the kernel takes from it when it gets or loses a master."""

    link: Link
    addresses: tuple[Address, ...]
    routes: tuple[Route, ...]


def _holdings(inside: RouteSocket, link: Link, table: int) -> _Holdings:
    ways = (
        route
        for route in routes.list_routes(inside, table=table)
        if route.device == link.index and route.protocol not in _BY_THEMSELVES
    )
    return _Holdings(link, tuple(addresses.list_addresses(inside, link.index)), tuple(ways))


def _join(inside: RouteSocket, held: _Holdings, master: int, table: int) -> None:
    """Give the link its master (0: none), and its addresses and routes back: these in ``table``."""
    link = held.link
    inside.send(links.configure(link.index, master=master))
    kept = {one.address for one in addresses.list_addresses(inside, link.index)}
    inside.send(*(_again(one) for one in held.addresses if one.address not in kept))
    if link.up:
        inside.send(*(routes.again(route, table, replace=True) for route in held.routes))
        with suppress(TryLater):  # a link that had no carrier before has none now
            addressing.wait_until_up(inside, link.name, addressing.OPERATIONAL)


def _again(one: Address) -> Message:
    return addresses.add(
        one.index,
        one.address,
        nodad=bool(one.flags & addresses.NODAD),
        replace=True,
        scope=one.scope,
        peer=one.peer,
        prefix_route=not one.flags & addresses.NOPREFIXROUTE,
    )


def check(request: Request[Config], _kernel: Kernel) -> None:
    """Verify the VRF, its table, that the interface is in it, and the routes in its table."""
    config = request.config
    _validate(config)
    result = request.need_prev_result()
    with (
        told(f"vrf {config.vrfname}"),
        open_netns(request.netns) as container,
        RouteSocket.open(container) as inside,
    ):
        vrf = links.get(inside, config.vrfname)
        if vrf is None or vrf.kind != _KIND:
            raise CNIError(f"VRF {config.vrfname}: is missing in the container", code=KERNEL)
        if not vrf.up:
            raise CNIError(f"VRF {config.vrfname}: is down", code=KERNEL)
        if config.table and vrf.data["table"] != config.table:
            raise CNIError(
                f"VRF {config.vrfname}: has table {vrf.data['table']}, not {config.table}", code=KERNEL
            )
        link = links.get(inside, request.ifname, details=False)
        if link is None or link.master != vrf.index:
            raise CNIError(f"interface {request.ifname}: is not in VRF {config.vrfname}", code=KERNEL)
        verification.routes(inside, link, result)


def delete(request: Request[Config], _kernel: Kernel) -> None:
    """Take the interface out of its VRF, with its routes; delete the VRF if it was the last one.

    What is gone already is fine.
    """
    container = open_netns_if_there(request.netns)
    if container is None:
        return
    name = request.config.vrfname
    with told(f"vrf {name}"), container, RouteSocket.open(container) as inside:
        link = links.get(inside, request.ifname, details=False)
        master = links.get(inside, link.master) if link is not None and link.master else None
        if link is not None and master is not None and master.kind == _KIND:
            # The configuration may name another VRF by now.
            if _is_ours(master) or master.name == name:
                _join(inside, _holdings(inside, link, master.data["table"]), 0, routes.TABLE_MAIN)
            name = master.name
        _delete_if_empty(inside, name)


def _is_ours(vrf: Link) -> bool:
    return vrf.alias.startswith(_ALIAS)


def _delete_if_empty(inside: RouteSocket, name: str) -> None:
    vrf = links.get(inside, name, details=False) if name else None
    if vrf is None or vrf.kind != _KIND or not _is_ours(vrf):
        return
    if not links.list_links(inside, master=vrf.index):
        inside.send(links.delete(vrf.index))


def gc(request: Request[Config], _kernel: Kernel) -> None:
    """Delete the VRFs of this network that have no interface any more."""
    if request.valid_attachments is None:
        return
    alias = f"{_ALIAS}{request.name}"[:255]
    with told("vrf"):
        for container in sublink.containers():
            with container, RouteSocket.open(container) as inside:
                for vrf in links.list_links(inside, kind=_KIND):
                    if vrf.alias == alias:
                        _delete_if_empty(inside, vrf.name)


def status(_request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if the kernel has no VRFs."""
    with told("vrf"):
        sublink.require_kind(kernel, _KIND)


PLUGIN = Plugin(
    type="vrf",
    about="Podwire vrf: a routing domain of its own for a container's interface",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
)
