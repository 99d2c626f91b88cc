"""The streaming subresources by real kubectl programs, the oldest and the newest, over SPDY and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import pty
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from podwire.serving.streaming.program import Limits
from tests.apiserver.kubectl import SECONDS, Kubectl, found, run, running
from tests.apiserver.podserver import POD, PodServer, serving
from tests.apiserver.podstreams import LocalStreams

KUBECTLS = found()
MEGABYTES = bytes(range(256)) * (16 << 10)


@pytest.fixture(params=KUBECTLS, ids=str)
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    chosen: Kubectl = request.param
    return chosen


@pytest.fixture
def streams() -> LocalStreams:
    return LocalStreams()


@pytest.fixture
async def server(streams: LocalStreams) -> AsyncIterator[PodServer]:
    async with serving(streams) as server:
        yield server


async def test_exec_keeps_stdout_and_stderr_apart_and_tells_the_exit_code(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    script = "echo out; echo err >&2; exit 7"
    ended = await run(kubectl, server.url, tmp_path, "exec", "web", "--", "sh", "-c", script)
    assert (ended.code, ended.out) == (7, b"out\n")
    assert ended.err == "err\ncommand terminated with exit code 7\n"


async def test_exec_speaks_the_protocol_that_is_meant(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    """The three kubectl programs do not all speak the same, or this file would test one protocol thrice."""
    ended = await run(kubectl, server.url, tmp_path, "exec", "web", "--", "true")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    spdy = kubectl.environment or kubectl.name in ("1.27", "1.28", "1.29", "1.30")
    asked = [request for request in server.requests if "/exec" in request]
    path = "/api/v1/namespaces/default/pods/web/exec"
    assert asked == [f"POST {path} SPDY/3.1" if spdy else f"GET {path} websocket"]


async def test_exec_passes_megabytes_through_stdin_and_stdout(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    ended = await run(kubectl, server.url, tmp_path, "exec", "-i", "web", "--", "cat", stdin=MEGABYTES)
    assert ended.code == 0
    assert hashlib.sha256(ended.out).digest() == hashlib.sha256(MEGABYTES).digest()


async def test_exec_ends_while_the_client_still_sends(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    script = "head -c 5; exit 3"
    ended = await run(
        kubectl, server.url, tmp_path, "exec", "-i", "web", "--", "sh", "-c", script, stdin=MEGABYTES * 4
    )
    assert (ended.code, ended.out) == (3, MEGABYTES[:5])


async def test_a_client_that_reads_late_gets_all(
    kubectl: Kubectl, server: PodServer, streams: LocalStreams, tmp_path: Path
) -> None:
    """The program has long ended when its last output, held up in sockets, is read."""
    size = 1 << 20
    command = ("exec", "web", "--", "head", "-c", str(size), "/dev/zero")
    async with running(kubectl, server.url, tmp_path, *command) as program, asyncio.timeout(SECONDS):
        assert program.stdout is not None
        await streams.begun.wait()
        assert await streams.started[0].program.wait() == 0
        assert len(await program.stdout.read()) == size
        assert await program.wait() == 0


async def test_exec_with_a_terminal_has_its_size_and_follows_it(
    kubectl: Kubectl, server: PodServer, streams: LocalStreams, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 101, 0, 0))
    script = (
        "trap 'stty size; exit 5' WINCH; stty size; test -t 0 && echo ready; while :; do sleep 0.02; done"
    )
    command = kubectl.arguments(server.url, tmp_path, "exec", "-it", "web", "--", "sh", "-c", script)
    program = await asyncio.create_subprocess_exec(
        "setsid",
        "--ctty",
        *command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kubectl.variables(tmp_path),
    )
    os.close(theirs)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0)
    )
    try:
        async with asyncio.timeout(SECONDS):
            assert b"31 101" in await reader.readuntil(b"ready\r\n")
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            assert b"40 120" in await reader.readuntil(b"40 120\r\n")
            assert await program.wait() == 5
    finally:
        transport.close()
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()
    assert streams.seen[0][1].size == (101, 31)
    assert not streams.seen[0][1].stderr


async def test_a_program_that_cannot_be_started_is_told_of(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    ended = await run(kubectl, server.url, tmp_path, "exec", "web", "--", "/no/such")
    assert ended.code == 1
    assert "No such file or directory: '/no/such'" in ended.err


async def test_a_client_that_vanishes_takes_its_program_with_it(
    kubectl: Kubectl, streams: LocalStreams, tmp_path: Path
) -> None:
    """Though it was in the middle of sending to a program that reads nothing."""
    script = "echo begun; sleep 1000"
    async with serving(streams, Limits(ping=0.1)) as server:
        async with running(
            kubectl, server.url, tmp_path, "exec", "-i", "web", "--", "sh", "-c", script, stdin=True
        ) as program:
            assert program.stdout is not None and program.stdin is not None
            program.stdin.write(MEGABYTES * 4)
            async with asyncio.timeout(SECONDS):
                assert await program.stdout.readline() == b"begun\n"
            program.kill()
        async with asyncio.timeout(SECONDS):
            assert await streams.started[0].program.wait() == -9
            await server.quiet.wait()


async def test_attach_joins_the_streams_of_the_container(
    kubectl: Kubectl, server: PodServer, streams: LocalStreams, tmp_path: Path
) -> None:
    streams.attached = ("sh", "-c", "read line; echo got $line; echo err >&2; exit 9")
    ended = await run(kubectl, server.url, tmp_path, "attach", "-i", "web", stdin=b"hello\n")
    # What the program ends with is not told to one who is attached.
    assert (ended.code, ended.out) == (0, b"got hello\n")
    assert "err\n" in ended.err


async def test_attach_to_nothing_is_told_of(kubectl: Kubectl, server: PodServer, tmp_path: Path) -> None:
    ended = await run(kubectl, server.url, tmp_path, "attach", "web")
    assert ended.code == 1
    assert 'container "main" does not run' in ended.err


async def test_logs_are_followed_until_they_end(
    kubectl: Kubectl, server: PodServer, streams: LocalStreams, tmp_path: Path
) -> None:
    command = ("logs", "-f", "web", "--tail=5", "--since=10s", "--timestamps")
    async with running(kubectl, server.url, tmp_path, *command) as program, asyncio.timeout(SECONDS):
        assert program.stdout is not None
        for line in (b"one\n", b"two\n"):
            streams.log.put_nowait(line)
            assert await program.stdout.readline() == line
        streams.log.put_nowait(None)
        assert await program.wait() == 0
    target, options = streams.log_asked[0]
    assert (target.namespace, target.pod, target.uid, target.container) == ("default", "web", "0a1b", "main")
    assert (options.follow, options.tail_lines, options.since_seconds) == (True, 5, 10)
    assert options.timestamps and not options.previous


async def test_logs_that_nobody_follows_any_more_are_let_go(
    kubectl: Kubectl, server: PodServer, streams: LocalStreams, tmp_path: Path
) -> None:
    async with running(kubectl, server.url, tmp_path, "logs", "-f", "web") as program:
        assert program.stdout is not None
        streams.log.put_nowait(b"one\n")
        async with asyncio.timeout(SECONDS):
            assert await program.stdout.readline() == b"one\n"
        program.kill()
    async with asyncio.timeout(SECONDS):
        await streams.log_closed.wait()


async def test_logs_stop_at_the_limit_and_failures_are_answers(
    kubectl: Kubectl, server: PodServer, streams: LocalStreams, tmp_path: Path
) -> None:
    streams.log.put_nowait(b"0123456789")
    ended = await run(kubectl, server.url, tmp_path, "logs", "web", "--limit-bytes=4")
    assert (ended.code, ended.out) == (0, b"0123")
    ended = await run(kubectl, server.url, tmp_path, "logs", "web", "--previous")
    assert ended.code == 1
    assert 'previous terminated container "main" not found' in ended.err


async def test_cp_copies_trees_both_ways(kubectl: Kubectl, server: PodServer, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "large").write_bytes(MEGABYTES)
    (tree / "sub" / "empty").touch()
    (tree / "sub" / "name with spaces").write_text("text")
    for source, target in (
        (str(tree), f"web:{tmp_path}/there"),
        (f"web:{tmp_path}/there", f"{tmp_path}/back"),
    ):
        ended = await run(kubectl, server.url, tmp_path, "cp", source, target)
        assert ended.code == 0, ended.err
    for name in ("large", "sub/empty", "sub/name with spaces"):
        assert (tmp_path / "back" / name).read_bytes() == (tree / name).read_bytes()


async def test_a_pod_of_several_containers_needs_a_name(
    kubectl: Kubectl, streams: LocalStreams, tmp_path: Path
) -> None:
    pod = {**POD, "spec": {"containers": [{"name": "main"}, {"name": "side"}]}}
    async with PodServer(streams, pod=pod) as server:
        ended = await run(kubectl, server.url, tmp_path, "exec", "web", "-c", "side", "--", "true")
        assert ended.code == 0
        ended = await run(kubectl, server.url, tmp_path, "exec", "web", "-c", "other", "--", "true")
        assert ended.code == 1
        assert "container other is not valid for pod web" in ended.err or "container not found" in ended.err
    assert [target.container for target, _ in streams.seen] == ["side"]


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Forwarded:
    """A TCP server of the pod, and kubectl in front of it; ``port`` is kubectl's."""

    def __init__(self, port: int, program: asyncio.subprocess.Process) -> None:
        self.port = port
        self.program = program

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def forwarded(kubectl: Kubectl, server: PodServer, home: Path, port: int) -> AsyncIterator[Forwarded]:
    command = ("port-forward", "web", f":{port}", "--address", "127.0.0.1")
    async with running(kubectl, server.url, home, *command) as program:
        assert program.stdout is not None
        async with asyncio.timeout(SECONDS):
            line = await program.stdout.readline()
        assert line.startswith(b"Forwarding from 127.0.0.1:"), line
        yield Forwarded(int(line.split(b":")[1].split(b" ")[0]), program)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _answer_at_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"%d bytes" % len(await reader.read()))
    writer.close()


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


