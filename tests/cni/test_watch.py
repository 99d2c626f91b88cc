"""A03: a directory of networks is followed through every change, also its deletion and return."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from podwire.cni import watch
from podwire.cni.config import Directory, load_directory


def write(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "a"}]}))


def names(found: Directory) -> list[str]:
    return [network.name for network in found.networks]


@asynccontextmanager
async def following(path: Path, poll: float = 60) -> AsyncIterator[Callable[[], asyncio.Future[Directory]]]:
    """What comes next, within ten seconds; by default long before a poll could have seen it."""
    changes = watch.watch_directory(path, poll_interval=poll)
    try:
        yield lambda: asyncio.ensure_future(asyncio.wait_for(anext(changes), 10))
    finally:
        await changes.aclose()  # type: ignore[attr-defined]


async def test_what_is_there_comes_at_once_and_each_change_after_it(tmp_path: Path) -> None:
    write(tmp_path / "10-a.conflist", "a")
    async with following(tmp_path) as coming_next:
        assert names(await coming_next()) == ["a"]
        write(tmp_path / "20-b.conflist", "b")
        assert names(await coming_next()) == ["a", "b"]
        (tmp_path / "10-a.conflist").write_text("{")
        changed = await coming_next()
        assert names(changed) == ["b"]
        assert "10-a.conflist: not JSON" in str(changed.problems[0])
        write(tmp_path / "new", "a2")
        (tmp_path / "new").rename(tmp_path / "10-a.conflist")
        assert names(await coming_next()) == ["a2", "b"]
        (tmp_path / "20-b.conflist").unlink()
        assert names(await coming_next()) == ["a2"]


async def test_a03_the_directory_deleted_and_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "cni" / "net.d"
    write(directory / "10-a.conflist", "a")
    async with following(directory) as coming_next:
        assert names(await coming_next()) == ["a"]
        for number in range(3):
            shutil.rmtree(tmp_path / "cni")
            assert names(await coming_next()) == []
            write(directory / "10-a.conflist", f"a{number}")
            assert names(await coming_next()) == [f"a{number}"]
        write(directory / "10-a.conflist", "last")
        assert names(await coming_next()) == ["last"]


async def test_a03_a_directory_that_comes_only_later(tmp_path: Path) -> None:
    async with following(tmp_path / "etc" / "cni" / "net.d") as coming_next:
        assert names(await coming_next()) == []
        coming = coming_next()
        write(tmp_path / "etc" / "cni" / "net.d" / "10-a.conflist", "a")
        assert names(await coming) == ["a"]


async def test_a_directory_swapped_by_renaming_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "net.d" / "10-a.conflist", "a")
    write(tmp_path / "other" / "10-b.conflist", "b")
    async with following(tmp_path / "net.d") as coming_next:
        assert names(await coming_next()) == ["a"]
        (tmp_path / "net.d").rename(tmp_path / "old")
        (tmp_path / "other").rename(tmp_path / "net.d")
        assert names(await coming_next()) == ["b"]
        write(tmp_path / "net.d" / "10-b.conflist", "b2")
        assert names(await coming_next()) == ["b2"]


async def test_plugins_of_a_networks_own_directory_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "10-a.conflist", "a")
    async with following(tmp_path) as coming_next:
        assert len((await coming_next()).networks[0].plugins) == 1
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "1.conf").write_text('{"type": "x"}')
        assert len((await coming_next()).networks[0].plugins) == 2
        (tmp_path / "a" / "1.conf").write_text('{"type": "y"}')
        assert (await coming_next()).networks[0].plugins[1].type == "y"


async def test_a15_a_changed_content_is_a_change_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "10-a.conflist", "a")
    async with following(tmp_path, poll=0.02) as coming_next:
        await coming_next()
        coming = coming_next()
        write(tmp_path / "10-a.conflist", "a")
        (tmp_path / "readme").write_text("nothing of ours")
        done, _ = await asyncio.wait({coming}, timeout=0.3)
        assert not done
        write(tmp_path / "10-a.conflist", "b")
        assert names(await coming) == ["b"]


async def test_without_inotify_polling_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoInotify:
        def inotify_init1(self, _flags: int) -> int:
            return -1

    monkeypatch.setattr(watch, "_libc", NoInotify())
    async with following(tmp_path / "net.d", poll=0.02) as coming_next:
        assert names(await coming_next()) == []
        write(tmp_path / "net.d" / "10-a.conflist", "a")
        assert names(await coming_next()) == ["a"]


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with following(tmp_path) as coming_next:
        await coming_next()
        for number in range(5):
            write(tmp_path / "10-a.conflist", f"a{number}")
            await coming_next()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_a13_a_file_half_written_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer truncates it and is slow; it is read at that very moment."""
    write(tmp_path / "10-a.conflist", "a")
    whole = (tmp_path / "10-a.conflist").read_text()
    reads: list[Directory] = []
    torn = asyncio.Event()
    loop = asyncio.get_running_loop()

    def load(path: Path) -> Directory:
        found = load_directory(path)
        reads.append(found)
        if found.problems:
            loop.call_soon_threadsafe(torn.set)
        return found

    monkeypatch.setattr(watch, "load_directory", load)
    monkeypatch.setattr(watch, "_SETTLE_SECONDS", 0.2)
    async with following(tmp_path, poll=0.02) as coming_next:
        await coming_next()
        coming = coming_next()
        (tmp_path / "10-a.conflist").write_text("")
        await torn.wait()
        (tmp_path / "10-a.conflist").write_text(whole.replace('"a"', '"b"', 1))
        assert names(await coming) == ["b"]
    assert any(each.problems for each in reads)
