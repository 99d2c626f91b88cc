"""The node ends, also by kill -9, and comes back: what runs goes on, what was begun is finished or undone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from podwire.runtime.api import ContainerState, EventType, PidMode, SandboxState
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import Code, RuntimeFault
from tests.runtime import helpers
from tests.runtime.helpers import Places, ended, ran, shell, started, until

pytestmark = pytest.mark.kernel

NODE = """
import asyncio, sys
from pathlib import Path
from tests.runtime import helpers
async def main():
    places = helpers.Places(Path(sys.argv[1]), helpers.FakeCni())
    runtime = places.runtime()
    if sys.argv[2] == "hang":
        places.cni.during_add = asyncio.Event()
        creation = asyncio.ensure_future(runtime.run_pod_sandbox(places.own_network()))
        await places.cni.during_add.wait()
        print("ready", flush=True)
        await creation
    if sys.argv[2] == "storm":
        print("ready", flush=True)
        await asyncio.gather(*(runtime.run_pod_sandbox(places.own_network(f"pod-{n}")) for n in range(40)))
    sandbox = await runtime.run_pod_sandbox(places.own_network())
    script = "echo up; while ! test -e " + sys.argv[1] + "/go; do sleep 0.02; done; echo went; exit 4"
    await helpers.started(runtime, sandbox, helpers.shell(script, "goes"))
    await helpers.started(runtime, sandbox, helpers.shell("sleep 60", "stays"))
    await runtime.create_container(sandbox, helpers.shell("echo late", "late"))
    done = await helpers.started(runtime, sandbox, helpers.shell("exit 9", "done"))
    await helpers.ended(runtime, done)
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def node(places: Places, mode: str) -> asyncio.subprocess.Process:
    """A node in a process of its own; returned when it is ready."""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        NODE,
        str(places.base),
        mode,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
    return process


async def killed(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.communicate()


@pytest.fixture
async def second(places: Places) -> AsyncIterator[EmbeddedRuntime]:
    """The runtime that comes after; its sandboxes are removed after the test."""
    runtime = places.runtime()
    yield runtime
    await runtime.open()
    for sandbox in await runtime.list_pod_sandbox():
        await runtime.remove_pod_sandbox(sandbox.id)
    await runtime.close()
    assert not places.root.exists() and not places.run_dir.exists(), list(places.base.rglob("*"))


async def test_kill_9_and_everything_is_found_again(places: Places, second: EmbeddedRuntime) -> None:
    process = await node(places, "run")
    await killed(process)
    await second.open()
    (sandbox,) = await second.list_pod_sandbox()
    assert (sandbox.state, sandbox.ips) == (SandboxState.READY, ("10.9.0.5", "fd00:9::5"))
    found = {status.metadata.name: status for status in await second.list_containers()}
    assert list(found) == ["goes", "stays", "late", "done"]
    assert found["goes"].state is found["stays"].state is ContainerState.RUNNING
    assert helpers.alive(found["stays"].pid)
    assert (found["done"].state, found["done"].exit_code) == (ContainerState.EXITED, 9)
    assert found["late"].state is ContainerState.CREATED

    events = second.events()
    (places.base / "go").touch()
    async with asyncio.timeout(10):
        event = await anext(events)
    assert (event.type, event.container_id) == (EventType.STOPPED, found["goes"].id)
    await events.aclose()
    assert (await second.container_status(found["goes"].id)).exit_code == 4
    assert places.log("goes") == b"up\nwent\n"
    await second.start_container(found["late"].id)
    assert (await ended(second, found["late"].id)).exit_code == 0
    assert (await second.exec_sync(found["stays"].id, ("echo", "hi"), 10)).stdout == b"hi\n"
    await second.stop_container(found["stays"].id, 5)
    assert (await second.container_status(found["stays"].id)).exit_code == 143


async def test_what_ended_meanwhile_is_told(places: Places, second: EmbeddedRuntime) -> None:
    process = await node(places, "run")
    await killed(process)
    (places.base / "go").touch()
    await until("it has ended", lambda: places.log("goes") == b"up\nwent\n")
    await second.open()
    goes = next(status for status in await second.list_containers() if status.metadata.name == "goes")
    status = await ended(second, goes.id)
    assert (status.exit_code, status.reason) == (4, "Error")


async def test_a_supervisor_that_died_meanwhile(places: Places, second: EmbeddedRuntime) -> None:
    process = await node(places, "run")
    (sandbox_dir,) = places.root.glob("sandboxes/*")
    processes = helpers.processes_of([sandbox_dir.name])
    await killed(process)
    os.kill(helpers.supervisor_of(sandbox_dir.name), signal.SIGKILL)
    await until("all are gone with it", lambda: not any(map(helpers.alive, processes)))
    (sandbox,) = await second.list_pod_sandbox()
    assert sandbox.state is SandboxState.NOTREADY
    found = {status.metadata.name: status for status in await second.list_containers()}
    assert (found["stays"].state, found["stays"].exit_code) == (ContainerState.EXITED, 137)
    assert (found["done"].exit_code, found["late"].state) == (9, ContainerState.CREATED)
    third = msgspec.json.decode((places.root / "sandboxes" / sandbox.id / "sandbox.json").read_bytes())
    assert third["phase"] == "ready" and third["attached"]


async def test_kill_9_in_the_middle_of_an_add_is_undone_at_the_next_start(
    places: Places, second: EmbeddedRuntime
) -> None:
    process = await node(places, "hang")
    await killed(process)
    (record,) = places.root.glob("sandboxes/*/sandbox.json")
    sandbox = record.parent.name
    assert (places.run_dir / "netns" / sandbox).exists()
    mounts = [line for line in helpers.mounts() if sandbox in line]
    assert len(mounts) == 1
    await second.open()
    assert await second.list_pod_sandbox() == []
    assert places.cni.calls == [("DEL", "test")]
    assert places.cni.asked[0].container_id == sandbox
    assert [line for line in helpers.mounts() if sandbox in line] == []
    assert not (places.run_dir / "netns" / sandbox).exists() and not record.parent.exists()


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3])
async def test_kill_9_while_many_come_up(places: Places, second: EmbeddedRuntime, delay: float) -> None:
    process = await node(places, "storm")
    await asyncio.sleep(delay)  # any moment will do
    await killed(process)
    began = {path.parent.name for path in places.root.glob("sandboxes/*/sandbox.json")}
    await second.open()
    left = await second.list_pod_sandbox()
    ready = {status.id for status in left if status.state is SandboxState.READY}
    assert all(helpers.processes_of([one]) for one in ready)
    await until("the supervisors of all others end", lambda: not helpers.processes_of(began - ready))
    undone = {attachment.container_id for attachment in places.cni.asked}
    assert undone == began - {status.id for status in left}
    netns = {path.name for path in places.run_dir.glob("netns/*")}
    assert netns == {status.id for status in left}
    for sandbox in sorted(ready)[:2]:
        assert (await ran(second, sandbox, shell("exit 0", sandbox[:5]))).exit_code == 0


