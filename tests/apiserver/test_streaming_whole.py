"""The streaming subresources behind the whole API server: TLS, a token, the oldest and newest kubectl."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from podwire.apiserver.http.ownnode import OwnNode
from podwire.apiserver.server import ApiServer, Settings
from podwire.serving.streaming.service import Streaming
from tests.apiserver.kubectl import SECONDS, Kubectl, found, run, running
from tests.apiserver.podserver import POD
from tests.apiserver.podstreams import LocalStreams

MEGABYTES = bytes(range(256)) * (16 << 10)


@pytest.fixture(params=found(), ids=str)
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    chosen: Kubectl = request.param
    return chosen


@pytest.fixture
def streams() -> LocalStreams:
    return LocalStreams()


@pytest.fixture
async def kubeconfig(streams: LocalStreams, tmp_path: Path, kubectl: Kubectl) -> AsyncIterator[str]:
    """Of a server that has the pod ``web``, running."""
    before = asyncio.all_tasks()
    streaming = Streaming(streams)
    server = ApiServer(Settings(directory=tmp_path / "state", listen=("127.0.0.1:0",)), OwnNode(streaming))
    await server.start()
    try:
        config = str(server.files.kubeconfig)
        for arguments, stdin in (
            (("create", "--validate=false", "-f", "-"), json.dumps({**POD, "status": {}}).encode()),
            (("patch", "pod", "web", "--subresource=status", "-p", '{"status":{"phase":"Running"}}'), None),
        ):
            ended = await run(kubectl, config, tmp_path, *arguments, stdin=stdin)
            assert ended.code == 0, ended.err
        yield config
    finally:
        await streaming.close()
        await server.close()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=5)
    assert not left


async def test_exec_carries_megabytes_and_the_exit_code(
    kubectl: Kubectl, kubeconfig: str, tmp_path: Path
) -> None:
    command = ("exec", "-i", "web", "--", "sh", "-c", "cat; echo err >&2; exit 7")
    ended = await run(kubectl, kubeconfig, tmp_path, *command, stdin=MEGABYTES)
    assert ended.code == 7 and ended.out == MEGABYTES
    assert ended.err == "err\ncommand terminated with exit code 7\n"


async def test_a_client_that_vanishes_takes_its_program_with_it(
    kubectl: Kubectl, kubeconfig: str, streams: LocalStreams, tmp_path: Path
) -> None:
    async with running(kubectl, kubeconfig, tmp_path, "exec", "web", "--", "sleep", "1000") as program:
        async with asyncio.timeout(SECONDS):
            await streams.begun.wait()
        program.kill()
    async with asyncio.timeout(SECONDS):
        assert await streams.started[0].program.wait() == -9


async def test_cp_attach_and_logs(
    kubectl: Kubectl, kubeconfig: str, streams: LocalStreams, tmp_path: Path
) -> None:
    (tmp_path / "here").write_bytes(MEGABYTES)
    ended = await run(kubectl, kubeconfig, tmp_path, "cp", f"{tmp_path}/here", f"web:{tmp_path}/there")
    assert ended.code == 0 and (tmp_path / "there").read_bytes() == MEGABYTES
    streams.attached = ("cat",)
    ended = await run(kubectl, kubeconfig, tmp_path, "attach", "-i", "web", stdin=b"hello")
    assert (ended.code, ended.out) == (0, b"hello")
    for piece in (b"one\n", b"two\n", None):
        streams.log.put_nowait(piece)
    ended = await run(kubectl, kubeconfig, tmp_path, "logs", "-f", "web")
    assert (ended.code, ended.out) == (0, b"one\ntwo\n")


async def test_port_forward_carries_several_connections_at_once(
    kubectl: Kubectl, kubeconfig: str, tmp_path: Path
) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d bytes" % len(await reader.read()))
        writer.close()

    async def one(port: int, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(100_000 + number))
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    listening = await asyncio.start_server(count, "127.0.0.1", 0)
    target = listening.sockets[0].getsockname()[1]
    command = ("port-forward", "web", f":{target}", "--address", "127.0.0.1")
    async with running(kubectl, kubeconfig, tmp_path, *command) as program, asyncio.timeout(SECONDS):
        assert program.stdout is not None
        line = await program.stdout.readline()
        assert line.startswith(b"Forwarding from 127.0.0.1:"), line
        port = int(line.split(b":")[1].split(b" ")[0])
        answers = await asyncio.gather(*(one(port, number) for number in range(5)))
        assert answers == [b"%d bytes" % (100_000 + number) for number in range(5)]
    with contextlib.suppress(OSError):
        listening.close()


async def test_without_a_token_nothing_is_run(
    kubectl: Kubectl, kubeconfig: str, streams: LocalStreams, tmp_path: Path
) -> None:
    config = json.loads(Path(kubeconfig).read_text())
    config["users"][0]["user"] = {"token": "guessed"}
    (tmp_path / "wrong").write_text(json.dumps(config))
    ended = await run(kubectl, str(tmp_path / "wrong"), tmp_path, "exec", "web", "--", "true")
    assert ended.code == 1 and not streams.started
