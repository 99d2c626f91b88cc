"""``podwire exec``: a program inside a container, with this terminal or these pipes as its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.cli import nodeapi, output
from podwire.cli.locations import Locations

if TYPE_CHECKING:
    from podwire.node.client import NodeClient
    from podwire.runtime.api import ExecSession

_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Options:
    """Which container, and whether standard input and a terminal are passed on."""

    container: str = ""
    stdin: bool = False
    tty: bool = False


def run(
    pod: str, program: tuple[str, ...], options: Options, namespace: str | None, places: Locations
) -> int:
    """Run ``program`` in a container of ``pod`` and return its exit status."""
    terminal = options.tty
    if terminal and options.stdin and not sys.stdin.isatty():
        output.note("standard input is not a terminal: going on without one")
        terminal = False

    async def start(client: NodeClient) -> int:
        found = await nodeapi.find_pod(client, pod, namespace)
        container = nodeapi.container_of(found, options.container)
        session = await client.exec(
            found.metadata.namespace,
            found.metadata.name,
            program,
            container=container,
            stdin=options.stdin,
            tty=terminal,
            size=_size() if terminal else None,
        )
        try:
            return await _attend(session, stdin=options.stdin, terminal=terminal)
        finally:
            await session.close()

    return nodeapi.ask(places, start)


async def _attend(session: ExecSession, *, stdin: bool, terminal: bool) -> int:
    """Carry the streams until the program ends."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        if terminal and sys.stdin.isatty():
            if stdin:
                stack.enter_context(raw_terminal(sys.stdin.fileno()))
            resizes: set[asyncio.Task[None]] = set()

            def resized() -> None:
                task = loop.create_task(_resize(session))
                resizes.add(task)
                task.add_done_callback(resizes.discard)

            loop.add_signal_handler(signal.SIGWINCH, resized)
            stack.callback(loop.remove_signal_handler, signal.SIGWINCH)
        feeding = loop.create_task(_feed(session)) if stdin else None
        try:
            async for stream, data in session.output():
                target = sys.stderr.buffer if stream == 2 else sys.stdout.buffer
                target.write(data)
                target.flush()
            return await session.wait()
        finally:
            if feeding is not None:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeding


def _size() -> tuple[int, int] | None:
    """Columns and rows of this terminal; None where there is none, or it does not know."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(sys.stdin.fileno())
        return (size.columns, size.lines) if size.columns else None
    return None


async def _resize(session: ExecSession) -> None:
    size = _size()
    if size is not None:
        await session.resize(*size)


async def _feed(session: ExecSession) -> None:
    """Pass standard input on as it comes, and its end."""
    fd = sys.stdin.fileno()
    async for data in _reads(fd):
        await session.write_stdin(data)
    await session.write_stdin(b"")


async def _reads(fd: int) -> AsyncIterator[bytes]:
    while True:
        await _readable(fd)
        data = os.read(fd, _CHUNK)
        if not data:
            return
        yield data


async def _readable(fd: int) -> None:
    """Wait for ``fd``; a plain file, which the loop cannot watch, is always ready."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


@contextlib.contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """The terminal ``fd`` passes every key on as it is pressed, and is as before afterwards."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