async def test_close_and_open_again(places: Places, second: EmbeddedRuntime) -> None:
    first = places.runtime()
    sandbox = await first.run_pod_sandbox(places.sandbox())
    container_id = await started(first, sandbox, shell("sleep 60"))
    with pytest.raises(RuntimeFault) as caught:
        await second.open()
    assert caught.value.code is Code.UNAVAILABLE
    await first.close()
    with pytest.raises(RuntimeFault):
        await first.list_pod_sandbox()
    assert (await second.container_status(container_id)).state is ContainerState.RUNNING


async def test_a_record_that_cannot_be_read_is_no_obstacle(places: Places, second: EmbeddedRuntime) -> None:
    first = places.runtime()
    kept, broken = [await first.run_pod_sandbox(places.sandbox(name)) for name in ("kept", "broken")]
    supervisor = helpers.supervisor_of(broken)
    await first.close()
    path = places.root / "sandboxes" / broken / "sandbox.json"
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    between = places.runtime()
    assert [status.id for status in await between.list_pod_sandbox()] == [kept]
    ready, _ = await between.status()
    assert str(path) in ready.message
    assert helpers.alive(supervisor)
    await between.close()
    path.write_bytes(text)
    assert len(await second.list_pod_sandbox()) == 2


async def test_a_supervisor_whose_records_were_deleted_ends(places: Places, second: EmbeddedRuntime) -> None:
    first = places.runtime()
    sandbox = await first.run_pod_sandbox(places.sandbox())
    await started(first, sandbox, shell("sleep 60"))
    processes = helpers.processes_of([sandbox])
    shutil.rmtree(places.root / "sandboxes" / sandbox)
    assert all(map(helpers.alive, processes))
    await first.close()
    await until("nothing runs", lambda: not any(map(helpers.alive, processes)))
    shutil.rmtree(places.run_dir / "sandboxes" / sandbox[:16])


async def test_a_sandbox_made_without_a_network_can_be_removed_with_one(
    places: Places, second: EmbeddedRuntime
) -> None:
    first = EmbeddedRuntime(places.root, places.run_dir, None, None)
    sandbox = await first.run_pod_sandbox(places.own_network(pid=PidMode.CONTAINER))
    assert (await first.pod_sandbox_status(sandbox)).ips == ()
    conditions = {condition.type: condition for condition in await first.status()}
    assert conditions["RuntimeReady"].status
    assert (conditions["NetworkReady"].status, conditions["NetworkReady"].reason) == (
        False,
        "NetworkPluginNotReady",
    )
    await first.close()
    await second.remove_pod_sandbox(sandbox)
    assert places.cni.calls == []
    assert await second.list_pod_sandbox() == []
    assert all(condition.status for condition in await second.status())


async def test_a_reboot_leaves_sandboxes_to_be_taken_down(places: Places, second: EmbeddedRuntime) -> None:
    first = places.runtime()
    sandbox = await first.run_pod_sandbox(places.own_network())
    container_id = await started(first, sandbox, shell("sleep 60"))
    await first.close()
    supervisor = helpers.supervisor_of(sandbox)
    os.kill(supervisor, signal.SIGKILL)
    await until("it is gone", lambda: not helpers.alive(supervisor))
    process = await asyncio.create_subprocess_exec("umount", str(places.run_dir / "netns" / sandbox))
    await process.wait()
    for path in sorted(places.run_dir.rglob("*"), reverse=True):
        path.unlink() if not path.is_dir() else path.rmdir()
    assert (await second.pod_sandbox_status(sandbox)).state is SandboxState.NOTREADY
    assert (await second.container_status(container_id)).state is ContainerState.EXITED
    await second.remove_pod_sandbox(sandbox)
    assert places.cni.calls[-1] == ("DEL", "test") and places.cni.attached == set()
