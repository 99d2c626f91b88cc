"""Network configurations: lists of plugins, from text, files and directories (spec 1.1.0 section 1).

What a file is, its content says: one with ``plugins`` is a list, one with a ``type`` a list of that plugin,
whatever its extension. A bad file in a directory is a problem to show, and no obstacle for the good ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.cni import args, convert, fields, gojson, versions
from podwire.cni.errors import CNIError, InvalidConfig
from podwire.cni.request import ipam_type
from podwire.cni.types import Result

if TYPE_CHECKING:
    from pathlib import Path

LIST_SUFFIX = ".conflist"
SUFFIXES = (LIST_SUFFIX, ".conf", ".json")
_LARGEST = 8 << 20
_INJECTED = frozenset({"name", "cniversion", "prevresult", "capabilities"})


class ConfigError(InvalidConfig):
    """7: a configuration that cannot be used; ``source`` is its file, or what else it came from."""

    def __init__(self, source: str, reason: str, details: str = "") -> None:
        super().__init__(f"{source}: {reason}" if source else reason, details)
        self.source = source
        self.reason = reason


class NetworkNotFound(ConfigError):
    """7: no usable configuration has the name; the details list the files that could not be used."""


class PluginConfig(msgspec.Struct, frozen=True, dict=True):
    """One plugin's part of a list: its type, the capabilities declared true, and the object as written."""

    type: str
    raw: Mapping[str, Any]
    capabilities: tuple[str, ...] = ()

    @cached_property
    def ipam_type(self) -> str:
        """The type of the IPAM plugin that it delegates to, or an empty string."""
        return ipam_type(self.raw)

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {key: value for key, value in self.raw.items() if key.lower() not in _INJECTED}

    def execution(
        self,
        name: str,
        version: str,
        prev_result: Result | None = None,
        capability_args: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the execution configuration: what the plugin gets on stdin (spec section 3).

        Of ``capability_args`` it gets those that it declares; unknown keys pass as they are.
        """
        made = {**self._kept, "name": name, "cniVersion": version}
        if prev_result is not None:
            made["prevResult"] = convert.to_object(prev_result, version)
        if capability_args:
            given = {key: capability_args[key] for key in self.capabilities if key in capability_args}
            if given:
                for key in [key for key in made if key.lower() == "runtimeconfig"]:
                    del made[key]
                made["runtimeConfig"] = given
        return made


class NetworkConfigList(msgspec.Struct, frozen=True):
    """A network: its plugins in order, and what holds for all of them.

    ``raw`` is the text that it can be made from again (what the result cache keeps); ``source`` its file.
    """

    name: str
    cni_version: str
    plugins: tuple[PluginConfig, ...]
    disable_check: bool = False
    disable_gc: bool = False
    load_only_inlined_plugins: bool = False
    raw: bytes = b""
    source: str = ""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that any of the plugins declares, sorted."""
        return tuple(sorted({name for plugin in self.plugins for name in plugin.capabilities}))


class Choice(msgspec.Struct, frozen=True):
    """A network that was chosen of a directory, and why it was this one."""

    network: NetworkConfigList
    reason: str


class Directory(msgspec.Struct, frozen=True):
    """The networks of a directory by file name, and what is wrong with the other files."""

    path: Path
    networks: tuple[NetworkConfigList, ...]
    problems: tuple[ConfigError, ...]

    def default(self) -> NetworkConfigList:
        """Return the first network by file name, as runtimes choose it; NetworkNotFound if none is usable."""
        if not self.networks:
            raise NetworkNotFound(str(self.path), "no usable network configuration", self._reasons())
        return self.networks[0]

    def find(self, name: str) -> NetworkConfigList:
        """Return the network of that name (lists before single configurations), or NetworkNotFound."""
        named = [network for network in self.networks if network.name == name]
        if not named:
            raise NetworkNotFound(str(self.path), f'no net configuration with name "{name}"', self._reasons())
        return min(named, key=lambda network: not network.source.endswith(LIST_SUFFIX))

    def choose(self, name: str = "") -> Choice:
        """Return the network of that name, else the first, with the reason; NetworkNotFound if none is."""
        network = self.find(name) if name else self.default()
        file = _file_name(network.source)
        if name:
            others = [each for each in self.networks if each.name == name and each is not network]
            reason = f'{file} has the name "{name}"'
            if others:
                reason += f", as have {', '.join(_file_name(each.source) for each in others)} behind it"
        else:
            reason = f"{file} is the first of {len(self.networks)} by file name"
            unusable = [each for each in self.problems if _file_name(each.source) < file]
            if unusable:
                reason += f"; passed over: {'; '.join(str(each) for each in unusable)}"
        return Choice(network, reason)

    def _reasons(self) -> str:
        return "; ".join(str(problem) for problem in self.problems)


def parse_list(text: bytes | str, source: str = "") -> NetworkConfigList:
    """Return the network that a text describes, list or single plugin; ConfigError names what is wrong."""
    made = _parsed(text, source)
    if not made.plugins:
        raise ConfigError(source, "no plugins: the list has no 'plugins'")
    return made


def load_list(path: Path | str) -> NetworkConfigList:
    """Return the network of a file, with the plugins that ``<directory>/<name>/*.conf`` add to it.

    A ``.conf`` that is not there stands for the ``.conflist`` that it was turned into. ConfigError names the
    file and the field; it is also what a file that cannot be read ends in.
    """
    from pathlib import Path

    path = Path(path)
    if path.suffix == ".conf" and not path.exists() and path.with_suffix(LIST_SUFFIX).exists():
        path = path.with_suffix(LIST_SUFFIX)
    text = _read(path)
    made = _parsed(text, str(path))
    added: list[PluginConfig] = []
    if not made.load_only_inlined_plugins:
        added = [_load_plugin(each) for each in _files(path.parent / made.name, (".conf",))]
    if added:
        made = msgspec.structs.replace(made, plugins=(*made.plugins, *added))
        made = msgspec.structs.replace(made, raw=_rewritten(made))
    if not made.plugins:
        raise ConfigError(str(path), f"no plugins: neither 'plugins' nor {path.parent / made.name}/*.conf")
    return made


def save_list(path: Path | str, text: bytes | str) -> NetworkConfigList:
    """Write a configuration for others to read: whole or not at all, and only what can be used.

    ConfigError for a text that is no network, and where the file cannot be written.
    """
    path = os.fspath(path)
    made = parse_list(text, path)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "wb") as stream:  # noqa: PTH123
                stream.write(text if isinstance(text, bytes) else text.encode())
                stream.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)  # noqa: PTH105
        except BaseException:
            os.unlink(temporary)  # noqa: PTH108
            raise
    except OSError as error:
        raise ConfigError(path, f"cannot write it: {error.strerror}") from error
    return made


