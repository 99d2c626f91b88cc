"""What must hold before a node starts; each check says what is wrong and what to do about it."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from podwire.cli.errors import CommandError, usage
from podwire.kube.urls import url_fault

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_MANIFESTS = Path("manifests")
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LINK_NAME = re.compile(r"(?:(?![/:%])[!-~])+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_SETTINGS_FOR_ALL = frozenset({"all", "default"})
_NOT_FOR_PODS: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network (RFC 1122)
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "::/127",  # unspecified and loopback
        "::ffff:0:0/96",  # IPv4 in IPv6's clothes (RFC 4291)
        "fe80::/10",
        "ff00::/8",
    )
)
_IPV6_OFF = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")


def root() -> None:
    """The user is root."""
    if os.geteuid() != 0:
        raise CommandError(
            "this needs root: it makes network namespaces and changes links and rules",
            hint="Try it with sudo.",
        )


def libnftables() -> None:
    """The nftables library is installed."""
    try:
        ctypes.CDLL("libnftables.so.1")
    except OSError as error:
        raise CommandError(
            f"libnftables.so.1 cannot be loaded: {error}", hint="On Debian: apt-get install libnftables1"
        ) from error


def manifests(arguments: Sequence[str], *, needed: bool = True) -> tuple[Path, ...]:
    """The paths among the arguments, absolute; ``./manifests`` if there are no arguments.

    Without that directory an error, unless pods can come from elsewhere (``needed`` is False).
    """
    if not arguments:
        if DEFAULT_MANIFESTS.is_dir():
            return (DEFAULT_MANIFESTS.absolute(),)
        if not needed:
            return ()
        raise usage(
            "no PATH given, and there is no ./manifests here",
            hint="Say which manifests to run: podwire up DIR (or FILE)",
        )
    found: dict[Path, None] = {}
    for argument in arguments:
        if not argument:
            raise usage("PATH is empty", hint="The directory that you are in is: podwire up .")
        if _is_url(argument):
            continue
        path = Path(argument).absolute()
        try:
            path.stat()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise CommandError(
                f"{argument!r}: {reason}" if "\0" in argument else f"{argument}: {reason}"
            ) from error
        if not path.is_dir() and not path.is_file():
            raise CommandError(f"{argument}: neither a directory nor a file")
        if not os.access(path, os.R_OK):
            raise CommandError(f"{argument}: not readable")
        found[path] = None
    return tuple(found)


def urls(arguments: Sequence[str]) -> tuple[str, ...]:
    """The URLs among the arguments."""
    return tuple(dict.fromkeys(_url(argument) for argument in arguments if _is_url(argument)))


def _is_url(argument: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", argument) is not None


def _url(text: str) -> str:
    """A URL that pods can be read from."""
    scheme = text.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        raise usage(
            f"{text}: manifests are read over http and https, not {scheme}",
            hint="Save it to a file and give that.",
        )
    if wrong := url_fault(text):
        raise usage(f"{text!r} is not a URL: {wrong}")
    return text


def url_headers(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The name and value of each ``--manifest-url-header``."""
    found = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value.strip()):
            raise usage(
                f"--manifest-url-header {name!r}: a header is NAME:VALUE, as in Metadata-Flavor:Google"
            )
        found.append((name, value.strip()))
    return tuple(found)


def file(flag: str, text: str) -> Path:
    """A file that can be read, absolute."""
    path = Path(text).absolute()
    try:
        if not path.is_file():
            raise CommandError(f"{flag} {text}: " + ("not a file" if path.exists() else "no such file"))
        if not os.access(path, os.R_OK):
            raise CommandError(f"{flag} {text}: not readable")
    except (OSError, ValueError) as error:
        raise CommandError(f"{flag} {text!r}: {error}") from error
    return path


def node_name(given: str | None) -> str:
    """The node's name: ``given``, or the host's in lower case."""
    name = socket.gethostname().lower() if given is None else given
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):
        where = "the host's name" if given is None else "--node-name"
        raise usage(
            f"{where} {name!r} is not a node name: lower-case letters, digits, '-' and '.', "
            "beginning and ending with a letter or digit",
            hint="Give one: --node-name NAME" if given is None else "",
        )
    return name


def bridge_name(name: str) -> str:
    """A name that the kernel takes for a link as it is, and that names no other thing among its settings."""
    if not 0 < len(name) < 16 or name in {".", ".."} or not _LINK_NAME.fullmatch(name):
        raise usage(
            f"--bridge {name!r} is not a link's name: 1 to 15 letters, digits or signs, no '/', ':' or '%'"
        )
    if name in _SETTINGS_FOR_ALL:
        raise usage(f"--bridge {name!r}: the kernel keeps that name for the settings of all links")
    return name


def pod_cidrs(text: str) -> tuple[Network, ...]:
    """The ranges of ``--pod-cidr``: one, or one of each family."""
    found: list[Network] = []
    for part in text.split(","):
        try:
            network = ipaddress.ip_network(part.strip())
        except ValueError as error:
            raise usage(
                f"--pod-cidr {text or repr(text)}: {part.strip()!r} is not a range: {error}"
            ) from error
        if any(network.version == other.version for other in found):
            raise usage(
                f"--pod-cidr {text}: two ranges of IPv{network.version}; give one of each family at most"
            )
        if network.max_prefixlen - network.prefixlen < 2:
            raise usage(f"--pod-cidr {text}: {network} has no room for pods")
        for other in _NOT_FOR_PODS:
            if network.version == other.version and network.overlaps(other):
                raise usage(f"--pod-cidr {text}: {network} is not for hosts: it overlaps {other}")
        found.append(network)
    return tuple(found)


def ipv6_is_off() -> bool:
    """Whether the host has IPv6 switched off or not built in."""
    return not _IPV6_OFF.exists() or _IPV6_OFF.read_text().strip() == "1"


def overlaps(wanted: Iterable[Network], taken: Iterable[tuple[Network, str]]) -> None:
    """No range of ``wanted`` overlaps one that the host uses: ``taken``, each with where it is from."""
    entries = list(taken)
    for network in wanted:
        for other, where in entries:
            if other.version == network.version and other.prefixlen and network.overlaps(other):
                raise CommandError(
                    f"--pod-cidr {network} overlaps {where}",
                    hint="Choose a range that this host does not use: --pod-cidr CIDR[,CIDR]",
                )
