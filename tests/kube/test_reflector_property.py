"""Whatever a server does, in whatever order: the store ends equal to it, and nothing goes back or hammers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from podwire.kube.testing import Behaviour, event_line
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import Bench, bench

Make = Callable[[Bench], Behaviour]

LISTS: dict[str, Make] = {
    "429": lambda b: does.status(429, "TooManyRequests", Retry_After="3"),
    "500": lambda b: does.status(500, "InternalError"),
    "410": lambda b: does.status(410, "Expired"),
    "too large": lambda b: does.status(504, "Timeout", causes=("ResourceVersionTooLarge",)),
    "reset": lambda b: does.resets,
    "stall": lambda b: does.stalls,
    "html": lambda b: does.answers(b"<html>", "text/html"),
    "old": lambda b: does.page(b.server, metadata={"resourceVersion": "42"}),
    "endless": lambda b: does.page(b.server, metadata={"continue": "again"}),
    "honest": lambda b: b.server.honest,
}
WATCHES: dict[str, Make] = {
    "429": lambda b: does.status(429, "TooManyRequests"),
    "500": lambda b: does.status(500, "InternalError"),
    "410": lambda b: does.status(410, "Expired"),
    "reset": lambda b: does.resets,
    "stall": lambda b: does.stalls,
    "closed": lambda b: does.stream(),
    "410 event": lambda b: does.stream(does.error(410, "Expired")),
    "429 event": lambda b: does.stream(does.error(429, "TooManyRequests")),
    "garbage": lambda b: does.stream(b"garbage\n"),
    "cut off": lambda b: does.stream(b'{"type":"ADD', then="close"),
    "silent": lambda b: does.stream(then="stall"),
    "history": lambda b: does.stream(*(event_line(each.type, each.object) for each in b.world.log)),
    "short life": lambda b: does.lasting(b.server, 0.5),
    "honest for a while": lambda b: does.lasting(b.server, 7, then="reset"),
}
STEPS = ("create", "update", "delete", "recreate", "compact", "end", "reset", "mute", "away", "lag", "pass")

steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(STEPS), st.sampled_from("abcd")),
        st.tuples(st.just("list"), st.sampled_from(sorted(LISTS))),
        st.tuples(st.just("watch"), st.sampled_from(sorted(WATCHES))),
    ),
    max_size=14,
)


async def happen(b: Bench, step: str, what: str) -> None:
    key = f"default/{what}"
    if step == "list":
        b.server.script.add("list", LISTS[what](b))
    elif step == "watch":
        b.server.script.add("watch", WATCHES[what](b))
    elif step == "create" and key not in b.world.objects:
        b.world.create(what)
    elif step == "update" and key in b.world.objects:
        b.world.update(what, version=str(b.world.version))
    elif step in ("delete", "recreate") and key in b.world.objects:
        b.world.delete(what)
        if step == "recreate":
            b.world.create(what)
    elif step == "compact":
        b.world.compact()
    elif step == "end":
        b.server.end_watches()
    elif step == "reset":
        b.server.reset_watches()
    elif step == "mute" and key in b.world.objects:
        b.server.mute = True
        b.world.delete(what)
        await b.clock.settle()
        b.server.mute = False
        await b.server.say(b"garbage\n")  # only a list can tell what was kept back
    elif step == "away":
        await b.server.stop()
        await b.clock.advance(3)
        await b.server.start()
    elif step == "lag":  # I01: another server, which is behind by some versions
        b.server.abilities.lag = "abcd".index(what)
    elif step == "pass":
        await b.clock.advance(5)


async def play(script: list[tuple[str, str]], watch_list: bool, page: int) -> None:
    async with bench("a", "b", watch_list=watch_list, page=page) as b:
        for step, what in script:
            await happen(b, step, what)
        b.server.abilities.lag = 0
        b.world.changed.set()
        # What is scripted and not met yet is met: each stream is ended until none is left.
        for _ in range(60):
            await b.clock.advance(2)
            if b.server.script.done:
                break
            b.server.end_watches()
            await b.server.say(b"garbage\n")
        b.server.script.by_verb.clear()
        b.server.end_watches()
        took = await b.until(lambda: b.equal, 200)
        assert took <= 200
        passed = b.clock.monotonic()
        # A request about every second at the most, however often things go wrong: each failure costs a delay.
        pages = sum("continue" in each.params for each in b.server.requests)
        told = 3 + len(script) * 3 + passed
        assert b.server.count() - pages <= told, (b.tally, passed)
        # The last stream was ended early, which a list follows: after a list that is never answered and the
        # longest delay.
        await b.clock.advance(130)
        before = b.server.count("list")
        await b.clock.advance(300)
        assert b.equal
        assert b.server.count("list") == before


# A list that says it is older than an object in it: the watch that follows tells that object's past.
@example([("update", "a"), ("list", "old")], False, 1)
# A list that is never answered after many failures: the next comes two minutes later.
@example([("list", "old"), *[("list", "410")] * 4, ("compact", "a"), ("list", "stall")], False, 1)
@settings(max_examples=60, deadline=None)
@given(steps, st.booleans(), st.sampled_from((1, 2, 500)))
def test_any_misbehaviour_ends_well(script: list[tuple[str, str]], watch_list: bool, page: int) -> None:
    asyncio.run(play(script, watch_list, page))
