"""``podwire cni``: the verbs, variables and exit status of cnitool."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations

if TYPE_CHECKING:
    from podwire.cni.plugin import Plugin

NETCONFPATH = "/etc/cni/net.d"
PLUGIN_DIRECTORIES = ("/opt/cni/bin", "/usr/lib/cni")
CACHE = Path("/var/lib/cni")


def container_id(netns: str) -> str:
    """The container ID that cnitool gives the namespace at ``netns``."""
    return "cnitool-" + hashlib.sha512(str(Path(netns).absolute()).encode()).hexdigest()[:20]


def capability_args(text: str) -> dict[str, Any]:
    """The object in CAP_ARGS."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
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


def run(verb: str, network: str, netns: str, *, ifname: str, output: str, places: Locations) -> int:
    """Do ``verb`` and print what cnitool prints: the result of add; nothing for the others."""
    from podwire.cni.errors import CNIError

    if output not in {"", "json"}:
        raise usage(f"--output {output!r} is not a form", hint="It can be: json.")
    try:
        answer = _perform(verb, network, netns, ifname, places)
    except CNIError as error:
        if output == "json":
            print(error.to_json().decode())
            return 1
        raise
    if answer:
        print(answer)
    return 0


def _perform(verb: str, network: str, netns: str, ifname: str, places: Locations) -> str:
    from podwire.cni import config
    from podwire.cni.args import parse_args
    from podwire.cni.convert import encode_result
    from podwire.cni.runtime import Attachment, Runtime
    from podwire.kernel.host import Kernel

    attachment = Attachment(
        container_id=container_id(netns),
        netns=str(Path(netns).absolute()),
        ifname=ifname,
        args=parse_args(os.environ.get("CNI_ARGS", "")),
        capability_args=capability_args(os.environ.get("CAP_ARGS", "")),
    )
    if verb != "del" and not Path(netns).exists():
        raise CommandError(f"{netns}: no such network namespace", hint=_netns_hint(netns))
    found = config.find(Path(os.environ.get("NETCONFPATH") or NETCONFPATH), network)
    path, named = plugin_path(os.environ)

    async def perform() -> str:
        with Kernel.open() as kernel:
            cache = places.results if places.root else CACHE
            async with Runtime(own_plugins(path, named=named), kernel, path=path, cache_dir=cache) as runtime:
                if verb == "add":
                    result = await runtime.add(found, attachment)
                    return encode_result(result, found.cni_version).decode()
                await (runtime.check if verb == "check" else runtime.delete)(found, attachment)
                return ""

    return asyncio.run(perform())


def _netns_hint(netns: str) -> str:
    named = Path("/run/netns") / netns
    if "/" not in netns and named.exists():
        return f"Give the path: {named}"
    return "Make one with: ip netns add NAME; its path is then /run/netns/NAME"
