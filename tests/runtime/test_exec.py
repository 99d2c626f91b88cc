"""Programs run inside running containers."""

from __future__ import annotations

import asyncio
import time

import pytest

from podwire.runtime.api import ContainerUser, PidMode
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.session import Session
from tests.runtime import helpers
from tests.runtime.helpers import Places, container, ended, started, until

pytestmark = pytest.mark.kernel


async def sleeper(runtime: EmbeddedRuntime, places: Places, pid: PidMode = PidMode.CONTAINER) -> str:
    sandbox = await runtime.run_pod_sandbox(places.own_network(pid=pid))
    user = ContainerUser(uid=65534, gid=65534)
    config = container("/bin/sleep", "60", envs=(("A", "1"),), user=user, working_dir="/usr", log_path="")
    return await started(runtime, sandbox, config)


async def everything(session: Session) -> dict[int, bytes]:
    got = {1: b"", 2: b""}
    async for number, data in session.output():
        got[number] += data
    return got


async def test_exec_sync_is_in_the_container(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    script = "echo $A $HOSTNAME; id -u; pwd; hostname; cat /proc/1/comm; grep -c 10.9.0.5 /etc/hosts"
    script += "; echo e >&2; exit 4"
    result = await runtime.exec_sync(container_id, ("sh", "-c", script), 10)
    assert result.stdout.decode().split("\n")[:-1] == ["1 web", "65534", "/usr", "web", "sleep", "1"]
    assert (result.stderr, result.exit_code) == (b"e\n", 4)
    links = await runtime.exec_sync(container_id, ("ip", "-br", "link"), 10)
    assert [line.split()[0] for line in links.stdout.splitlines()] == [b"lo"]


@pytest.mark.parametrize("mode", [PidMode.POD, PidMode.NODE])
async def test_exec_in_the_other_pid_modes(runtime: EmbeddedRuntime, places: Places, mode: PidMode) -> None:
    container_id = await sleeper(runtime, places, mode)
    result = await runtime.exec_sync(container_id, ("cat", "/proc/1/comm"), 10)
    assert (result.stdout == b"podwire-pause\n") == (mode is PidMode.POD)
    left = await runtime.exec(container_id, ("sleep", "59"))
    await runtime.stop_container(container_id, 5)
    assert await left.wait() == 137
    await left.close()


async def test_exec_sync_takes_large_output_and_signals(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    result = await runtime.exec_sync(container_id, ("head", "-c", "3000000", "/dev/zero"), 20)
    assert result.stdout == b"\0" * 3_000_000
    assert (await runtime.exec_sync(container_id, ("sh", "-c", "kill -9 $$"), 10)).exit_code == 137


async def test_exec_sync_ends_a_program_that_takes_too_long(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    began = time.monotonic()
    with pytest.raises(RuntimeFault) as caught:
        await runtime.exec_sync(container_id, ("sh", "-c", "sleep 57 | sleep 58"), 0.3)
    assert (caught.value.code, time.monotonic() - began < 5) == (Code.DEADLINE_EXCEEDED, True)
    sandbox = (await runtime.list_pod_sandbox())[0].id
    await until("only its own program runs", lambda: sleeps(sandbox) == 1)


def sleeps(sandbox: str) -> int:
    return sum(name == "sleep" for name in helpers.processes_of([sandbox]).values())


async def test_exec_sync_does_not_wait_for_the_programs_children(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    container_id = await sleeper(runtime, places)
    result = await runtime.exec_sync(container_id, ("sh", "-c", "echo x; sleep 50 & exit 2"), 20)
    assert (result.stdout, result.exit_code) == (b"x\n", 2)


async def test_exec_of_what_cannot_be_run(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    fds = helpers.fds()
    with pytest.raises(RuntimeFault) as caught:
        await runtime.exec_sync(container_id, ("nope",), 10)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.message == 'exec: "nope": executable file not found in $PATH'
    with pytest.raises(RuntimeFault) as caught:
        await runtime.exec(container_id, ())
    assert caught.value.code is Code.INVALID_ARGUMENT
    await runtime.stop_container(container_id, 0)
    with pytest.raises(RuntimeFault) as caught:
        await runtime.exec_sync(container_id, ("true",), 10)
    assert caught.value.code is Code.FAILED_PRECONDITION
    with pytest.raises(RuntimeFault) as caught:
        await runtime.exec_sync("unknown", ("true",), 10)
    assert caught.value.code is Code.NOT_FOUND
    await asyncio.sleep(0)
    assert helpers.fds() == fds


async def test_stdin_goes_in_and_output_comes_out(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    session = await runtime.exec(container_id, ("cat",), stdin=True)
    collected = asyncio.ensure_future(everything(session))
    data = bytes(range(256)) * 8000
    await session.write_stdin(data)
    await session.write_stdin(b"")
    assert await session.wait() == 0
    assert (await collected)[1] == data
    await session.close()
    await session.close()


async def test_stdin_of_a_program_that_does_not_read_blocks_nobody(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    container_id = await sleeper(runtime, places)
    session = await runtime.exec(container_id, ("sleep", "0.2"), stdin=True)
    async with asyncio.timeout(10):
        await session.write_stdin(b"x" * 1_000_000)
        assert await session.wait() == 0
    await session.close()


async def test_a_terminal_with_a_size(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    session = await runtime.exec(container_id, ("sh", "-c", "read x; stty size; tty"), stdin=True, tty=True)
    await session.resize(132, 50)
    await session.write_stdin(b"go\n")
    output = await everything(session)
    assert await session.wait() == 0
    assert b"50 132\r\n/dev/pts/" in output[1] and output[2] == b""
    await session.close()


async def test_closing_a_session_ends_its_program(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    sandbox = (await runtime.list_pod_sandbox())[0].id
    session = await runtime.exec(container_id, ("sleep", "58"))
    assert sleeps(sandbox) == 2
    await session.close()
    await until("it has ended", lambda: sleeps(sandbox) == 1)


async def test_a_program_inside_ends_with_its_container(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    session = await runtime.exec(container_id, ("sleep", "58"))
    await runtime.stop_container(container_id, 5)
    assert await session.wait() == 137
    await session.close()
    sandbox = (await runtime.list_pod_sandbox())[0].id
    assert helpers.zombies_under(helpers.supervisor_of(sandbox)) == []
    assert (await ended(runtime, container_id)).exit_code == 143


async def test_many_at_once(runtime: EmbeddedRuntime, places: Places) -> None:
    container_id = await sleeper(runtime, places)
    numbers = range(30)
    results = await asyncio.gather(
        *(runtime.exec_sync(container_id, ("sh", "-c", f"echo {n}; exit {n}"), 20) for n in numbers)
    )
    assert [(result.stdout, result.exit_code) for result in results] == [(b"%d\n" % n, n) for n in numbers]
