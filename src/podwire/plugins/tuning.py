"""`tuning`: sysctls of the pod's namespace, and MAC, MTU, flags and queue of its interface (chained).

Options: ``sysctl`` {name: value}, ``mac``, ``mtu``, ``promisc``, ``allmulti``, ``txQLen``, ``dataDir``. The
MAC may come from ``CNI_ARGS`` MAC or as capability ``mac``; ``args.cni`` may set every option but
``dataDir``, and is the last to count. The interface's former values are kept in a file (`tuning_backup`), and
come back with the DEL; sysctls end with the namespace. An ADD is all or nothing.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.cni import fields
from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment, NotAvailable
from podwire.cni.plugin import Plugin, Request, Result
from podwire.kernel import links, net_parameters
from podwire.kernel.errors import KernelError
from podwire.kernel.links import Link
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import tuning_sysctls as sysctls
from podwire.plugins.failures import KERNEL, open_netns, open_netns_if_there, told, undone_on_failure
from podwire.plugins.tuning_backup import Backup, Store, encoded
from podwire.plugins.tuning_sysctls import Parameter

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}|[0-9a-f]{2}(-[0-9a-f]{2}){5}|[0-9a-f]{4}(\.[0-9a-f]{4}){2}")
_LARGEST = 2**31 - 1
# What the kernel says of a value that the interface cannot have (any more): trying again would be in vain.
_IMPOSSIBLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EADDRNOTAVAIL, errno.ERANGE, errno.EBUSY})


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


class Tuned(msgspec.Struct, frozen=True):
    """The options, as the configuration and ``args.cni`` have them; None is not set."""

    sysctl: dict[str, str] | None = None
    mac: str | None = None
    promisc: bool | None = None
    mtu: int | None = None
    allmulti: bool | None = None
    txQLen: int | None = None


class Args(msgspec.Struct, frozen=True):
    """``args`` of a network."""

    cni: Tuned = Tuned()


class MacConfig(msgspec.Struct, frozen=True):
    """A MAC that the runtime asks for."""

    mac: str = ""


class Configured(Tuned, frozen=True):
    """All that is read of a configuration."""

    dataDir: str = ""
    runtimeConfig: MacConfig = MacConfig()
    args: Args = Args()


class Settings(msgspec.Struct, frozen=True):
    """What is to be, put together and checked. Empty and None: left as it is."""

    sysctl: Mapping[str, str]
    mac: str
    promisc: bool | None
    mtu: int | None
    allmulti: bool | None
    txqlen: int | None
    store: Store

    @property
    def of_link(self) -> bool:
        """Whether anything of the interface is to change."""
        return bool(self.mac) or any(
            one is not None for one in (self.promisc, self.mtu, self.allmulti, self.txqlen)
        )


def settings(request: Request[Anything]) -> Settings:
    """Decode, join and check the options. InvalidConfig (7) and InvalidEnvironment (4) name the field."""
    try:
        found = fields.convert(request.raw, Configured)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "tuning": {error}') from None
    asked = found.args.cni
    mtu = _number("mtu", found.mtu if asked.mtu is None else asked.mtu)
    promisc = found.promisc if asked.promisc is None else asked.promisc
    return Settings(
        sysctl={**(found.sysctl or {}), **(asked.sysctl or {})},
        mac=_mac(request, found),
        promisc=promisc or None,  # false leaves the interface as it is
        mtu=mtu or None,
        allmulti=found.allmulti if asked.allmulti is None else asked.allmulti,
        txqlen=_number("txQLen", found.txQLen if asked.txQLen is None else asked.txQLen),
        store=Store(found.dataDir),
    )


def _number(field: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= _LARGEST:
        raise InvalidConfig(f"{field} {value}: is not between 0 and {_LARGEST}")
    return value


def _mac(request: Request[Anything], found: Configured) -> str:
    mac = ""
    for field, value, error in (
        ("mac", found.mac, InvalidConfig),
        ("CNI_ARGS MAC", request.args.get("MAC") or None, InvalidEnvironment),
        ("runtimeConfig.mac", found.runtimeConfig.mac or None, InvalidConfig),
        ("args.cni.mac", found.args.cni.mac, InvalidConfig),
    ):
        if value is None:
            continue
        if value and not _MAC.fullmatch(value.lower()):
            raise error(f'{field} "{value}": is not a MAC, as 02:00:5e:10:00:01')
        mac = bytes.fromhex(re.sub("[:.-]", "", value)).hex(":") if value else ""
        if value and (int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00"):
            raise error(f'{field} "{value}": is not the MAC of a station')
    return mac


def add(request: Request[Anything], _kernel: Any) -> Result:
    """Set all that is configured, or nothing; the result is the chain's, with the interface as it is now."""
    options = settings(request)
    sysctls.check_allowed(options.sysctl)
    parameters = sysctls.parameters(options.sysctl, request.ifname)
    result = request.need_prev_result()
    former: list[tuple[Parameter, str]] = []
    with told("tuning"), open_netns(request.netns) as container, undone_on_failure() as undo:
        if parameters:
            undo.append(lambda: container.run(lambda: _write_back(former)))
            # Sysctls first: an MTU below 1280 takes the interface's IPv6 away, and those of it.
            container.run(lambda: _write(parameters, former))
        if options.of_link:
            _set_link(request, options, container)
    return _result(result, request.ifname, options)


