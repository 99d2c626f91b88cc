"""What kubectl never does: old and unknown protocols, slow, silent, odd and vanishing clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec

import aiohttp
import pytest

from podwire.serving.streaming import logs, portforward, spdy_channels
from podwire.serving.streaming.program import Limits
from podwire.serving.streaming.queue import LIMIT, ByteQueue
from podwire.serving.streaming.spdy import frames
from podwire.serving.streaming.spdy.frames import Data, Ping, RstStream, WindowUpdate
from tests.apiserver.podserver import PodServer, serving
from tests.apiserver.podstreams import LocalStreams
from tests.apiserver.spdyclient import BASE, SpdyClient

SECONDS = 15.0
P = ParamSpec("P")
V1, V2, V3, V4 = "channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io", "v4.channel.k8s.io"


def timed(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """No test waits for ever for what does not come."""

    @functools.wraps(test)
    async def inner(*args: P.args, **kwargs: P.kwargs) -> None:
        async with asyncio.timeout(SECONDS):
            await test(*args, **kwargs)

    return inner


@pytest.fixture
def streams() -> LocalStreams:
    return LocalStreams()


@pytest.fixture
async def server(streams: LocalStreams) -> AsyncIterator[PodServer]:
    async with serving(streams) as server:
        yield server


def sh(script: str, **flags: str) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], **flags}


@pytest.mark.parametrize(
    ("offers", "agreed", "told"),
    [
        ((V4, V3), V4, None),
        ((V3, V4), V3, b"command terminated with non-zero exit code: exit status 3"),
        (("v9.channel.k8s.io, " + V2,), V2, b"command terminated with non-zero exit code: exit status 3"),
        ((V1,), V1, b"command terminated with non-zero exit code: exit status 3"),
        ((), V1, b"command terminated with non-zero exit code: exit status 3"),
    ],
)
@timed
async def test_every_version_of_the_protocol_over_spdy(
    server: PodServer, offers: tuple[str, ...], agreed: str, told: bytes | None
) -> None:
    script = sh("cat; echo err >&2; exit 3", stdin="1", stdout="1", stderr="1")
    client = await SpdyClient.connect(server.port, "exec", *offers, **script)
    assert (client.status, client.headers["x-stream-protocol-version"]) == (101, [agreed])
    error, stdin, stdout, stderr = client.roles("error", "stdin", "stdout", "stderr")
    client.send(Data(stdin, b"in"), Data(stdin, b"put", True))
    await client.to_end()
    assert client.replies == {error, stdin, stdout, stderr}
    assert client.data[stdout] == b"input" and client.data[stderr] == b"err\n"
    assert {error, stdout, stderr} <= client.ended
    if told is not None:
        assert client.data[error] == told
        return
    assert json.loads(client.data[error]) == {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": "command terminated with non-zero exit code: exit status 3",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
    }


@timed
async def test_unknown_protocols_and_requests_that_are_no_upgrade_are_refused(server: PodServer) -> None:
    script = sh("true", stdout="1")
    client = await SpdyClient.connect(server.port, "exec", "v9.channel.k8s.io", **script)
    assert client.status == 403
    assert client.headers["x-accepted-stream-protocol-versions"] == [V4, V3, V2, V1]
    assert b"client supports [v9.channel.k8s.io]" in await client.body()
    await client.close()
    for upgrade, query, message in (
        ("", script, b"an upgrade to SPDY/3.1 or websocket is needed"),
        ("h2c", script, b"an upgrade to SPDY/3.1 or websocket is needed"),
        ("SPDY/3.1", {"stdout": "1"}, b"you must specify a command"),
        ("SPDY/3.1", {"command": "true"}, b"at least 1 of stdin, stdout, stderr"),
        ("SPDY/3.1", {**script, "container": "other"}, b"container other is not valid for pod web"),
    ):
        client = await SpdyClient.connect(server.port, "exec", V4, upgrade=upgrade, **query)
        assert client.status == 400
        assert message in await client.body()
        await client.close()
    client = await SpdyClient.connect(server.port, "portforward", "v9.portforward.k8s.io")
    assert client.status == 403
    await client.close()


@timed
async def test_streams_that_nobody_asked_for_are_refused(server: PodServer) -> None:
    client = await SpdyClient.connect(server.port, "exec", V4, **sh("echo ok", stdout="1"))
    extra, stdout, twice, error = client.roles("stdin", "stdout", "stdout", "error")
    await client.to_end()
    assert client.resets[extra] == client.resets[twice] == frames.REFUSED_STREAM
    assert client.data[stdout] == b"ok\n" and json.loads(client.data[error])["status"] == "Success"


@timed
async def test_streams_that_do_not_come_are_waited_for_only_so_long(
    server: PodServer, streams: LocalStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spdy_channels, "CREATION", 0.05)
    client = await SpdyClient.connect(server.port, "exec", V4, **sh("true", stdout="1", stderr="1"))
    error, _ = client.roles("error", "stdout")
    await client.to_end()
    assert json.loads(client.data[error])["message"].endswith("create streams: stderr")
    assert not streams.started


@timed
async def test_a_client_that_reads_nothing_stops_the_program_and_not_the_memory(
    server: PodServer, streams: LocalStreams
) -> None:
    """Gigabytes of output stay in the program: what it could write is what sockets and pipes hold."""
    client = await SpdyClient.connect(server.port, "exec", V4, **sh("exec cat /dev/zero", stdout="1"))
    client.roles("error", "stdout")
    await streams.begun.wait()
    await _stands_still(lambda: _written(streams))
    assert _written(streams) < 16 << 20
    await client.close()
    assert await streams.started[0].program.wait() == -9


@timed
async def test_a_program_that_reads_nothing_stops_the_client_and_not_the_memory(
    server: PodServer, streams: LocalStreams
) -> None:
    """And the client is still missed when it goes, though nothing of what it sent last was ever read."""
    limits = Limits(ping=0.05)
    async with serving(streams, limits) as server:
        script = sh("echo begun; exec sleep 1000", stdin="1", stdout="1")
        client = await SpdyClient.connect(server.port, "exec", V4, **script)
        _, stdin, stdout = client.roles("error", "stdin", "stdout")
        while not client.data[stdout]:
            await client.step()
        sent = 0

        async def send() -> None:
            nonlocal sent
            while True:
                client.send(Data(stdin, bytes(32 << 10)))
                await client.writer.drain()
                sent += 32 << 10

        sending = asyncio.create_task(send())
        await _stands_still(lambda: sent)
        assert sent < 16 << 20
        sending.cancel()
        client.writer.transport.abort()
        assert await streams.started[0].program.wait() == -9
        await server.quiet.wait()


_HELD = 1 << 20
"""Bytes that sockets hold without anybody reading."""


@timed
async def test_a_client_that_reads_late_over_spdy_gets_all(server: PodServer, streams: LocalStreams) -> None:
    """A server that had closed would answer its ping with a reset, and all that is not read would be lost."""
    script = sh(f"head -c {_HELD} /dev/zero", stdout="1")
    client = await SpdyClient.connect(server.port, "exec", V4, **script)
    error, stdout = client.roles("error", "stdout")
    await streams.begun.wait()
    assert await streams.started[0].program.wait() == 0
    await _ping_for_a_while(lambda: client.send(Ping(1)))
    await client.to_end()
    assert len(client.data[stdout]) == _HELD
    assert json.loads(client.data[error])["status"] == "Success"


@timed
async def test_a_client_that_reads_late_over_web_socket_gets_all(
    server: PodServer, streams: LocalStreams
) -> None:
    script = sh(f"head -c {_HELD} /dev/zero", stdout="1")
    async with web_socket(server, "exec", "v5.channel.k8s.io", **script) as client:
        await streams.begun.wait()
        assert await streams.started[0].program.wait() == 0
        pings: list[asyncio.Task[None]] = []
        await _ping_for_a_while(lambda: pings.append(asyncio.create_task(client.ping())))
        await asyncio.gather(*pings)
        got = [message.data async for message in client]
    assert sum(len(data) - 1 for data in got if data[0] == 1) == _HELD
    assert json.loads(got[-1][1:])["status"] == "Success"


async def _ping_for_a_while(ping: Callable[[], None]) -> None:
    for _ in range(10):
        await asyncio.sleep(0.02)
        ping()


def _written(streams: LocalStreams) -> int:
    told = Path(f"/proc/{streams.started[0].program.pid}/io").read_text()
    return int(told.split("wchar: ")[1].split()[0])


async def _stands_still(number: Callable[[], int]) -> None:
    """Wait until a number has begun to grow and stays the same for a while."""
    last, same = 0, 0
    while same < 10:
        await asyncio.sleep(0.02)
        now = number()
        same = same + 1 if now == last and now else 0
        last = now


@timed
async def test_a_client_that_minds_windows_is_minded(server: PodServer) -> None:
    """It gets no more than it has room for, and may send on when what it sent was used."""
    script = sh("head -c 300000 | wc -c; head -c 200000 /dev/zero", stdin="1", stdout="1")
    client = await SpdyClient.connect(server.port, "exec", V4, **script)
    error, stdin, stdout = client.roles("error", "stdin", "stdout")
    client.send(WindowUpdate(stdout, 1000))
    sent = 0
    while sent < 300_000:
        room = min(frames.WINDOW + client.widened[stdin] - sent, 300_000 - sent)
        client.send(Data(stdin, bytes(room)))
        sent += room
        if sent < 300_000:
            await client.step()
    granted = frames.WINDOW + 1000
    while len(client.data[stdout]) < 200_007:
        while len(client.data[stdout]) < min(granted, 200_007):
            await client.step()
        assert len(client.data[stdout]) <= granted
        client.send(WindowUpdate(stdout, 50_000))
        granted += 50_000
    assert client.data[stdout].startswith(b"300000\n")
    client.send(Data(stdin, b"", True))
    await client.to_end()
    assert json.loads(client.data[error])["status"] == "Success"


@timed
async def test_pings_are_answered_while_a_stream_is_full(server: PodServer) -> None:
    client = await SpdyClient.connect(server.port, "exec", V4, **sh("sleep 1000", stdin="1", stdout="1"))
    _, stdin, _ = client.roles("error", "stdin", "stdout")
    client.send(Ping(5), Data(stdin, bytes(LIMIT // 2)), Ping(7))
    while client.pings != [5, 7]:
        await client.step()
    await client.close()


@timed
async def test_an_idle_connection_is_ended_and_told_why(streams: LocalStreams) -> None:
    async with serving(streams, Limits(idle=0.6, ping=0.05)) as server:
        client = await SpdyClient.connect(server.port, "exec", V4, **sh("sleep 1000", stdout="1"))
        error, _ = client.roles("error", "stdout")
        await client.to_end()
        assert client.pings and not any(ping % 2 for ping in client.pings)
        told = json.loads(client.data[error])
        assert (told["reason"], told["message"]) == ("Timeout", "the connection was idle for 0.6 seconds")
        assert await streams.started[0].program.wait() == -9

        client = await SpdyClient.connect(server.port, "portforward", "portforward.k8s.io")
        await client.to_end()
        assert client.away is not None


@timed
async def test_a_busy_connection_is_not_idle(streams: LocalStreams) -> None:
    async with serving(streams, Limits(idle=0.6, ping=0.05)) as server:
        script = "for i in 1 2 3 4 5 6 7 8; do sleep 0.1; echo $i; done"
        client = await SpdyClient.connect(server.port, "exec", V4, **sh(script, stdout="1"))
        error, stdout = client.roles("error", "stdout")
        await client.to_end()
        assert client.data[stdout].endswith(b"8\n")
        assert json.loads(client.data[error])["status"] == "Success"


@timed
async def test_breaking_the_protocol_ends_the_connection_and_the_program(
    server: PodServer, streams: LocalStreams
) -> None:
    client = await SpdyClient.connect(server.port, "exec", V4, **sh("sleep 1000", stdout="1"))
    client.roles("error", "stdout")
    await streams.begun.wait()
    client.writer.write(b"\xff" * 100)
    await client.to_end()
    assert client.away is not None and client.away.code == frames.PROTOCOL_ERROR
    assert await streams.started[0].program.wait() == -9


@pytest.mark.parametrize("seed", range(20))
@timed
async def test_random_bytes_leave_nothing_behind(server: PodServer, seed: int) -> None:
    client = await SpdyClient.connect(server.port, "portforward", "portforward.k8s.io")
    client.open(streamType="error", port="1", requestID="0")
    client.writer.write(os.urandom(4096))
    client.writer.write_eof()
    while await client.step():
        pass
    await client.close()
    await server.quiet.wait()


@timed
async def test_the_server_ends_what_runs_when_it_ends(streams: LocalStreams) -> None:
    async with serving(streams) as server:
        client = await SpdyClient.connect(server.port, "exec", V4, **sh("sleep 1000", stdout="1"))
        client.roles("error", "stdout")
        await streams.begun.wait()
    assert await streams.started[0].program.wait() == -9
    while await client.step():
        pass
    await client.close()


@contextlib.asynccontextmanager
async def web_socket(
    server: PodServer, subresource: str, *protocols: str, **query: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            f"{server.url}{BASE}/{subresource}", protocols=protocols, params=_pairs(query)
        ) as client,
    ):
        yield client


def _pairs(query: dict[str, Any]) -> list[tuple[str, str]]:
    return [(k, one) for k, v in query.items() for one in (v if isinstance(v, list) else [v])]


@pytest.mark.parametrize(
    ("protocol", "as_json"),
    [("v5.channel.k8s.io", True), (V4, True), (V1, False), ("", False)],
)
@timed
async def test_every_version_of_the_protocol_over_web_socket(
    server: PodServer, protocol: str, as_json: bool
) -> None:
    protocols = (protocol,) if protocol else ()
    script = sh("head -c 5; echo err >&2; exit 3", stdin="1", stdout="1", stderr="1")
    async with web_socket(server, "exec", *protocols, **script) as client:
        assert client.protocol == (protocol or None)
        assert (await client.receive()).data == b"\x01"
        await client.send_bytes(b"\x00in")
        await client.send_bytes(b"\x00put")
        got: dict[int, bytes] = {}
        async for message in client:
            got[message.data[0]] = got.get(message.data[0], b"") + message.data[1:]
        assert client.close_code == 1000
    text = "command terminated with non-zero exit code: exit status 3"
    assert (got[1], got[2]) == (b"input", b"err\n")
    assert (json.loads(got[3])["message"] if as_json else got[3].decode()) == text


@timed
async def test_version_5_can_end_stdin(server: PodServer) -> None:
    script = sh("cat", stdin="1", stdout="1")
    async with web_socket(server, "exec", "v5.channel.k8s.io", **script) as client:
        await client.send_bytes(b"\x00all")
        await client.send_bytes(b"\xff\x00")
        got = [message.data async for message in client]
    assert got[1] == b"\x01all"
    assert json.loads(got[2][1:])["status"] == "Success"


@timed
async def test_base64_messages_are_text(server: PodServer) -> None:
    script = sh("read line; echo got $line", stdin="1", stdout="1")
    async with web_socket(server, "exec", "base64.channel.k8s.io", **script) as client:
        await client.send_str("0" + base64.b64encode(b"yes\n").decode())
        got = [message.data async for message in client]
    assert got == ["1", "1" + base64.b64encode(b"got yes\n").decode()]


@timed
async def test_odd_messages_are_passed_over(server: PodServer) -> None:
    script = sh("read line; echo got $line", stdin="1", stdout="1", tty="1")
    async with web_socket(server, "exec", "v5.channel.k8s.io", **script) as client:
        for message in (
            b"",
            b"\x04{",
            b'\x04{"Width":-1,"Height":70000}',
            b"\x63what",
            b"\xff\x09",
            b"\x04[]",
        ):
            await client.send_bytes(message)
        await client.send_bytes(b"\x00yes\n")
        got = b"".join([message.data[1:] async for message in client])
    assert b"got yes" in got


@timed
async def test_a_web_socket_that_vanishes_takes_its_program_with_it(
    server: PodServer, streams: LocalStreams
) -> None:
    async with web_socket(server, "exec", V4, **sh("sleep 1000", stdout="1")) as client:
        await streams.begun.wait()
        transport = client._response.connection.transport if client._response.connection else None
        assert transport is not None
        transport.abort()
    assert await streams.started[0].program.wait() == -9
    await server.quiet.wait()


@timed
async def test_a_pair_that_stays_incomplete_is_given_up(
    server: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portforward, "CREATION", 0.05)
    client = await SpdyClient.connect(server.port, "portforward", "portforward.k8s.io")
    number = client.open(streamType="error", port="80", requestID="0")
    while number not in client.resets:
        assert await client.step()
    await client.close()


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "", "١", "9" * 5000])
@timed
async def test_a_port_that_is_none_is_refused(server: PodServer, port: str) -> None:
    client = await SpdyClient.connect(server.port, "portforward", "portforward.k8s.io")
    number = client.open(streamType="data", port=port, requestID="0")
    while number not in client.resets:
        assert await client.step()
    assert client.resets[number] == frames.REFUSED_STREAM
    await client.close()


@timed
async def test_a_connection_that_the_client_resets_is_closed_in_the_pod(server: PodServer) -> None:
    """Though the pod is silent; another connection goes on."""
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        if await reader.read() == b"":
            ended.set()
        writer.close()

    listening = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = str(listening.sockets[0].getsockname()[1])
    client = await SpdyClient.connect(server.port, "portforward", "portforward.k8s.io")
    # One client names the request, as they all do now, and one, as they once did, does not.
    first = [client.open(streamType=role, port=port, requestID="7") for role in ("error", "data")]
    second = [client.open(streamType=role, port=port) for role in ("error", "data")]
    while not (client.data[first[1]] and client.data[second[1]]):
        await client.step()
    client.send(RstStream(first[1], frames.CANCEL))
    await ended.wait()
    while first[0] not in client.ended:
        assert await client.step()
    assert second[1] not in client.ended | set(client.resets)
    client.send(Data(second[1], b"bye"), Data(second[1], b"", True))
    while second[1] not in client.ended:
        assert await client.step()
    await client.close()
    listening.close()


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"])
@timed
async def test_port_forward_without_spdy_has_a_channel_for_each_port(
    server: PodServer, protocol: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5) + b"!")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    good = listening.sockets[0].getsockname()[1]
    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    closed = other.sockets[0].getsockname()[1]
    other.close()
    text = "base64" in protocol
    async with web_socket(server, "portforward", protocol, ports=[str(good), str(closed)]) as client:
        await (
            client.send_str("0" + base64.b64encode(b"hello").decode())
            if text
            else client.send_bytes(b"\0hello")
        )
        await (client.send_str("nothing") if text else client.send_bytes(b"\x09nothing"))
        got: dict[int, bytes] = {}
        async for message in client:
            if text:
                number, data = int(message.data[0], 16), base64.b64decode(message.data[1:])
            else:
                number, data = message.data[0], message.data[1:]
            got[number] = got.get(number, b"") + data
    assert got[0] == good.to_bytes(2, "little") + b"hello!"
    assert (got[1], got[2]) == (good.to_bytes(2, "little"), closed.to_bytes(2, "little"))
    assert got[3].startswith(closed.to_bytes(2, "little") + b"error forwarding port %d to pod web" % closed)
    listening.close()


@pytest.mark.parametrize("ports", ["", "0", "80,x", ",".join(["80"] * 33)])
@timed
async def test_port_forward_without_spdy_needs_ports(server: PodServer, ports: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with web_socket(server, "portforward", "v4.channel.k8s.io", ports=ports):
            pass
    assert refused.value.status == 400


@timed
async def test_a_log_that_is_silent_is_let_go_when_its_reader_has_gone(
    server: PodServer, streams: LocalStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "GONE_CHECK", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {BASE}/log?follow=true HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await streams.log_closed.wait()
    await server.quiet.wait()


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("tailLines=x", 400, "invalid syntax"),
        ("limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0"),
        ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "at most one of"),
        ("stream=both", 422, 'stream: Unsupported value: \\"both\\"'),
        ("stream=Stdout&tailLines=3", 422, "mutually exclusive"),
        ("container=other", 400, "container other is not valid for pod web"),
    ],
)
@timed
async def test_log_options_are_checked(server: PodServer, query: str, code: int, message: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}{BASE}/log?{query}") as answer:
        assert answer.status == code
        assert message in await answer.text()


@timed
async def test_a_queue_makes_whoever_puts_too_much_wait() -> None:
    queue = ByteQueue(10)
    await queue.put(b"x" * 10)
    waiting = asyncio.create_task(queue.put(b"y"))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await queue.get() == b"x" * 10 + b"y"
    await waiting
    queue.finish()
    assert await queue.get() == b""
    await queue.put(b"late")
    assert await queue.get() == b""
    broken = ByteQueue(10)
    waiting = asyncio.create_task(broken.put(b"z" * 11))
    await asyncio.sleep(0)
    broken.finish(ConnectionResetError("gone"))
    await waiting
    with pytest.raises(ConnectionResetError, match="gone"):
        await broken.get()
