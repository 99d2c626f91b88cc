"""``podwire cni``: the verbs, variables and exit status of cnitool, and what it does not have."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations
from podwire.cli.output import note

if TYPE_CHECKING:
    from podwire.cni.config import Choice, NetworkConfigList
    from podwire.cni.plugin import AttachmentKey, Plugin
    from podwire.cni.runtime import Runtime

NETCONFPATH = "/etc/cni/net.d"
PLUGIN_DIRECTORIES = ("/opt/cni/bin", "/usr/lib/cni")
CACHE = Path("/var/lib/cni")


@dataclass(frozen=True, slots=True)
class Options:
    """What the verbs have in common; ``keep`` is for gc (None: by the namespaces that are still there)."""

    places: Locations
    output: str = ""
    trace: bool = False
    ifname: str = "eth0"
    keep: tuple[str, ...] | None = None


def container_id(netns: str) -> str:
    """The container ID that cnitool gives the namespace at ``netns``."""
    return "cnitool-" + hashlib.sha512(str(Path(netns).absolute()).encode()).hexdigest()[:20]


def capability_args(text: str) -> dict[str, Any]:
    """The object in CAP_ARGS."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"CAP_ARGS {text!r}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"CAP_ARGS {text!r}: not a JSON object", hint='As in: {"portMappings":[...]}')
    return found


def plugin_path(environ: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """The directories of plugin programs, and whether the user named them."""
    named = tuple(entry for entry in environ.get("CNI_PATH", "").split(":") if entry)
    return (named, True) if named else (PLUGIN_DIRECTORIES, False)


def own_plugins(path: tuple[str, ...], *, named: bool) -> dict[str, Plugin[Any, Any]]:
    """The plugins to run in this process: ours, but for those of which a program is in a ``named`` path."""
    from podwire import plugins

    ours = {}
    for kind in plugins.TYPES:
        if named and any(os.access(Path(directory) / kind, os.X_OK) for directory in path):
            continue
        plugin = plugins.load(kind)
        if plugin is not None:
            ours[kind] = plugin
    return ours


def run(verb: str, network: str, netns: str, options: Options) -> int:
    """Do ``verb`` and print its answer: for add the result; for check, del and status nothing."""
    from podwire.cni.errors import CNIError

    if options.output not in {"", "json"}:
        raise usage(f"--output {options.output!r} is not a form", hint="It can be: json.")
    try:
        answer = asyncio.run(_perform(verb, network, netns, options))
    except CNIError as error:
        if options.output == "json":
            print(error.to_json().decode())
            return 1
        raise
    if answer:
        print(answer)
    return 0


async def _perform(verb: str, network: str, netns: str, options: Options) -> str:
    from podwire.cni.config import load_directory
    from podwire.cni.errors import CNIError

    directory = load_directory(os.environ.get("NETCONFPATH") or NETCONFPATH)
    choice = directory.choose(network)
    try:
        return await _performed(verb, choice, netns, options)
    except CNIError as error:
        if options.output == "json":
            raise
        raise CommandError(f"{choice.network.source}: {error}") from error


async def _performed(verb: str, choice: Choice, netns: str, options: Options) -> str:
    async with _runtime(options) as runtime:
        match verb:
            case "gc":
                return await _gc(runtime, choice.network, options)
            case "status":
                await runtime.status(choice.network)
                return ""
            case "version":
                return await _version(runtime, choice.network, options)
            case "validate":
                return await _validate(runtime, choice.network, choice.reason, options)
            case _:
                return await _attach(runtime, verb, choice.network, netns, options)


@asynccontextmanager
async def _runtime(options: Options) -> AsyncIterator[Runtime]:
    from podwire.cli.cnitrace import Trace
    from podwire.cni.runtime import Runtime
    from podwire.kernel.host import Kernel

    path, named = plugin_path(os.environ)
    cache = options.places.results if options.places.root else CACHE
    observe = Trace(as_json=options.output == "json") if options.trace else None
    with Kernel.open() as kernel:
        plugins = own_plugins(path, named=named)
        async with Runtime(plugins, kernel, path=path, cache_dir=cache, observe=observe) as runtime:
            yield runtime


async def _attach(
    runtime: Runtime, verb: str, network: NetworkConfigList, netns: str, options: Options
) -> str:
    from podwire.cni.args import parse_args
    from podwire.cni.convert import encode_result
    from podwire.cni.runtime import Attachment, TraceContext

    attachment = Attachment(
        container_id=container_id(netns),
        netns=str(Path(netns).absolute()),
        ifname=options.ifname,
        args=parse_args(os.environ.get("CNI_ARGS", "")),
        capability_args=capability_args(os.environ.get("CAP_ARGS", "")),
    )
    if verb != "del" and not Path(netns).exists():
        raise CommandError(f"{netns}: no such network namespace", hint=_netns_hint(netns))
    trace = TraceContext.from_headers(os.environ)
    if verb == "add":
        result = await runtime.add(network, attachment, trace=trace)
        return encode_result(result, network.cni_version).decode()
    await (runtime.check if verb == "check" else runtime.delete)(network, attachment, trace=trace)
    return ""


async def _gc(runtime: Runtime, network: NetworkConfigList, options: Options) -> str:
    from podwire.cni.errors import CNIError

    before = [record.key[1:] for record in runtime.attachments(network=network.name)]
    named = options.keep
    keep = _alive(runtime, network.name) if named is None else [_key(text) for text in named]
    failure: CNIError | None = None
    try:
        await runtime.gc(network, keep)
    except CNIError as error:
        failure = error
    after = [record.key[1:] for record in runtime.attachments(network=network.name)]
    removed = [key for key in before if key not in after]
    if options.output == "json" and failure is None:
        return json.dumps({"kept": _listed(after), "removed": _listed(removed)}, indent=4)
    for container, ifname in removed:
        note(f"removed {container} {ifname}")
    if failure is not None:
        raise failure
    return ""


def _listed(keys: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"containerID": container, "ifname": ifname} for container, ifname in keys]


