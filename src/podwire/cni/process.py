"""A plugin as an executable: variables and stdin in, JSON and an exit status out (spec section 2)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, Generic, TypeVar

import msgspec

from podwire.cni import convert, fields, versions
from podwire.cni.errors import CNIError, InvalidEnvironment, IOFailure
from podwire.cni.request import (
    CLEANUP_SECONDS,
    COMMANDS,
    Plugin,
    Registry,
    Request,
    call,
    make_request,
    parse_config,
    unexpected,
)
from podwire.cni.types import Result, TraceContext

C = TypeVar("C")
K = TypeVar("K")

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
    "VERSION": (),
}
"""The variables that each command needs (spec 1.1.0; Go asks for CNI_PATH as well, everywhere)."""


_VERSION_BYTES = 65536


class Reply(msgspec.Struct, frozen=True):
    """What the process does: exit status, and what it writes to each stream.

    ``error`` is the failure behind status 1, ``result`` what an ADD made.
    """

    status: int
    stdout: bytes = b""
    stderr: str = ""
    error: CNIError | None = None
    result: Result | None = None


class Invocation(msgspec.Struct, Generic[C, K], frozen=True):
    """An invocation that was read and checked: what `perform` runs."""

    plugin: Plugin[C, K]
    request: Request[C]

    def undoing(self, result: Result | None) -> Invocation[C, K]:
        """Return the DEL of this ADD: with its result, in time of its own, and not to be cancelled."""
        raw = dict(self.request.raw)
        if result is not None:
            raw["prevResult"] = msgspec.json.decode(convert.encode_result(result, self.request.cni_version))
        request = msgspec.structs.replace(
            self.request,
            command="DEL",
            raw=raw,
            prev_result=result,
            deadline=time.monotonic() + CLEANUP_SECONDS,
            cancel=None,
            stderr=[],
        )
        return Invocation(self.plugin, request)


def command_of(environ: Mapping[str, str]) -> str:
    """Return the command; InvalidEnvironment (4) lists every variable that is missing, or it is unknown."""
    command = environ.get("CNI_COMMAND", "")
    if command not in REQUIRED:
        raise InvalidEnvironment(f"unknown CNI_COMMAND: {command}")
    missing = [name for name in REQUIRED[command] if not environ.get(name)]
    if missing:
        raise InvalidEnvironment(f"required env variables [{','.join(missing)}] missing")
    return command


def version_report(plugin: Plugin[Any, Any], stdin: bytes = b"") -> bytes:
    """Return what VERSION prints: one line, as Go's encoder does.

    ``cniVersion`` is the one on stdin (spec section 5); our newest where none is there, as Go's always is.
    """
    asked: object = None
    try:
        asked = fields.lookup(parse_config(stdin), "cniVersion") if stdin else None
    except CNIError:
        pass
    version = asked if isinstance(asked, str) and asked else versions.CURRENT
    return msgspec.json.encode({"cniVersion": version, "supportedVersions": plugin.versions}) + b"\n"


def prepare(
    plugin: Plugin[C, K],
    environ: Mapping[str, str],
    stdin: bytes,
    *,
    registry: Mapping[str, Plugin[Any, Any]] | Registry | None = None,
    deadline: float | None = None,
    cancel: threading.Event | None = None,
    own_netns: tuple[int, int] | None = None,
) -> Invocation[C, K] | Reply:
    """Read one invocation; a `Reply` where that is all: a refusal, VERSION, or no command at all.

    Nothing is touched. ``deadline`` and ``cancel`` are the request's, ``own_netns`` is for `make_request`.
    """
    if not environ.get("CNI_COMMAND"):
        listed = ", ".join(plugin.versions)
        return Reply(0, stderr=f"{plugin.about}\nCNI protocol versions supported: {listed}\n")
    version = versions.CURRENT
    try:
        command = command_of(environ)
        if command not in COMMANDS:
            return Reply(0, version_report(plugin, stdin))
        config = parse_config(stdin)
        said = fields.lookup(config, "cniVersion")
        version = said if isinstance(said, str) and said else versions.WHEN_MISSING
        request = make_request(
            plugin,
            command,
            config,
            container_id=environ.get("CNI_CONTAINERID", ""),
            netns=environ.get("CNI_NETNS", ""),
            ifname=environ.get("CNI_IFNAME", ""),
            args=environ.get("CNI_ARGS", ""),
            path=tuple(part for part in environ.get("CNI_PATH", "").split(os.pathsep) if part),
            deadline=deadline,
            registry=registry,
            netns_override=environ.get("CNI_NETNS_OVERRIDE", "").lower() in {"1", "true"},
            trace=_trace(environ),
            stderr=[],
            cancel=cancel,
            own_netns=own_netns,
        )
    except Exception as error:  # noqa: BLE001 - stdout must hold an error of the protocol, whatever happened
        return refusal(error, version)
    return Invocation(plugin, request)


def perform(invocation: Invocation[C, K], kernel: AbstractContextManager[K] | None = None) -> Reply:
    """Run an invocation; ``kernel`` is entered for the call only (default: the plugin's ``open_kernel``).

    Never raises for anything that the plugin does wrong.
    """
    plugin, request = invocation.plugin, invocation.request
    try:
        with kernel if kernel is not None else plugin.open_kernel() as opened:
            result = call(plugin, request, opened)
            try:
                said = b"" if result is None else convert.encode_result(result, request.cni_version)
            except CNIError:
                # What cannot be told in the caller's version must not stay.
                call(plugin, invocation.undoing(None).request, opened)
                raise
        return Reply(0, said, _lines(request.stderr), result=result)
    except Exception as error:  # noqa: BLE001 - stdout must hold an error of the protocol, whatever happened
        return refusal(error, request.cni_version, request.stderr)


def refusal(error: Exception, cni_version: str = versions.CURRENT, stderr: Sequence[str] = ()) -> Reply:
    """Return a failure as a plugin tells it: exit status 1 and the error's JSON."""
    failure = error if isinstance(error, CNIError) else unexpected(error)
    return Reply(1, failure.to_json(cni_version), _lines(stderr), error=failure)


def respond(
    plugin: Plugin[C, K],
    environ: Mapping[str, str],
    stdin: bytes,
    kernel: AbstractContextManager[K] | None = None,
    *,
    registry: Mapping[str, Plugin[Any, Any]] | Registry | None = None,
    deadline: float | None = None,
    cancel: threading.Event | None = None,
) -> Reply:
    """Answer one invocation without touching this process: `prepare` and `perform` in one."""
    read = prepare(plugin, environ, stdin, registry=registry, deadline=deadline, cancel=cancel)
    return perform(read, kernel) if isinstance(read, Invocation) else read


def _lines(said: Sequence[str]) -> str:
    return "".join(f"{each}\n" for each in said)


def _trace(environ: Mapping[str, str]) -> TraceContext | None:
    parent = environ.get("TRACEPARENT", "")
    return TraceContext(parent, environ.get("TRACESTATE", ""), environ.get("BAGGAGE", "")) if parent else None


def main(
    plugin: Plugin[Any, Any],
    environ: Mapping[str, str] | None = None,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[str] | None = None,
    *,
    registry: Mapping[str, Plugin[Any, Any]] | Registry | None = None,
) -> int:
    """Run a plugin as this process and return the exit status; streams default to the process's own.

    stdout carries the protocol alone: what the plugin itself prints goes to stderr.
    """
    environ = os.environ if environ is None else environ
    out = sys.stdout.buffer if stdout is None else stdout
    err = sys.stderr if stderr is None else stderr
    printed, sys.stdout = sys.stdout, err
    try:
        reply = _reply(plugin, environ, stdin, registry)
    finally:
        sys.stdout = printed
    if reply.stderr:
        err.write(reply.stderr)
    try:
        out.write(reply.stdout)
        out.flush()
    except OSError as error:
        err.write(f"cannot write to stdout: {error.strerror}\n")
        return 1
    return reply.status


def _reply(
    plugin: Plugin[Any, Any],
    environ: Mapping[str, str],
    stdin: IO[bytes] | None,
    registry: Mapping[str, Plugin[Any, Any]] | Registry | None,
) -> Reply:
    config = b""
    source = sys.stdin.buffer if stdin is None else stdin
    if environ.get("CNI_COMMAND", "") == "VERSION":
        config = _there_already(source)
    elif environ.get("CNI_COMMAND", "") in COMMANDS:
        try:
            command_of(environ)
            config = source.read()
        except CNIError as error:
            return Reply(1, error.to_json())
        except OSError as error:
            return Reply(1, IOFailure(f"error reading from stdin: {error.strerror}").to_json())
    return respond(plugin, environ, config, registry=registry)


def _there_already(stdin: IO[bytes]) -> bytes:
    """Return what can be read without waiting: VERSION needs nothing of stdin and must not hang on it."""
    import select

    try:
        fd = stdin.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return b"" if os.isatty(fd) or not poll.poll(0) else os.read(fd, _VERSION_BYTES)
    except (OSError, ValueError):
        return b""
