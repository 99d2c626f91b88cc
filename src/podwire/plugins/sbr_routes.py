"""What source-based routing is in the kernel: the rules and routes of one interface's addresses, as requests.

Everything here is computed from one reading of the namespace, a `State`; nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from podwire.kernel import addresses, routes, rules
from podwire.kernel.addresses import list_addresses
from podwire.kernel.links import Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.routes import TABLE_MAIN, Route
from podwire.kernel.rules import Rule
from podwire.plugins import parsed
from podwire.plugins.parsed import IPAddress, IPNetwork

FIRST_TABLE = 100
MOVED = 80
"""Our mark, as routing protocol: of a rule to a table that we filled, and of routes that are ours alone."""
FIXED = 81
"""Our mark of a rule to a table that somebody else fills."""
# The reference plugin's rules: nothing, or RTPROT_BOOT.
_UNMARKED = (0, routes.PROTOCOL_BOOT)
_NEVER_FILLED = (0, 253, 254, 255)
_DEFAULT_METRIC = {4: 0, 6: 1024}  # IP6_RT_PRIO_USER in net/ipv6


class Source(msgspec.Struct, frozen=True):
    """One address of the interface, its subnet, the gateway of its default route, and its table."""

    address: IPAddress
    network: IPNetwork
    gateway: IPAddress | None
    table: int

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.address.version

    def rule(self, protocol: int) -> Rule:
        """The rule that sends what leaves from the address to its table."""
        own = parsed.network(f"{self.address}/{self.address.max_prefixlen}")
        return Rule(self.version, source=own, table=self.table, protocol=protocol)

    def takes(self, route: Route, others: Sequence[Source]) -> bool:
        """Tell whether a route of the interface belongs into this address's table.

        Those by its subnet do, and those that no address's subnet claims.
        """
        if route.destination.version != self.version:
            return False
        ends = [end for end in (route.gateway, route.source) if end is not None]
        if any(end.version == self.version and end in self.network for end in ends):
            return True
        return not any(end in one.network for end in ends for one in others if one.version == end.version)


class State(msgspec.Struct, frozen=True):
    """The namespace's rules and routes, and the interface with its addresses (None: it is gone)."""

    link: Link | None
    held: frozenset[IPAddress]
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]

    @classmethod
    def read(cls, sock: RouteSocket, link: Link | None) -> State:
        """Read it. Raises :class:`KernelError`."""
        held = () if link is None else list_addresses(sock, link.index)
        return cls(
            link,
            frozenset(one.address.ip for one in held if one.scope == addresses.SCOPE_GLOBAL),
            tuple(rules.list_rules(sock)),
            tuple(each for one in routes.list_routes(sock) for each in _ways(one)),
        )

    def own(self, *tables: int) -> list[Route]:
        """The interface's routes in these tables, first those without a gateway: they lead to the others'."""
        found = [
            one
            for one in self.routes
            if self.link is not None and one.device == self.link.index and one.table in tables
        ]
        return sorted(found, key=lambda one: one.gateway is not None)

    def movable(self, sources: Sequence[Source]) -> list[Route]:
        """The routes of the main table that go to the addresses' tables.

        Link-local routes stay as well as being copied: programs and routers of the link use them.
        """
        versions = {one.version for one in sources}
        return [one for one in self.own(TABLE_MAIN) if one.destination.version in versions]

    def free_tables(self, count: int) -> list[int]:
        """The first tables from 100 on that no rule leads to and no route is in."""
        used = {one.table for one in self.rules} | {one.table for one in self.routes}
        found: list[int] = []
        table = FIRST_TABLE
        while len(found) < count:
            if table not in used and not 253 <= table <= 255:
                found.append(table)
            table += 1
        return found

    def rules_from(self, held: Iterable[IPAddress], marks: Iterable[int]) -> list[Rule]:
        """The rules "from one of these addresses" to a table that have one of these marks."""
        wanted = {parsed.network(f"{one}/{one.max_prefixlen}") for one in held}
        allowed = frozenset(marks)
        return [
            one
            for one in self.rules
            if one.source in wanted and one.action == "table" and one.protocol in allowed
        ]


