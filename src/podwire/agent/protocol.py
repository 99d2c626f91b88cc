"""A plugin's invocation as one HTTP request, and what it wrote and how it ended as the answer.

    POST /cni/v1/<plugin type> HTTP/1.1
    Content-Type: application/vnd.podwire.cni
    Podwire-Environment: n     the first n bytes of the body are the environment: KEY=VALUE, each ended by NUL
    Podwire-Timeout: ms        what is left of the caller's deadline
    (the rest of the body is stdin)

The answer is 200 with ``Podwire-Exit``, the exit status, and ``Podwire-Stderr: k``: the last k bytes of the
body are for stderr, the others for stdout. Any other status has a text that says why nothing was run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from podwire.agent import http
from podwire.agent.http import Asked, Refused
from podwire.cni.process import Reply

PREFIX = "/cni/v1/"
CONTENT_TYPE = "application/vnd.podwire.cni"
DEFAULT_TIMEOUT = 60.0
LONGEST_TIMEOUT = 3600.0
"""Seconds; a caller that says more is told so."""

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PASSED = ("CNI_", "PODWIRE_")
_TRACE = frozenset({"TRACEPARENT", "TRACESTATE", "BAGGAGE"})


class Call(msgspec.Struct, frozen=True):
    """What a runtime wants of a plugin: its environment and stdin, and how long it waits (seconds)."""

    plugin: str
    environ: Mapping[str, str]
    stdin: bytes
    timeout: float


def read(asked: Asked) -> Call:
    """Read a request to `PREFIX`. Refused says what is wrong with it."""
    head, body = asked
    plugin = head.target[len(PREFIX) :]
    if not _TYPE.fullmatch(plugin):
        raise Refused(404, f"no plugin's name: {plugin[:100]!r}")
    if head.method != "POST":
        raise Refused(405, f"{head.method} of a plugin: want POST")
    if head.headers.get("content-type") != CONTENT_TYPE:
        raise Refused(415, f"content-type: want {CONTENT_TYPE}")
    length = head.number("podwire-environment")
    if length > len(body):
        raise Refused(400, f"podwire-environment: {length} is more than the body's {len(body)} bytes")
    timeout = head.number("podwire-timeout", int(DEFAULT_TIMEOUT * 1000)) / 1000
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise Refused(400, f"podwire-timeout: is not between 1 and {LONGEST_TIMEOUT * 1000:.0f} ms")
    return Call(plugin, parse_environment(body[:length]), body[length:], timeout)


def parse_environment(text: bytes) -> dict[str, str]:
    """Read NUL-terminated KEY=VALUE entries; of variables that no plugin asks for nothing is kept."""
    if not text:
        return {}
    if text[-1]:
        raise Refused(400, "podwire-environment: ends in the middle of a variable")
    found: dict[str, str] = {}
    for entry in text[:-1].split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if not equals or not name:
            raise Refused(400, f"podwire-environment: no KEY=VALUE: {entry[:100]!r}")
        if name in found:
            raise Refused(400, f"podwire-environment: {name[:100]} is there twice")
        if name.startswith(_PASSED) or name in _TRACE:
            found[name] = value
    return found


def format_environment(environ: Mapping[str, str]) -> bytes:
    """Return what `parse_environment` reads."""
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())


def answer(reply: Reply) -> bytes:
    """Return the answer that tells a plugin's exit status and output."""
    stderr = reply.stderr.encode(errors="backslashreplace")
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Podwire-Exit": reply.status,
        "Podwire-Stderr": len(stderr),
    }
    return http.answer(200, reply.stdout + stderr, headers)
