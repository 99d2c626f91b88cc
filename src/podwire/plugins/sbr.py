"""`sbr`: source-based routing for the pod's interface (chained): what leaves from its addresses leaves by it.

Each address gets a rule "from it" to a table of its own, from 100 on, with a default route by its gateway and
the interface's routes, which leave the main table. Options: ``table``, a table that somebody else fills: then
there are only the rules; ``gateways`` in place of the addresses' (one a family); ``addSourceHints`` keeps
routes to the addresses' subnets in the main table, with the address as source.

The rules carry our number as protocol (FRA_PROTOCOL), and so does a default route that was none of the
interface's before; so a DEL needs no record, and puts the routes back where they were.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from podwire.cni import fields
from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, TryLater
from podwire.cni.plugin import IPConfig, Plugin, Request, Result, Route
from podwire.kernel import links, rules
from podwire.kernel.errors import KernelError
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import parsed, sbr_routes
from podwire.plugins.addressing import effective_routes
from podwire.plugins.failures import KERNEL, open_netns, open_netns_if_there, told, undone_on_failure
from podwire.plugins.parsed import IPAddress, IPNetwork
from podwire.plugins.sbr_routes import Source, State

LOCK_SECONDS = 10.0
_TRIES = 3
# What the kernel answers where somebody else was faster.
_OVERTAKEN = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EEXIST})


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


class Settings(msgspec.Struct, frozen=True):
    """The options."""

    table: int | None = None
    gateways: tuple[str, ...] = ()
    addSourceHints: bool = False


def settings(request: Request[Anything]) -> Settings:
    """Decode and check the options. Raises InvalidConfig (7) naming the field and the value."""
    try:
        found = fields.convert(request.raw, Settings)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "sbr": {error}') from None
    if found.table is not None and not 0 < found.table < 1 << 32:
        raise InvalidConfig(f"table {found.table}: is not between 1 and {(1 << 32) - 1}")
    _gateways(found)
    return found


def _gateways(options: Settings) -> dict[int, IPAddress]:
    found: dict[int, IPAddress] = {}
    for number, text in enumerate(options.gateways):
        try:
            one = parsed.address(text)
        except ValueError:
            raise InvalidConfig(f'gateways[{number}] "{text}": is not an IP address') from None
        if one.version in found:
            raise InvalidConfig(f'gateways[{number}] "{text}": a second one of IPv{one.version}')
        found[one.version] = one
    return found


def _sources(options: Settings, ips: Sequence[IPConfig], tables: Sequence[int]) -> list[Source]:
    gateways = _gateways(options)
    found = []
    for ip, table in zip(ips, tables, strict=True):
        own = parsed.interface(ip.address)
        gateway = gateways.get(own.version) or (parsed.address(ip.gateway) if ip.gateway else None)
        found.append(Source(own.ip, own.network, gateway, table))
    return found


def _ips(request: Request[Anything]) -> tuple[IPConfig, ...]:
    ips = request.need_prev_result().ips_of(request.ifname)
    if not ips:
        raise InvalidConfig(f"prevResult.ips: {request.ifname} has no address")
    return ips


@contextmanager
def _alone(request: Request[Anything], container: Netns) -> Iterator[RouteSocket]:
    """Have a socket in the namespace, and its lock, which the reference plugin takes as well (flock(2))."""
    until = min(request.deadline, time.monotonic() + LOCK_SECONDS)
    with RouteSocket.open(container) as sock:
        while True:
            try:
                fcntl.flock(container.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TryLater("sbr: the container's namespace is locked by another operation") from None
                time.sleep(0.005)
        try:
            yield sock
        finally:
            fcntl.flock(container.fd, fcntl.LOCK_UN)


def add(request: Request[Anything], _kernel: Any) -> Result:
    """Make the rules, and move the routes; all or nothing. The result is the chain's, unchanged."""
    options = settings(request)
    ips = _ips(request)
    with told("sbr"), open_netns(request.netns) as container, _alone(request, container) as sock:
        link = links.get(sock, request.ifname, details=False)
        if link is None:
            raise CNIError(f"sbr: interface {request.ifname} is missing in the container", code=KERNEL)
        state = State.read(sock, link)
        mark = sbr_routes.MOVED if options.table is None else sbr_routes.FIXED
        there = state.rules_from((parsed.interface(ip.address).ip for ip in ips), (mark,))
        if there:
            raise AlreadyAttached(
                f"sbr: {there[0].source} of {request.ifname} has a rule already",
                "a DEL must come before a second ADD",
                code=KERNEL,
            )
        if options.table is None:
            _move(sock, state, _sources(options, ips, state.free_tables(len(ips))), options)
        else:
            _point(sock, _sources(options, ips, [options.table] * len(ips)))
    return request.need_prev_result()


