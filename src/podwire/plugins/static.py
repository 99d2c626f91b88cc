"""`static`: the addresses, routes and DNS that the configuration names. Nothing is allocated or remembered.

Configuration (``ipam``): ``addresses`` [{``address``, ``gateway``}], ``routes``, ``dns``. ``CNI_ARGS``
appends addresses (``IP``, several with ``,`` between them) and gives those a gateway of their subnet
(``GATEWAY``); ``args.cni.ips`` replaces all of that, and ``runtimeConfig.ips`` replaces ``args.cni.ips``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from podwire.cni import fields
from podwire.cni.errors import CNIError, IncompatibleVersion, InvalidConfig, InvalidEnvironment
from podwire.cni.plugin import DNS, IPConfig, Plugin, Request, Result, Route
from podwire.cni.types import NO_DNS
from podwire.plugins import parsed
from podwire.plugins.failures import KERNEL


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


class Address(msgspec.Struct, frozen=True):
    """An address as it is configured, ``10.1.0.5/24``, with its gateway or none."""

    address: str = ""
    gateway: str = ""


class IPAM(msgspec.Struct, frozen=True):
    """The ``ipam`` key of a network."""

    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = NO_DNS


class Given(msgspec.Struct, frozen=True):
    """Addresses that the runtime names."""

    ips: tuple[str, ...] = ()


class Args(msgspec.Struct, frozen=True):
    """``args`` of a network."""

    cni: Given = Given()


class Settings(msgspec.Struct, frozen=True):
    """The parts of a network's configuration that concern its addresses."""

    ipam: IPAM | None = None
    runtimeConfig: Given = Given()
    args: Args = Args()


def settings(request: Request[Anything]) -> Settings:
    """Decode the options. Raises InvalidConfig (7) naming the field and the value."""
    try:
        found = fields.convert(request.raw, Settings)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "static": {error}') from None
    if found.ipam is None:
        raise InvalidConfig("ipam: is missing")
    return found


def addresses(request: Request[Anything], found: Settings) -> tuple[IPConfig, ...]:
    """Return the addresses that an ADD gives, in order; InvalidConfig (7) or InvalidEnvironment (4)."""
    for field, texts in (
        ("runtimeConfig.ips", found.runtimeConfig.ips),
        ("args.cni.ips", found.args.cni.ips),
    ):
        if texts:
            return tuple(
                _address(f"{field}[{number}]", text, "", InvalidConfig) for number, text in enumerate(texts)
            )
    configured = found.ipam.addresses if found.ipam else ()
    return (
        *(
            _address(f"ipam.addresses[{number}]", one.address, one.gateway, InvalidConfig)
            for number, one in enumerate(configured)
        ),
        *_from_args(request),
    )


def _address(field: str, text: str, gateway: str, error: type[CNIError]) -> IPConfig:
    try:
        return IPConfig(text.strip(), gateway)
    except ValueError as reason:
        raise error(f"{field}: {reason}") from None


def _from_args(request: Request[Anything]) -> list[IPConfig]:
    listed = request.args.get("IP", "")
    given = [_address("CNI_ARGS IP", text, "", InvalidEnvironment) for text in listed.split(",") if listed]
    listed = request.args.get("GATEWAY", "")
    for text in listed.split(",") if listed else ():
        try:
            gateway = parsed.address(text.strip())
        except ValueError:
            raise InvalidEnvironment(f'CNI_ARGS GATEWAY "{text}": is not an IP address') from None
        given = [
            IPConfig(one.address, str(gateway)) if gateway in parsed.interface(one.address).network else one
            for one in given
        ]
    return given


def result(request: Request[Anything]) -> Result:
    """Return what an ADD answers; raises CNIError for what cannot be configured."""
    found = settings(request)
    ips = addresses(request, found)
    families = Counter(one.family for one in ips)
    if request.cni_version.startswith(("0.1.", "0.2.")) and families and max(families.values()) > 1:
        raise IncompatibleVersion(
            f"cniVersion {request.cni_version} does not support more than one address a family",
            f"{', '.join(one.address for one in ips)} are configured",
        )
    ipam = found.ipam or IPAM()
    return Result(ips=ips, routes=ipam.routes, dns=ipam.dns)


def add(request: Request[Anything], _kernel: Any) -> Result:
    """Answer what is configured."""
    return result(request)


def check(request: Request[Anything], _kernel: Any) -> None:
    """Verify that the result has every address as it is configured, with its gateway if it names one."""
    held = {parsed.interface(ip.address): ip for ip in request.need_prev_result().ips}
    for one in result(request).ips:
        present = held.get(parsed.interface(one.address))
        if present is None:
            raise CNIError(f"static: address {one.address} is not in prevResult", code=KERNEL)
        if one.gateway and present.gateway != one.gateway:
            has = present.gateway or "none"
            raise CNIError(
                f"static: the gateway of {one.address} is {has} in prevResult, not {one.gateway}", code=KERNEL
            )


def status(request: Request[Anything], _kernel: Any) -> None:
    """Raise what an ADD would raise for this configuration."""
    result(request)


PLUGIN = Plugin(
    type="static",
    about="Podwire static: the addresses that the configuration names",
    config=Anything,
    add=add,
    check=check,
    status=status,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
