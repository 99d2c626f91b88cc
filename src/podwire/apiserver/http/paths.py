"""From the path and method of a request to the resource it is about.

Source: k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote


class Target(NamedTuple):
    """What a path names; ``namespace`` None: the objects of all namespaces, or one that has none.

    ``watch``: the path is of the old form that begins with ``watch``.
    """

    group: str
    version: str
    plural: str
    namespace: str | None
    name: str
    subresource: str
    rest: str = ""
    watch: bool = False


def parse(raw: str) -> Target | None:
    """The target of a path below ``/api/v1`` or ``/apis/GROUP/VERSION``; None for any other path."""
    parts = [unquote(part) for part in raw.split("/")[1:]]
    while parts and not parts[-1]:
        parts.pop()
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if not all(rest):
        return None
    if rest[0] == "watch" and len(rest) > 1:
        target = _of(group, version, rest[1:])
        return None if target.subresource else target._replace(watch=True)
    return _of(group, version, rest)


def _of(group: str, version: str, rest: list[str]) -> Target:
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 1:
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        elif not group:
            return Target(group, version, "namespaces", None, rest[1], rest[2] if len(rest) > 2 else "")
    rest += [""] * (3 - len(rest))
    return Target(group, version, rest[0], namespace, rest[1], rest[2], "/".join(rest[3:]))
