"""Clients joined to the streams of a container's own program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.session import Session
from tests.runtime.helpers import Places, ended, shell, started, until

pytestmark = pytest.mark.kernel


async def running(runtime: EmbeddedRuntime, places: Places, script: str, **fields: Any) -> str:
    sandbox = await runtime.run_pod_sandbox(places.own_network())
    return await started(runtime, sandbox, shell(script, **fields))


@asynccontextmanager
async def opened(places: Places, **options: Any) -> AsyncIterator[EmbeddedRuntime]:
    """A runtime; its pods are removed at the end."""
    made = places.runtime(**options)
    try:
        yield made
        for sandbox in await made.list_pod_sandbox():
            await made.remove_pod_sandbox(sandbox.id)
    finally:
        await made.close()


class Reader:
    """What a session gives, as far as it has come."""

    def __init__(self, session: Session) -> None:
        self.got = {1: b"", 2: b""}
        self._task = asyncio.ensure_future(self._read(session))

    async def _read(self, session: Session) -> None:
        async for number, data in session.output():
            self.got[number] += data

    async def until(self, text: bytes) -> None:
        await until(f"{text!r} has come", lambda: text in self.got[1])

    async def whole(self) -> dict[int, bytes]:
        await asyncio.wait_for(self._task, 10)
        return self.got


async def test_input_reaches_the_program_and_its_streams_come_apart(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    script = 'while read line; do echo "<$line>"; echo "!$line" >&2; done; exit 3'
    container_id = await running(runtime, places, script, stdin=True, stdin_once=True)
    session = await runtime.attach(container_id, stdin=True)
    reader = Reader(session)
    await session.write_stdin(b"one\n")
    await reader.until(b"<one>")
    await session.write_stdin(b"two\n")
    await session.write_stdin(b"")
    assert await reader.whole() == {1: b"<one>\n<two>\n", 2: b"!one\n!two\n"}
    assert await session.wait() == 3
    await session.close()
    assert (await ended(runtime, container_id)).exit_code == 3
    assert sorted(text for _, _, text in places.entries()) == [b"!one", b"!two", b"<one>", b"<two>"]


async def test_stdin_stays_open_from_client_to_client_and_ends_each_one_s_part(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    container_id = await running(runtime, places, "exec cat", stdin=True)
    for text in (b"first\n", b"second\n"):
        session = await runtime.attach(container_id, stdin=True)
        reader = Reader(session)
        await session.write_stdin(text)
        await reader.until(text)
        await session.write_stdin(b"")
        assert (await reader.whole())[1] == text
        assert await session.wait() == 0
        await session.close()


async def test_a_client_that_goes_ends_the_input_of_a_program_that_takes_one_client_s(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    container_id = await running(runtime, places, "cat; exit 5", stdin=True, stdin_once=True)
    session = await runtime.attach(container_id, stdin=True)
    await session.close()
    assert (await ended(runtime, container_id)).exit_code == 5


async def test_several_clients_see_the_same_and_one_that_goes_disturbs_none(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    container_id = await running(runtime, places, "exec cat", stdin=True)
    writer, watcher = [await runtime.attach(container_id, stdin=stdin) for stdin in (True, False)]
    readers = [Reader(writer), Reader(watcher)]
    await writer.write_stdin(b"for both\n")
    for reader in readers:
        await reader.until(b"for both\n")
    await writer.close()
    third = await runtime.attach(container_id, stdin=True)
    await third.write_stdin(b"again\n")
    await readers[1].until(b"again\n")
    await third.close()
    await runtime.stop_container(container_id, 0)
    assert (await readers[1].whole())[1] == b"for both\nagain\n"
    assert await watcher.wait() == 137
    await watcher.close()


async def test_a_terminal_gives_what_has_no_newline_and_has_the_client_s_size(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    script = "printf 'ready$ '; while read line; do stty size; printf '$ '; done"
    container_id = await running(runtime, places, script, stdin=True, tty=True)
    session = await runtime.attach(container_id, stdin=True)
    reader = Reader(session)
    await session.resize(120, 40)
    await session.write_stdin(b"go\n")
    await reader.until(b"40 120\r\n$ ")
    await session.write_stdin(b"")
    await reader.whole()
    await session.close()
    # Its input has not ended: a terminal stays for the next client.
    session = await runtime.attach(container_id, stdin=True)
    reader = Reader(session)
    await session.write_stdin(b"go\n")
    await reader.until(b"40 120\r\n$ ")
    await session.close()


async def test_the_streams_outlive_the_runtime_that_made_them(places: Places) -> None:
    first = places.runtime()
    container_id = await running(first, places, "exec cat", stdin=True)
    before = await first.attach(container_id, stdin=True)
    await before.write_stdin(b"one\n")
    await before.close()
    await first.close()
    async with opened(places) as second:
        session = await second.attach(container_id, stdin=True)
        reader = Reader(session)
        await session.write_stdin(b"two\n")
        await reader.until(b"two\n")
        await session.close()


async def test_a_slow_client_holds_the_program_up_and_loses_nothing(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    size = 3_000_000
    script = f"read line; head -c {size} /dev/zero | tr '\\0' x; echo; echo done"
    container_id = await running(runtime, places, script, stdin=True, stdin_once=True)
    slow, gone = [await runtime.attach(container_id, stdin=stdin) for stdin in (True, False)]
    await slow.write_stdin(b"\n")
    await until("the program is held up", lambda: b"x" in _peek(slow))
    await gone.close()
    reader = Reader(slow)
    assert len((await reader.whole())[1]) == size + len("\ndone\n")
    assert await slow.wait() == 0
    await slow.close()


def _peek(session: Session) -> bytes:
    import fcntl
    import termios

    waiting = bytearray(4)
    fcntl.ioctl(session._outputs[1], termios.FIONREAD, waiting)
    return b"x" if int.from_bytes(waiting, "little") >= 65536 else b""


async def test_a_client_that_takes_nothing_for_long_is_let_go(places: Places) -> None:
    async with opened(places, attach_stall=0.2) as runtime:
        script = "read line; head -c 1000000 /dev/zero; cat; exit 4"
        container_id = await running(runtime, places, script, stdin=True, stdin_once=True)
        session = await runtime.attach(container_id, stdin=True)
        await session.write_stdin(b"\n")
        with pytest.raises(RuntimeFault) as caught:
            await asyncio.wait_for(session.wait(), 10)
        assert caught.value.code is Code.UNAVAILABLE
        assert (await ended(runtime, container_id)).exit_code == 4
        await session.close()


async def test_without_stdin_what_is_sent_is_dropped(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await running(runtime, places, "read line; echo over; sleep 60")
    session = await runtime.attach(container_id, stdin=True)
    await session.write_stdin(b"x" * 1_000_000)
    await session.write_stdin(b"")
    await runtime.stop_container(container_id, 0)
    assert await session.wait() == 137
    await session.close()


async def test_what_does_not_run_cannot_be_attached_to(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await running(runtime, places, "exit 0")
    await ended(runtime, container_id)
    with pytest.raises(RuntimeFault) as caught:
        await runtime.attach(container_id)
    assert caught.value.code is Code.FAILED_PRECONDITION
    with pytest.raises(RuntimeFault) as caught:
        await runtime.attach("unknown")
    assert caught.value.code is Code.NOT_FOUND
