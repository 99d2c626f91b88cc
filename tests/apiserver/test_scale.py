"""What must not cost more with more watchers or objects, counted and not timed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from podwire.apiserver.storage import Change, Key, Storage, Stored
from podwire.apiserver.watches import Watch


def pod(name: str, node: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "d", "name": name}, "spec": {"nodeName": node}}


@pytest.mark.parametrize("field", ["spec.nodeName", "metadata.name"])
async def test_a_change_is_offered_to_those_alone_that_can_want_it(
    monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    storage = Storage()
    watches = [storage.watch("", "pods", since=0, index=(field, f"value-{n}")) for n in range(200)]
    everything = storage.watch("", "pods", since=0)
    offered: list[Watch] = []
    offer = Watch.offer

    def noted(self: Watch, change: Change) -> None:
        offered.append(self)
        offer(self, change)

    monkeypatch.setattr(Watch, "offer", noted)
    wanted = pod("value-7", "value-7")
    await storage.create(Key("", "pods", "d", "value-7"), wanted)
    assert set(offered) == {everything, watches[7]}
    assert [w for w in watches if not w.idle] == [watches[7]]
    await storage.close()


async def test_a_pod_that_moves_leaves_one_watch_and_enters_another() -> None:
    storage = Storage()
    await storage.create(Key("", "pods", "d", "p"), pod("p", "a"))
    one, other = (storage.watch("", "pods", since=storage.revision, index=("spec.nodeName", n)) for n in "ab")
    await storage.update(Key("", "pods", "d", "p"), lambda o: {**o, "spec": {"nodeName": "b"}})
    left, entered = await one.__anext__(), await other.__anext__()
    assert (left.type, left.stored.object["spec"]["nodeName"]) == ("DELETED", "a")
    assert (entered.type, entered.stored.object["spec"]["nodeName"]) == ("ADDED", "b")
    assert left.stored.object["metadata"]["resourceVersion"] == str(storage.revision)
    await storage.close()


async def test_an_event_is_written_once_for_all_watches() -> None:
    storage = Storage()
    watches = [storage.watch("", "pods", since=0) for _ in range(3)]
    await storage.create(Key("", "pods", "d", "p"), pod("p", "a"))
    lines = [(await watch.__anext__()).line for watch in watches]
    assert lines[0] is lines[1] is lines[2]
    await storage.close()


async def test_closed_watches_leave_nothing_behind() -> None:
    storage = Storage()
    for index in (None, ("spec.nodeName", "a")):
        storage.watch("", "pods", since=0, index=index).close()
        storage.watch("", "pods", "d", since=0, index=index).close()
    assert not storage._watches._all
    assert not any(storage._watches._indexed.values())
    await storage.close()


async def test_writes_of_one_moment_share_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path / "objects.db")
    batches: list[int] = []
    submit = storage._database.submit

    def counted(writes: Any, compacted: int) -> None:
        batches.append(len(writes))
        submit(writes, compacted)

    monkeypatch.setattr(storage._database, "submit", counted)
    await asyncio.gather(
        *(storage.create(Key("", "pods", "d", f"p{n}"), pod(f"p{n}", "a")) for n in range(300))
    )
    assert sum(batches) == 300
    assert len(batches) <= 2
    await storage.close()


async def test_a_list_by_an_indexed_field_looks_at_nothing_else() -> None:
    storage = Storage()
    for number in range(30):
        await storage.create(Key("", "pods", "d", f"p{number}"), pod(f"p{number}", f"n{number % 3}"))
    looked: list[str] = []

    def look(stored: Stored) -> bool:
        looked.append(stored.meta.name)
        return True

    def of_node(name: str) -> list[str]:
        looked.clear()
        page = storage.list("", "pods", index=("spec.nodeName", name), predicate=look)
        assert len(looked) == len(page.items)
        return [stored.meta.name for stored in page.items]

    assert of_node("n0") == sorted(f"p{number}" for number in range(0, 30, 3))
    await storage.update(Key("", "pods", "d", "p0"), lambda o: {**o, "spec": {"nodeName": "n1"}})
    await storage.delete(Key("", "pods", "d", "p3"))
    await storage.create(Key("", "pods", "d", "new"), pod("new", "n0"))
    assert of_node("n0") == sorted(["new", *(f"p{number}" for number in range(6, 30, 3))])
    assert "p0" in of_node("n1")
    assert of_node("nobody") == []
    before = storage.revision - 3
    past = storage.list("", "pods", revision=before, index=("spec.nodeName", "n0"))
    assert [s.meta.name for s in past.items] == sorted(f"p{number}" for number in range(0, 30, 3))
    await storage.close()
