from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.sources.watch import CONTENT, ENTRIES, HOLD, Watcher, trail


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with Watcher() as made:
        assert made.failure == ""
        yield made


async def wakes(watcher: Watcher, timeout: float = 0.15) -> bool:
    """Whether the watcher returns before its time-out."""
    started = time.monotonic()
    await watcher.changed(timeout)
    return time.monotonic() - started < timeout


def pairs(path: Path, below: Path) -> list[tuple[str, str, bool]]:
    """The trail of a path, without what lies above ``below``."""
    return [step for step in trail(str(path)) if Path(step[0]).is_relative_to(below)]


def test_the_trail_of_a_plain_path_is_each_of_its_components() -> None:
    assert list(trail("/proc/./self/../nowhere//x"))[:1] == [("/", "proc", False)]
    assert list(trail("/nowhere/x")) == [("/", "nowhere", False), ("/nowhere", "x", True)]


def test_the_trail_goes_through_relative_and_absolute_links(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "real").mkdir()
    (root / "sub").mkdir()
    (root / "real" / "file").write_text("")
    (root / "absolute").symlink_to(root / "real")
    (root / "sub" / "relative").symlink_to("../absolute/file")
    assert pairs(root / "sub" / "relative", root) == [
        (str(root), "sub", False),
        (f"{root}/sub", "relative", True),
        (str(root), "absolute", False),
        (str(root), "real", False),
        (f"{root}/real", "file", True),
    ]


def test_the_trail_of_a_link_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert len(pairs(tmp_path / "loop", tmp_path)) == 41


async def test_only_the_names_that_matter_wake(tmp_path: Path, watcher: Watcher) -> None:
    watcher.begin()
    watcher.need(str(tmp_path), "wanted")
    watcher.end()
    (tmp_path / "other").write_text("x")
    assert not await wakes(watcher)
    (tmp_path / "wanted").write_text("x")
    assert await wakes(watcher)


async def test_two_needs_of_one_directory_add_up(tmp_path: Path, watcher: Watcher) -> None:
    (tmp_path / "content").write_text("x")
    watcher.begin()
    watcher.need(str(tmp_path), "content", CONTENT)
    watcher.need(str(tmp_path), "entry", ENTRIES)
    watcher.end()
    (tmp_path / "content").write_text("y")
    assert await wakes(watcher)
    (tmp_path / "entry").mkdir()
    assert await wakes(watcher)


async def test_entries_alone_are_not_woken_by_content(tmp_path: Path, watcher: Watcher) -> None:
    (tmp_path / "file").write_text("x")
    watcher.begin()
    watcher.need(str(tmp_path), None, ENTRIES)
    watcher.end()
    (tmp_path / "file").write_text("y")
    assert not await wakes(watcher)


async def test_what_a_round_does_not_name_is_no_longer_watched(tmp_path: Path, watcher: Watcher) -> None:
    watcher.begin()
    watcher.need(str(tmp_path))
    watcher.end()
    watcher.begin()
    watcher.end()
    (tmp_path / "file").write_text("x")
    assert not await wakes(watcher)


async def test_a_change_during_a_round_is_not_lost(tmp_path: Path, watcher: Watcher) -> None:
    watcher.begin()
    watcher.need(str(tmp_path))
    (tmp_path / "file").write_text("x")
    watcher.end()
    assert await wakes(watcher)
    assert not await wakes(watcher)


async def test_a_directory_that_goes_wakes_and_its_successor_can_be_watched(
    tmp_path: Path, watcher: Watcher
) -> None:
    directory = tmp_path / "d"
    for _ in range(2):
        directory.mkdir()
        watcher.begin()
        number = watcher.need(str(directory))
        watcher.end()
        assert number is not None
        shutil.rmtree(directory)
        assert await wakes(watcher)


async def test_a_file_is_held_while_it_is_written(tmp_path: Path, watcher: Watcher) -> None:
    watcher.begin()
    number = watcher.need(str(tmp_path))
    watcher.end()
    with (tmp_path / "file").open("w") as file:
        assert watcher.held(number, "file", 0) is not None
        file.write("x")
        file.flush()
        until = watcher.held(number, "file", 1)
        assert until is not None
        assert 0 < until - time.monotonic() <= HOLD
    assert watcher.held(number, "file", 1) is None
    assert watcher.held(None, "file", 1) is None


async def test_a_file_that_appears_whole_is_not_held(tmp_path: Path, watcher: Watcher) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("x")
    watcher.begin()
    number = watcher.need(str(tmp_path))
    watcher.end()
    (tmp_path / "linked").hardlink_to(tmp_path / "elsewhere" / "file")
    (tmp_path / "elsewhere" / "file").rename(tmp_path / "moved")
    assert watcher.held(number, "linked", 1) is None
    assert watcher.held(number, "moved", 1) is None


async def test_a_burst_wakes_a_bounded_number_of_times(tmp_path: Path, watcher: Watcher) -> None:
    watcher.begin()
    watcher.need(str(tmp_path))
    watcher.end()
    done = asyncio.Event()

    async def write() -> None:
        for number in range(100):
            (tmp_path / str(number)).write_text("x")
            await asyncio.sleep(0.002)
        done.set()

    writer = asyncio.create_task(write())
    started = time.monotonic()
    wakings = 0
    while not done.is_set():
        await watcher.changed(0.5)
        wakings += 1
    await writer
    assert wakings <= 3 + (time.monotonic() - started) / 0.03
