"""The configuration of a `podwire` network: its options, checked, and what follows from them.

Every key that is not an option is refused, with the option that was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

import msgspec

from podwire.cni import fields
from podwire.cni.args import check_ifname
from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment
from podwire.cni.plugin import DNS, IPConfig, Request, Route
from podwire.cni.types import NO_DNS
from podwire.ipam.allocation import Allocation
from podwire.ipam.errors import Address, RangeError
from podwire.ipam.ranges import Range, RangeSet, check_disjoint
from podwire.plugins import parsed, pod_ends, shaping
from podwire.plugins.host_local import DATA_DIR, RangeConfig
from podwire.plugins.parsed import IPNetwork
from podwire.plugins.pod_masquerade import Outward, outward
from podwire.plugins.shaping import Limits

BRIDGE, ROUTED = "bridge", "routed"
_MODES = (BRIDGE, ROUTED)
_MTU_MIN, _MTU_MAX = 68, 65535
_MTU_MIN6 = 1280
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_PROTOCOL_KEYS = ("cniVersion", "name", "type", "args", "capabilities", "runtimeConfig", "prevResult")
# What these are called where people know them from.
_ELSEWHERE = {
    "ipam": "ranges (addresses are given by podwire itself)",
    "ipmasq": "masquerade",
    "hairpinmode": "hairpin",
    "macspoofchk": "nothing: sources are always checked",
    "isgateway": "nothing: the host is always the gateway",
    "isdefaultgateway": "nothing: the host is the default gateway unless routes says otherwise",
}


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


class Settings(msgspec.Struct, frozen=True):
    """The options of a network."""

    mode: str = ROUTED
    bridge: str = "podwire0"
    ranges: tuple[tuple[RangeConfig, ...], ...] = ()
    subnets: tuple[str, ...] = ()
    dataDir: str = DATA_DIR
    masquerade: bool = True
    noMasquerade: tuple[str, ...] = ()
    markMasqBit: int = 13
    mtu: int = 0
    mtuOverhead: int = 0
    uplink: str = ""
    hairpin: bool = True
    routes: tuple[Route, ...] | None = None
    dns: DNS = NO_DNS
    bandwidth: shaping.Entry = shaping.Entry()


class RuntimeDNS(msgspec.Struct, frozen=True):
    """The capability ``dns``."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class Runtime(msgspec.Struct, frozen=True):
    """What the runtime supplies by capabilities, but for ``portMappings``."""

    ipRanges: tuple[tuple[RangeConfig, ...], ...] = ()
    ips: tuple[str, ...] = ()
    mac: str = ""
    dns: RuntimeDNS | None = None
    bandwidth: shaping.Entry | None = None


class CNIArgs(msgspec.Struct, frozen=True):
    """``args.cni``, as far as it matters here."""

    ips: tuple[str, ...] = ()
    mac: str = ""


class Network(msgspec.Struct, frozen=True):
    """A network as it is configured: checked, and parsed."""

    settings: Settings
    sets: tuple[RangeSet, ...]
    spared: tuple[IPNetwork, ...]
    """Where traffic goes without being masqueraded: the network's own subnets, and ``noMasquerade``."""
    limits: Limits
    outward: Outward

    @property
    def routed(self) -> bool:
        """Whether pods are routed, and not on a bridge."""
        return self.settings.mode == ROUTED

    def ips(self, given: Iterable[Allocation]) -> tuple[IPConfig, ...]:
        """The addresses as the pod has them."""
        index = 1 if self.routed else 2
        ips = (IPConfig(one.cidr, str(one.gateway or ""), index) for one in given)
        return tuple(pod_ends.routed(ip) for ip in ips) if self.routed else tuple(ips)

    def routes(self, ips: Sequence[IPConfig]) -> tuple[Route, ...]:
        """The pod's routes: the configured ones, or else a default route of each family that it has."""
        if self.settings.routes is not None:
            families = {ip.family for ip in ips}
            return tuple(route for route in self.settings.routes if route.family in families)
        gateways = {ip.family: ip.gateway for ip in reversed(ips) if ip.gateway}
        return tuple(
            Route("0.0.0.0/0" if family == 4 else "::/0", gateways[family]) for family in sorted(gateways)
        )

    def subnet_of(self, address: Address) -> IPNetwork:
        """The subnet of the range that an address is of; the address alone where there is none any more."""
        for one in self.sets:
            home = one.range_of(address)
            if home is not None:
                return home.subnet
        return parsed.network(str(address))


