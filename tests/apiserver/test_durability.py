"""What was answered is there: after kill -9 during writes, and beside a disk that is full."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podwire.apiserver.database import DatabaseFault
from podwire.apiserver.storage import Key, KeyExists, KeyNotFound, Storage

WRITER = """
import asyncio, sys
from pathlib import Path
from podwire.apiserver.storage import Key, Storage

async def main():
    storage = Storage(Path(sys.argv[1]), log_kept=50)
    async def work(number):
        key = Key("", "things", "", f"thing-{number}")
        await storage.create(key, {"metadata": {"name": key.name}, "value": 0})
        for value in range(1, 1_000_000):
            stored = await storage.update(key, lambda o: {**o, "value": value})
            print(number, value, stored.revision, flush=True)
    await asyncio.gather(*(work(n) for n in range(8)))

asyncio.run(main())
"""


def test_kill_during_writes_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """SIGKILL, several times: every value that was told is there, and no revision goes back."""
    told: dict[str, int] = {}
    highest = 0
    for round_number in range(3):
        path = tmp_path / f"{round_number}.db"
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert writer.stdout is not None
        told.clear()
        highest = 0
        for _ in range(150 + 70 * round_number):
            number, value, revision = writer.stdout.readline().split()
            told[number], highest = int(value), max(highest, int(revision))
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout.read().splitlines():
            if len(parts := line.split()) == 3:
                told[parts[0]], highest = int(parts[1]), max(highest, int(parts[2]))
        writer.stdout.close()
        writer.wait()
        asyncio.run(_holds(path, told, highest))


async def _holds(path: Path, told: dict[str, int], highest: int) -> None:
    storage = Storage(path)
    try:
        assert storage.revision >= highest
        for number, value in told.items():
            stored = storage.get(Key("", "things", "", f"thing-{number}"))
            assert stored is not None
            assert stored.object["value"] >= value
        # The log leads without a gap from the oldest revision to the present.
        oldest = storage.compacted
        then = {
            s.object["metadata"]["name"]: s.object["value"]
            for s in storage.list("", "things", revision=oldest).items
        }
        watch = storage.watch("", "things", since=oldest)
        while not watch.idle:
            event = await watch.__anext__()
            then[event.stored.object["metadata"]["name"]] = event.stored.object["value"]
        now = {s.object["metadata"]["name"]: s.object["value"] for s in storage.list("", "things").items}
        assert then == now
    finally:
        await storage.close()


def key(name: str) -> Key:
    return Key("", "things", "", name)


def thing(name: str, text: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name}, "text": text}


async def test_full_disk_refuses_writes_and_nothing_else(tmp_path: Path) -> None:
    """What was refused was never seen; reads go on; with room again, writes do too."""
    path = tmp_path / "objects.db"
    storage = Storage(path)
    await storage.create(key("first"), thing("first"))
    connection: sqlite3.Connection = storage._database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    watch = storage.watch("", "things", since=storage.revision)
    before = storage.revision
    results = await asyncio.gather(
        *(storage.create(key(f"big-{n}"), thing(f"big-{n}", "x" * 20_000)) for n in range(5)),
        storage.update(key("first"), lambda o: {**o, "text": "y" * 20_000}),
        return_exceptions=True,
    )
    assert all(isinstance(result, DatabaseFault) and result.full for result in results), results
    assert storage.revision == before
    assert watch.idle
    held = storage.get(key("first"))
    assert held is not None
    assert held.object["text"] == ""
    connection.execute("PRAGMA max_page_count=100000")
    await storage.create(key("big-1"), thing("big-1", "x" * 20_000))
    assert [s.object["metadata"]["name"] for s in storage.list("", "things").items] == ["big-1", "first"]
    await storage.close()
    again = Storage(path)
    assert again.revision == storage.revision
    assert len(again.list("", "things").items) == 2
    await again.close()


async def test_a_write_that_builds_on_a_failed_one_fails_too(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "objects.db")
    connection: sqlite3.Connection = storage._database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    made = asyncio.ensure_future(storage.create(key("a"), thing("a", "x" * 50_000)))
    await asyncio.sleep(0)
    changed = asyncio.ensure_future(storage.update(key("a"), lambda o: {**o, "text": "small"}))
    with pytest.raises(DatabaseFault):
        await made
    with pytest.raises(DatabaseFault):
        await changed
    assert storage.get(key("a")) is None
    with pytest.raises(KeyNotFound):
        await storage.update(key("a"), lambda o: o)
    await storage.close()


async def test_a_cancelled_caller_does_not_undo_its_write(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "objects.db")
    task = asyncio.ensure_future(storage.create(key("a"), thing("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(KeyExists):
        await storage.create(key("a"), thing("a"))
    await storage.close()


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "objects.db")
    with pytest.raises(DatabaseFault):
        Storage(tmp_path / "objects.db")
    await storage.close()


async def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(DatabaseFault, match="format 99"):
        Storage(path)


async def test_the_log_is_bounded(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "objects.db", log_kept=10)
    await storage.create(key("a"), thing("a"))
    for number in range(60):
        await storage.update(key("a"), lambda o, n=number: {**o, "text": str(n)})  # type: ignore[misc]
    assert 10 <= len(storage._log) <= 20
    await storage.close()
    with sqlite3.connect(tmp_path / "objects.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM changes").fetchone()
    connection.close()
    assert rows <= 21


async def test_a_watcher_that_lags_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podwire.apiserver.watches.QUEUED_AT_MOST", 5)
    storage = Storage(tmp_path / "objects.db")
    slow = storage.watch("", "things", since=0)
    for number in range(7):
        await storage.create(key(f"a{number}"), thing(f"a{number}"))
    assert slow.overrun
    events = [event.stored.object["metadata"]["name"] async for event in slow]
    assert events == ["a0", "a1", "a2", "a3", "a4"]
    await storage.close()
