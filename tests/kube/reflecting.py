"""A reflector beside a scripted server, in virtual time, and what must hold of it whatever the server
does."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from podwire.kube.client import Client
from podwire.kube.clock import VirtualClock
from podwire.kube.decode import identity
from podwire.kube.errors import KubeError
from podwire.kube.informer import Change, Informer
from podwire.kube.objects import Pod
from podwire.kube.resource import PODS
from podwire.kube.testing import ScriptedServer, World
from podwire.kube.versions import is_older


class QuickClock(VirtualClock):
    """A virtual clock that sees when the loop has nothing left to do."""

    async def settle(self, rounds: int = 60) -> None:
        idle = 0
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        for _ in range(rounds * 10):
            await asyncio.sleep(0)
            # What is sent on loopback is there at the next look at the sockets, which each round takes.
            idle = 0 if ready else idle + 1
            if idle == 4:
                return


@dataclass
class Bench:
    """One informer of pods on one scripted server."""

    clock: VirtualClock
    world: World
    server: ScriptedServer
    client: Client
    informer: Informer[Pod]
    changes: list[Change[Pod]] = field(default_factory=list)
    problems: list[KubeError] = field(default_factory=list)
    set_back: bool = False
    """Whether the server was restored from a backup: only then may versions go backwards."""
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Key to UID and version, as the handler was told."""
    due: int = 0
    """How much of what was to happen later has not happened yet."""
    running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Let the informer run."""
        self.running = asyncio.create_task(self.informer.run())

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Call a function, or begin a coroutine, when so much time has passed."""

        async def happen() -> None:
            await self.clock.sleep(seconds)
            result = do()
            if inspect.isawaitable(result):
                await result
            self.due -= 1

        self.due += 1
        task = asyncio.create_task(happen())
        self.tasks.append(task)

    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def say(self, data: bytes) -> None:
        """Send a chunk in the open watch, and let it arrive."""
        await self.server.say(data)
        await self.clock.settle()

    def told(self, change: Change[Pod]) -> None:
        """The handler: checks that what it is told follows from what it was told before."""
        self.changes.append(change)
        key = change.key
        if change.type == "delete":
            assert key in self.seen, f"{key} was deleted without having been there"
            assert change.old is not None
            assert not is_older(identity(change.old).version, self.seen[key][1])
            del self.seen[key]
            return
        assert change.new is not None
        new = identity(change.new)
        if change.type == "add":
            assert key not in self.seen, f"{key} was added twice"
        else:
            assert change.old is not None
            assert identity(change.old)[2:] == self.seen[key], f"{key}: not the state that was told last"
            if not self.set_back:
                assert not is_older(new.version, self.seen[key][1]), f"{key} went back"
        self.seen[key] = new.uid, new.version

    @property
    def stored(self) -> dict[str, tuple[str, str]]:
        """Key to UID and version of what the store has."""
        return {each.key: (each.uid, each.version) for each in self.informer.store.all_sealed()}

    @property
    def equal(self) -> bool:
        """Whether store and handler have what the server has, and all that was scripted has happened."""
        return (
            self.informer.synced
            and self.server.script.done
            and self.stored == self.world.versions()
            and self.seen == self.stored
        )

    async def until(self, done: Callable[[], bool], seconds: float = 1000.0) -> float:
        """Let time pass until ``done``; how much passed, in seconds."""
        began = self.clock.monotonic()
        while True:
            await self.clock.settle()
            if done():
                return self.clock.monotonic() - began
            step = self.clock.next_due()
            assert step is not None, "nothing will ever happen"
            assert self.clock.monotonic() + step - began <= seconds, (
                f"not in {seconds} s: {self.stored} in place of {self.world.versions()}; "
                f"{[type(each).__name__ for each in self.problems]}, requests {self.tally}"
            )
            await self.clock.advance(step)

    async def settled(self, seconds: float = 1000.0) -> float:
        """Let time pass until everything is as the server has it."""
        return await self.until(lambda: self.equal, seconds)

    async def watching(self, seconds: float = 1000.0) -> None:
        """Let time pass until all is equal and a watch is open."""
        await self.until(lambda: self.equal and self.server.open_watches == 1, seconds)

    @property
    def tally(self) -> dict[str, int]:
        """How many requests of each verb came."""
        return {verb: self.server.count(verb) for verb in ("list", "watch", "ping")}

    def kinds(self) -> list[str]:
        """The names of the problems, in order."""
        return [type(each).__name__ for each in self.problems]


@contextlib.asynccontextmanager
async def bench(
    *names: str, watch_list: bool = False, page: int = 500, start: bool = True, seed: int = 1
) -> AsyncIterator[Bench]:
    """A server with these pods, and an informer that runs unless ``start`` is false."""
    clock = QuickClock()
    world = World()
    for name in names:
        world.create(name)
    async with ScriptedServer(world, clock) as server:
        rng = random.Random(seed)
        client = Client(server.config, clock=clock, rng=rng)
        informer = Informer(client, PODS, watch_list=watch_list, rng=rng)
        informer.reflector._page = page
        made = Bench(clock, world, server, client, informer)
        informer.reflector._problem = made.problems.append
        informer.add_handler(made.told)
        if start:
            made.start()
        try:
            yield made
            assert not any(each.failures for each in informer._handlers), (
                "the handler was told what cannot be"
            )
        finally:
            tasks = [*made.tasks, *([made.running] if made.running is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