def _alive(runtime: Runtime, network: str) -> list[AttachmentKey]:
    """The attachments whose namespace is still there, or unknown: what nobody can tell is not removed."""
    from podwire.cni.plugin import AttachmentKey

    keep = []
    for record in runtime.attachments(network=network):
        result = record.typed_result()
        inside = [each.sandbox for each in result.interfaces if each.sandbox] if result else []
        netns = record.netns or next(iter(inside), "")
        if not netns or Path(netns).exists():
            keep.append(AttachmentKey(record.container_id, record.ifname))
    return keep


def _key(text: str) -> AttachmentKey:
    from podwire.cni.plugin import AttachmentKey

    container, _, ifname = text.partition("/")
    if not container or "/" in ifname:
        raise usage(f"--keep {text!r} names no attachment", hint="As in: --keep CONTAINER_ID/eth0")
    return AttachmentKey(container, ifname or "eth0")


async def _version(runtime: Runtime, network: NetworkConfigList, options: Options) -> str:
    types = dict.fromkeys(name for each in network.plugins for name in (each.type, each.ipam_type) if name)
    spoken = {name: await runtime.versions(name) for name in types}
    if options.output == "json":
        plugins = [{"type": name, "supportedVersions": list(known)} for name, known in spoken.items()]
        return json.dumps({"cniVersion": network.cni_version, "plugins": plugins}, indent=4)
    width = max(len(name) for name in types)
    return "\n".join(f"{name:{width}}  {' '.join(known)}" for name, known in spoken.items())


async def _validate(runtime: Runtime, network: NetworkConfigList, reason: str, options: Options) -> str:
    capabilities = await runtime.validate(network)
    types = [plugin.type for plugin in network.plugins]
    if options.output == "json":
        said = {
            "name": network.name,
            "cniVersion": network.cni_version,
            "source": network.source,
            "plugins": types,
            "capabilities": list(capabilities),
        }
        return json.dumps(said, indent=4)
    note(reason)
    able = f", capabilities {', '.join(capabilities)}" if capabilities else ""
    return f"{network.name}: valid, cniVersion {network.cni_version}, plugins {', '.join(types)}{able}"


def _netns_hint(netns: str) -> str:
    named = Path("/run/netns") / netns
    if "/" not in netns and named.exists():
        return f"Give the path: {named}"
    return "Make one with: ip netns add NAME; its path is then /run/netns/NAME"