def network(request: Request[Anything]) -> Network:
    """Read the network of a request. InvalidConfig (7) names the field and the value."""
    own = {key: value for key, value in request.raw.items() if key.lower() not in _PASSING}
    found = _network(msgspec.json.encode(own))
    supplied = runtime(request).ipRanges
    if not supplied:
        if not found.sets:
            raise InvalidConfig("ranges: none; set subnets or ranges, or have the runtime supply ipRanges")
        return found
    sets = _sets("runtimeConfig.ipRanges", supplied)
    spared = tuple(dict.fromkeys((*_subnets(sets), *found.spared)))
    leaving = outward(_subnets(sets), spared)
    return msgspec.structs.replace(found, sets=sets, spared=spared, outward=leaving)


_PASSING = frozenset(key.lower() for key in _PROTOCOL_KEYS)


@lru_cache(maxsize=64)
def _network(text: bytes) -> Network:
    raw = msgspec.json.decode(text)
    _refuse_unknown(raw)
    settings = _converted(raw, Settings, "")
    _validate(settings)
    if settings.ranges and settings.subnets:
        raise InvalidConfig("ranges and subnets exclude each other", f"subnets are {list(settings.subnets)}")
    if settings.ranges:
        sets = _sets("ranges", settings.ranges)
    else:
        sets = _sets("subnets", [[RangeConfig(subnet)] for subnet in settings.subnets])
    spared = (*_subnets(sets), *_networks("noMasquerade", settings.noMasquerade))
    _validate_mtu("mtu", settings.mtu, sets)
    limits = settings.bandwidth.limits("bandwidth.")
    spared = tuple(dict.fromkeys(spared))
    return Network(settings, sets, spared, limits, outward(_subnets(sets), spared))


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    options = Settings.__struct_fields__
    known = {option.lower() for option in options}
    for key in raw:
        if key.lower() not in known and not key.startswith("cni.dev/"):
            meant = _ELSEWHERE.get(key.lower()) or next(
                iter(get_close_matches(key, (*options, *_PROTOCOL_KEYS), n=1)), ""
            )
            hint = f": did you mean {meant}?" if meant else f"; options are {', '.join(options)}"
            raise InvalidConfig(f'"{key}": is no option of podwire{hint}')
    for field, parts in (("ranges", RangeConfig), ("bandwidth", shaping.Entry)):
        _refuse_inside(field, fields.lookup(raw, field), parts.__struct_fields__)


def _refuse_inside(path: str, value: Any, known: Sequence[str]) -> None:
    if isinstance(value, list):
        for number, each in enumerate(value):
            _refuse_inside(f"{path}[{number}]", each, known)
    elif isinstance(value, dict):
        lower = {name.lower() for name in known}
        for key in value:
            if key.lower() not in lower:
                meant = next(iter(get_close_matches(key, known, n=1)), "")
                hint = f": did you mean {meant}?" if meant else f"; {', '.join(known)} are"
                raise InvalidConfig(f'{path}: "{key}" is no option there{hint}')


def _converted(values: Any, target: Any, where: str) -> Any:
    try:
        return fields.convert(values, target)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "podwire": {where}{error}') from None


def _validate(settings: Settings) -> None:
    if settings.mode not in _MODES:
        raise InvalidConfig(f'mode "{settings.mode}": is neither {BRIDGE} nor {ROUTED}')
    for field, name in (("bridge", settings.bridge), ("uplink", settings.uplink)):
        if not name and field == "uplink":
            continue
        try:
            check_ifname(name)
        except CNIError as error:
            raise InvalidConfig(f"{field}: {error}") from None
        if "%" in name:  # the kernel would take it for a pattern and make a link of another name
            raise InvalidConfig(f"{field}: interface name \"{name}\" contains '%'")
    if not 0 <= settings.markMasqBit <= 31:
        raise InvalidConfig(f"markMasqBit: want a bit from 0 to 31 (it is {settings.markMasqBit})")
    if not 0 <= settings.mtuOverhead <= 1000:
        raise InvalidConfig(f"mtuOverhead {settings.mtuOverhead}: is not between 0 and 1000")
    if not settings.dataDir.startswith("/"):
        raise InvalidConfig(f'dataDir "{settings.dataDir}": is not an absolute path')
    for number, address in enumerate(settings.dns.nameservers):
        try:
            ip_address(address)
        except ValueError:
            raise InvalidConfig(f'dns.nameservers[{number}] "{address}": is not an IP address') from None