def _ways(route: Route) -> tuple[Route, ...]:
    """The single routes of an IPv6 route with several ways: the kernel joins equal ones by itself."""
    if route.destination.version == 4 or not route.nexthops:
        return (route,)
    return tuple(
        msgspec.structs.replace(route, device=way.device, gateway=way.gateway, nexthops=())
        for way in route.nexthops
    )


def fill(state: State, sources: Sequence[Source]) -> list[Message]:
    """The requests that fill the addresses' tables, and then lead to them."""
    assert state.link is not None
    device = state.link.index
    movable = state.movable(sources)
    messages = []
    for one in sources:
        taken = [route for route in movable if one.takes(route, sources)]
        messages += [routes.again(route, one.table, append=True) for route in taken]
        default = parsed.network("0.0.0.0/0" if one.version == 4 else "::/0")
        # As where a default route is put in its place: one of another metric stays beside it.
        there = {route.metric for route in taken if route.destination == default}
        if one.gateway is not None and _DEFAULT_METRIC[one.version] not in there:
            onlink = one.gateway not in one.network and not one.gateway.is_link_local
            messages.append(
                routes.add(
                    default,
                    device=device,
                    gateway=one.gateway,
                    table=one.table,
                    onlink=onlink,
                    protocol=MOVED,
                )
            )
    return messages + [rules.add(one.rule(MOVED)) for one in sources]


def clear_main(state: State, sources: Sequence[Source], *, hints: bool) -> list[Message]:
    """The requests that take from the main table what is in the addresses' tables now.

    With ``hints`` the subnets stay reachable by it, from the address that lies in them.
    """
    assert state.link is not None
    device = state.link.index
    messages = [_drop(one) for one in state.movable(sources) if not one.destination.is_link_local]
    if hints:
        messages += [
            routes.add(
                one.network,
                device=device,
                source=one.address,
                scope=routes.SCOPE_LINK if one.version == 4 else None,
                protocol=MOVED,
                append=True,
            )
            for one in sources
        ]
    return messages


def put_back(state: State, sources: Iterable[Source], former: Iterable[Route]) -> list[Message]:
    """The requests that undo an ADD: what the state has of these sources goes, ``former`` routes return."""
    known = tuple(sources)
    held = [one.address for one in known]
    return _unmade(state, held, (MOVED,), former, {one.table for one in known})


def unmade(state: State, held: Iterable[IPAddress], table: int | None) -> list[Message]:
    """The requests of a DEL for these addresses, by whichever plugin their rules are.

    ``table`` is that of the configuration: rules without our mark lead to it, or to one that was filled.
    """
    known = frozenset(held)
    messages = [rules.delete(one) for one in state.rules_from(known, (FIXED,))]
    if table is None:
        return messages + _unmade(state, known, (MOVED, *_UNMARKED))
    unmarked = [one for one in state.rules_from(known, _UNMARKED) if one.table == table]
    return messages + [rules.delete(one) for one in unmarked] + _unmade(state, known, (MOVED,))


def _unmade(
    state: State,
    held: Iterable[IPAddress],
    marks: Iterable[int],
    former: Iterable[Route] = (),
    tables: Iterable[int] = (),
) -> list[Message]:
    doomed = [one for one in state.rules_from(held, marks) if one.table not in _NEVER_FILLED]
    filled = state.own(*tables, *(one.table for one in doomed))
    main = state.own(TABLE_MAIN)
    hints = [one for one in main if one.protocol == MOVED]
    there = {_identity(one) for one in main if one.protocol != MOVED}
    messages = []
    for one in sorted((*former, *filled), key=lambda one: one.gateway is not None):
        if one.protocol != MOVED and _identity(one) not in there:
            there.add(_identity(one))
            messages.append(routes.again(one, TABLE_MAIN, append=True))
    messages += [_drop(one) for one in (*filled, *hints)]
    return messages + [rules.delete(one) for one in doomed]


def _identity(route: Route) -> tuple[object, ...]:
    return route.destination, route.gateway, route.metric, route.device


def _drop(route: Route) -> Message:
    return routes.delete(
        route.destination,
        device=route.device,
        gateway=route.gateway,
        table=route.table,
        metric=route.metric or None,
        type=route.type,
    )
