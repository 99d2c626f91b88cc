"""Watches: every event once and in order, from any version that is known."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.contract.api import PARTIAL, TABLE, Api, pod, with_meta

FUTURE = str(1 << 62)


async def make(api: Api, name: str, **labels: str) -> str:
    """A Secret; its resourceVersion."""
    body = {"metadata": {"name": name, "labels": labels}}
    made = (await api.create(api.at("secrets"), body)).ok(201)
    return str(made["metadata"]["resourceVersion"])


async def label(api: Api, name: str, value: str | None) -> str:
    answer = await api.patch(api.at("secrets", name), {"metadata": {"labels": {"on": value}}})
    return str(answer.ok()["metadata"]["resourceVersion"])


async def now(api: Api) -> str:
    return str((await api.get(api.at("secrets"))).ok()["metadata"]["resourceVersion"])


async def test_every_change_once_and_in_order(api: Api) -> None:
    watch = await api.watch(api.at("secrets"), resourceVersion=await now(api))
    revisions = [await make(api, "a"), await label(api, "a", "1"), await label(api, "a", "2")]
    (await api.delete(api.at("secrets", "a"))).ok()
    revisions.append(await make(api, "b"))
    events = [await watch.next() for _ in range(5)]
    assert [(e.type, e.name) for e in events if e] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]
    found = [e.revision for e in events if e]
    assert [found[0], found[1], found[2], found[4]] == revisions
    # A deletion is a change too: its event has a revision of its own, and the last state.
    assert int(found[2]) < int(found[3]) < int(found[4])
    assert events[3] is not None
    assert events[3].object["metadata"]["labels"] == {"on": "2"}
    assert events[0] is not None
    assert (events[0].object["kind"], events[0].object["apiVersion"]) == ("Secret", "v1")


async def test_from_a_version_nothing_is_missed(api: Api) -> None:
    start = await make(api, "a")
    await make(api, "b")
    (await api.delete(api.at("secrets", "a"))).ok()
    watch = await api.watch(api.at("secrets"), resourceVersion=start)
    assert await watch.take(2) == [("ADDED", "b"), ("DELETED", "a")]
    await make(api, "c")
    assert await watch.take(1) == [("ADDED", "c")]


@pytest.mark.parametrize("version", ["0", ""])
async def test_from_any_version_begins_with_what_is_there(api: Api, version: str) -> None:
    await make(api, "a")
    await make(api, "b")
    query = {"resourceVersion": version} if version else {}
    watch = await api.watch(api.at("secrets"), **query)
    assert sorted(await watch.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
    await make(api, "c")
    assert await watch.take(1) == [("ADDED", "c")]


async def test_one_object_by_its_name(api: Api) -> None:
    await make(api, "a")
    watch = await api.watch(
        api.at("secrets"), fieldSelector="metadata.name=a", resourceVersion=await now(api)
    )
    await make(api, "b")
    await label(api, "a", "1")
    (await api.delete(api.at("secrets", "a"))).ok()
    await make(api, "a")
    assert await watch.take(3) == [("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "a")]


async def test_an_object_enters_and_leaves_a_selection(api: Api) -> None:
    watch = await api.watch(api.at("secrets"), labelSelector="on=yes", resourceVersion=await now(api))
    await make(api, "a")
    entered = await label(api, "a", "yes")
    await label(api, "a", "yes")
    left = await label(api, "a", "no")
    await label(api, "a", "still")
    await label(api, "a", "yes")
    (await api.delete(api.at("secrets", "a"))).ok()
    events = [await watch.next() for _ in range(4)]
    assert [e.type for e in events if e] == ["ADDED", "DELETED", "ADDED", "DELETED"]
    assert events[0] is not None
    assert events[0].revision == entered
    # The object that left is shown as it was when it was selected, at the revision at which it left.
    assert events[1] is not None
    assert events[1].revision == left
    assert events[1].object["metadata"]["labels"] == {"on": "yes"}


async def test_pods_of_a_node(api: Api) -> None:
    node = f"{api.namespace}-node"
    watch = await api.watch("/api/v1/pods", fieldSelector=f"spec.nodeName={node}", resourceVersion="0")
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    (await api.create(api.at("pods"), pod("b", nodeName=node))).ok(201)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"name": node}}
    (await api.create(api.at("pods", "a", "binding"), binding)).ok(201)
    assert await watch.take(2) == [("ADDED", "b"), ("ADDED", "a")]
    for name in ("a", "b"):
        (await api.delete(api.at("pods", name), {"gracePeriodSeconds": 0})).ok()
    # Who watches is told that a pod has no time left before it is gone: its programs may still run.
    expected = [("MODIFIED", "a"), ("DELETED", "a"), ("MODIFIED", "b"), ("DELETED", "b")]
    assert await watch.take(4) == expected


async def test_one_namespace_or_all(api: Api) -> None:
    start = await now(api)
    everywhere = await api.watch("/api/v1/secrets", labelSelector="w=all", resourceVersion=start)
    here = await api.watch(api.at("secrets"), resourceVersion=start)
    elsewhere = await api.watch("/api/v1/namespaces/kube-system/secrets", resourceVersion=start)
    await make(api, "a", w="all")
    assert await everywhere.take(1) == [("ADDED", "a")]
    assert await here.take(1) == [("ADDED", "a")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await elsewhere.next()


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    await make(api, "a")
    await make(api, "b", on="yes")
    last = await now(api)
    watch = await api.watch(
        api.at("secrets"),
        sendInitialEvents="true",
        allowWatchBookmarks="true",
        resourceVersionMatch="NotOlderThan",
        resourceVersion="",
    )
    events = [await watch.next(bookmarks=True) for _ in range(3)]
    assert sorted((e.type, e.name) for e in events[:2] if e) == [("ADDED", "a"), ("ADDED", "b")]
    end = events[2]
    assert end is not None
    assert end.initial_end
    assert (end.object["kind"], end.object["apiVersion"]) == ("Secret", "v1")
    assert int(end.revision) >= int(last)
    await make(api, "c")
    assert await watch.take(1) == [("ADDED", "c")]
    again = await api.watch(api.at("secrets"), resourceVersion=end.revision)
    assert await again.take(1) == [("ADDED", "c")]


async def test_initial_events_not_older_than_a_version(api: Api) -> None:
    await make(api, "a")
    last = await now(api)
    watch = await api.watch(
        api.at("secrets"),
        sendInitialEvents="true",
        allowWatchBookmarks="true",
        resourceVersionMatch="NotOlderThan",
        resourceVersion=last,
        labelSelector="none=here",
    )
    end = await watch.next(bookmarks=True)
    assert end is not None
    assert end.initial_end
    assert int(end.revision) >= int(last)


async def test_no_initial_events(api: Api) -> None:
    await make(api, "a")
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    watch = await api.watch(api.at("secrets"), allowWatchBookmarks="true", **query)
    await make(api, "b")
    assert await watch.take(1) == [("ADDED", "b")]


async def test_a_watch_ends_when_its_time_is_over(api: Api) -> None:
    started = time.monotonic()
    watch = await api.watch(api.at("secrets"), timeoutSeconds="1", resourceVersion=await now(api))
    assert await watch.rest() == []
    assert 0.5 < time.monotonic() - started < 5


@pytest.mark.embedded("forgets the log of the server's storage")
async def test_a_version_that_is_forgotten_is_told_inside_the_watch(api: Api) -> None:
    old = await now(api)
    await make(api, "a")
    assert api.cluster.embedded is not None
    api.cluster.embedded.compact()
    watch = await api.watch(api.at("secrets"), resourceVersion=old)
    assert watch.code == 200
    events = await watch.rest(bookmarks=True)
    assert [event.type for event in events] == ["ERROR"]
    status = events[0].object
    assert (status["kind"], status["status"]) == ("Status", "Failure")
    assert (status["code"], status["reason"]) == (410, "Expired")
    assert status["message"].startswith(f"too old resource version: {old} (")


async def test_initial_events_of_a_version_that_is_not_reached(api: Api) -> None:
    watch = await api.watch(
        api.at("secrets"),
        sendInitialEvents="true",
        allowWatchBookmarks="true",
        resourceVersionMatch="NotOlderThan",
        resourceVersion=FUTURE,
    )
    assert watch.code == 200
    event = await watch.next(bookmarks=True)
    assert event is not None
    assert event.type == "ERROR"
    assert (event.object["code"], event.object["reason"]) == (504, "Timeout")
    assert event.object["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_version_that_is_none(api: Api) -> None:
    (await api.get(api.at("secrets"), watch="true", resourceVersion="x")).fails(400, "BadRequest")


async def test_selectors_are_checked_before_a_watch_begins(api: Api) -> None:
    (await api.get(api.at("secrets"), watch="true", labelSelector="a in")).fails(400, "BadRequest")
    (await api.get(api.at("secrets"), watch="true", fieldSelector="x=y")).fails(400, "BadRequest")


async def test_a_watch_of_metadata_and_of_tables(api: Api) -> None:
    start = await now(api)
    await make(api, "a")
    await make(api, "b")
    watch = await api.watch(api.at("secrets"), accept=PARTIAL, resourceVersion=start)
    event = await watch.next()
    assert event is not None
    assert event.object["kind"] == "PartialObjectMetadata"
    assert event.object["apiVersion"] == "meta.k8s.io/v1"
    assert event.object.keys() == {"kind", "apiVersion", "metadata"}
    watch = await api.watch(api.at("secrets"), accept=TABLE, resourceVersion=start)
    first, second = await watch.next(), await watch.next()
    assert first is not None and second is not None
    assert first.object["kind"] == "Table"
    assert first.object["columnDefinitions"][0]["name"] == "Name"
    assert first.object["rows"][0]["cells"][0] == "a"
    # Headings come once.
    assert not second.object.get("columnDefinitions")
    assert second.object["rows"][0]["object"]["metadata"]["name"] == "b"


async def test_the_old_path_of_watches(api: Api) -> None:
    start = await now(api)
    watch = await api.watch(f"/api/v1/watch/namespaces/{api.namespace}/secrets", resourceVersion=start)
    assert watch.code == 200
    await make(api, "a")
    assert await watch.take(1) == [("ADDED", "a")]


async def test_a_reader_that_lags_gets_all(api: Api) -> None:
    start = await now(api)
    watch = await api.watch(api.at("secrets"), resourceVersion=start)
    body = with_meta({"metadata": {}}, labels={"pad": "x" * 60})
    await asyncio.gather(
        *[api.create(api.at("secrets"), with_meta(body, name=f"n{number:03}")) for number in range(200)]
    )
    events = [await watch.next() for _ in range(200)]
    revisions = [int(e.revision) for e in events if e]
    assert revisions == sorted(revisions)
    assert len({e.name for e in events if e}) == 200


async def test_a_bookmark_comes_before_the_end(api: Api) -> None:
    last = await make(api, "a")
    watch = await api.watch(
        api.at("secrets"), resourceVersion=await now(api), allowWatchBookmarks="true", timeoutSeconds="3"
    )
    await make(api, "b")
    events = await watch.rest(bookmarks=True)
    assert events[0].type == "ADDED"
    marks = [event for event in events if event.type == "BOOKMARK"]
    assert marks
    assert int(marks[-1].revision) >= int(events[0].revision) > int(last)
    assert marks[-1].object["kind"] == "Secret"
    watch = await api.watch(api.at("secrets"), resourceVersion=await now(api), timeoutSeconds="3")
    assert [event.type for event in await watch.rest(bookmarks=True)] == []