def _write(parameters: tuple[Parameter, ...], former: list[tuple[Parameter, str]]) -> None:
    """Set the sysctls of the calling thread's namespace, once all are known to be there."""
    values = [(one, sysctls.read(one)) for one in parameters]
    for one, value in values:
        if value is not None:
            former.append((one, value))
        net_parameters.write(one.parts, one.value)


def _write_back(former: list[tuple[Parameter, str]]) -> None:
    for one, value in reversed(former):
        net_parameters.write(one.parts, value)


def _set_link(request: Request[Anything], options: Settings, container: Netns) -> None:
    """Write down what the interface is, then change it.

    If that fails all is as before, the file too; if even that fails, the file stays for the DEL.
    """
    store, key = options.store, (request.container_id, request.ifname)
    with RouteSocket.open(container) as sock, undone_on_failure() as undo:
        link = _link(sock, request.ifname)
        device, inode = container.identity
        before = _before(link, options)
        backup = msgspec.structs.replace(before, network=request.name, netns=f"{device}:{inode}")
        there = store.read(*key)
        if there is not None and there[1].netns == backup.netns:
            # Another `tuning` of the same list: what it found was there before.
            backup = there[1].over(backup)

        def put_back() -> None:
            sock.send(_change(link, before))
            if there is None:
                store.remove(*key)
            else:
                store.write(*key, there[0])

        undo.append(put_back)
        store.write(*key, encoded(backup))
        sock.send(_change(link, _after(options)))


def _link(sock: RouteSocket, ifname: str) -> Link:
    link = links.get(sock, ifname, details=False)
    if link is None:
        raise CNIError(f"tuning: interface {ifname} is missing in the container", code=KERNEL)
    return link


def _before(link: Link, options: Settings) -> Backup:
    """Return what the interface has of what is to change."""
    return Backup(
        mac=link.mac if options.mac else "",
        promisc=None if options.promisc is None else link.promisc,
        mtu=0 if options.mtu is None else link.mtu,
        allmulti=None if options.allmulti is None else link.allmulti,
        txQLen=None if options.txqlen is None else link.txqlen,
    )


def _after(options: Settings) -> Backup:
    return Backup(options.mac, options.promisc, options.mtu or 0, options.allmulti, options.txqlen)


def _change(link: Link, values: Backup) -> Message:
    return links.configure(
        link.name,
        mac=values.mac or None,
        mtu=values.mtu or None,
        promisc=values.promisc,
        allmulti=values.allmulti,
        txqlen=values.txQLen,
    )


