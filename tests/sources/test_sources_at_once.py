"""The three sources themselves at once, while their directory, page and API server fail and go backwards.

Pods of all three have the same names and UIDs. After each step the mux comes to have what a model says: of a
directory the last good pod of each file that is there, of a page its last good body, of an API server what it
last had; and as long as a source is in trouble that is listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from podwire.kube.client import Client
from podwire.kube.defaults import CONFIG_SOURCE
from podwire.kube.testing import ScriptedServer, World
from podwire.kube.testing import misbehaviour as does
from podwire.sources.api import APISource
from podwire.sources.file import FileSource
from podwire.sources.http import HTTPSource
from podwire.sources.mux import Mux
from podwire.sources.updates import API, FILE, HTTP, Source
from tests.kube.reflecting import QuickClock
from tests.sources.test_http import Site, site

NAMES = ("one", "two")
Told = set[tuple[str, str, str]]
"""Source, name and version of pods."""
Step = tuple[str, tuple[str, ...]]

names = st.sampled_from(NAMES)
files = st.sampled_from(("1.yaml", "2.yaml"))
steps = st.one_of(
    st.tuples(st.just("file"), st.tuples(files, names)),
    st.tuples(st.sampled_from(("bad file", "no file")), st.tuples(files)),
    st.tuples(st.just("page"), st.lists(names, max_size=2, unique=True).map(tuple)),
    st.tuples(st.just("status"), st.tuples(st.sampled_from(("200", "404", "500")))),
    st.tuples(st.sampled_from(("put", "delete")), st.tuples(names)),
    st.tuples(st.sampled_from(("bad page", "old page", "away", "there", "backup", "node")), st.just(())),
)


def manifest(name: str, version: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"version": str(version)}},
        "spec": {"containers": [{"name": "main", "command": ["true"]}]},
    }


@dataclass
class Model:
    """What each source last had that was good, and whether it is in trouble."""

    files: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    """The last good pod of each file that is there: name and version."""
    bad: set[str] = field(default_factory=set)
    pages: list[set[tuple[str, str]]] = field(default_factory=lambda: [set()])
    page_trouble: bool = False
    api: set[tuple[str, str]] = field(default_factory=set)
    away: bool = False

    def told(self) -> Told:
        """What the mux is to have."""
        of_files: dict[str, str] = {}
        for _, pod in sorted(self.files.items()):
            if pod is not None:
                of_files.setdefault(*pod)
        return {
            *((FILE, name, version) for name, version in of_files.items()),
            *((HTTP, *pod) for pod in self.pages[-1]),
            *((API, *pod) for pod in self.api),
        }

    def troubled(self) -> set[str]:
        """The sources whose trouble is to be listed."""
        taken = [pod[0] for pod in self.files.values() if pod is not None]
        return {
            *([FILE] if self.bad or len(taken) != len(set(taken)) else []),
            *([HTTP] if self.page_trouble else []),
            *([API] if self.away else []),
        }


class Stage:
    """The directory, the page, the API server, and a node's sources and mux over them."""

    def __init__(self, root: Path, page: Site, server: ScriptedServer, clock: QuickClock) -> None:
        self.directory = root / "manifests"
        self.directory.mkdir()
        self.keep = root / "keep"
        self.page = page
        self.server = server
        self.clock = clock
        self.model = Model()
        self.version = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.clients: list[Client] = []
        self.good = b""
        self.before = b""

    def start(self) -> None:
        """A node starts."""
        self.mux = Mux(FILE, HTTP, API)
        client = Client(self.server.config, clock=self.clock)
        self.clients.append(client)
        known = asyncio.Event()
        known.set()
        sources: list[Source] = [
            FileSource(self.directory, "n", keep=self.keep / "file"),
            HTTPSource(self.page.url(), "n", poll_interval=0.01, keep=self.keep / "http"),
            APISource(client, "n", known),
        ]
        self.tasks = [asyncio.create_task(each.run(self.mux.merge)) for each in sources]

    async def stop(self) -> None:
        """The node ends."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.clients:
            await client.close()

    def write(self, name: str, text: str) -> None:
        """A file, all at once."""
        new = self.directory.parent / name
        new.write_text(text)
        os.replace(new, self.directory / name)  # noqa: PTH105

    def serve(self, body: bytes) -> None:
        """A good page."""
        self.before, self.good = self.good, body
        self.page.status, self.page.body = 200, body
        self.model.page_trouble = False

    async def do(self, step: str, what: tuple[str, ...]) -> None:
        """One step, in the world and in the model."""
        model, world = self.model, self.server.world
        self.version += 1
        version = str(self.version)
        if step == "file":
            self.write(what[0], json.dumps(manifest(what[1], self.version)))
            model.files[what[0]] = what[1], version
            model.bad.discard(what[0])
        elif step == "bad file":
            self.write(what[0], "kind: Pod\nspec: [")
            model.files.setdefault(what[0], None)
            model.bad.add(what[0])
        elif step == "no file":
            (self.directory / what[0]).unlink(missing_ok=True)
            model.files.pop(what[0], None)
            model.bad.discard(what[0])
        elif step == "page":
            self.serve(json.dumps([manifest(name, self.version) for name in what]).encode())
            model.pages.append({(name, version) for name in what})
        elif step == "old page":
            self.serve(self.before)
            model.pages.append(model.pages[-2] if len(model.pages) > 1 else set())
        elif step == "bad page":
            self.page.status, self.page.body = 200, b"kind: Pod\nspec: ["
            model.page_trouble = True
        elif step == "status":
            self.page.status, self.page.body = int(what[0]), self.good
            model.page_trouble = what[0] != "200"
        elif step == "away":
            await self.server.stop()
            model.away = True
        elif step == "there" and model.away:
            await self.server.start()
            model.away = False
            self.restored(world)
        elif step == "put":
            self.put(world, what[0], version)
        elif step == "delete" and f"default/{what[0]}-n" in world.objects:
            world.delete(f"{what[0]}-n")
        elif step == "backup":
            await self.server.stop()
            world.restore(max(world.version - 3, 10), ["one-n"])
            self.server.script.add("watch", does.stream(does.error(410, "Expired")))
            await self.server.start()
            model.away = False
        elif step == "node":
            await self.stop()
            self.start()
            if model.away:
                model.api = set()
        if not model.away:
            self.restored(world)

    def put(self, world: World, name: str, version: str) -> None:
        """Make a pod on the API server, or change it."""
        if f"default/{name}-n" in world.objects:
            world.update(f"{name}-n", version=version)
            return
        metadata = {"name": f"{name}-n", "namespace": "default", "uid": f"uid-{name}"}
        spec = {"nodeName": "n", "containers": [{"name": "main", "image": "i"}]}
        world.create(f"{name}-n", metadata={**metadata, "labels": {"version": version}}, spec=spec)

    def restored(self, world: World) -> None:
        """The model learns what the API server has."""
        self.model.api = {
            (each["metadata"]["name"].removesuffix("-n"), each["metadata"]["labels"]["version"])
            for each in world.objects.values()
        }

    def told(self) -> Told:
        """What the mux has."""
        return {
            (
                pod.metadata.annotations[CONFIG_SOURCE],
                pod.metadata.name.removesuffix("-n"),
                pod.metadata.labels["version"],
            )
            for pod in self.mux.pods()
        }

    def troubled(self) -> set[str]:
        """The sources whose trouble is listed."""
        return {problem.source for problem in self.mux.problems.current()}

    async def becomes_right(self) -> None:
        """Wait until mux and model agree, and go on to do so."""
        right = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                while right < 3:
                    await self.clock.advance(2)
                    await asyncio.sleep(0.01)
                    agree = self.told() == self.model.told() and self.troubled() == self.model.troubled()
                    right = right + 1 if agree else 0
        assert self.told() == self.model.told()
        assert self.troubled() == self.model.troubled()


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    clock = QuickClock()
    with tempfile.TemporaryDirectory() as root:
        async with site() as page, ScriptedServer(World(), clock) as server:
            made = Stage(Path(root), page, server, clock)
            made.start()
            try:
                yield made
            finally:
                await made.stop()


async def play(script: list[Step]) -> None:
    async with stage() as s:
        await s.becomes_right()
        for step, what in script:
            await s.do(step, what)
            await s.becomes_right()


@example([("put", ("one",)), ("file", ("1.yaml", "one")), ("page", ("one",)), ("away", ()), ("there", ())])
@example([("put", ("one",)), ("put", ("two",)), ("put", ("one",)), ("backup", ()), ("put", ("two",))])
@example(
    [
        ("file", ("1.yaml", "one")),
        ("bad file", ("1.yaml",)),
        ("page", ("two",)),
        ("bad page", ()),
        ("node", ()),
    ]
)
@settings(max_examples=8, deadline=None)
@given(st.lists(steps, max_size=8))
def test_three_sources_at_once_end_with_what_is_right(script: list[Step]) -> None:
    asyncio.run(play(script))
