"""Versions of the CNI specification: which there are, how they compare, which one is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from podwire.cni.errors import IncompatibleVersion, InvalidConfig

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT = SUPPORTED[-1]
WHEN_MISSING = SUPPORTED[0]
"""What a configuration without ``cniVersion`` means (spec 0.1.0 had no such key)."""

CHECK_SINCE = "0.4.0"
GC_SINCE = "1.1.0"
STATUS_SINCE = "1.1.0"
PREV_RESULT_SINCE = "0.3.0"
PREV_RESULT_AT_DEL_SINCE = "0.4.0"

_PART_LIMIT = 9


@lru_cache(maxsize=64)
def parse(version: str) -> tuple[int, int, int]:
    """Return major, minor, micro; ``1.0`` counts as ``1.0.0``. InvalidConfig if it is no version."""
    parts = version.split(".")
    if not 1 <= len(parts) <= 3 or not all(
        part.isascii() and part.isdigit() and len(part) <= _PART_LIMIT for part in parts
    ):
        raise InvalidConfig(f'cniVersion "{version}" is not a version (want e.g. "{CURRENT}")')
    numbers = [int(part) for part in parts] + [0, 0]
    return numbers[0], numbers[1], numbers[2]


def at_least(version: str, least: str) -> bool:
    """Whether ``version`` is ``least`` or newer; an empty version is 0.1.0."""
    return parse(version or WHEN_MISSING) >= parse(least)


def choose(version: str, versions: Iterable[str] = ()) -> str:
    """Return the version to speak: the highest that we know of ``cniVersions`` and ``cniVersion``.

    Without ``cniVersions`` it is ``cniVersion`` itself, known or not: whether it can be spoken is then
    each plugin's answer. InvalidConfig for an entry that is no version (libcni's rule).
    """
    offered = list(versions)
    if not offered:
        if version:
            parse(version)
        return version or WHEN_MISSING
    if version:
        offered.append(version)
    known = [entry for entry in offered if parse(entry) <= parse(CURRENT)]
    return max(known, key=parse) if known else (version or max(offered, key=parse))


def require(version: str, supported: Sequence[str]) -> None:
    """Raise IncompatibleVersion, in Go's words, unless a plugin with these versions speaks ``version``."""
    if (version or WHEN_MISSING) not in supported:
        listed = " ".join(f'"{entry}"' for entry in supported)
        raise IncompatibleVersion(
            "incompatible CNI versions", f'config is "{version}", plugin supports [{listed}]'
        )
