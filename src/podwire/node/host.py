"""The node's own addresses."""

from __future__ import annotations

import socket

_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def host_addresses() -> tuple[str, ...]:
    """The addresses from which the node reaches the world, IPv4 first; loopback where there is no route.

    A connected UDP socket sends nothing; it only asks the kernel for the route (documentation addresses of
    RFC 5737 and RFC 3849).
    """
    found = []
    for family, target in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return tuple(found) or ("127.0.0.1",)
