"""The event recorder: same events counted, similar ones combined, floods cut off, troubles survived."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from podwire.kube.client import Client
from podwire.kube.metadata import ObjectReference
from podwire.kube.recorder import COMBINED, Recorder, reference
from podwire.kube.testing import ObjectServer
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import QuickClock

POD = ObjectReference(kind="Pod", api_version="v1", namespace="default", name="web", uid="uid-1")


@contextlib.asynccontextmanager
async def recording() -> AsyncIterator[tuple[QuickClock, ObjectServer, Recorder]]:
    clock = QuickClock()
    async with (
        ObjectServer(clock) as server,
        Client(server.config, clock=clock, qps=1000, burst=1000) as client,
    ):
        recorder = Recorder(client, "podwire", host="node-1", rng=random.Random(1))
        running = asyncio.create_task(recorder.run())
        try:
            yield clock, server, recorder
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def events(server: ObjectServer) -> list[dict[str, Any]]:
    return [found for path, found in server.kept.items() if "/events/" in path]


async def test_an_event_says_who_what_and_when() -> None:
    async with recording() as (clock, server, recorder):
        assert recorder.event(POD, "Warning", "Failed", "it broke")
        await clock.settle()
        (found,) = events(server)
        assert found["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "web",
            "uid": "uid-1",
        }
        assert (found["type"], found["reason"], found["message"], found["count"]) == (
            "Warning",
            "Failed",
            "it broke",
            1,
        )
        assert found["source"] == {"component": "podwire", "host": "node-1"}
        assert found["firstTimestamp"] == found["lastTimestamp"] == "2025-06-15T15:06:40Z"
        assert found["metadata"]["name"].startswith("web.")
        assert found["metadata"]["namespace"] == "default"


async def test_the_same_event_is_counted() -> None:
    async with recording() as (clock, server, recorder):
        for _ in range(3):
            recorder.event(POD, "Normal", "Pulled", "image is here")
            await clock.advance(1)
        (found,) = events(server)
        assert found["count"] == 3
        assert found["lastTimestamp"] == "2025-06-15T15:06:42Z"
        assert [each.verb for each in server.requests] == ["post", "patch", "patch"]


async def test_an_event_that_has_expired_is_made_again() -> None:
    async with recording() as (clock, server, recorder):
        recorder.event(POD, "Normal", "Pulled", "image is here")
        await clock.settle()
        server.kept.clear()
        recorder.event(POD, "Normal", "Pulled", "image is here")
        await clock.settle()
        assert [each["count"] for each in events(server)] == [1]


async def test_similar_events_are_combined() -> None:
    async with recording() as (clock, server, recorder):
        for number in range(15):
            recorder.event(POD, "Warning", "Failed", f"try {number}")
            await clock.settle()
        found = events(server)
        assert len(found) == 11
        assert found[-1]["message"] == f"{COMBINED}try 14"
        assert found[-1]["count"] == 5
        await clock.advance(601)
        recorder.event(POD, "Warning", "Failed", "much later")
        await clock.settle()
        assert events(server)[-1]["message"] == "much later"


async def test_a_flood_is_cut_off_for_its_object_only() -> None:
    async with recording() as (clock, _, recorder):
        taken = [recorder.event(POD, "Normal", "Noise", "again") for _ in range(40)]
        assert taken == [True] * 25 + [False] * 15
        assert recorder.dropped == 15
        other = ObjectReference(kind="Pod", namespace="default", name="other", uid="uid-2")
        assert recorder.event(other, "Normal", "Quiet", "once")
        await clock.advance(301)
        assert recorder.event(POD, "Normal", "Noise", "again")
        assert not recorder.event(POD, "Normal", "Noise", "again")


async def test_events_wait_for_a_server_that_is_away() -> None:
    async with recording() as (clock, server, recorder):
        await server.stop()
        recorder.event(POD, "Normal", "Started", "while away")
        await clock.advance(20)
        await server.start()
        await clock.advance(60)
        assert [each["message"] for each in events(server)] == ["while away"]
        assert recorder.dropped == 0


async def test_an_answer_that_was_lost_makes_no_second_event() -> None:
    async with recording() as (clock, server, recorder):

        async def lose(exchange: Any) -> None:
            send = exchange.answer
            exchange.answer = lambda *_: asyncio.sleep(0)
            await server.honest(exchange)
            exchange.answer = send
            exchange.reset()

        server.script.add("post", lose)
        recorder.event(POD, "Normal", "Started", "once")
        await clock.advance(10)
        assert len(events(server)) == 1
        assert server.count("post") == 2


async def test_an_event_that_is_refused_is_dropped() -> None:
    async with recording() as (clock, server, recorder):
        server.script.add("post", does.status(403, "Forbidden"))
        recorder.event(POD, "Normal", "Started", "refused")
        recorder.event(POD, "Normal", "Started", "taken")
        await clock.settle()
        assert [each["message"] for each in events(server)] == ["taken"]
        assert recorder.dropped == 1
        async with asyncio.timeout(1):
            await recorder.flushed()


async def test_a_long_message_is_shortened_and_a_wrong_type_refused() -> None:
    async with recording() as (clock, server, recorder):
        recorder.event(POD, "Normal", "Long", "x" * 5000)
        await clock.settle()
        assert len(events(server)[0]["message"]) == 1024
        with pytest.raises(ValueError, match="Normal or Warning"):
            recorder.event(POD, "Info", "Wrong", "type")


def test_references_of_any_object() -> None:
    found = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "uid": "u"}}
    assert reference(found) == ObjectReference(kind="Node", api_version="v1", name="n", uid="u")
