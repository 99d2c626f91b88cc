"""Requests within requests: a program that one of our plugins runs, and that calls one of ours in turn.

An IPAM plugin that is not ours may do that through the shim. What it serves holds its container's turn and
waits for it, so it must not wait for that turn itself. It is known by a variable which its program was given,
and passes on as programs pass their environment on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from podwire.cni.process import Invocation
from podwire.cni.request import Request

VARIABLE = "PODWIRE_WITHIN"


class Nesting:
    """The requests that run, by what their programs are given. Thread-safe."""

    def __init__(self) -> None:
        self._running: dict[str, Request[Any]] = {}

    @contextmanager
    def told(self, invocation: Invocation[Any, Any]) -> Iterator[Invocation[Any, Any]]:
        """Have an invocation's programs say whom they serve, for the length of a block."""
        name = secrets.token_hex(16)
        request = msgspec.structs.replace(invocation.request, variables={VARIABLE: name})
        self._running[name] = request
        try:
            yield Invocation(invocation.plugin, request)
        finally:
            del self._running[name]

    def outer(self, environ: Mapping[str, str]) -> Request[Any] | None:
        """Return the request that a caller with this environment serves, if that still runs."""
        name = environ.get(VARIABLE)
        return None if name is None else self._running.get(name)


def has_turn(request: Request[Any], outer: Request[Any]) -> bool:
    """Tell whether what is held for ``outer`` is all that a request which serves it needs."""
    if request.name != outer.name:
        return False
    return outer.command == "GC" or has_container(request, outer)


def has_container(request: Request[Any], outer: Request[Any]) -> bool:
    """Tell whether a request is for the container whose turn ``outer`` has."""
    return bool(outer.container_id) and request.container_id == outer.container_id
