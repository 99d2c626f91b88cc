"""What is tested, a plugin or a chain of them: executables, types, configurations, versions they speak."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podwire.cni import config as cni_config
from podwire.cni import versions
from podwire.conformance import invocation
from podwire.conformance.findings import NotTestable
from podwire.conformance.profiles import PROFILES, Kind, Profile
from podwire.conformance.services import Daemon

NETWORK = "conformance"
TIMEOUT = 20.0
CHAIN = ","
"""Between the plugins of a chain."""


class Subject(msgspec.Struct, frozen=True):
    """A plugin under test. ``path`` is its CNI_PATH, ``given`` the configuration that the user gave.

    ``single`` says why it can have no second attachment at a time; empty: it can. ``daemon`` is what it hands
    its work to, started on each host of a check. ``then`` are the plugins after it in a chain, which is then
    tested as one.
    """

    type: str
    executable: str
    path: tuple[str, ...]
    profile: Profile
    network: str = NETWORK
    given: Mapping[str, Any] | None = None
    versions: tuple[str, ...] = versions.SUPPORTED
    timeout: float = TIMEOUT
    single: str = ""
    daemon: Daemon | None = None
    then: tuple[Subject, ...] = ()

    @property
    def name(self) -> str:
        """Its type; of a chain all types, with commas."""
        return CHAIN.join(one.type for one in self.members)

    @property
    def members(self) -> tuple[Subject, ...]:
        """The plugins in the order of their ADDs."""
        return (self, *self.then)

    @property
    def kind(self) -> Kind:
        """What it is in a chain."""
        return self.profile.kind

    @property
    def version(self) -> str:
        """The newest version that both sides speak."""
        common = [one for one in self.versions if one in versions.SUPPORTED]
        return max(common or versions.SUPPORTED, key=versions.parse)

    def config(self, number: int = 1, version: str = "") -> dict[str, Any]:
        """The execution configuration of an attachment, without ``prevResult``."""
        own = dict(self.given) if self.given is not None else self.profile.options(number)
        return {"cniVersion": version or self.version, "name": self.network, "type": self.type, **own}

    def variables(self, command: str) -> dict[str, str]:
        """The variables that any command gets."""
        return {"CNI_COMMAND": command, "CNI_PATH": os.pathsep.join(self.path)}


def resolve(
    plugin: str,
    path: Sequence[str],
    conf: Path | None = None,
    timeout: float = TIMEOUT,
    daemon: Daemon | None = None,
) -> Subject:
    """Find a plugin by its path or by its type, and its configuration; NotTestable says what is missing.

    ``conf`` is a network configuration, list or single, with an entry of the plugin's type. Several plugins
    with commas between them are a chain: one that makes the interface, then chained ones.
    """
    first, *others = [_resolve_one(one, path, conf, timeout) for one in plugin.split(CHAIN)]
    for one in (first, *others) if others else ():
        wanted = Kind.MAIN if one is first else Kind.CHAINED
        if one.type not in PROFILES or one.kind is not wanted:
            raise NotTestable(
                f'"{plugin}": {one.type} is no known plugin of the kind {wanted.value}; a chain is'
                f" one of the kind {Kind.MAIN.value}, then some of the kind {Kind.CHAINED.value}"
            )
    directories = tuple(dict.fromkeys(directory for one in (first, *others) for directory in one.path))
    return msgspec.structs.replace(first, path=directories, daemon=daemon, then=tuple(others))


def _resolve_one(plugin: str, path: Sequence[str], conf: Path | None, timeout: float) -> Subject:
    executable = _find(plugin, path)
    name = executable.name
    directories = tuple(dict.fromkeys([str(executable.parent), *path]))
    network, given = NETWORK, None
    if conf is not None:
        found = cni_config.load_list(conf)
        entries = [one for one in found.plugins if one.type == name]
        if not entries:
            raise NotTestable(f'{conf}: no plugin of type "{name}" in network {found.name}')
        network = found.name
        given = {key: value for key, value in entries[0].raw.items() if key not in {"cniVersion", "name"}}
    profile = PROFILES.get(name)
    if profile is None and given is None:
        known = ", ".join(sorted(PROFILES))
        raise NotTestable(
            f'"{name}" is none of the types with a default configuration ({known}): give --conf'
        )
    return Subject(
        name,
        str(executable),
        directories,
        profile or PROFILES["bridge"],
        network,
        given,
        timeout=timeout,
    )


def _find(plugin: str, path: Sequence[str]) -> Path:
    places = [Path(plugin)] if "/" in plugin else [Path(directory) / plugin for directory in path]
    for place in places:
        if place.is_file():
            if not os.access(place, os.X_OK):
                raise NotTestable(f"{place}: is not executable")
            return place.absolute()
    if "/" in plugin:
        raise NotTestable(f"{plugin}: no such file")
    raise NotTestable(f'no plugin "{plugin}" in {":".join(path) or "an empty CNI_PATH"}')


def spoken_versions(subject: Subject) -> tuple[str, ...]:
    """Ask for the versions that every plugin speaks; one that does not answer counts as speaking all.

    A check tells that it does not.
    """
    spoken = [_spoken_by(one) for one in subject.members]
    return tuple(one for one in versions.SUPPORTED if all(one in each for each in spoken))


def _spoken_by(subject: Subject) -> tuple[str, ...]:
    stdin = msgspec.json.encode({"cniVersion": versions.CURRENT})
    ran = invocation.execute(
        subject.executable, subject.variables("VERSION"), stdin, label="VERSION", timeout=subject.timeout
    )
    said = ran.said
    listed = said.get("supportedVersions") if isinstance(said, dict) else None
    usable = [one for one in listed or () if one in versions.SUPPORTED]
    return tuple(usable) or versions.SUPPORTED
