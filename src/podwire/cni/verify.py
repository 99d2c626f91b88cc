"""What a CHECK compares: the result of the ADD with what is there now (spec 1.1.0 section 4, CHECK).

What is missing is an error that names it; what is there besides is none, since later plugins may add things.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from podwire.cni.errors import CNIError, InvalidConfig
from podwire.cni.request import Request
from podwire.cni.types import Interface, canonical_address, canonical_prefix

MISSING = 101
"""The code of these errors, one of those that the specification leaves to plugins."""


def interface_of(request: Request[Any]) -> Interface:
    """Return the container's interface in the result; InvalidConfig (7) if none has its name.

    Also where its ``sandbox`` is no path, as some plugins have it: then nothing can be looked up in there.
    """
    result = request.need_prev_result()
    index = result.interface_index(request.ifname)
    if index is None:
        raise InvalidConfig(f"prevResult has no interface {request.ifname}")
    found = result.interfaces[index]
    if found.sandbox and not found.sandbox.startswith("/"):
        raise InvalidConfig(
            f"prevResult: interfaces[{index}].sandbox: want the path of the network namespace",
            f'it is "{found.sandbox}"',
        )
    return found


def has_addresses(request: Request[Any], held: Iterable[str]) -> None:
    """Check the addresses of the container's interface; ``held`` are as ``10.1.0.5/16``."""
    there = {canonical_prefix(address) for address in held}
    for ip in request.need_prev_result().ips_of(request.ifname):
        if ip.address not in there:
            raise CNIError(f"interface {request.ifname} has lost the address {ip.address}", code=MISSING)


def has_routes(request: Request[Any], held: Iterable[tuple[str, str]]) -> None:
    """Check the routes of the result; ``held`` are destination and gateway, which is empty for none.

    A destination may be written as `ip route` does: ``default``, or a single address without its length.
    """
    result = request.need_prev_result()
    there = {(_destination(dst, gw), canonical_address(gw) if gw else "") for dst, gw in held}
    for route in result.routes:
        gateway = result.gateway_of(route)
        if (route.dst, gateway) not in there:
            via = f" via {gateway}" if gateway else ""
            raise CNIError(f"the route to {route.dst}{via} is gone", code=MISSING)


def _destination(text: str, gateway: str) -> str:
    if text == "default":
        return "::/0" if ":" in gateway else "0.0.0.0/0"
    return canonical_prefix(text if "/" in text else f"{text}/{128 if ':' in text else 32}")
