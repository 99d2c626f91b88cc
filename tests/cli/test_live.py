"""What ``up`` shows."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from podwire.cli import live, rows
from podwire.kube.objects import (
    Container,
    ContainerStateRunning,
    ContainerStateUnion,
    ContainerStateWaiting,
    ContainerStatus,
    Event,
    ObjectMeta,
    ObjectReference,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
)

RUNNING = ContainerStateUnion(running=ContainerStateRunning())
CREATING = ContainerStateUnion(waiting=ContainerStateWaiting(reason="ContainerCreating"))
REFUSED = ContainerStateUnion(
    waiting=ContainerStateWaiting(reason="CreateContainerError", message="no command")
)


def pod(name: str, state: ContainerStateUnion, *, restarts: int = 0, namespace: str = "default") -> Pod:
    running = state.running is not None
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"),
        spec=PodSpec(containers=[Container(name="c")]),
        status=PodStatus(
            phase="Running" if running else "Pending",
            pod_ips=[PodIP(ip="10.0.0.2"), PodIP(ip="fd00::2")] if running else [],
            container_statuses=[
                ContainerStatus(name="c", state=state, ready=running, restart_count=restarts)
            ],
        ),
    )


def warning(name: str, count: int = 1) -> Event:
    return Event(
        metadata=ObjectMeta(name=name),
        involved_object=ObjectReference(kind="Pod", name="web"),
        type="Warning",
        reason="FailedCreatePodSandBox",
        message="no addresses left",
        count=count,
    )


def test_a_line_for_every_change_and_none_without(capsys: pytest.CaptureFixture[str]) -> None:
    view = live.LineView()
    view.show(live.Picture(pods=(pod("web", CREATING),)))
    view.show(live.Picture(pods=(pod("web", CREATING),)))
    view.show(live.Picture(pods=(pod("web", RUNNING),)))
    view.show(live.Picture(pods=(pod("web", RUNNING, restarts=1),)))
    view.show(live.Picture(pods=(pod("db", REFUSED, namespace="prod"),)))
    assert capsys.readouterr().out.splitlines() == [
        "web 0/1 ContainerCreating",
        "web 1/1 Running 10.0.0.2,fd00::2",
        "web 1/1 Running 10.0.0.2,fd00::2 restarts=1",
        "web removed",
        "prod/db 0/1 CreateContainerError c: no command",
    ]


def test_warnings_and_problems_are_told_once_and_again_when_they_come_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = live.LineView()
    bad = ("bad.yaml:3: unknown field",)
    for picture in (
        live.Picture(events=(warning("e1"),), problems=bad),
        live.Picture(events=(warning("e1"),), problems=bad),
        live.Picture(events=(warning("e1", count=2),)),
        live.Picture(events=(warning("e1", count=2),), problems=bad),
    ):
        view.show(picture)
    line = "Warning FailedCreatePodSandBox: pod/web: no addresses left"
    assert capsys.readouterr().out.splitlines() == [
        line,
        "problem: bad.yaml:3: unknown field",
        line,
        "problem: bad.yaml:3: unknown field",
    ]


def test_the_table_shows_pods_problems_and_the_last_events() -> None:
    out = StringIO()
    events = tuple(warning(f"e{number}") for number in range(9))
    picture = live.Picture(
        pods=(pod("web", RUNNING), pod("a", REFUSED)), events=events, problems=("bad.yaml:3: x",)
    )
    Console(file=out, width=120).print(live.render(picture, "node n1", rows.now()))
    text = out.getvalue()
    assert text.index("node n1") < text.index("NAME") < text.index("a ") < text.index("web ")
    assert "10.0.0.2,fd00::2" in text
    assert "c: no command" in text
    assert "! bad.yaml:3: x" in text
    assert text.count("no addresses left") == 6


def test_markup_in_a_message_is_shown_as_it_is() -> None:
    out = StringIO()
    Console(file=out, width=120).print(
        live.render(live.Picture(problems=("a.yaml: [red]x[/red] [/]",)), "n", rows.now())
    )
    assert "[red]x[/red] [/]" in out.getvalue()
