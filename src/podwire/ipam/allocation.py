"""One address of every set for an attachment, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from podwire.ipam.directory import Leases
from podwire.ipam.errors import (
    Address,
    AddressTaken,
    AddressUnusable,
    AlreadyAllocated,
    Holder,
    IPAMError,
    PoolExhausted,
    RangeError,
)
from podwire.ipam.ranges import Network, RangeSet


class Allocation(NamedTuple):
    """An address that an attachment was given, its subnet, and the gateway of its range."""

    address: Address
    subnet: Network
    gateway: Address | None

    @property
    def cidr(self) -> str:
        """The address with the length of its subnet's prefix: ``10.1.0.5/16``."""
        return f"{self.address}/{self.subnet.prefixlen}"


def allocate(
    leases: Leases, sets: Sequence[RangeSet], holder: Holder, requested: Sequence[Address] = ()
) -> tuple[Allocation, ...]:
    """Give ``holder`` one address of each set; each of ``requested`` from the set that it lies in.

    Raises :class:`AlreadyAllocated`, :class:`AddressTaken`, :class:`AddressUnusable`, :class:`RangeError`
    (two requests for one set), :class:`PoolExhausted` or :class:`StoreError`, and then nothing was given.
    """
    if held := leases.held_by(*holder):
        raise AlreadyAllocated(holder, held)
    wishes = _wishes(sets, requested)
    given: list[Allocation] = []
    try:
        for position, pool in enumerate(sets):
            address = wishes.get(position)
            if address is not None:
                leases.reserve(address, holder, position)
            else:
                address = _next(leases, pool, holder, position)
            home = pool.locate(address)
            given.append(Allocation(address, home.subnet, home.gateway))
    except IPAMError:
        for allocation in given:
            leases.free(allocation.address, holder)
        raise
    return tuple(given)


def _next(leases: Leases, pool: RangeSet, holder: Holder, position: int) -> Address:
    after = leases.last_reserved(position)
    unseen: set[int] = set()  # files that appeared without the directory's time of change showing it
    while True:
        taken = leases.taken(pool.version)
        address = pool.next_free(taken.keys() | unseen if unseen else taken, after)
        if address is None:
            raise PoolExhausted(str(pool), pool.capacity)
        try:
            leases.reserve(address, holder, position)
        except AddressTaken:
            unseen.add(int(address))
            continue
        return address


def _wishes(sets: Sequence[RangeSet], requested: Sequence[Address]) -> dict[int, Address]:
    wishes: dict[int, Address] = {}
    for address in requested:
        home = next((n for n, pool in enumerate(sets) if pool.range_of(address) is not None), None)
        if home is None:
            raise AddressUnusable(address, f"it is outside of {'; '.join(map(str, sets))}")
        reason = sets[home].refusal(address)
        if reason is not None:
            raise AddressUnusable(address, reason)
        if home in wishes and wishes[home] != address:
            raise RangeError("ips", address, f"{wishes[home]} is requested of the same set: it gives one")
        wishes[home] = address
    return wishes


def exhausted(leases: Leases, sets: Sequence[RangeSet]) -> RangeSet | None:
    """Return the first set that has no free address."""
    return next((pool for pool in sets if pool.next_free(leases.taken(pool.version)) is None), None)
