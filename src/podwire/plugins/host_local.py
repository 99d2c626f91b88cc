"""`host-local`: addresses from ranges of this host, remembered in the reference plugin's directory.

Configuration (``ipam``): ``subnet``, ``rangeStart``, ``rangeEnd``, ``gateway`` for one set of one range, and
``ranges`` for several sets of several; ``routes``, ``resolvConf``, ``dataDir``. The runtime may put sets
before them (``runtimeConfig.ipRanges``) and ask for addresses (``CNI_ARGS`` IP, ``args.cni.ips``,
``runtimeConfig.ips``). An attachment gets one address of every set, or none at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

import msgspec

from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    IncompatibleVersion,
    InvalidConfig,
    InvalidEnvironment,
    IOFailure,
    NotAvailable,
    TryLater,
)
from podwire.cni.plugin import Plugin, Request
from podwire.cni.types import DNS, NO_DNS, IPConfig, Result, Route
from podwire.ipam.allocation import allocate, exhausted
from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import (
    Address,
    AddressTaken,
    AddressUnusable,
    AlreadyAllocated,
    Holder,
    IPAMError,
    LockTimeout,
    PoolExhausted,
    RangeError,
    StoreError,
)
from podwire.ipam.ranges import Range, RangeSet, check_disjoint

DATA_DIR = "/var/lib/cni/networks"

TAKEN = 101  # a requested address has a holder
DUPLICATE = 102  # the attachment has addresses already


class RangeConfig(msgspec.Struct, frozen=True):
    """A span of a subnet as it is configured."""

    subnet: str = ""
    rangeStart: str = ""
    rangeEnd: str = ""
    gateway: str = ""


class IPAMConfig(RangeConfig, frozen=True):
    """The ``ipam`` key of a network."""

    type: str = "host-local"
    ranges: tuple[tuple[RangeConfig, ...], ...] = ()
    routes: tuple[Route, ...] = ()
    resolvConf: str = ""
    dataDir: str = ""


class RuntimeConfig(msgspec.Struct, frozen=True):
    """What the runtime may supply by the capabilities ``ipRanges`` and ``ips``."""

    ipRanges: tuple[tuple[RangeConfig, ...], ...] = ()
    ips: tuple[str, ...] = ()


class CNIArgs(msgspec.Struct, frozen=True):
    """``args.cni``, as far as it concerns addresses."""

    ips: tuple[str, ...] = ()


class Args(msgspec.Struct, frozen=True):
    """``args`` of a network."""

    cni: CNIArgs = CNIArgs()


class Config(msgspec.Struct, frozen=True):
    """The parts of a network's configuration that concern its addresses."""

    ipam: IPAMConfig = IPAMConfig()
    runtimeConfig: RuntimeConfig = RuntimeConfig()
    args: Args = Args()


def range_sets(config: Config) -> tuple[RangeSet, ...]:
    """Return the sets of a configuration in the order in which they are served.

    InvalidConfig (7) names the field and the value that cannot be.
    """
    return _range_sets(config.runtimeConfig.ipRanges, config.ipam)


@lru_cache(maxsize=64)
def _range_sets(supplied: tuple[tuple[RangeConfig, ...], ...], ipam: IPAMConfig) -> tuple[RangeSet, ...]:
    named: list[tuple[str, Sequence[RangeConfig]]] = [
        (f"runtimeConfig.ipRanges[{n}]", each) for n, each in enumerate(supplied)
    ]
    if ipam.subnet:
        named.append(("", (ipam,)))
    elif ipam.rangeStart or ipam.rangeEnd or ipam.gateway:
        raise InvalidConfig("ipam.subnet: missing, but rangeStart, rangeEnd or gateway is set")
    named += [(f"ipam.ranges[{n}]", each) for n, each in enumerate(ipam.ranges)]
    if not named:
        raise InvalidConfig("ipam: no ranges; set ipam.subnet or ipam.ranges")
    sets = tuple(_range_set(path, each) for path, each in named)
    try:
        check_disjoint(sets)
    except RangeError as error:
        raise InvalidConfig(f"ipam.{error}") from error
    return sets


def _range_set(path: str, configured: Sequence[RangeConfig]) -> RangeSet:
    if not configured:
        raise InvalidConfig(f"{path}: a set of ranges is empty")
    where = path
    try:
        ranges = []
        for n, one in enumerate(configured):
            where = f"{path}[{n}]" if path else "ipam"
            ranges.append(
                Range.parse(one.subnet, start=one.rangeStart, end=one.rangeEnd, gateway=one.gateway)
            )
        where = path or "ipam"
        return RangeSet(ranges)
    except RangeError as error:
        raise InvalidConfig(f"{where}.{error}") from error


def _requested(request: Request[Config]) -> list[Address]:
    wishes: list[Address] = []
    if text := request.args.get("IP"):
        wishes.append(_wish("CNI_ARGS IP", text, InvalidEnvironment))
    for field, texts in (
        ("args.cni.ips", request.config.args.cni.ips),
        ("runtimeConfig.ips", request.config.runtimeConfig.ips),
    ):
        wishes += [_wish(f"{field}[{n}]", text, InvalidConfig) for n, text in enumerate(texts)]
    return wishes


