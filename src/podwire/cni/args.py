"""Identifiers and ``CNI_ARGS``: what may stand in them (spec 1.1.0 sections 2 and 3, CONVENTIONS.md)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment, UnknownContainer

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_IFNAME_MAX = 15
_NAME_RULE = "want a letter or digit, then letters, digits, '_', '.' or '-'"


def check_container_id(container_id: str) -> None:
    """Raise UnknownContainer (3) for an empty container ID, InvalidEnvironment (4) for a bad one."""
    if not container_id:
        raise UnknownContainer("missing containerID")
    if not _NAME.fullmatch(container_id):
        raise InvalidEnvironment(f"invalid characters in containerID {_shown(container_id)}", _NAME_RULE)


def check_network_name(name: object) -> None:
    """Raise InvalidConfig (7) for a network name that is missing or could not be a file name."""
    if not isinstance(name, str):
        raise InvalidConfig(f"network name: want a string (it is {name!r})")
    if not name:
        raise InvalidConfig("missing network name")
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"invalid characters found in network name {_shown(name)}", _NAME_RULE)


def check_ifname(ifname: str) -> None:
    """Raise InvalidEnvironment (4) for an interface name that Linux would not take."""
    if not ifname:
        raise InvalidEnvironment("interface name is empty")
    if len(ifname.encode(errors="replace")) > _IFNAME_MAX:
        raise InvalidEnvironment(f"interface name {_shown(ifname)} is too long", "at most 15 bytes")
    if ifname in {".", ".."}:
        raise InvalidEnvironment(f"interface name is {_shown(ifname)}")
    for character in ifname:
        if character in "/:\0" or character.isspace() or "\ud800" <= character <= "\udfff":
            raise InvalidEnvironment(
                f"interface name {_shown(ifname)} contains {character!r}", "no '/', ':' or white space"
            )


def check_plugin_type(name: object) -> None:
    """Raise InvalidConfig (7) for a plugin type that is no bare file name."""
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"plugin type: want a name (it is {name!r})")
    if "/" in name or "\0" in name or name in {".", ".."}:
        raise InvalidConfig(f"plugin type {_shown(name)} must be a file name without a path")


def parse_args(text: str) -> dict[str, str]:
    """Return the pairs of ``CNI_ARGS`` (``K=V;K=V``); InvalidEnvironment (4) where one is malformed."""
    pairs: dict[str, str] = {}
    if not text:
        return pairs
    for pair in text.split(";"):
        key, equals, value = pair.partition("=")
        if not equals or "=" in value or not key or "\0" in pair:
            raise InvalidEnvironment(
                f"CNI_ARGS: invalid pair {_shown(pair)}", "want KEY=VALUE pairs joined by ';'"
            )
        pairs[key] = value
    return pairs


def salvage_args(text: str) -> dict[str, str]:
    """Return the well-formed pairs of ``CNI_ARGS``: a DEL must not fail for what broke the ADD."""
    pairs: dict[str, str] = {}
    for pair in text.split(";"):
        try:
            pairs.update(parse_args(pair))
        except CNIError:
            continue
    return pairs


def format_args(args: Mapping[str, str]) -> str:
    """Return pairs as ``CNI_ARGS`` text; InvalidEnvironment (4) for what it cannot carry."""
    for key, value in args.items():
        if not key or any(mark in part for part in (key, value) for mark in ";=\0"):
            raise InvalidEnvironment(f"CNI_ARGS cannot carry {key}={value}", "no ';', '=' or NUL in it")
    return ";".join(f"{key}={value}" for key, value in args.items())


def ignores_unknown(args: Mapping[str, str]) -> bool:
    """Whether ``IgnoreUnknown`` is 1 or true; InvalidEnvironment (4) if it is no boolean."""
    value = args.get("IgnoreUnknown", "0").lower()
    if value not in {"0", "1", "true", "false"}:
        raise InvalidEnvironment(f'CNI_ARGS: IgnoreUnknown is "{value}"', "want 1, 0, true or false")
    return value in {"1", "true"}


def check_known(args: Mapping[str, str], known: Collection[str]) -> None:
    """Raise InvalidEnvironment (4) for keys that a plugin does not know, unless told to ignore them."""
    if ignores_unknown(args):
        return
    unknown = [key for key in args if key not in known and key != "IgnoreUnknown"]
    if unknown:
        listed = ", ".join(unknown)
        raise InvalidEnvironment(f"CNI_ARGS: unknown args {listed}", "IgnoreUnknown=1 lets them pass")


def _shown(text: str) -> str:
    return '"' + text.encode("unicode_escape", errors="backslashreplace").decode() + '"'
