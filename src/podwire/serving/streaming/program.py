"""A program's streams joined to a client's, until either ends.

Source: k8s.io/kubelet/pkg/cri/streaming/remotecommand/exec.go and attach.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from podwire.serving import status
from podwire.serving.status import Failure
from podwire.serving.streaming.backend import ExecOptions, Process
from podwire.serving.streaming.channels import Channels, Object, exited, success
from podwire.serving.streaming.tasks import cancelled, closing, unless

log = logging.getLogger(__name__)

FIRST_SIZE = 0.5
"""Seconds that a program with a terminal waits for the client to tell its size."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``idle``: seconds without a byte after which a connection is ended; ``ping``: seconds between pings."""

    idle: float = 4 * 3600.0
    ping: float = 10.0


DEFAULT_LIMITS = Limits()


class Active(Protocol):
    """What :func:`watch` looks at."""

    @property
    def last_active(self) -> float:
        """When it carried something last, by the loop's clock."""

    async def ping(self) -> None:
        """Send something. Raise ConnectionError."""


class _ClientGone(Exception):
    """Nothing more can be sent to the client."""


async def watch(connection: Active, limits: Limits) -> bool:
    """Send pings; return when the connection broke (False) or was idle for too long (True)."""
    loop = asyncio.get_running_loop()
    while (left := connection.last_active + limits.idle - loop.time()) > 0:
        await asyncio.sleep(min(left, limits.ping))
        try:
            await connection.ping()
        except ConnectionError:
            return False
    return True


async def run(
    channels: Channels,
    options: ExecOptions,
    start: Callable[[ExecOptions], Awaitable[Process]],
    limits: Limits,
    *,
    exit_code: bool,
) -> None:
    """Start the program when the client is ready, carry its streams, tell how it ended, and close all.

    ``exit_code``: the client is told it; otherwise any end of the program is a success. A client that goes
    takes the program with it.
    """
    serving = asyncio.create_task(channels.serve())
    try:
        ended = await unless(serving, _whole(channels, options, start, limits, exit_code=exit_code))
        if ended is not None:
            await channels.finish(ended)
    finally:
        await cancelled(serving)


async def _whole(
    channels: Channels,
    options: ExecOptions,
    start: Callable[[ExecOptions], Awaitable[Process]],
    limits: Limits,
    *,
    exit_code: bool,
) -> Object | None:
    try:
        await channels.ready()
        if options.tty:
            options = await _with_size(channels, options)
        process = await start(options)
        try:
            code = await _attend(channels, process, options, limits)
        finally:
            await process.close()
    except Failure as failure:
        return failure.body
    except _ClientGone:
        return None
    except Exception as error:
        if not isinstance(error, OSError):
            log.exception("streams of a program")
        what = "executing command in" if options.command else "attaching to"
        return status.internal_error(f"error {what} container: {error}").body
    return exited(code) if exit_code else success()


async def _with_size(channels: Channels, options: ExecOptions) -> ExecOptions:
    try:
        async with asyncio.timeout(FIRST_SIZE):
            return msgspec.structs.replace(options, size=await channels.read_size())
    except TimeoutError:
        return options


async def _attend(channels: Channels, process: Process, options: ExecOptions, limits: Limits) -> int:
    watching = asyncio.create_task(watch(channels, limits))
    helpers: list[asyncio.Task[Any]] = [watching]
    if options.stdin:
        helpers.append(asyncio.create_task(_stdin(channels, process)))
    if options.tty:
        helpers.append(asyncio.create_task(_sizes(channels, process)))
    output = asyncio.create_task(_output(channels, process))
    try:
        await asyncio.wait((output, watching), return_when=asyncio.FIRST_COMPLETED)
        if output.done():
            return await output
        if not await watching:
            raise _ClientGone
        raise Failure(504, "Timeout", f"the connection was idle for {limits.idle:g} seconds")
    finally:
        await cancelled(output, *helpers)


async def _output(channels: Channels, process: Process) -> int:
    async with closing(process.output()) as pieces:
        async for stream, data in pieces:
            try:
                await channels.write(stream, data)
            except ConnectionError as error:
                raise _ClientGone from error
    return await process.wait()


async def _stdin(channels: Channels, process: Process) -> None:
    try:
        while data := await channels.read_stdin():
            await process.write_stdin(data)
        await process.write_stdin(b"")
    except (OSError, Failure):
        # The program takes no more, or the client has gone, which others see.
        channels.drop_stdin()


async def _sizes(channels: Channels, process: Process) -> None:
    while True:
        await process.resize(*await channels.read_size())