def _move(sock: RouteSocket, state: State, sources: Sequence[Source], options: Settings) -> None:
    def undo() -> None:
        present = State.read(sock, state.link)
        sock.send(*sbr_routes.put_back(present, sources, state.movable(sources)))

    with undone_on_failure() as steps:
        steps.append(undo)
        sock.send(*sbr_routes.fill(state, sources))
        # Only now: until the rules and tables are there, the main table serves.
        sock.send(*sbr_routes.clear_main(state, sources, hints=options.addSourceHints))


def _point(sock: RouteSocket, sources: Sequence[Source]) -> None:
    wanted = [one.rule(sbr_routes.FIXED) for one in sources]
    with undone_on_failure() as steps:
        for one in wanted:
            steps.append(partial(_forget, sock, one))
        sock.send(*map(rules.add, wanted))


def _forget(sock: RouteSocket, rule: rules.Rule) -> None:
    with suppress(KernelError):
        sock.send(rules.delete(rule))


def check(request: Request[Anything], _kernel: Any) -> None:
    """Find every rule and route that is missing; the error names all of them."""
    options = settings(request)
    ips = _ips(request)
    with told("sbr"), open_netns(request.netns) as container, RouteSocket.open(container) as sock:
        state = State.read(sock, links.get(sock, request.ifname, details=False))
    faults = list(_faults(state, request, options, ips))
    if faults:
        raise CNIError(f"sbr: {'; '.join(faults)}", code=KERNEL)


def _faults(
    state: State, request: Request[Anything], options: Settings, ips: Sequence[IPConfig]
) -> Iterator[str]:
    if state.link is None:
        yield f"interface {request.ifname} is missing"
        return
    wanted = effective_routes(request.need_prev_result().routes, ips)
    for one in _sources(options, ips, [options.table or 0] * len(ips)):
        found = [rule for rule in state.rules if rule.source == one.rule(0).source and rule.action == "table"]
        if options.table is not None:
            found = [rule for rule in found if rule.table == options.table]
        if not found:
            where = f" to table {options.table}" if options.table is not None else ""
            yield f"the rule from {one.address}{where} is missing"
        elif options.table is None:
            yield from _missing_routes(state, one, found[0].table, wanted)


def _missing_routes(state: State, one: Source, table: int, wanted: Sequence[Route]) -> Iterator[str]:
    there = state.own(table)
    needed: list[tuple[IPNetwork, IPAddress | None]] = []
    if one.network.prefixlen < one.network.max_prefixlen:
        needed.append((one.network, None))
    if one.gateway is not None:
        needed.append((parsed.network("0.0.0.0/0" if one.version == 4 else "::/0"), one.gateway))
    for route in wanted:
        gateway = parsed.address(route.gw) if route.gw else None
        if (
            route.family == one.version
            and route.table is None
            and (gateway is None or gateway in one.network)
        ):
            needed.append((parsed.network(route.dst), gateway))
    for destination, gateway in dict.fromkeys(needed):
        fits = [each for each in there if each.destination == destination and gateway in {None, each.gateway}]
        if not fits:
            by = f" by {gateway}" if gateway else ""
            yield f"table {table} of {one.address} has no route to {destination}{by}"


def delete(request: Request[Anything], _kernel: Any) -> None:
    """Remove the rules and put the routes back, where the namespace still is; nothing to do is fine."""
    container = open_netns_if_there(request.netns)
    if container is None:
        return
    table = fields.lookup(request.raw, "table")
    with told("sbr"), container, _alone(request, container) as sock:
        for attempt in range(_TRIES):
            state = State.read(sock, links.get(sock, request.ifname, details=False))
            held = set(state.held)
            if request.prev_result is not None:
                ips = request.prev_result.ips_of(request.ifname)
                held |= {parsed.interface(ip.address).ip for ip in ips}
            messages = sbr_routes.unmade(state, held, table if isinstance(table, int) else None)
            if not messages:
                return
            try:
                sock.send(*messages)
            except KernelError as error:
                if error.errno not in _OVERTAKEN or attempt == _TRIES - 1:
                    raise
            else:
                return


def status(request: Request[Anything], _kernel: Any) -> None:
    """Raise what an ADD would raise for this configuration."""
    settings(request)


PLUGIN = Plugin(
    type="sbr",
    about="Podwire sbr: what leaves from the pod's addresses leaves by its interface",
    config=Anything,
    add=add,
    check=check,
    delete=delete,
    status=status,
)
