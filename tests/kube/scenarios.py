"""Scenarios of a reflector beside a server that misbehaves: how each is written down, run and checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from podwire.kube.testing import event_line
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import Bench, bench

Act = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """What happens, and what it may cost. ``early``: before the first request; else while a watch is open."""

    act: Act
    lists: int
    watches: int
    seconds: float
    problems: tuple[str, ...]
    early: bool
    watch_list: bool
    page: int
    at_least: float = 0.0


@dataclass
class Scenarios:
    """The scenarios of a test module."""

    all: list[Scenario] = field(default_factory=list)

    def __call__(
        self,
        *problems: str,
        lists: int = 0,
        watches: int = 0,
        seconds: float = 0.0,
        early: bool = False,
        watch_list: bool = False,
        page: int = 500,
        at_least: float = 0.0,
    ) -> Callable[[Act], Act]:
        """``lists`` and ``watches``: how many requests are sent from the misbehaviour to the next open watch.

        ``seconds``, ``at_least``: how much time that takes. ``problems``: what is reported, in order.
        """

        def add(act: Act) -> Act:
            self.all.append(
                Scenario(act, lists, watches, seconds, problems, early, watch_list, page, at_least)
            )
            return act

        return add


def name(each: Scenario) -> str:
    """The name of a scenario."""
    return each.act.__name__


async def run(each: Scenario) -> None:
    """Run a scenario and check all that must hold."""
    async with bench("a", "b", "c", watch_list=each.watch_list, page=each.page, start=False) as b:
        if each.early:
            await each.act(b)
            b.start()
            before, problems = {"list": 0, "watch": 0}, 0
        else:
            b.start()
            await b.watching()
            before, problems = b.tally, len(b.problems)
            await each.act(b)
        took = await b.until(lambda: b.equal and b.server.open_watches == 1 and not b.due)
        after = b.tally
        requests = after["list"] - before["list"], after["watch"] - before["watch"]
        got, wanted = (*b.kinds()[problems:], *requests), (*each.problems, each.lists, each.watches)
        assert got == wanted, f"{got}, not {wanted}"
        assert each.at_least <= took <= each.seconds, f"{took} s"

        b.world.update("a", seen="yes")
        b.world.delete("c")
        b.world.create("z")
        assert await b.settled() == 0, "the stream that is left is not alive"
        await b.clock.advance(600)
        quiet = b.tally
        more = {verb: quiet[verb] - after[verb] for verb in quiet}
        assert more["list"] == 0, more
        assert more["watch"] <= 2, more
        assert more["ping"] <= 10, more
        assert b.kinds()[problems:] == list(each.problems), b.problems
        assert b.equal, b.stored


def line(b: Bench, kind: str, found: str, **metadata: object) -> bytes:
    """An event about an object as it is, with its metadata changed."""
    return event_line(kind, does.changed(b.world.objects[f"default/{found}"], **metadata))


async def end_watch(b: Bench) -> None:
    """Let the open watch end properly, after some seconds, so that the next meets what is scripted."""
    await b.clock.advance(2)
    b.server.end_watches()
    await b.clock.settle()