def load_directory(directory: Path | str) -> Directory:
    """Return all networks of a directory; a directory that is not there has none."""
    from pathlib import Path

    directory = Path(directory)
    networks: list[NetworkConfigList] = []
    problems: list[ConfigError] = []
    try:
        files = _files(directory, SUFFIXES)
    except ConfigError as error:
        return Directory(directory, (), (error,))
    for path in files:
        try:
            networks.append(load_list(path))
        except ConfigError as error:
            problems.append(error)
    return Directory(directory, tuple(networks), tuple(problems))


def find(directory: Path | str, name: str) -> NetworkConfigList:
    """Return the network of that name in a directory; NetworkNotFound also names the bad files."""
    return load_directory(directory).find(name)


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _files(directory: Path, suffixes: Sequence[str]) -> list[Path]:
    try:
        found = [path for path in directory.iterdir() if path.suffix in suffixes and not path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(str(directory), f"cannot read the directory: {error.strerror}") from error
    return sorted(found, key=lambda path: path.name)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            text = stream.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(str(path), f"cannot read it: {reason}") from error
    if len(text) > _LARGEST:
        raise ConfigError(str(path), f"larger than {_LARGEST} bytes")
    return text


def _object(text: bytes | str, source: str) -> dict[str, Any]:
    try:
        value = gojson.parse(text)
    except ValueError as error:
        raise ConfigError(source, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(source, "not a JSON object")
    return value


def _parsed(text: bytes | str, source: str) -> NetworkConfigList:
    values = _object(text, source)
    name = fields.lookup(values, "name")
    if name is None:
        raise ConfigError(source, "no 'name'")
    try:
        args.check_network_name(name)
    except CNIError as error:
        raise ConfigError(source, f"name: {error.msg}", error.details) from None
    plugins = fields.lookup(values, "plugins")
    single = plugins is None and fields.lookup(values, "type") is not None
    only_inlined = single or _flag(values, "loadOnlyInlinedPlugins", source)
    if single:
        entries = [values]
    elif plugins is None:
        entries = []
        if only_inlined:
            raise ConfigError(source, "loadOnlyInlinedPlugins is true, and there is no 'plugins'")
    elif not isinstance(plugins, list):
        raise ConfigError(source, f"plugins: want a list (it is {_shown(plugins)})")
    elif not plugins:
        raise ConfigError(source, "plugins: the list is empty")
    else:
        entries = plugins
    made = NetworkConfigList(
        name=name,
        cni_version=_version(values, source),
        plugins=tuple(
            _plugin(entry, source, "" if single else f"plugins[{index}]")
            for index, entry in enumerate(entries)
        ),
        disable_check=_flag(values, "disableCheck", source),
        disable_gc=_flag(values, "disableGC", source),
        load_only_inlined_plugins=only_inlined,
        raw=text if isinstance(text, bytes) else text.encode(),
        source=source,
    )
    return msgspec.structs.replace(made, raw=_rewritten(made)) if single else made


def _version(values: Mapping[str, Any], source: str) -> str:
    version = fields.lookup(values, "cniVersion", "")
    offered = fields.lookup(values, "cniVersions", [])
    if not isinstance(version, str):
        raise ConfigError(source, f"cniVersion: want a string (it is {_shown(version)})")
    if not isinstance(offered, list) or not all(isinstance(each, str) for each in offered):
        raise ConfigError(source, f"cniVersions: want a list of strings (it is {_shown(offered)})")
    try:
        return versions.choose(version, offered)
    except CNIError as error:
        raise ConfigError(source, error.msg, error.details) from None


def _flag(values: Mapping[str, Any], key: str, source: str) -> bool:
    value = fields.lookup(values, key, False)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise ConfigError(source, f"{key}: want true or false (it is {_shown(value)})")


def _plugin(entry: Any, source: str, place: str) -> PluginConfig:
    at = f"{place}: " if place else ""
    if not isinstance(entry, dict):
        raise ConfigError(source, f"{at}want an object (it is {_shown(entry)})")
    kind = fields.lookup(entry, "type")
    if kind is None:
        nested = fields.lookup(entry, "plugins") is not None
        hint = "it is itself a list" if nested else ""
        raise ConfigError(source, f"{at}missing 'type'", hint)
    try:
        args.check_plugin_type(kind)
    except CNIError as error:
        raise ConfigError(source, f"{at}{error.msg}", error.details) from None
    declared = fields.lookup(entry, "capabilities", {})
    if not isinstance(declared, dict) or not all(isinstance(value, bool) for value in declared.values()):
        shown = _shown(declared)
        raise ConfigError(source, f"{at}capabilities: want names with true or false (it is {shown})")
    return PluginConfig(kind, entry, tuple(name for name, value in declared.items() if value))


def _load_plugin(path: Path) -> PluginConfig:
    return _plugin(_object(_read(path), str(path)), str(path), "")


def _rewritten(made: NetworkConfigList) -> bytes:
    """Say the whole list in one text, so that the cached configuration needs no other file."""
    return msgspec.json.encode(
        {
            "cniVersion": made.cni_version,
            "name": made.name,
            "disableCheck": made.disable_check,
            "disableGC": made.disable_gc,
            "loadOnlyInlinedPlugins": True,
            "plugins": [plugin.raw for plugin in made.plugins],
        }
    )


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:80] + "..."
