from __future__ import annotations

from podwire.kube.objects import Event
from podwire.node.clock import VirtualClock, timestamp
from podwire.node.events import NORMAL, WARNING, Events
from tests.node.helpers import container, pod


async def test_the_same_said_again_counts_up_and_moves_to_the_end() -> None:
    clock = VirtualClock()
    events = Events(clock, "node")
    heard: list[tuple[str, Event]] = []
    events.subscribe(lambda kind, event: heard.append((kind, event)))
    web = pod()
    first = timestamp(clock.wall())
    events.pod(web, WARNING, "FailedCreatePodSandBox", "no address")
    events.pod(web, NORMAL, "Created", "Created container main", container="main")
    await clock.advance(30)
    events.pod(web, WARNING, "FailedCreatePodSandBox", "no address")
    created, failed = events.list()
    assert (failed.count, failed.first_timestamp) == (2, first)
    assert failed.last_timestamp == timestamp(clock.wall()) != first
    assert created.involved_object.field_path == "spec.containers{main}"
    assert created.source.host == "node"
    assert [(kind, event.reason) for kind, event in heard] == [
        ("ADDED", "FailedCreatePodSandBox"),
        ("ADDED", "Created"),
        ("MODIFIED", "FailedCreatePodSandBox"),
    ]
    assert len({event.metadata.name for event in events.list()}) == 2


def test_another_pod_container_or_message_is_another_event() -> None:
    events = Events(VirtualClock(), "node")
    init = pod("b", initContainers=[container("i")])
    events.pod(pod("a"), NORMAL, "Started", "x")
    events.pod(init, NORMAL, "Started", "x")
    events.pod(init, NORMAL, "Started", "y")
    events.pod(init, NORMAL, "Started", "y", container="i")
    assert [event.count for event in events.list()] == [1, 1, 1, 1]
    assert events.list()[-1].involved_object.field_path == "spec.initContainers{i}"
    assert len(events.list(name="b")) == 3
    assert events.list(namespace="elsewhere") == []


def test_the_oldest_go_when_there_are_too_many() -> None:
    events = Events(VirtualClock(), "node", limit=3)
    for number in range(5):
        events.pod(pod(), NORMAL, "Started", str(number))
    assert [event.message for event in events.list()] == ["2", "3", "4"]