@contextlib.asynccontextmanager
async def tcp(handler: Handler) -> AsyncIterator[int]:
    listening = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


async def test_port_forward_carries_several_connections_at_once(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    data = MEGABYTES[: 1 << 20]

    async def one(ports: Forwarded, number: int) -> bytes:
        reader, writer = await ports.connect()
        mine = number.to_bytes(4, "big") + data
        sending = asyncio.create_task(_send(writer, mine))
        received = await reader.readexactly(len(mine))
        await sending
        writer.close()
        assert received[:4] == mine[:4]
        return hashlib.sha256(received[4:]).digest()

    async with tcp(_echo) as port, forwarded(kubectl, server, tmp_path, port) as ports:
        async with asyncio.timeout(SECONDS):
            digests = await asyncio.gather(*(one(ports, number) for number in range(8)))
    assert set(digests) == {hashlib.sha256(data).digest()}


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_port_forward_keeps_a_connection_that_ends_half_way(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    """The client has said all, and the pod answers only then."""
    async with tcp(_answer_at_end) as port, forwarded(kubectl, server, tmp_path, port) as ports:
        reader, writer = await ports.connect()
        writer.write(b"x" * 100_000)
        writer.write_eof()
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b"100000 bytes"
        writer.close()


async def test_port_forward_ends_what_the_pod_has_ended(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    """The client waits for the end without ending its own direction; and the next connection is served."""
    async with tcp(_greet) as port, forwarded(kubectl, server, tmp_path, port) as ports:
        for _ in range(2):
            reader, writer = await ports.connect()
            async with asyncio.timeout(SECONDS):
                assert await reader.read() == b"hello"
            writer.close()


async def test_port_forward_to_a_closed_port_says_so(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    async with tcp(_greet) as port:
        pass
    async with forwarded(kubectl, server, tmp_path, port) as ports:
        reader, writer = await ports.connect()
        assert ports.program.stderr is not None
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            text = b""
            while b"onnect" not in text.partition(b"error forwarding port")[2]:
                line = await ports.program.stderr.readline()
                assert line, text
                text += line
        writer.close()
    assert f"error forwarding port {port} to pod web, uid 0a1b: ".encode() in text


async def test_port_forward_leaves_nothing_when_the_client_vanishes(
    kubectl: Kubectl, server: PodServer, tmp_path: Path
) -> None:
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        await reader.read()
        ended.set()
        writer.close()

    async with tcp(hold) as port:
        async with forwarded(kubectl, server, tmp_path, port) as ports:
            reader, writer = await ports.connect()
            async with asyncio.timeout(SECONDS):
                assert await reader.readexactly(4) == b"here"
            ports.program.kill()
        writer.close()
        async with asyncio.timeout(SECONDS):
            await ended.wait()
            await server.quiet.wait()
