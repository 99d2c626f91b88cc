"""`dhcp`: an IPv4 address leased from a DHCP server on the container's own link, and renewed by the keeper.

Configuration (``ipam``): ``provide`` (options that go along), ``request`` (options that are asked for),
``priority`` (the metric of the lease's routes), ``suppress``, ``daemonSocketPath``. The interface must be
there before: main plugins make it first where this is their IPAM plugin (`podwire.plugins.leasing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from podwire.cni.errors import (
    CNIError,
    InvalidConfig,
    InvalidEnvironment,
    InvalidNetns,
    IOFailure,
    NotAvailable,
    TryLater,
)
from podwire.cni.plugin import Plugin, Request
from podwire.cni.types import DNS, IPConfig, Result, Route
from podwire.dhcp import access
from podwire.dhcp.errors import (
    ContainerGone,
    DHCPError,
    InterfaceGone,
    KeeperUnavailable,
    LeaseDenied,
    NoLease,
    StoreError,
)
from podwire.dhcp.lease import Lease
from podwire.dhcp.records import Key, Wish
from podwire.dhcp.wire import SOCKET
from podwire.kernel.errors import KernelError
from podwire.plugins.failures import KERNEL

_LINK = 253  # RT_SCOPE_LINK
_VALUE_MAX = 255
_UNDO_SECONDS = 1.0
_NAMES = {
    "dhcp-client-identifier": 61,
    "subnet-mask": 1,
    "routers": 3,
    "host-name": 12,
    "user-class": 77,
    "vendor-class-identifier": 60,
    "domain-name-servers": 6,
    "domain-name": 15,
    "domain-search": 119,
    "static-routes": 33,
    "rfc3442-classless-static-routes": 121,
}
_OWN = {
    50: "the requested address",
    53: "the message type",
    54: "the server identifier",
    55: "the parameter request list: use request",
}
"""Options that the protocol sets itself."""
_DEFAULT_PARAMETERS = (3, 1, 58, 59)
"""Router and subnet mask, as the reference asks for, and the times of renewal."""


class Provided(msgspec.Struct, frozen=True):
    """An option that goes along: its value, or the CNI_ARGS key that has it."""

    option: str = ""
    value: str = ""
    fromArg: str = ""


class Requested(msgspec.Struct, frozen=True):
    """An option that is asked for; ``skipDefault`` leaves out those that are asked for anyway."""

    option: str = ""
    skipDefault: bool = False


class IPAMConfig(msgspec.Struct, frozen=True):
    """The ``ipam`` key of a network."""

    type: str = "dhcp"
    daemonSocketPath: str = ""
    provide: tuple[Provided, ...] = ()
    request: tuple[Requested, ...] = ()
    priority: int = 0
    suppress: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True):
    """The parts of a network's configuration that concern its addresses."""

    ipam: IPAMConfig = IPAMConfig()


def option_number(field: str, name: str) -> int:
    """Return the number of an option by its name (dhcp-options(5)) or digits; InvalidConfig (7)."""
    if name in _NAMES:
        return _NAMES[name]
    if name.isascii() and name.isdigit() and 0 < int(name) < 255:
        return int(name)
    raise InvalidConfig(f'{field} "{name}": is neither a number from 1 to 254 nor one of {", ".join(_NAMES)}')


def wish(request: Request[Config]) -> Wish:
    """Return what a request asks for; InvalidConfig (7) or InvalidEnvironment (4) names what cannot be."""
    ipam = request.config.ipam
    provide: dict[int, bytes] = {}
    for index, given in enumerate(ipam.provide):
        field = f"ipam.provide[{index}]"
        number = option_number(f"{field}.option", given.option)
        if number in _OWN:
            raise InvalidConfig(f'{field}.option "{given.option}": is {_OWN[number]}')
        value, source = given.value, f"{field}.value"
        error: type[CNIError] = InvalidConfig
        if given.fromArg and given.fromArg in request.args:
            value, source = request.args[given.fromArg], f"CNI_ARGS {given.fromArg}"
            error = InvalidEnvironment
        raw = value.encode(errors="surrogateescape")
        if len(raw) > _VALUE_MAX:
            raise error(f"{source}: has {len(raw)} bytes, and a DHCP option takes {_VALUE_MAX}")
        if raw:
            provide[number] = raw
    asked = [
        option_number(f"ipam.request[{index}].option", one.option)
        for index, one in enumerate(ipam.request)
        if one.option
    ]
    if not any(one.skipDefault for one in ipam.request):
        asked += _DEFAULT_PARAMETERS
    if not 0 <= ipam.priority < 1 << 32:
        raise InvalidConfig(f"ipam.priority {ipam.priority}: is no metric of a route")
    for index, what in enumerate(ipam.suppress):
        if what != "gateway":
            raise InvalidConfig(f'ipam.suppress[{index}] "{what}": only gateway can be left out')
    return Wish(
        request.netns,
        provide,
        tuple(dict.fromkeys(asked)),
        metric=ipam.priority,
        no_gateway="gateway" in ipam.suppress,
    )


