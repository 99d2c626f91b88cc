"""Where the host would send a packet: the kernel's answer for one destination (RTM_GETROUTE)."""

from __future__ import annotations

import errno
from typing import NamedTuple

from podwire.kernel.attributes import IP, U32, IPAddress, Table
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket

_GET = 26
_HEADER = 12
_TYPE_OFFSET = 7
_LOCAL = 2
_FAMILY = {4: 2, 6: 10}
_ROUTE = Table("route", destination=(1, IP), device=(4, U32))


class Outgoing(NamedTuple):
    """The interface index that the packet leaves by (0: none), and whether it stays on the host."""

    device: int
    local: bool


def lookup(sock: RouteSocket, destination: IPAddress) -> Outgoing:
    """Ask where packets of the host to ``destination`` go.

    Raises :class:`~podwire.kernel.errors.KernelError` with ENETUNREACH where there is no route.
    """
    bits = destination.max_prefixlen
    header = bytes((_FAMILY[destination.version], bits, *bytes(_HEADER - 2)))
    body = header + _ROUTE.encode({"destination": destination})
    _, answer = sock.request(Message(_GET, 0, body, "look up the route to", str(destination)))
    if len(answer) < _HEADER:
        raise MalformedReply("route", f"{len(answer)} bytes")
    return Outgoing(_ROUTE.decode(answer, _HEADER).get("device", 0), answer[_TYPE_OFFSET] == _LOCAL)


def is_local(sock: RouteSocket, address: IPAddress) -> bool:
    """Tell whether packets to ``address`` are for this namespace itself; not where there is no route."""
    try:
        return lookup(sock, address).local
    except KernelError as error:
        if error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH}:
            return False
        raise
