"""Results of every version of the specification, to and from the shapes of 1.1.0.

Going down loses what the older version cannot say, and nothing else: below 1.0.0 an interface's mtu, socket
path and PCI ID; at 0.2.0 and 0.1.0 all interfaces, all but the first address of each family, the routes of
a family without address, and of the others all but destination and gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.cni import fields, gojson, versions
from podwire.cni.errors import DecodeFailure, IncompatibleVersion
from podwire.cni.types import DNS, NO_DNS, Interface, IPConfig, Result, Route


class _FamilyConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    ip: str
    gateway: str = ""
    routes: tuple[Route, ...] = ()


class _FamilyResult(msgspec.Struct, frozen=True):
    ip4: _FamilyConfig | None = None
    ip6: _FamilyConfig | None = None
    dns: DNS = NO_DNS


def _by_family(version: str) -> bool:
    return not versions.at_least(version, "0.3.0")


def _known(version: str, what: str) -> str:
    if version not in versions.SUPPORTED:
        raise IncompatibleVersion(
            f'{what} has cniVersion "{version}", which is unknown',
            f"known are {', '.join(versions.SUPPORTED)}",
        )
    return version


def result_version(data: Mapping[str, Any], version: str) -> str:
    """Return the version of a result: its own, else ``version`` (the configuration's), else 0.1.0."""
    own = fields.lookup(data, "cniVersion", "")
    if not isinstance(own, str):
        raise DecodeFailure(f"cannot decode the result: cniVersion: want a string (it is {own!r})")
    return _known(own or version or versions.WHEN_MISSING, "the result")


def decode_result(data: bytes | str | Mapping[str, Any], version: str = "") -> Result:
    """Read a result in whichever version it says that it has, else in ``version``.

    DecodeFailure (6) names the field that does not fit; IncompatibleVersion (1) an unknown version.
    """
    if isinstance(data, (bytes, str)):
        try:
            data = gojson.parse(data)
        except ValueError as error:
            raise DecodeFailure(f"the result is not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise DecodeFailure("the result is not a JSON object")
    version = result_version(data, version)
    try:
        if _by_family(version):
            return _from_family(fields.convert(data, _FamilyResult))
        result = fields.convert(data, Result)
    except fields.FieldError as error:
        raise DecodeFailure(f"cannot decode the result (version {version}): {error}") from None
    if not versions.at_least(version, "1.0.0"):
        plain = tuple(Interface(each.name, each.mac, 0, each.sandbox) for each in result.interfaces)
        return msgspec.structs.replace(result, interfaces=plain)
    return result


def _from_family(result: _FamilyResult) -> Result:
    ips: list[IPConfig] = []
    routes: list[Route] = []
    for config, family, key in ((result.ip4, 4, "ip4"), (result.ip6, 6, "ip6")):
        if config is None:
            continue
        try:
            ip = IPConfig(config.ip, config.gateway)
        except ValueError as error:
            raise fields.FieldError(f"{key}.ip", str(error), "") from None
        if ip.family != family:
            raise fields.FieldError(f"{key}.ip", f"not an IPv{family} address", f'"{config.ip}"')
        ips.append(ip)
        routes.extend(config.routes)
    return Result(ips=tuple(ips), routes=tuple(routes), dns=result.dns)


def _to_family(result: Result) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for key, family in (("ip4", 4), ("ip6", 6)):
        ip = next((each for each in result.ips if each.family == family), None)
        if ip is not None:
            routes = tuple(Route(each.dst, each.gw) for each in result.routes if each.family == family)
            said[key] = _FamilyConfig(ip.address, ip.gateway, routes)
    if not said:
        raise IncompatibleVersion("cannot convert: no valid IP addresses")
    said["dns"] = result.dns
    return said


def _to_04(result: Result) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if result.interfaces:
        said["interfaces"] = [Interface(each.name, each.mac, 0, each.sandbox) for each in result.interfaces]
    if result.ips:
        said["ips"] = [_ip_04(ip) for ip in result.ips]
    if result.routes:
        said["routes"] = result.routes
    said["dns"] = result.dns
    return said


def _ip_04(ip: IPConfig) -> dict[str, Any]:
    said: dict[str, Any] = {"version": str(ip.family)}
    if ip.interface is not None:
        said["interface"] = ip.interface
    said["address"] = ip.address
    if ip.gateway:
        said["gateway"] = ip.gateway
    return said


def _shaped(result: Result, version: str) -> dict[str, Any]:
    _known(version, "the configuration")
    said: dict[str, Any] = {"cniVersion": version}
    if _by_family(version):
        said.update(_to_family(result))
    elif not versions.at_least(version, "1.0.0"):
        said.update(_to_04(result))
    else:
        for key in ("dns", "interfaces", "ips", "routes"):
            value = getattr(result, key)
            if value:
                said[key] = value
    return said


def to_object(result: Result, version: str) -> dict[str, Any]:
    """Return a result in the shape of ``version`` as plain dicts and lists, e.g. for ``prevResult``."""
    # By way of text: to_builtins would keep tuples, and a configuration read from stdin has lists.
    said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_shaped(result, version)))
    return said


def encode_result(result: Result, version: str) -> bytes:
    """Return a result as a Go plugin of that version prints it, without a newline at the end.

    IncompatibleVersion (1) for an unknown version, and where 0.2.0 and 0.1.0 have no address to tell.
    """
    # Since libcni 1.2 results of 1.x pass through a Go map, which sorts keys at every level.
    if versions.at_least(version, "1.0.0"):
        return gojson.indented(msgspec.json.encode(_shaped(result, version), order="sorted"))
    return gojson.indented(msgspec.json.encode(_shaped(result, version)))
