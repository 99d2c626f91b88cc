"""Leader election: never two at once, whatever happens to the server, the network or the work (kuryr K7)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from podwire.kube.client import Client
from podwire.kube.leader import LeaderElector, Leadership, Timing
from podwire.kube.testing import ObjectServer
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import QuickClock

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/controller"


@dataclass
class Stage:
    """Candidates of one role, on one server, each with a client of its own."""

    clock: QuickClock
    server: ObjectServer
    clients: dict[str, Client] = field(default_factory=dict)
    electors: dict[str, LeaderElector] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    at_work: set[str] = field(default_factory=set)
    began: list[tuple[str, float]] = field(default_factory=list)
    overran: list[str] = field(default_factory=list)
    terms: dict[str, Leadership] = field(default_factory=dict)
    stopping: float = 0.0
    """How many seconds the work takes to end when it is told to."""

    def candidate(self, name: str) -> None:
        client = self.clients[name] = Client(self.server.config, clock=self.clock)
        elector = self.electors[name] = LeaderElector(
            client,
            "controller",
            "kube-system",
            name,
            overrun=lambda: self.overrun(name),
            rng=random.Random(name),
        )

        async def work(leadership: Leadership) -> None:
            assert not self.at_work, f"{name} begins while {self.at_work} work"
            self.terms[name] = leadership
            self.at_work.add(name)
            self.began.append((name, self.clock.monotonic()))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.stopping:
                    await self.clock.sleep(self.stopping)
                raise
            finally:
                self.at_work.discard(name)

        self.tasks[name] = asyncio.create_task(elector.run(work))

    def overrun(self, name: str) -> None:
        self.overran.append(name)
        self.at_work.discard(name)  # the process has ended

    @property
    def leader(self) -> str:
        return next(iter(self.at_work), "")


@contextlib.asynccontextmanager
async def stage(*names: str) -> AsyncIterator[Stage]:
    clock = QuickClock()
    async with ObjectServer(clock) as server:
        made = Stage(clock, server)
        try:
            for name in names:
                made.candidate(name)
                await clock.settle()
            yield made
        finally:
            for task in made.tasks.values():
                task.cancel()
            gathering = asyncio.gather(*made.tasks.values(), return_exceptions=True)
            await clock.advance(100)
            await gathering
            for client in made.clients.values():
                await client.close()


async def test_one_leads_and_renews_and_the_others_wait() -> None:
    async with stage("one", "two", "three") as s:
        await s.clock.advance(300)
        assert s.began == [("one", 0.0)]
        assert {each.holder for each in s.electors.values()} == {"one"}
        spec = s.server.kept[PATH]["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (
            "one",
            15,
            0,
        )
        assert spec["renewTime"] > spec["acquireTime"]
        # Two requests of each of the others' tries and ours, every two seconds.
        assert s.server.count() < 300 / 2 * 3 + 10


async def test_k7_the_role_lost_to_a_dead_network_ends_the_work_before_another_begins() -> None:
    async with stage("one") as s:
        s.candidate("two")
        s.stopping = 4.0
        await s.clock.advance(20)
        assert s.leader == "one"
        healthy = s.clients["one"].config
        s.clients["one"]._transport._base = "http://127.0.0.1:1"
        s.clients["one"]._bucket._burst = s.clients["one"]._bucket._tokens = 1000.0
        lost = s.clock.monotonic()
        while "one" in s.at_work:
            await s.clock.advance(0.25)
        ended = s.clock.monotonic() - lost
        assert 8 <= ended <= 14.5
        assert s.leader == ""
        while s.leader == "":
            await s.clock.advance(0.25)
        assert s.leader == "two"
        assert s.began[-1][1] - lost >= ended
        assert not s.overran
        assert healthy.server.endswith(str(s.server.port))


async def test_k7_work_that_does_not_end_is_ended_with_its_process() -> None:
    async with stage("one", "two") as s:
        s.stopping = 60.0
        await s.clock.advance(10)
        s.clients["one"]._transport._base = "http://127.0.0.1:1"
        await s.clock.advance(25)
        assert s.overran == ["one"]
        assert s.leader == "two"


async def test_k7_who_is_told_to_end_twice_ends_its_work_and_gives_the_role_back_all_the_same() -> None:
    async with stage("one", "two") as s:
        s.stopping = 6.0
        await s.clock.advance(5)
        s.tasks["one"].cancel()
        await s.clock.advance(1)
        s.tasks["one"].cancel()
        await s.clock.advance(4)
        assert s.leader == "one"
        assert not s.tasks["one"].done()
        await s.clock.advance(4)
        assert s.tasks["one"].cancelled()
        assert s.leader == "two"
        assert not s.overran


async def test_k7_work_that_ignores_being_told_twice_is_ended_with_its_process() -> None:
    async with stage("one", "two") as s:
        s.stopping = 60.0
        await s.clock.advance(5)
        s.tasks["one"].cancel()
        await s.clock.advance(1)
        s.tasks["one"].cancel()
        await s.clock.advance(20)
        assert s.overran == ["one"]
        assert s.leader == "two"


async def test_k7_proof_of_the_role_ends_with_the_last_renewal() -> None:
    async with stage("one") as s:
        await s.clock.advance(9)
        term = s.terms["one"]
        assert term.held
        renewed = term.until - 15
        assert 0 < s.clock.monotonic() - renewed < 4
        s.server.freeze()
        await s.clock.advance(renewed + 15 - s.clock.monotonic() - 0.01)
        assert term.held
        assert s.leader == ""
        await s.clock.advance(0.02)
        assert not term.held


async def test_a_stalled_server_and_one_that_comes_back_in_time() -> None:
    async with stage("one", "two") as s:
        await s.clock.advance(5)
        s.server.freeze()
        await s.clock.advance(7)
        s.server.thaw()
        await s.clock.advance(60)
        assert s.began == [("one", 0.0)]


async def test_the_role_is_given_back_when_the_work_is_done() -> None:
    clock = QuickClock()
    async with ObjectServer(clock) as server, Client(server.config, clock=clock) as client:

        async def work(leadership: Leadership) -> None:
            await clock.sleep(5)

        elector = LeaderElector(client, "controller", "kube-system", "one")
        task = asyncio.create_task(elector.run(work))
        await clock.advance(6)
        await task
        assert server.kept[PATH]["spec"]["holderIdentity"] == ""


async def test_another_begins_soon_after_the_role_was_given_back() -> None:
    async with stage("one", "two") as s:
        await s.clock.advance(5)
        s.tasks["one"].cancel()
        await s.clock.advance(3)
        assert s.leader == "two"
        assert s.terms["two"].transitions == s.terms["one"].transitions + 1


async def test_an_exception_of_the_work_is_raised_after_the_role_was_given_back() -> None:
    clock = QuickClock()
    async with ObjectServer(clock) as server, Client(server.config, clock=clock) as client:

        async def work(leadership: Leadership) -> None:
            raise ArithmeticError("work")

        with pytest.raises(ArithmeticError, match="work"):
            await LeaderElector(client, "controller", "kube-system", "one").run(work)
        assert server.kept[PATH]["spec"]["holderIdentity"] == ""


async def test_clocks_of_others_do_not_matter() -> None:
    """A Lease of a holder whose clock is years ahead is taken once it was not renewed for its duration."""
    async with stage() as s:
        s.server.kept[PATH] = {
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {
                "name": "controller",
                "namespace": "kube-system",
                "uid": "u",
                "resourceVersion": "1",
            },
            "spec": {
                "holderIdentity": "ghost",
                "leaseDurationSeconds": 30,
                "renewTime": "2099-01-01T00:00:00.000000Z",
                "leaseTransitions": 7,
            },
        }
        s.candidate("one")
        await s.clock.advance(29)
        assert s.leader == ""
        await s.clock.advance(4)
        assert s.leader == "one"
        assert s.terms["one"].transitions == 8


async def test_a_lease_taken_by_hand_ends_the_work() -> None:
    async with stage("one") as s:
        await s.clock.advance(5)
        s.server.version += 1
        s.server.kept[PATH]["metadata"]["resourceVersion"] = str(s.server.version)
        s.server.kept[PATH]["spec"]["holderIdentity"] = "usurper"
        await s.clock.advance(5)
        assert s.leader == ""
        assert s.electors["one"].holder == "usurper"


@pytest.mark.parametrize("timing", [(15, 10, 10), (15, 15, 2), (15, 10, 0), (15.5, 10, 2)])
def test_timings_that_make_no_sense(timing: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"needed|whole"):
        Timing(*timing)


TROUBLES = {
    "stall": does.stalls,
    "reset": does.resets,
    "500": does.status(500, "InternalError"),
    "409": does.status(409, "Conflict"),
    "429": does.status(429, "TooManyRequests", Retry_After="5"),
}


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.lists(
        st.tuples(st.sampled_from([*TROUBLES, "freeze", "thaw", "stop"]), st.floats(0, 20)), max_size=10
    ),
    st.floats(0, 4.5),
)
def test_never_two_at_once(script: list[tuple[str, float]], stopping: float) -> None:
    async def play() -> None:
        async with stage("one", "two") as s:
            s.stopping = stopping
            for step, seconds in script:
                if step in TROUBLES:
                    s.server.script.add("any", TROUBLES[step])
                elif step == "freeze":
                    s.server.freeze()
                elif step == "thaw":
                    s.server.thaw()
                else:
                    await s.server.stop()
                    await s.clock.advance(1)
                    await s.server.start()
                await s.clock.advance(seconds)
            s.server.thaw()
            s.server.script.by_verb.clear()
            await s.clock.advance(90)
            assert s.leader, "nobody leads"
            assert not s.overran

    asyncio.run(play())
