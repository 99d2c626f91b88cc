from __future__ import annotations

import asyncio

from podwire.node.cache import RuntimeCache
from podwire.node.clock import VirtualClock
from podwire.runtime.api import (
    ContainerConfig,
    ContainerEvent,
    ContainerMetadata,
    ContainerState,
    EventType,
    SandboxConfig,
    SandboxMetadata,
)
from podwire.runtime.fake import FakeRuntime

METADATA = SandboxMetadata("web", "uid", "default")


class Scene:
    """A runtime with one running container, and a cache that knows of it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.runtime = FakeRuntime(self.clock)
        self.changed: list[str] = []
        self.cache = RuntimeCache(self.runtime, self.changed.append)
        self.sandbox = ""
        self.container = ""

    async def set_up(self) -> Scene:
        self.sandbox = await self.runtime.run_pod_sandbox(SandboxConfig(METADATA, "web", "/logs"))
        config = ContainerConfig(ContainerMetadata("main"), ("/bin/true",))
        self.container = await self.runtime.create_container(self.sandbox, config)
        await self.runtime.start_container(self.container)
        await self.cache.relist()
        self.changed.clear()
        self.runtime.calls.clear()
        return self

    def event(self, kind: EventType, identity: str) -> ContainerEvent:
        return ContainerEvent(kind, self.sandbox, identity, METADATA)

    @property
    def states(self) -> list[ContainerState]:
        return [c.state for c in self.cache.observed("uid").containers]


async def test_event_that_tells_nothing_new_costs_no_call() -> None:
    scene = await Scene().set_up()
    await scene.cache.apply(scene.event(EventType.CREATED, scene.container))
    await scene.cache.apply(scene.event(EventType.STARTED, scene.container))
    assert scene.runtime.calls == []
    assert scene.changed == []


async def test_end_of_a_program_is_looked_up_and_told() -> None:
    scene = await Scene().set_up()
    scene.runtime.exit("main", 3)
    await scene.cache.apply(scene.event(EventType.STOPPED, scene.container))
    assert scene.states == [ContainerState.EXITED]
    assert scene.changed == ["uid"]
    assert scene.runtime.count("list_containers") == 0


async def test_an_answer_that_comes_late_does_not_bring_back_what_is_gone() -> None:
    scene = await Scene().set_up()
    gate = scene.runtime.hold("list_containers")
    relisting = asyncio.create_task(scene.cache.relist())
    await scene.clock.settle()
    listed = await scene.runtime.container_status(scene.container)
    scene.cache.drop_container(scene.container)
    assert listed.state == ContainerState.RUNNING
    gate.set()
    await relisting
    assert scene.states == []
    await scene.cache.apply(scene.event(EventType.STARTED, scene.container))
    assert scene.states == [], "brought back by an event that came late"


async def test_relist_drops_what_the_runtime_no_longer_has() -> None:
    scene = await Scene().set_up()
    await scene.runtime.remove_pod_sandbox(scene.sandbox)
    await scene.cache.relist()
    assert scene.cache.uids() == set()
    assert scene.changed == ["uid"]


async def test_an_old_answer_does_not_undo_an_end() -> None:
    scene = await Scene().set_up()
    stale = await scene.runtime.list_containers()
    scene.runtime.exit("main", 3)
    await scene.cache.refresh_container(scene.container)

    async def old() -> object:
        return stale

    scene.runtime.list_containers = old  # type: ignore[method-assign, assignment]
    await scene.cache.relist()
    assert scene.states == [ContainerState.EXITED]


async def test_sandbox_that_went_takes_its_containers_along() -> None:
    scene = await Scene().set_up()
    await scene.runtime.remove_pod_sandbox(scene.sandbox)
    await scene.cache.apply(scene.event(EventType.DELETED, scene.sandbox))
    assert scene.cache.uids() == set()
    assert scene.cache.observed("uid").empty


async def test_a_look_that_was_under_way_does_not_bring_back_what_is_gone() -> None:
    scene = await Scene().set_up()
    gate = scene.runtime.hold("container_status")
    looking = asyncio.create_task(scene.cache.refresh_container(scene.container))
    await scene.clock.settle()
    scene.cache.drop_container(scene.container)
    gate.set()
    await looking
    assert scene.states == []
    relooking = scene.cache.refresh_sandbox(scene.sandbox)
    scene.cache.drop_sandbox(scene.sandbox)
    await relooking
    assert scene.cache.uids() == set()
