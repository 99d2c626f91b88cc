"""What the server asks of the node for a pod, whatever protocol the client speaks.

Every method may raise :class:`podwire.serving.status.Failure`, or ``OSError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import msgspec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The pod, as the API server knows it, and the container; ``container`` is empty for port-forward."""

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""


class TerminalSize(NamedTuple):
    """A terminal's size in characters."""

    columns: int
    rows: int


class ExecOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The program to run, and which of its streams are wanted.

    ``command`` is empty for attach. With ``tty`` there is no stderr; ``size`` is the terminal's at the start,
    None if the client did not tell.
    """

    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False
    size: TerminalSize | None = None


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``PodLogOptions`` of core/v1 but for limitBytes, which the server sees to itself.

    ``since_seconds`` counts back from now; ``since_time`` is RFC 3339 as given; ``tail_lines`` None: from the
    start; ``stream``: All, Stdout or Stderr.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    since_time: str = ""
    tail_lines: int | None = None
    stream: str = "All"


class Process(Protocol):
    """A program with its streams in the caller's hands."""

    async def write_stdin(self, data: bytes) -> None:
        """Pass bytes to the program, waiting until it takes them; empty closes its stdin.

        Raise OSError if it takes no more.
        """

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(1, stdout bytes) and (2, stderr bytes) as they come, until the program and its streams end."""

    async def resize(self, columns: int, rows: int) -> None:
        """Set the terminal's size; nothing without a terminal."""

    async def wait(self) -> int:
        """The exit code, 128 + signal when killed."""

    async def close(self) -> None:
        """Let go of everything: a program that exec began is killed, one that is attached to goes on."""


class PodStreams(Protocol):
    """The node's side of the streaming subresources."""

    async def exec(self, target: Target, options: ExecOptions) -> Process:
        """Start a program in the container."""

    async def attach(self, target: Target, options: ExecOptions) -> Process:
        """The container's own program, its output from now on."""

    async def logs(self, target: Target, options: LogOptions) -> AsyncIterator[bytes]:
        """The container's log as text; what is wrong is raised before the first byte."""

    async def port_forward(
        self, target: Target, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to the port on the pod's loopback, made inside its network namespace."""
