"""The node's events on the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podwire.kube.metadata import ObjectMeta
from podwire.kube.recorder import COMBINED, FLOOD_BURST, SIMILAR
from podwire.kube.resource import NAMESPACES
from podwire.node.clock import VirtualClock, timestamp
from podwire.node.events import NORMAL, WARNING
from podwire.node.reports import PATIENCE
from podwire.runtime.fake import Program
from tests.node.helpers import pod
from tests.node.member import RAW_PODS, Cluster, api_pod, cluster, given, member, static


def events(made: Cluster, namespace: str = "default", **wanted: str) -> list[dict[str, Any]]:
    """The events on the server that have these values."""
    found = [stored.object for stored in made.storage.list("", "events", namespace).items]
    return [one for one in found if all(one[key] == value for key, value in wanted.items())]


async def test_a_crash_loop_is_few_events_that_are_counted_and_few_writes(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with cluster() as made, member(tmp_path, made, clock=clock) as m:
        m.runtime.programs["main"] = Program(ends=[(1, 1)])
        await m.client.create(RAW_PODS, api_pod(), "default")
        await m.running("web")
        for _ in range(80):
            await clock.advance(60)
        m.node.recorder.pod(m.shown("web"), WARNING, "Marker", "the last", container="other")
        await m.until(lambda: bool(events(made, reason="Marker")))
        told = [one for one in m.node.events() if one.involved_object.field_path == "spec.containers{main}"]
        assert sum(one.count for one in told) > 2 * FLOOD_BURST
        written = [
            one for one in events(made) if one["involvedObject"].get("fieldPath") == "spec.containers{main}"
        ]
        assert {one["reason"] for one in written} == {"Created", "Started", "BackOff"}
        assert len(written) == 3
        assert sum(one["count"] for one in written) == FLOOD_BURST
        (back_off,) = events(made, reason="BackOff")
        assert back_off["firstTimestamp"] < back_off["lastTimestamp"]
        assert back_off["source"] == {"component": "podwire", "host": "node"}


async def test_what_differs_in_its_words_only_becomes_one_event(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        for number in range(SIMILAR + 5):
            m.node.recorder.pod(pod("other"), WARNING, "Failed", f"try {number}")
        m.node.recorder.pod(pod("other"), NORMAL, "Marker", "the last")
        await m.until(lambda: bool(events(made, reason="Marker")))
        written = events(made, reason="Failed")
        assert len(written) == SIMILAR + 1
        (combined,) = [one for one in written if one["message"].startswith(COMBINED)]
        assert combined["count"] == 5


async def test_what_has_a_name_that_no_object_has_is_told_by_the_node_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        for bad in (pod("P_"), pod("fine", namespace="../x")):
            m.node.recorder.pod(bad, WARNING, "FailedValidation", "its name")
        m.node.recorder.pod(pod("other"), NORMAL, "Marker", "the last")
        await m.until(lambda: bool(events(made, reason="Marker")))
        assert events(made, reason="FailedValidation") == []
        assert caplog.messages == []
        assert len([one for one in m.node.events() if one.reason == "FailedValidation"]) == 2


async def test_events_of_a_static_pod_wait_for_its_mirror_pod_and_name_what_it_names(tmp_path: Path) -> None:
    """``kubectl describe`` looks for the UID in a mirror pod's annotation config.mirror."""
    clock = VirtualClock()
    async with cluster() as made, member(tmp_path, made, clock=clock) as m:
        m.mux.merge(given(static("web", namespace="shop")))
        await m.until(lambda: bool(m.node.board.find("shop", "web-node")))
        await m.until(lambda: "Started" in m.reasons("web-node"))
        started = m.node.clock.wall()
        await clock.advance(5)
        assert events(made, "shop") == []
        await m.client.create(NAMESPACES, NAMESPACES.type(metadata=ObjectMeta(name="shop")))
        await clock.advance(20)
        await m.until(lambda: bool(events(made, "shop", reason="Started")))
        mirror = made.object("pods", "web-node", "shop")
        assert mirror is not None
        (event,) = events(made, "shop", reason="Started")
        assert (
            event["involvedObject"]["uid"] == mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"]
        )
        assert (event["involvedObject"]["name"], event["involvedObject"]["namespace"]) == ("web-node", "shop")
        assert event["firstTimestamp"] == timestamp(started)


async def test_where_another_pod_has_the_name_of_a_static_one_that_is_told(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        await m.client.create(RAW_PODS, api_pod("web-node"), "default")
        await m.running("web-node")
        m.mux.merge(given(static("web")))
        await m.until(lambda: bool(events(made, reason="FailedMirrorPod")))


async def test_events_do_not_wait_for_ever_for_a_mirror_pod(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with cluster() as made, member(tmp_path, made, clock=clock) as m:
        await m.client.create(RAW_PODS, api_pod("web-node", nodeName="elsewhere"), "default")
        m.mux.merge(given(static("web")))
        await m.until(lambda: "Started" in m.reasons("web-node"))
        await clock.advance(PATIENCE - 1)
        assert events(made, reason="Started") == []
        await clock.advance(PATIENCE)
        await m.until(lambda: bool(events(made, reason="Started")))
