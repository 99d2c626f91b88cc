"""The host's way out: the interface of its default route, and the MTU that pods can use by it."""

from __future__ import annotations

import errno
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from podwire.kernel import devices, outgoing
from podwire.kernel.errors import KernelError
from podwire.kernel.netlink import RouteSocket
from podwire.plugins.parsed import IPAddress

MTU = 1500
"""The pods' MTU where the host has no way out (ETH_DATA_LEN in linux/if_ether.h)."""
# Addresses of documentation (RFC 5737, RFC 3849): nobody has a route of its own to them.
_SOMEWHERE: tuple[IPAddress, ...] = (IPv4Address("203.0.113.1"), IPv6Address("2001:db8:ffff::1"))
_NO_WAY = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})


class Uplink(NamedTuple):
    """An interface of the host and its MTU in bytes."""

    name: str
    mtu: int


def find(sock: RouteSocket, name: str = "") -> Uplink | None:
    """Return the interface ``name``, or else that of the default route; None if there is none.

    Raises :class:`KernelError`.
    """
    if not name:
        index = _device(sock)
        if not index:
            return None
        name = devices.name(sock, index)
    try:
        return Uplink(name, devices.mtu(sock, name))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def _device(sock: RouteSocket) -> int:
    for destination in _SOMEWHERE:
        try:
            found = outgoing.lookup(sock, destination)
        except KernelError as error:
            if error.errno not in _NO_WAY:
                raise
            continue
        if found.device and not found.local:
            return found.device
    return 0