def _wish(field: str, text: str, error: type[CNIError]) -> Address:
    host, slash, length = text.partition("/")
    try:
        address = ip_address(host)
        if slash and not 0 <= int(length) <= address.max_prefixlen:
            raise ValueError
    except ValueError:
        raise error(f'{field} "{text}": is not an IP address') from None
    return address


@contextmanager
def told() -> Iterator[None]:
    """Turn this project's address errors into those of the protocol."""
    try:
        yield
    except (RangeError, AddressUnusable) as error:
        raise InvalidConfig(str(error)) from error
    except (PoolExhausted, LockTimeout) as error:
        raise TryLater(str(error)) from error
    except AddressTaken as error:
        raise CNIError(str(error), code=TAKEN) from error
    except AlreadyAllocated as error:
        raise AlreadyAttached(str(error), code=DUPLICATE) from error
    except StoreError as error:
        raise IOFailure(str(error)) from error
    except IPAMError as error:
        raise CNIError(str(error)) from error


def _directory(request: Request[Config]) -> AddressDirectory:
    return AddressDirectory(request.config.ipam.dataDir or DATA_DIR, request.name)


def _check_version(version: str, sets: Sequence[RangeSet]) -> None:
    if version.startswith(("0.1.", "0.2.")) and len({one.version for one in sets}) < len(sets):
        raise IncompatibleVersion(
            f"cniVersion {version} does not support more than one address a family",
            f"{len(sets)} sets of ranges are configured",
        )


def add(request: Request[Config], _kernel: object) -> Result:
    """Give the attachment one address of each set."""
    sets = range_sets(request.config)
    _check_version(request.cni_version, sets)
    wishes = _requested(request)
    dns = _dns(request.config.ipam.resolvConf)
    holder = Holder(request.container_id, request.ifname)
    with told(), _directory(request).locked(request.deadline) as leases:
        # The same container, started again after a reboot by a runtime that sends no DEL for what that ended.
        if leases.held_by(*holder) and leases.all_older_than(booted(), *holder):
            leases.release(*holder)
        allocations = allocate(leases, sets, holder, wishes)
    return Result(
        ips=tuple(IPConfig(one.cidr, "" if one.gateway is None else str(one.gateway)) for one in allocations),
        routes=request.config.ipam.routes,
        dns=dns,
    )


def booted() -> float:
    """Return when the machine was started, by today's clock (`time.time`)."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def check(request: Request[Config], _kernel: object) -> None:
    """Verify that the attachment holds addresses, and those of the result that are ours to give."""
    directory = _directory(request)
    sets = range_sets(request.config)
    holder = Holder(request.container_id, request.ifname)
    nothing = CNIError(f"host-local: container {holder} holds no address of network {request.name}", code=100)
    if not directory.exists():
        raise nothing
    with told(), directory.locked(request.deadline) as leases:
        held = leases.confirmed(*holder)
        if not held:
            raise nothing
        for ip in request.prev_result.ips if request.prev_result else ():
            address = ip_address(ip.address.partition("/")[0])
            if address in held or not any(one.range_of(address) for one in sets):
                continue
            other = leases.taken(address.version).get(int(address))
            has = f"is held by {other}" if other else "is free"
            raise CNIError(f"host-local: address {address} of container {holder} {has}", code=100)


def delete(request: Request[Config], _kernel: object) -> None:
    """Free the attachment's addresses; having none is success."""
    directory = _directory(request)
    if directory.exists():
        with told(), directory.locked(request.deadline) as leases:
            leases.release(request.container_id, request.ifname)


def gc(request: Request[Config], _kernel: object) -> None:
    """Free the addresses of this network that no valid attachment holds; without a list, none."""
    directory = _directory(request)
    if request.valid_attachments is None or not directory.exists():
        return
    valid = {(one.container_id, one.ifname) for one in request.valid_attachments}
    with told(), directory.locked(request.deadline) as leases:
        leases.retain(valid)


def status(request: Request[Config], _kernel: object) -> None:
    """Raise NotAvailable (50) if an ADD would find no free address, or could not write one down."""
    sets = range_sets(request.config)
    directory = _directory(request)
    if not directory.exists():
        home = next(path for path in Path(directory.path).parents if path.exists())
        if not (home.is_dir() and os.access(home, os.W_OK)):
            raise NotAvailable(f"host-local: {directory.path} cannot be made below {home}")
        return
    try:
        with directory.locked(request.deadline) as leases:
            full = exhausted(leases, sets)
    except IPAMError as error:
        raise NotAvailable(f"host-local: {error}") from error
    if full is not None:
        raise NotAvailable(f"host-local: no free address in {full} of network {request.name}")


def _dns(path: str) -> DNS:
    if not path:
        return NO_DNS
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidConfig(f"ipam.resolvConf {path}: {os.strerror(error.errno or 0)}") from error
    nameservers: list[str] = []
    domain = ""
    search: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        match line.partition("#")[0].partition(";")[0].split():
            case ["nameserver", server, *_]:
                nameservers.append(server)
            case ["domain", name, *_]:
                domain = name
            case ["search", *names]:  # resolv.conf(5): the last one counts
                search = tuple(names)
            case ["options", *words]:
                options += words
            case _:
                pass
    return DNS(tuple(nameservers), domain, search, tuple(options))


PLUGIN = Plugin(
    type="host-local",
    about="Podwire host-local: addresses from ranges of this host",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