def _validate_mtu(field: str, mtu: int, sets: Sequence[RangeSet]) -> None:
    least = _MTU_MIN6 if any(one.version == 6 for one in sets) else _MTU_MIN
    if mtu and not least <= mtu <= _MTU_MAX:
        raise InvalidConfig(f"{field} {mtu}: is not between {least} and {_MTU_MAX}")


def _sets(path: str, configured: Sequence[Sequence[RangeConfig]]) -> tuple[RangeSet, ...]:
    found = []
    for n, ranges in enumerate(configured):
        if not ranges:
            raise InvalidConfig(f"{path}[{n}]: a set of ranges is empty")
        where = f"{path}[{n}]"
        try:
            parts = []
            for m, one in enumerate(ranges):
                where = f"{path}[{n}]" if path == "subnets" else f"{path}[{n}][{m}]"
                parts.append(
                    Range.parse(one.subnet, start=one.rangeStart, end=one.rangeEnd, gateway=one.gateway)
                )
            where = f"{path}[{n}]"
            found.append(RangeSet(parts))
        except RangeError as error:
            raise InvalidConfig(f"{where}.{error}") from error
    try:
        check_disjoint(found)
    except RangeError as error:
        raise InvalidConfig(str(error)) from error
    return tuple(found)


def _subnets(sets: Iterable[RangeSet]) -> list[IPNetwork]:
    return list(dict.fromkeys(part.subnet for one in sets for part in one.ranges))


def _networks(field: str, texts: Sequence[str]) -> list[IPNetwork]:
    found = []
    for number, text in enumerate(texts):
        try:
            if "/" not in text:
                raise ValueError
            found.append(parsed.network(text))
        except ValueError:
            raise InvalidConfig(f'{field}[{number}] "{text}": is not a subnet, as 10.1.0.0/16') from None
    return found


def runtime(request: Request[Anything]) -> Runtime:
    """What the runtime supplies with this request. InvalidConfig (7) names the field and the value."""
    given = {key: value for key, value in request.runtime_config.items() if key.lower() != "portmappings"}
    if not given:
        return _NOTHING
    found: Runtime = _converted(given, Runtime, "runtimeConfig.")
    return found


_NOTHING = Runtime()


def cni_args(request: Request[Anything]) -> CNIArgs:
    """``args.cni`` of the configuration."""
    args = fields.lookup(request.raw, "args")
    given = fields.lookup(args, "cni") if isinstance(args, Mapping) else None
    if not isinstance(given, Mapping):
        return CNIArgs()
    found: CNIArgs = _converted(given, CNIArgs, "args.cni.")
    return found


def limits(request: Request[Anything], of: Network) -> Limits:
    """The bandwidth of this pod: the runtime's if it supplies any, else the network's."""
    entry = runtime(request).bandwidth
    return of.limits if entry is None else entry.limits("runtimeConfig.bandwidth.")


def dns(request: Request[Anything], of: Network) -> DNS:
    """The resolver settings of this pod: the runtime's if it supplies any, else the network's."""
    given = runtime(request).dns
    if given is None:
        return of.settings.dns
    return DNS(given.servers, "", given.searches, given.options)


def requested_addresses(request: Request[Anything]) -> list[Address]:
    """The addresses that are asked for: CNI_ARGS IP, args.cni.ips, runtimeConfig.ips."""
    asked: list[tuple[str, str, type[CNIError]]] = []
    if text := request.args.get("IP"):
        asked += [("CNI_ARGS IP", each, InvalidEnvironment) for each in text.split(",")]
    for field, texts in (
        ("args.cni.ips", cni_args(request).ips),
        ("runtimeConfig.ips", runtime(request).ips),
    ):
        asked += [(f"{field}[{n}]", text, InvalidConfig) for n, text in enumerate(texts)]
    found = []
    for field, text, error in asked:
        try:
            found.append(parsed.interface(text).ip)
        except ValueError:
            raise error(f'{field} "{text}": is not an IP address') from None
    return found


def requested_mac(request: Request[Anything]) -> str:
    """The MAC that is asked for (CNI_ARGS, then args.cni.mac, then runtimeConfig.mac), or ``""``."""
    mac = ""
    for field, value, error in (
        ("CNI_ARGS MAC", request.args.get("MAC", ""), InvalidEnvironment),
        ("args.cni.mac", cni_args(request).mac, InvalidConfig),
        ("runtimeConfig.mac", runtime(request).mac, InvalidConfig),
    ):
        if not value:
            continue
        mac = value.lower().replace("-", ":")
        if not _MAC.fullmatch(mac) or int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
            raise error(f'{field} "{value}": is not the MAC of a station, as 02:00:5e:10:00:01')
    return mac
