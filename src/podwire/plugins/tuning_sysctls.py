"""The sysctls of `tuning`: their names in every spelling, the host's allow-list, their values.

A name is written as sysctl(8) has it: ``net.ipv4.conf.IFNAME.arp_filter`` or
``net/ipv4/conf/IFNAME/arp_filter``; the first separator is the one that counts. Interface names hold dots
(``eth0.100``): where ``/`` separates they stand as they are; where dots do, what lies between ``conf.`` or
``neigh.`` and the last part is one name. ``IFNAME`` is replaced after the split, so that its dots separate
nothing.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from podwire.cni.errors import InvalidConfig, IOFailure
from podwire.kernel import net_parameters
from podwire.kernel.errors import KernelError

ALLOWLIST = "/etc/cni/tuning/allowlist.conf"
"""Regular expressions, one a line, of the names that configurations may set; all are, if it is missing."""

_PER_INTERFACE = ("conf", "neigh")
_SEPARATOR = re.compile(r"[./]")
_CLASS = re.compile(r"\[:(\^?)(\w+):\]")
# RE2, the syntax of the reference plugin's list, has POSIX classes and \z.
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7F",
    "blank": r"\t ",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


class Parameter(msgspec.Struct, frozen=True):
    """One sysctl: ``key`` as it is configured, ``parts`` below ``net/``, the value that it is to have."""

    key: str
    parts: tuple[str, ...]
    value: str


def parameters(configured: Mapping[str, str], ifname: str) -> tuple[Parameter, ...]:
    """Return what is configured for the interface ``ifname``; InvalidConfig (7) names what cannot be."""
    found: dict[tuple[str, ...], Parameter] = {}
    for key, value in configured.items():
        parts = split(key, ifname)
        if parts in found:
            raise InvalidConfig(f'sysctl "{key}": the same parameter as "{found[parts].key}"')
        found[parts] = Parameter(key, parts, value)
    return tuple(found.values())


def split(key: str, ifname: str) -> tuple[str, ...]:
    """Return the parts of a name below ``net/``; InvalidConfig (7) if it is none, or could lead elsewhere."""
    text = key.lstrip("/")
    first = _SEPARATOR.search(text)
    if first is not None and first.group() == "/":
        parts = [part for part in text.split("/") if part]
    else:
        parts = _SEPARATOR.split(text)
        if "" in parts:
            raise InvalidConfig(f'sysctl "{key}": has an empty part')
        if len(parts) > 5 and parts[2] in _PER_INTERFACE:
            parts = [*parts[:3], ".".join(parts[3:-1]), parts[-1]]
    parts = _with_ifname(parts, ifname)
    if len(parts) < 2 or parts[0] != "net":
        raise InvalidConfig(f'sysctl "{key}": is not below net')
    if any(part in {".", ".."} or "\0" in part for part in parts):
        raise InvalidConfig(f'sysctl "{key}": a part leads elsewhere')
    return tuple(parts[1:])


def _with_ifname(parts: list[str], ifname: str) -> list[str]:
    """Replace the first IFNAME, which may be a piece of a part."""
    for number, part in enumerate(parts):
        if "IFNAME" in part:
            return [*parts[:number], part.replace("IFNAME", ifname, 1), *parts[number + 1 :]]
    return parts


def check_allowed(configured: Mapping[str, str]) -> None:
    """Hold the names, as they are written, against the host's list.

    InvalidConfig (7) names the one that no expression matches, or the expression that is none; IOFailure (5).
    """
    if not configured:
        return
    allowed = _allowlist()
    if allowed is None:
        return
    for key in configured:
        if not any(one.search(key) for one in allowed):
            raise InvalidConfig(
                f'sysctl "{key}": is not allowed by {ALLOWLIST}',
                f"allowed are: {' '.join(one.pattern for one in allowed)}",
            )


def _allowlist() -> list[re.Pattern[str]] | None:
    try:
        lines = Path(ALLOWLIST).read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IOFailure(f"{ALLOWLIST}: {error.strerror}") from error
    allowed = []
    for number, line in enumerate(lines, 1):
        if not (text := line.strip()):
            continue
        try:
            allowed.append(re.compile(_translated(text)))
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidConfig(f'{ALLOWLIST}:{number}: "{text}" is no regular expression: {error}') from None
    return allowed


def _translated(expression: str) -> str:
    def members(found: re.Match[str]) -> str:
        if found[1] or found[2] not in _CLASSES:
            raise re.error(f"character class {found[0]}")
        return _CLASSES[found[2]]

    return _CLASS.sub(members, expression).replace(r"\z", r"\Z")


def read(parameter: Parameter) -> str | None:
    """Return the present value in the calling thread's namespace; None of one that can only be written.

    InvalidConfig (7) if there is no such parameter, else KernelError.
    """
    try:
        return net_parameters.read(parameter.parts)
    except KernelError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
            raise InvalidConfig(
                f'sysctl "{parameter.key}": there is no net/{"/".join(parameter.parts)} in the namespace'
            ) from None
        if error.errno == errno.EACCES:
            return None
        raise


def same(value: str, present: str) -> bool:
    """Tell whether the kernel's text for a value means what is configured: spaces and zeros aside."""
    return _canonical(value) == _canonical(present)


def _canonical(text: str) -> list[str]:
    return [str(int(word)) if re.fullmatch(r"[+-]?[0-9]+", word) else word for word in text.split()]
