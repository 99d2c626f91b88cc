"""What a node changes on its host, written down before it changes it, so that all of it can be put back.

Turning forwarding on changes more than one value: the kernel sets every interface's ``forwarding`` along with
it, and ``accept_redirects`` (net/ipv4/devinet.c inet_forward_change, net/ipv6/addrconf.c
addrconf_fixup_forwarding). So the whole set is recorded before, durably; what differs afterwards is ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

_CONF = Path("/proc/sys/net")
_WATCHED = {"ipv4": ("forwarding", "accept_redirects"), "ipv6": ("forwarding", "accept_ra")}
_SWITCHES = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostStateError(Exception):
    """The record cannot be read: ``path`` and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """The record. ``before`` and ``after`` hold sysctls by key; ``after`` is empty until all is set.

    ``directories`` are those that did not exist before, outermost first. ``pod_cidrs`` and ``bridge`` say
    what the node's pods hang on.
    """

    bridge: str
    pod_cidrs: tuple[str, ...]
    node_name: str
    boot_id: str
    directories: tuple[str, ...] = ()
    before: dict[str, str] = {}
    after: dict[str, str] = {}


def boot_id() -> str:
    """The kernel's identity since it started."""
    return _BOOT_ID.read_text().strip()


def missing_directories(*wanted: Path) -> tuple[str, ...]:
    """Those of ``wanted`` and their parents that do not exist, outermost first."""
    found: list[str] = []
    for path in wanted:
        for directory in (*reversed(path.parents), path):
            if not directory.exists() and str(directory) not in found:
                found.append(str(directory))
    return tuple(found)


def load(path: Path) -> HostState | None:
    """The record at ``path``; None if there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=HostState)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HostStateError(path, str(error)) from error


def save(path: Path, state: HostState) -> None:
    """Write the record durably: it is on the disk, whole, when this returns."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=2))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def prepare(path: Path, wanted: HostState) -> HostState:
    """Record the host as it is and turn forwarding on, for each family of ``wanted.pod_cidrs``.

    A record of the same boot keeps its ``before``; after a reboot the kernel has forgotten our changes, so
    the values of now are the ones to return to.
    """
    known = load(path)
    directories = wanted.directories
    if known is not None:
        directories = tuple(dict.fromkeys((*known.directories, *wanted.directories)))
    same_boot = known is not None and known.boot_id == wanted.boot_id
    current = snapshot()
    before = {**current, **known.before} if known is not None and same_boot else current
    state = msgspec.structs.replace(wanted, directories=directories, before=before, after={})
    save(path, state)
    for family in sorted({6 if ":" in cidr else 4 for cidr in wanted.pod_cidrs}):
        key = _SWITCHES[family]
        if read(key) == "1":
            continue
        if family == 6:
            _keep_router_advertisements(current)
        write(key, "1")
    now = snapshot()
    changed = {key: value for key, value in now.items() if before.get(key, value) != value}
    state = msgspec.structs.replace(state, before={key: before[key] for key in changed}, after=changed)
    save(path, state)
    return state


def restore(state: HostState) -> dict[str, tuple[str, str]]:
    """Put back every sysctl that still has our value.

    Returns those that somebody has changed since, with the value found and the one it had before us: they
    stay as they are. Nothing is put back after a reboot.
    """
    if state.boot_id != boot_id():
        return {}
    current = snapshot()
    target = dict(current)
    foreign: dict[str, tuple[str, str]] = {}
    for key, value in state.before.items():
        if key not in current or current[key] == value:
            continue
        if state.after and current[key] != state.after[key]:
            foreign[key] = (current[key], value)
        else:
            target[key] = value
    # A switch drags every interface along, those that came after us too: set it first, then each by itself.
    switches = [key for key in _SWITCHES.values() if key in target]
    for key in (*switches, *(key for key in target if key not in switches)):
        if read(key) != target[key]:
            write(key, target[key])
    return foreign


def snapshot() -> Mapping[str, str]:
    """The sysctls that forwarding touches, by key below /proc/sys."""
    return dict(_values())


def read(key: str) -> str:
    """A sysctl's value."""
    return (Path("/proc/sys") / key).read_text().strip()


def write(key: str, value: str) -> None:
    """Set a sysctl."""
    (Path("/proc/sys") / key).write_text(value)


def _keep_router_advertisements(current: Mapping[str, str]) -> None:
    """A forwarding interface takes no router advertisements, and loses its default route, unless told to.

    accept_ra 2 keeps what 1 means without forwarding (ip-sysctl.rst).
    """
    for key, value in current.items():
        _, family, _, interface, name = key.split("/") if key.count("/") == 4 else ("",) * 5
        if family == "ipv6" and name == "accept_ra" and value == "1" and interface not in {"all", "default"}:
            write(key, "2")


def _values() -> Iterator[tuple[str, str]]:
    yield _SWITCHES[4], read(_SWITCHES[4])
    for family, names in _WATCHED.items():
        directory = _CONF / family / "conf"
        if not directory.is_dir():
            continue
        for interface in sorted(entry.name for entry in directory.iterdir()):
            for name in names:
                key = f"net/{family}/conf/{interface}/{name}"
                try:
                    yield key, read(key)
                except FileNotFoundError:
                    # The interface went away while we looked.
                    continue