def _key(request: Request[Config]) -> Key:
    return Key(request.name, request.container_id, request.ifname)


def _place(request: Request[Config]) -> str:
    return request.config.ipam.daemonSocketPath or SOCKET


@contextmanager
def _told() -> Iterator[None]:
    """Turn this project's lease errors into those of the protocol."""
    try:
        yield
    except KeeperUnavailable as error:
        raise TryLater(
            f"dhcp: nobody keeps leases at {error.place}: {error.reason}",
            "start the agent (podwire agent), or: python -m podwire.plugins dhcp daemon",
        ) from error
    except LeaseDenied as error:
        raise TryLater(f"dhcp: {error}") from error
    except InterfaceGone as error:
        raise CNIError(f"dhcp: {error}", "a lease needs the container's interface", code=KERNEL) from error
    except ContainerGone as error:
        raise InvalidNetns(f"dhcp: {error}") from error
    except NoLease as error:
        raise CNIError(f"dhcp: {error}", code=KERNEL) from error
    except StoreError as error:
        raise IOFailure(f"dhcp: {error}") from error
    except (DHCPError, KernelError) as error:
        raise CNIError(f"dhcp: {error}", code=KERNEL) from error


def add(request: Request[Config], _kernel: object) -> Result:
    """Get a lease for the container's interface."""
    wanted = wish(request)
    if not request.netns.startswith("/"):
        raise InvalidNetns(f'dhcp: CNI_NETNS "{request.netns}": is no absolute path')
    cancel = request.cancel
    with _told():
        lease = access.find(_place(request)).acquire(
            _key(request),
            wanted,
            request.deadline - min(_UNDO_SECONDS, request.remaining() / 10),
            cancel.is_set if cancel is not None else None,
        )
    return result_of(lease, wanted)


def result_of(lease: Lease, wanted: Wish) -> Result:
    """Return a lease as an IPAM plugin's result. Resolver settings are there if they were asked for."""
    routes = tuple(
        Route(
            one.destination,
            # A destination on the link: the unspecified gateway keeps others from filling in theirs.
            one.gateway or "0.0.0.0",
            priority=wanted.metric,
            scope=None if one.gateway else _LINK,
        )
        for one in lease.routes
        if not (wanted.no_gateway and one.destination == "0.0.0.0/0")
    )
    asked = set(wanted.parameters)
    return Result(
        ips=(IPConfig(lease.address, "" if wanted.no_gateway else lease.router),),
        routes=routes,
        dns=DNS(
            lease.nameservers if 6 in asked else (),
            lease.domain if 15 in asked else "",
            lease.search if 119 in asked else (),
        ),
    )


def check(request: Request[Config], _kernel: object) -> None:
    """Verify that the lease is held, and that it is for the address of the result."""
    wish(request)
    key = _key(request)
    with _told():
        lease = access.find(_place(request)).check(key)
    known = {ip.address for ip in request.prev_result.ips} if request.prev_result else set()
    if known and lease.address not in known:
        raise CNIError(f"dhcp: {key} has leased {lease.address}, which its result does not have", code=KERNEL)


def delete(request: Request[Config], _kernel: object) -> None:
    """Give the lease back; having none is success."""
    with _told():
        access.find(_place(request)).release(_key(request))


def gc(request: Request[Config], _kernel: object) -> None:
    """Give back the leases of this network that no valid attachment holds; without a list, none."""
    if request.valid_attachments is None:
        return
    valid = [(one.container_id, one.ifname) for one in request.valid_attachments]
    with _told():
        access.find(_place(request)).gc(request.name, valid)


def status(request: Request[Config], _kernel: object) -> None:
    """Raise NotAvailable (50) if nobody keeps leases."""
    wish(request)
    from podwire.dhcp.remote import RemoteKeeper

    keeper = access.find(_place(request))
    if isinstance(keeper, RemoteKeeper):
        try:
            keeper.status()
        except DHCPError as error:
            raise NotAvailable(f"dhcp: {error}") from error


PLUGIN = Plugin(
    type="dhcp",
    about="Podwire dhcp: an address leased from a DHCP server on the container's link",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
)
