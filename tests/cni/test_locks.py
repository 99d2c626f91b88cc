"""Locks between processes (spec section 2): one operation a container, GC of a network alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from podwire.cni import filelock
from podwire.cni.errors import IOFailure, TryLater
from podwire.cni.filelock import FileLocks
from podwire.cni.plugin import Request, Result
from podwire.cni.runtime import Attachment, Runtime
from tests.cni.helpers import RESULT, Options, Recorder, network, script

C1 = Attachment("c1", "/run/netns/x")
CONTAINER = ("container", "c1")
NET = ("network", "net")


def two(directory: Path) -> tuple[FileLocks, FileLocks]:
    return FileLocks(str(directory / "cni")), FileLocks(str(directory / "cni"))


def test_a_lock_is_held_against_other_openings_until_it_is_released(tmp_path: Path) -> None:
    ours, theirs = two(tmp_path)
    assert ours.try_acquire(CONTAINER, True)
    assert not theirs.try_acquire(CONTAINER, True)
    assert theirs.try_acquire(("container", "c2"), True)
    assert theirs.try_acquire(("network", "c1"), True)
    ours.release(CONTAINER)
    assert theirs.try_acquire(CONTAINER, True)


def test_sharers_are_counted(tmp_path: Path) -> None:
    ours, theirs = two(tmp_path)
    assert ours.try_acquire(NET, False) and ours.try_acquire(NET, False)
    assert theirs.try_acquire(NET, False)
    theirs.release(NET)
    ours.release(NET)
    assert not theirs.try_acquire(NET, True)
    ours.release(NET)
    assert theirs.try_acquire(NET, True)
    assert not ours.try_acquire(NET, False)


def test_whoever_waits_to_have_it_alone_is_not_overtaken(tmp_path: Path) -> None:
    ours, theirs = two(tmp_path)
    assert ours.try_acquire(NET, False)
    with theirs.queued(NET, True):
        assert not theirs.try_acquire(NET, True)
        # Sharing what is held here already needs nobody's leave.
        assert ours.try_acquire(NET, False)
        ours.release(NET)
        ours.release(NET)
        assert not ours.try_acquire(NET, False)
        assert theirs.try_acquire(NET, True)
    theirs.release(NET)
    assert ours.try_acquire(NET, False)


def test_one_empty_file_is_all_that_a_thousand_locks_leave(tmp_path: Path) -> None:
    ours, theirs = two(tmp_path)
    for number in range(1000):
        assert ours.try_acquire(("container", f"c{number}"), True)
    assert not theirs.try_acquire(("container", "c999"), True)
    for number in range(1000):
        ours.release(("container", f"c{number}"))
    ours.close()
    (left,) = (tmp_path / "cni").iterdir()
    assert (left.name, left.stat().st_size, left.stat().st_mode & 0o777) == (filelock.NAME, 0, 0o600)


def test_a_cache_directory_deleted_meanwhile_is_locked_anew(tmp_path: Path) -> None:
    ours, theirs = two(tmp_path)
    assert ours.try_acquire(NET, True)
    ours.release(NET)
    shutil.rmtree(tmp_path / "cni")
    assert theirs.try_acquire(NET, True)
    assert not ours.try_acquire(NET, True)


def test_where_the_file_cannot_be_made_the_failure_says_so(tmp_path: Path) -> None:
    (tmp_path / "cni").write_text("a file")
    with pytest.raises(IOFailure, match=r"cannot lock the result cache.*Not a directory"):
        FileLocks(str(tmp_path / "cni")).try_acquire(NET, True)


def test_names_that_are_no_text_have_a_place_too(tmp_path: Path) -> None:
    ours, theirs = two(tmp_path)
    assert ours.try_acquire(("container", "\ud800"), True)
    assert not theirs.try_acquire(("container", "\ud800"), True)


HOLDER = """
import sys, asyncio
from podwire.cni.runtime import Attachment, Runtime
from podwire.cni.config import load_list

async def main():
    runtime = Runtime(path=(sys.argv[1],), cache_dir=sys.argv[2])
    await runtime.add(load_list(sys.argv[3]), Attachment("c1", "/run/netns/x"))

asyncio.run(main())
"""


async def test_two_processes_obey_the_order_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.up")
    script(tmp_path, "slow", "[ $CNI_COMMAND = ADD ] || exit 0; echo $$ > $0.up; exec sleep 600")
    net = network("slow")
    (tmp_path / "net.conflist").write_bytes(net.raw)
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOLDER, tmp_path, tmp_path / "cni", tmp_path / "net.conflist"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    plugin = int(await asyncio.to_thread((tmp_path / "slow.up").read_text))
    async with Runtime(path=(str(tmp_path),), cache_dir=tmp_path / "cni") as runtime:
        with pytest.raises(TryLater, match="waited in vain for container c1; held by another process"):
            await runtime.delete(net, C1, timeout=0.1)
        with pytest.raises(TryLater, match="waited in vain for network net; held by another process"):
            await runtime.gc(net, [], timeout=0.1)
        waiting = asyncio.create_task(runtime.delete(net, C1, timeout=20))
        process.kill()
        process.wait()
        await waiting
        assert runtime.attachments() == []
    os.kill(plugin, signal.SIGKILL)


async def test_gc_of_one_runtime_waits_for_the_add_of_another(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    inside = asyncio.Event()
    release = threading.Event()

    def add(_request: Request[Options]) -> Result:
        loop.call_soon_threadsafe(inside.set)
        release.wait(10)
        return RESULT

    plugin = Recorder("a", acts={"ADD": add})
    net = network("a")
    async with (
        Runtime({"a": plugin.plugin}, cache_dir=tmp_path) as one,
        Runtime({"a": plugin.plugin}, cache_dir=tmp_path) as other,
    ):
        adding = asyncio.create_task(one.add(net, C1))
        await inside.wait()
        collecting = asyncio.create_task(other.gc(net, [C1]))
        with pytest.raises(TryLater, match="network net"):
            await other.gc(net, [], timeout=0.05)
        assert plugin.commands == ["ADD"]
        release.set()
        await asyncio.gather(adding, collecting)
    assert plugin.commands == ["ADD", "GC"]
