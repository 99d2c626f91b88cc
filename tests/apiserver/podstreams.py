"""A backend without a node: programs of this machine as containers, its TCP ports as the pod's."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator

from podwire.serving import status
from podwire.serving.streaming.backend import ExecOptions, LogOptions, Process, Target

CHUNK = 64 << 10


class LocalProcess:
    """A program of this machine, which ends with the client's session."""

    def __init__(
        self,
        program: asyncio.subprocess.Process,
        stdin: asyncio.StreamWriter | None,
        outputs: dict[int, asyncio.StreamReader],
        *,
        terminal: int | None = None,
    ) -> None:
        self.program = program
        self._stdin = stdin
        self._outputs = outputs
        self._terminal = terminal

    async def write_stdin(self, data: bytes) -> None:
        if self._stdin is None:
            return
        if not data:
            if self._terminal is not None:
                self._stdin.write(b"\x04")
            else:
                self._stdin.close()
            return
        self._stdin.write(data)
        await self._stdin.drain()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(1)

        async def copy(number: int, reader: asyncio.StreamReader) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK):
                    await queue.put((number, data))
            await queue.put((number, b""))

        tasks = [asyncio.create_task(copy(number, reader)) for number, reader in self._outputs.items()]
        try:
            left = len(tasks)
            while left:
                number, data = await queue.get()
                if data:
                    yield number, data
                else:
                    left -= 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        code = await self.program.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        # Each program leads a session of its own; what it began must not outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.program.pid, signal.SIGKILL)
        for reader in self._outputs.values():
            with contextlib.suppress(OSError):
                while await reader.read(CHUNK):
                    pass
        await self.program.wait()


class LocalStreams:
    """PodStreams; ``log`` is what the log holds, ``attached`` the program of the container."""

    def __init__(self) -> None:
        self.started: list[LocalProcess] = []
        self.begun = asyncio.Event()
        self.seen: list[tuple[Target, ExecOptions]] = []
        self.log: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.log_asked: list[tuple[Target, LogOptions]] = []
        self.log_closed = asyncio.Event()
        self.attached: tuple[str, ...] = ()
        self.host = "127.0.0.1"

    async def exec(self, target: Target, options: ExecOptions) -> Process:
        self.seen.append((target, options))
        process = await (_with_terminal(options) if options.tty else _with_pipes(options))
        self.started.append(process)
        self.begun.set()
        return process

    async def attach(self, target: Target, options: ExecOptions) -> Process:
        self.seen.append((target, options))
        if not self.attached:
            raise status.bad_request(f'container "{target.container}" does not run')
        return await self.exec(
            target,
            ExecOptions(command=self.attached, stdin=options.stdin, stdout=True, stderr=options.stderr),
        )

    async def logs(self, target: Target, options: LogOptions) -> AsyncIterator[bytes]:
        self.log_asked.append((target, options))
        if options.previous:
            raise status.bad_request(f'previous terminated container "{target.container}" not found')
        return self._log()

    async def _log(self) -> AsyncIterator[bytes]:
        try:
            while (piece := await self.log.get()) is not None:
                yield piece
        finally:
            self.log_closed.set()

    async def port_forward(
        self, target: Target, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, port)


async def _with_pipes(options: ExecOptions) -> LocalProcess:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    program = await asyncio.create_subprocess_exec(
        *options.command,
        stdin=pipe if options.stdin else null,
        stdout=pipe if options.stdout else null,
        stderr=pipe if options.stderr else null,
        start_new_session=True,
    )
    outputs = {1: program.stdout, 2: program.stderr}
    return LocalProcess(program, program.stdin, {number: out for number, out in outputs.items() if out})


async def _with_terminal(options: ExecOptions) -> LocalProcess:
    ours, theirs = pty.openpty()
    if options.size is not None:
        columns, rows = options.size
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    program = await asyncio.create_subprocess_exec(
        "setsid", "--ctty", *options.command, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(os.dup(ours), "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    return LocalProcess(program, writer, {1: reader}, terminal=ours)
