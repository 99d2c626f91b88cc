"""What the API server inside asks of the node for a pod."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from podwire.node.nodestreams import NodeStreams
from podwire.runtime.api import ExecResult
from podwire.runtime.fake import Program
from podwire.serving.status import Failure
from podwire.serving.streaming.backend import ExecOptions, LogOptions, Target, TerminalSize
from tests.node.helpers import Bench, bench, pod

WEB = Target(namespace="default", pod="web", uid="the mirror pod's", container="main")
ENTRIES = (
    "2025-06-15T15:06:40.000000001Z stdout F one\n",
    "2025-06-15T15:06:41.5Z stderr F two\n",
    "2025-06-15T15:06:42Z stdout P thr\n",
    "2025-06-15T15:06:42Z stdout F ee\n",
)


@contextlib.asynccontextmanager
async def web(root: Path) -> AsyncIterator[tuple[Bench, NodeStreams, Path]]:
    """A pod that runs, and its log with entries in it."""
    async with bench(root) as b:
        b.give(pod("web"))
        await b.running("web")
        (container,) = await b.runtime.list_containers()
        log = Path(container.log_path)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(ENTRIES))
        yield b, NodeStreams(b.node), log


async def read(streams: NodeStreams, options: LogOptions) -> str:
    return b"".join([piece async for piece in await streams.logs(WEB, options)]).decode()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (LogOptions(), "one\ntwo\nthree\n"),
        (LogOptions(tail_lines=1), "three\n"),
        (LogOptions(stream="Stderr"), "two\n"),
        (LogOptions(stream="Stdout"), "one\nthree\n"),
        (LogOptions(since_time="2025-06-15T17:06:41+02:00"), "two\nthree\n"),
        (LogOptions(since_seconds=1), ""),
        (LogOptions(timestamps=True, tail_lines=2), "".join(ENTRIES)),
    ],
)
async def test_logs(tmp_path: Path, options: LogOptions, text: str) -> None:
    if options.timestamps:
        text = "2025-06-15T15:06:41.5Z two\n2025-06-15T15:06:42Z three\n"
    async with web(tmp_path) as (_, streams, _):
        assert await read(streams, options) == text


async def test_a_log_is_followed_until_the_container_ends(tmp_path: Path) -> None:
    async with web(tmp_path) as (b, streams, log):
        pieces = await streams.logs(WEB, LogOptions(follow=True, tail_lines=0))
        following = asyncio.create_task(_join(pieces))
        await asyncio.sleep(0.05)
        with log.open("a") as file:
            file.write("2025-06-15T15:06:43Z stdout F four\n")
        b.give()
        assert await asyncio.wait_for(following, 5) == b"four\n"


async def _join(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_attach_joins_the_program_s_own_streams_at_the_client_s_size(tmp_path: Path) -> None:
    async with web(tmp_path) as (b, streams, _):
        options = ExecOptions(stdin=True, stdout=True, tty=True, size=TerminalSize(80, 24))
        process = await streams.attach(WEB, options)
        assert b.runtime.count("attach", "main") == 1
        await process.write_stdin(b"there and back")
        await process.write_stdin(b"")
        assert [piece async for piece in process.output()] == [(1, b"there and back")]
        await process.resize(100, 30)
        await process.close()
        (session,) = b.runtime.sessions
        assert session.sizes == [(80, 24), (100, 30)]
        assert session.closed


async def test_exec_finds_the_static_pod_behind_its_mirror(tmp_path: Path) -> None:
    async with web(tmp_path) as (b, streams, _):
        b.runtime.on_exec = lambda name, command: ExecResult(b"hello\n", b"", 7)
        process = await streams.exec(WEB, ExecOptions(command=("true",), stdout=True))
        assert [piece async for piece in process.output()] == [(1, b"hello\n")]
        assert await process.wait() == 7
        await process.close()


async def test_what_cannot_be_is_a_failure_as_kubelet_tells_it(tmp_path: Path) -> None:
    async with web(tmp_path) as (b, streams, _):
        nobody = Target(namespace="default", pod="nobody", container="main")
        with pytest.raises(Failure) as missing:
            await streams.logs(nobody, LogOptions())
        assert missing.value.code == 404
        with pytest.raises(Failure) as previous:
            await streams.logs(WEB, LogOptions(previous=True))
        assert previous.value.code == 400 and "previous terminated container" in str(previous.value)
        with pytest.raises(Failure) as when:
            await streams.logs(WEB, LogOptions(since_time="yesterday"))
        assert when.value.code == 400
        with pytest.raises(Failure, match="does not run"):  # its namespace has gone meanwhile
            await streams.port_forward(WEB, 80)
        b.runtime.programs["main"] = Program(ends=[(0, 0)])
        b.give(pod("job", restartPolicy="Never"))
        await b.until(lambda: b.phase("job") == "Succeeded")
        job = Target(namespace="default", pod="job", container="main")
        with pytest.raises(Failure, match="does not run"):
            await streams.exec(job, ExecOptions(command=("true",), stdout=True))
        with pytest.raises(Failure, match="does not run"):
            await streams.attach(job, ExecOptions(stdout=True))
        await b.until(lambda: b.runtime.addresses == [])
        with pytest.raises(Failure, match="does not run"):
            await streams.port_forward(job, 80)
