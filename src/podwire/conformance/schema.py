"""The shape of a result in each version of the specification (section 5), as a table of what may stand where.

Read strictly, and not by `podwire.cni.convert`, which takes what the field has: null, keys of any case, a
result without version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address, ip_interface
from typing import Any

from podwire.cni import versions

Fault = str
_Read = Callable[[Any], str]


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else "is no string"


def _name(value: Any) -> str:
    return "" if isinstance(value, str) and value else "is no string, or empty"


def _count(value: Any) -> str:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return "" if fits else "is no number from 0"


def _cidr(value: Any) -> str:
    try:
        ip_interface(value if isinstance(value, str) and "/" in value else "")
    except ValueError:
        return "is no address with a prefix length"
    return ""


def _ip(value: Any) -> str:
    try:
        ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return "is no address"
    return ""


def _family(value: Any) -> str:
    return "" if value in ("4", "6") else 'is neither "4" nor "6"'


def _texts(value: Any) -> str:
    fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return "" if fits else "is no list of strings"


_ROUTE: Mapping[str, _Read] = {"dst": _cidr, "gw": _ip}
_ROUTE_11: Mapping[str, _Read] = {
    **_ROUTE,
    "mtu": _count,
    "advmss": _count,
    "priority": _count,
    "table": _count,
    "scope": _count,
}
_DNS: Mapping[str, _Read] = {"nameservers": _texts, "domain": _text, "search": _texts, "options": _texts}
_INTERFACE: Mapping[str, _Read] = {"name": _name, "mac": _text, "sandbox": _text}
_INTERFACE_11: Mapping[str, _Read] = {**_INTERFACE, "mtu": _count, "socketPath": _text, "pciID": _text}
_ADDRESS: Mapping[str, _Read] = {"address": _cidr, "gateway": _ip, "interface": _count}
_ADDRESS_04: Mapping[str, _Read] = {**_ADDRESS, "version": _family}


def faults(result: Any, version: str) -> Iterator[Fault]:
    """Tell what is wrong with the result (parsed JSON) of an ADD whose configuration has ``version``."""
    if not isinstance(result, dict):
        yield "stdout holds no JSON object"
        return
    said = result.get("cniVersion")
    # 0.1.0 knew no such key yet.
    if said != version and not (version == "0.1.0" and said is None):
        yield f"cniVersion is {said!r}, the configuration has {version!r}"
    if isinstance(result.get("dns", {}), dict):
        yield from _fields(result.get("dns", {}), _DNS, "dns")
    else:
        yield "dns is no object"
    if versions.at_least(version, "0.3.0"):
        yield from _listed(result, version)
    else:
        yield from _by_family(result)


def _by_family(result: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _foreign(result, ("interfaces", "ips", "routes"))
    for key, family in (("ip4", 4), ("ip6", 6)):
        if key not in result:
            continue
        config = result[key]
        if not isinstance(config, dict):
            yield f"{key} is no object"
            continue
        yield from _fields(config, {"ip": _cidr, "gateway": _ip}, key, required=("ip",))
        if not _cidr(config.get("ip")) and ip_interface(config["ip"]).version != family:
            yield f"{key}.ip {config['ip']} is of the other family"
        yield from _each(config, "routes", _ROUTE, ("dst",), f"{key}.")


def _listed(result: Mapping[str, Any], version: str) -> Iterator[Fault]:
    yield from _foreign(result, ("ip4", "ip6"))
    at_1 = versions.at_least(version, "1.0.0")
    yield from _each(result, "interfaces", _INTERFACE_11 if at_1 else _INTERFACE, ("name",))
    required = ("address",) if at_1 else ("version", "address")
    yield from _each(result, "ips", _ADDRESS if at_1 else _ADDRESS_04, required)
    yield from _each(result, "routes", _ROUTE_11 if at_1 else _ROUTE, ("dst",))
    interfaces = result.get("interfaces") or []
    ips = result.get("ips") or []
    for place, ip in enumerate(ips if isinstance(ips, list) else []):
        if isinstance(ip, dict):
            yield from _ip_faults(ip, f"ips[{place}]", len(interfaces), at_1=at_1)


def _ip_faults(ip: Mapping[str, Any], place: str, interfaces: int, *, at_1: bool) -> Iterator[Fault]:
    family = ip.get("version")
    if at_1 and family is not None:
        yield f"{place}.version: there is no such key from 1.0.0 on"
    elif (
        family in ("4", "6")
        and not _cidr(ip.get("address"))
        and f"{ip_interface(ip['address']).version}" != family
    ):
        yield f"{place}.version {family} is not that of {ip['address']}"
    index = ip.get("interface")
    if isinstance(index, int) and index >= interfaces:
        yield f"{place}.interface {index}: there are {interfaces} interfaces"


def _each(
    holder: Mapping[str, Any],
    key: str,
    table: Mapping[str, _Read],
    required: tuple[str, ...],
    prefix: str = "",
) -> Iterator[Fault]:
    entries = holder.get(key, [])
    if not isinstance(entries, list):
        yield f"{prefix}{key} is no list"
        return
    for place, entry in enumerate(entries):
        if isinstance(entry, dict):
            yield from _fields(entry, table, f"{prefix}{key}[{place}]", required)
        else:
            yield f"{prefix}{key}[{place}] is no object"


def _fields(
    entry: Mapping[str, Any], table: Mapping[str, _Read], place: str, required: tuple[str, ...] = ()
) -> Iterator[Fault]:
    for key in required:
        if key not in entry:
            yield f"{place}.{key} is missing"
    for key, read in table.items():
        if key in entry and (fault := read(entry[key])):
            yield f"{place}.{key} {entry[key]!r} {fault}"


def _foreign(result: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[Fault]:
    for key in keys:
        if result.get(key):
            yield f"{key}: this version has no such key"


def values(result: Any, key: str, field: str) -> list[str]:
    """Return a field of every entry of a list in a result, however odd the result is."""
    entries = result.get(key) if isinstance(result, dict) else None
    return [
        str(one.get(field)) for one in (entries if isinstance(entries, list) else []) if isinstance(one, dict)
    ]


def error_faults(error: Any) -> Iterator[Fault]:
    """Tell what is wrong with an error (parsed JSON), but for its ``cniVersion``."""
    if not isinstance(error, dict):
        yield "stdout holds no JSON object"
        return
    yield from _fields(error, {"code": _count, "msg": _name, "details": _text}, "error", ("code", "msg"))
