"""What can go wrong with addresses: one tree, each error naming the object that it is about."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

Address = IPv4Address | IPv6Address


class Holder(NamedTuple):
    """Who has an address: a container's interface. Files of old plugins name no interface (``""``)."""

    container_id: str
    ifname: str

    def __str__(self) -> str:
        return f"{self.container_id} ({self.ifname})" if self.ifname else self.container_id


class IPAMError(Exception):
    """Base of this package's errors."""


class RangeError(IPAMError):
    """A range, or a set of ranges, that cannot be used: ``field`` and ``value`` as they are configured."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field} {str(value)!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class PoolExhausted(IPAMError):
    """A set of ranges has no free address."""

    def __init__(self, pool: str, taken: int) -> None:
        super().__init__(f"no free address in {pool}: all {taken} are taken")
        self.pool = pool
        self.taken = taken


class AddressTaken(IPAMError):
    """A requested address has a holder already."""

    def __init__(self, address: Address, holder: Holder) -> None:
        super().__init__(f"requested address {address} is held by container {holder}")
        self.address = address
        self.holder = holder


class AddressUnusable(IPAMError):
    """A requested address that this network never gives: outside of its ranges, or reserved."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(f"requested address {address} cannot be given: {reason}")
        self.address = address
        self.reason = reason


class AlreadyAllocated(IPAMError):
    """The same container and interface hold addresses of this network: no second allocation is made."""

    def __init__(self, holder: Holder, addresses: tuple[Address, ...]) -> None:
        held = ", ".join(map(str, addresses))
        super().__init__(f"container {holder} holds {held} already: duplicate allocation is not allowed")
        self.holder = holder
        self.addresses = addresses


class LockTimeout(IPAMError):
    """Another process kept the network's lock until the deadline."""

    def __init__(self, path: str, waited: float) -> None:
        super().__init__(f"{path}: the lock is held by another process; waited {waited:.1f} s")
        self.path = path
        self.waited = waited


class StoreError(IPAMError):
    """The file system refused; ``errno`` and ``path`` say what."""

    def __init__(self, operation: str, path: str, errno: int) -> None:
        super().__init__(f"{operation} {path}: {os.strerror(errno)}")
        self.operation = operation
        self.path = path
        self.errno = errno