def _result(result: Result, ifname: str, options: Settings) -> Result:
    index = result.interface_index(ifname)
    if index is None:
        return result
    own = result.interfaces[index]
    if options.mac:
        own = msgspec.structs.replace(own, mac=options.mac)
    if options.mtu is not None and own.mtu:
        own = msgspec.structs.replace(own, mtu=options.mtu)
    interfaces = (*result.interfaces[:index], own, *result.interfaces[index + 1 :])
    return msgspec.structs.replace(result, interfaces=interfaces)


def check(request: Request[Anything], _kernel: Any) -> None:
    """Find every value that is not as configured; the error names all of them."""
    options = settings(request)
    parameters = sysctls.parameters(options.sysctl, request.ifname)
    request.need_prev_result()
    with told("tuning"), open_netns(request.netns) as container:
        faults = container.run(lambda: _faults(request.ifname, options, parameters))
    if faults:
        raise CNIError(f"tuning: {'; '.join(faults)}", code=KERNEL)


def _faults(ifname: str, options: Settings, parameters: tuple[Parameter, ...]) -> list[str]:
    faults = []
    for one in parameters:
        present = sysctls.read(one)
        if present is not None and not sysctls.same(one.value, present):
            faults.append(f'sysctl {one.key} is "{present}", not "{one.value}"')
    if not options.of_link:
        return faults
    with RouteSocket.open() as sock:
        link = _link(sock, ifname)
    for name, wanted, has in (
        ("MAC", options.mac or None, link.mac),
        ("promisc", options.promisc, link.promisc),
        ("mtu", options.mtu, link.mtu),
        ("allmulti", options.allmulti, link.allmulti),
        ("txQLen", options.txqlen, link.txqlen),
    ):
        if wanted is not None and wanted != has:
            faults.append(f"{name} of {ifname} is {has}, not {wanted}")
    return faults


def _store(request: Request[Anything]) -> Store:
    """Find the files' place for a DEL or GC, whatever else the configuration holds."""
    directory = fields.lookup(request.raw, "dataDir", "")
    return Store(directory if isinstance(directory, str) else "")


def delete(request: Request[Anything], _kernel: Any) -> None:
    """Put back what the interface was, if it is there, and remove the file."""
    store, key = _store(request), (request.container_id, request.ifname)
    there = store.read(*key)
    if there is None:
        return
    backup = there[1]
    container = open_netns_if_there(request.netns)
    if container is not None:
        with told("tuning"), container:
            device, inode = container.identity
            if backup.netns in {"", f"{device}:{inode}"}:
                _restore(request, container, backup)
    store.remove(*key)


def _restore(request: Request[Anything], container: Netns, backup: Backup) -> None:
    with RouteSocket.open(container) as sock:
        link = links.get(sock, request.ifname, details=False)
        if link is None:
            return
        for name in ("mtu", "mac", "promisc", "allmulti", "txQLen"):
            only = Backup(**{name: getattr(backup, name)})
            if only == Backup():
                continue
            try:
                sock.send(_change(link, only))
            except KernelError as error:
                if error.errno not in _IMPOSSIBLE | {errno.ENODEV}:
                    raise
                request.stderr.append(f"tuning: {name} of {request.ifname} is not put back: {error}")


def gc(request: Request[Anything], _kernel: Any) -> None:
    """Remove the files of this network's attachments that are gone."""
    valid = {(one.container_id, one.ifname) for one in request.valid_attachments or ()}
    _store(request).collect(request.name, valid)


def status(request: Request[Anything], _kernel: Any) -> None:
    """Raise what an ADD would: for options that cannot be, names not allowed, no place for files."""
    options = settings(request)
    try:
        sysctls.check_allowed(options.sysctl)
    except CNIError as error:
        raise NotAvailable(error.msg, error.details) from error
    sysctls.parameters(options.sysctl, request.ifname or "eth0")
    reason = options.store.unwritable() if options.of_link else ""
    if reason:
        raise NotAvailable(f"tuning: {reason}")


PLUGIN = Plugin(
    type="tuning",
    about="Podwire tuning: sysctls and properties of the pod's interface",
    config=Anything,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
