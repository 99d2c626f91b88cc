"""The storage against a model: whatever is written, refused, compacted or restarted in between.

What watches tell, played on the list at which they began, is the list now; lists at past revisions are those
of the model at that revision.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from podwire.apiserver.storage import Expired, FutureRevision, Key, KeyExists, KeyNotFound, Storage
from podwire.apiserver.watches import Watch

NAMES = st.sampled_from(["a", "a-b", "b", "c"])
NAMESPACES = st.sampled_from(["x", "x-y"])
NODES = st.sampled_from(["", "n1", "n2"])
State = dict[tuple[str, str], tuple[int, str]]


def obj(namespace: str, name: str, node: str, text: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"nodeName": node}, "text": text}


class Play:
    """A watch and the state of what it has told."""

    def __init__(self, watch: Watch, state: State, namespace: str | None, node: str) -> None:
        self.watch, self.state, self.namespace, self.node = watch, state, namespace, node
        self.revision = 0

    def follow(self) -> None:
        while not self.watch.idle:
            event = asyncio.get_event_loop().run_until_complete(self.watch.__anext__())
            assert event.revision > self.revision
            self.revision = event.revision
            shown = json.loads(event.stored.raw)
            key = (shown["metadata"]["namespace"], shown["metadata"]["name"])
            assert shown["metadata"]["resourceVersion"] == str(event.revision)
            assert (key in self.state) is (event.type != "ADDED")
            if event.type == "DELETED":
                del self.state[key]
            else:
                self.state[key] = (event.revision, shown["text"])

    def wants(self, key: tuple[str, str], node: str) -> bool:
        return self.namespace in (None, key[0]) and self.node in ("", node)


class StorageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.directory = tempfile.TemporaryDirectory(prefix="podwire-storage-")
        self.path = Path(self.directory.name) / "objects.db"
        self.nodes: dict[tuple[str, str], str] = {}
        self.state: State = {}
        self.history: dict[int, State] = {0: {}}
        self.plays: list[Play] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def opened(self) -> Storage:
        async def make() -> Storage:
            return Storage(self.path, log_kept=6)

        storage: Storage = self.run(make())
        return storage

    @initialize()
    def begin(self) -> None:
        self.storage = self.opened()

    def key(self, namespace: str, name: str) -> Key:
        return Key("", "pods", namespace, name)

    def wrote(self, at: tuple[str, str], node: str, text: str | None) -> None:
        revision = self.storage.revision
        assert revision > max(self.history)
        if text is None:
            del self.state[at], self.nodes[at]
        else:
            self.state[at], self.nodes[at] = (revision, text), node
        self.history[revision] = dict(self.state)

    @rule(namespace=NAMESPACES, name=NAMES, node=NODES, text=st.text(max_size=3))
    def create(self, namespace: str, name: str, node: str, text: str) -> None:
        work = self.storage.create(self.key(namespace, name), obj(namespace, name, node, text))
        if (namespace, name) in self.state:
            try:
                self.run(work)
            except KeyExists:
                return
            raise AssertionError("created twice")
        assert self.run(work).revision == self.storage.revision
        self.wrote((namespace, name), node, text)

    @rule(namespace=NAMESPACES, name=NAMES, node=NODES, text=st.text(max_size=3))
    def update(self, namespace: str, name: str, node: str, text: str) -> None:
        def change(current: dict[str, Any]) -> dict[str, Any]:
            return {**current, "spec": {"nodeName": node}, "text": text}

        at, before = (namespace, name), self.storage.revision
        try:
            stored = self.run(self.storage.update(self.key(*at), change))
        except KeyNotFound:
            assert at not in self.state
            return
        if self.state[at][1] == text and self.nodes[at] == node:
            assert self.storage.revision == before, "nothing changed, and it was written"
        else:
            assert stored.revision == self.storage.revision
            self.wrote(at, node, text)

    @rule(namespace=NAMESPACES, name=NAMES)
    def delete(self, namespace: str, name: str) -> None:
        try:
            self.run(self.storage.delete(self.key(namespace, name)))
        except KeyNotFound:
            assert (namespace, name) not in self.state
        else:
            self.wrote((namespace, name), "", None)

    @rule(name=NAMES, count=st.integers(2, 5))
    def many_at_once(self, name: str, count: int) -> None:
        """Concurrent read-modify-writes of one object: none is lost."""
        at = ("x", name)
        if at not in self.state:
            return

        def grow(current: dict[str, Any]) -> dict[str, Any]:
            return {**current, "text": current["text"] + "+"}

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(self.storage.update(self.key(*at), grow) for _ in range(count)))

        text, node = self.state[at][1], self.nodes[at]
        for number, stored in enumerate(self.run(all_of_them()), 1):
            self.state[at] = (stored.revision, text + "+" * number)
            self.nodes[at] = node
            self.history[stored.revision] = dict(self.state)

    @rule(namespace=st.none() | NAMESPACES, node=NODES, back=st.integers(0, 8))
    def watch(self, namespace: str | None, node: str, back: int) -> None:
        since = max((r for r in self.history if r <= self.storage.revision - back), default=0)
        index = ("spec.nodeName", node) if node else None
        try:
            watch = self.storage.watch("", "pods", namespace, since=since, index=index)
        except Expired:
            assert since < self.storage.compacted
            return
        assert since >= self.storage.compacted
        # What matched then is what a list at that revision shows; of 0 it would be that of now.
        listed = self.storage.list("", "pods", namespace, revision=since).items if since else []
        then = {
            (s.object["metadata"]["namespace"], s.object["metadata"]["name"]): (s.revision, s.object["text"])
            for s in listed
            if not node or s.field("spec.nodeName") == node
        }
        self.plays.append(Play(watch, then, namespace, node))

    @rule(back=st.integers(0, 10))
    def list_at(self, back: int) -> None:
        revision = max((r for r in self.history if r <= self.storage.revision - back), default=0)
        if not revision:
            return
        try:
            page = self.storage.list("", "pods", revision=revision)
        except Expired:
            assert revision < self.storage.compacted
            return
        assert {
            (s.object["metadata"]["namespace"], s.object["metadata"]["name"]): (s.revision, s.object["text"])
            for s in page.items
        } == self.history[revision]

    @rule(limit=st.integers(1, 3), namespace=st.none() | NAMESPACES)
    def pages(self, limit: int, namespace: str | None) -> None:
        whole = [s.raw for s in self.storage.list("", "pods", namespace).items]
        found: list[bytes] = []
        after = ""
        while True:
            page = self.storage.list("", "pods", namespace, limit=limit, after=after)
            found += [s.raw for s in page.items]
            assert page.remaining == len(whole) - len(found)
            if not page.last:
                break
            after = page.last
        assert found == whole

    @rule()
    def ahead(self) -> None:
        for call in (
            lambda: self.storage.watch("", "pods", since=self.storage.revision + 1),
            lambda: self.storage.list("", "pods", revision=self.storage.revision + 1),
        ):
            try:
                call()
            except FutureRevision:
                continue
            raise AssertionError("a revision that was not reached")

    @rule()
    def compact(self) -> None:
        self.run(self.storage.compact(self.storage.revision))

    @rule()
    def restart(self) -> None:
        revision, compacted = self.storage.revision, self.storage.compacted
        self.run(self.storage.close())
        for play in self.plays:
            play.follow()
            assert play.watch.closed
        self.plays.clear()
        self.storage = self.opened()
        assert (self.storage.revision, self.storage.compacted) == (revision, compacted)

    @invariant()
    def the_list_is_that_of_the_model(self) -> None:
        if not hasattr(self, "storage"):
            return
        listed = self.storage.list("", "pods").items
        keys = [(s.object["metadata"]["namespace"], s.object["metadata"]["name"]) for s in listed]
        assert {k: (s.revision, s.object["text"]) for k, s in zip(keys, listed, strict=True)} == self.state
        assert keys == sorted(keys, key="/".join)

    @invariant()
    def watches_have_told_all(self) -> None:
        for play in self.plays:
            play.follow()
            assert play.state == {
                at: held for at, held in self.state.items() if play.wants(at, self.nodes[at])
            }

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.run(self.storage.close())
        self.loop.close()
        asyncio.set_event_loop(None)
        self.directory.cleanup()


StorageMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestStorage = StorageMachine.TestCase
