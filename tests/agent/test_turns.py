"""Queues of containers and networks, by threads that are held by the hand."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from podwire.agent import turns
from podwire.agent.turns import Abandoned, Turns, Waiter
from podwire.cni.errors import TryLater

SECONDS = 10.0


class Crew:
    """Threads that take turns and keep them until they are let go."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.pool = ThreadPoolExecutor(64)
        self.log: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.waiters: dict[str, Waiter] = {}

    def _hold(self, name: str, taken: Callable[[], AbstractContextManager[None]]) -> None:
        with taken():
            self.log.append(name)
            assert self.gates[name].wait(SECONDS)

    def container(
        self, name: str, container: str, network: str = "net", seconds: float = SECONDS
    ) -> Future[None]:
        self.gates[name], self.waiters[name] = threading.Event(), Waiter()
        until = time.monotonic() + seconds
        return self.pool.submit(
            self._hold,
            name,
            lambda: self.turns.container(container, network, name, until, self.waiters[name]),
        )

    def gc(self, name: str, network: str = "net", seconds: float = SECONDS) -> Future[None]:
        self.gates[name], self.waiters[name] = threading.Event(), Waiter()
        until = time.monotonic() + seconds
        return self.pool.submit(
            self._hold, name, lambda: self.turns.network(network, name, until, self.waiters[name])
        )

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not what():
            assert time.monotonic() < end, self.log
            time.sleep(0.001)

    def waiting(self, container: str, count: int) -> None:
        self.until(lambda: self.turns.holders().get(container, ("", 0))[1] == count)

    def release(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew()
    yield made
    made.release(*made.gates)
    made.pool.shutdown()
    assert made.turns.holders() == {}
    assert made.turns._networks == {}


def test_one_container_is_first_come_first_served(crew: Crew) -> None:
    names = [f"r{number}" for number in range(8)]
    for number, name in enumerate(names):
        crew.container(name, "one")
        if number == 0:
            crew.until(lambda: crew.log == ["r0"])
        crew.waiting("one", number)
    for number, name in enumerate(names):
        crew.until(lambda number=number: len(crew.log) == number + 1)  # type: ignore[misc]
        crew.release(name)
    crew.until(lambda: crew.log == names)


def test_different_containers_run_side_by_side(crew: Crew) -> None:
    for number in range(30):
        crew.container(f"r{number}", f"c{number}")
    crew.until(lambda: len(crew.log) == 30)


def test_a_deadline_says_what_was_waited_for(crew: Crew) -> None:
    crew.container("ADD a", "one")
    crew.until(lambda: crew.log == ["ADD a"])
    with pytest.raises(TryLater, match="DEL a waited in vain for its container; behind ADD a"):
        crew.container("DEL a", "one", seconds=0.05).result(SECONDS)
    crew.release("ADD a")
    crew.container("again", "one")
    crew.until(lambda: crew.log[-1] == "again")


def test_one_that_leaves_the_queue_lets_the_next_pass(crew: Crew) -> None:
    crew.container("a", "one")
    crew.until(lambda: crew.log == ["a"])
    leaving = crew.container("b", "one")
    crew.waiting("one", 1)
    crew.container("c", "one")
    crew.waiting("one", 2)
    crew.waiters["b"].abandon()
    with pytest.raises(Abandoned):
        leaving.result(SECONDS)
    crew.release("a")
    crew.until(lambda: crew.log == ["a", "c"])


def test_a_queue_is_bounded(crew: Crew) -> None:
    crew.container("a", "one")
    crew.until(lambda: crew.log == ["a"])
    for number in range(turns.WAITING_MAX):
        crew.container(f"w{number}", "one")
        crew.waiting("one", number + 1)
    with pytest.raises(TryLater, match="16 requests wait for this container; behind a"):
        crew.container("more", "one").result(SECONDS)


def test_gc_has_its_network_alone(crew: Crew) -> None:
    crew.container("a", "one")
    crew.until(lambda: crew.log == ["a"])
    crew.gc("gc")
    crew.until(lambda: crew.turns._networks["net"].gated)
    crew.container("b", "two")
    crew.container("other", "three", "elsewhere")
    crew.until(lambda: crew.log == ["a", "other"])
    crew.until(lambda: len(crew.turns._networks["net"].waiting) == 2)
    crew.release("a")
    crew.until(lambda: crew.log == ["a", "other", "gc"])
    crew.release("gc")
    crew.until(lambda: crew.log == ["a", "other", "gc", "b"])


def test_a_gc_that_waits_for_a_slow_one_delays_others_only_for_a_moment(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "GATE_SECONDS", 0.05)
    crew.container("slow", "one")
    crew.until(lambda: crew.log == ["slow"])
    crew.gc("gc")
    crew.until(lambda: "net" in crew.turns._networks and crew.turns._networks["net"].gated)
    crew.container("quick", "two")
    crew.until(lambda: crew.log == ["slow", "quick"])
    crew.release("slow", "quick")
    crew.until(lambda: crew.log[-1] == "gc")


def test_a_gc_gives_up_at_its_deadline_and_leaves_the_gate_open(crew: Crew) -> None:
    crew.container("slow", "one")
    crew.until(lambda: crew.log == ["slow"])
    with pytest.raises(TryLater, match="gc waited in vain for requests of its network to end; network net"):
        crew.gc("gc", seconds=0.05).result(SECONDS)
    crew.container("next", "two")
    crew.until(lambda: crew.log == ["slow", "next"])


def test_nothing_overlaps_and_nothing_is_lost_in_a_crowd() -> None:
    queue, random_ = Turns(), random.Random(7)
    inside: dict[str, int] = {}
    faults: list[str] = []
    done = [0]
    lock = threading.Lock()

    def one(number: int) -> None:
        key, gc = f"c{random_.randrange(6)}", number % 15 == 0
        until = time.monotonic() + (0.002 if number % 7 == 0 else SECONDS)
        waiter = Waiter()
        if number % 11 == 0:
            threading.Timer(0.001, waiter.abandon).start()
        taken = (
            queue.network("net", "gc", until, waiter)
            if gc
            else queue.container(key, "net", key, until, waiter)
        )
        try:
            with taken:
                with lock:
                    inside[key if not gc else "gc"] = inside.get(key if not gc else "gc", 0) + 1
                    if inside.get(key, 0) > 1 or (inside.get("gc") and sum(inside.values()) > 1):
                        faults.append(str(inside))
                time.sleep(0.0005)
                with lock:
                    inside[key if not gc else "gc"] -= 1
        except (TryLater, Abandoned):
            pass
        with lock:
            done[0] += 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(600)))
    assert faults == []
    assert done == [600]
    assert queue.holders() == {}
    assert queue._networks == {}
