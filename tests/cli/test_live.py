"""What ``up`` shows."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from podwire.cli import live, rows, screen
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


def drawn(picture: live.Picture, width: int = 120, height: int = 40) -> list[str]:
    """The lines on a terminal of that size."""
    console = Console(file=StringIO(), width=width, height=height)
    lines = [line.plain for line in screen.draw(picture, "node n1", rows.now(), console)]
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    return lines


def test_the_table_shows_pods_problems_and_the_last_events() -> None:
    events = tuple(warning(f"e{number}") for number in range(9))
    lines = drawn(
        live.Picture(
            pods=(pod("web", RUNNING), pod("a", REFUSED)), events=events, problems=("bad.yaml:3: x",)
        )
    )
    assert lines[0] == "node n1: 2 pods: 1 CreateContainerError, 1 Running"
    assert lines[1].split() == ["NAME", "READY", "STATUS", "RESTARTS", "IPS", "AGE"]
    assert lines[2].startswith("a ")
    assert lines[3] == "  c: no command"
    assert lines[4].startswith("web ")
    assert "10.0.0.2,fd00::2" in lines[4]
    assert lines[5] == "! bad.yaml:3: x"
    assert sum("no addresses left" in line for line in lines) == 6


def test_a_narrow_terminal_loses_columns_and_breaks_no_name() -> None:
    picture = live.Picture(pods=(pod("a-rather-long-name-of-a-pod", RUNNING), pod("web", REFUSED)))
    for width in range(50, 120):
        lines = drawn(picture, width)
        assert any(line.startswith("a-rather-long-name-of-a-pod   ") for line in lines)
        assert ("10.0.0.2,fd00::2" in "".join(lines)) == ("IPS" in lines[1])
    assert drawn(picture, 60)[1].split() == ["NAME", "STATUS"]


def test_a_long_error_is_wrapped_between_words() -> None:
    words = " ".join(f"word{number}" for number in range(20))
    lines = drawn(live.Picture(problems=(f"bad.yaml:3: {words}",)), 60)
    assert lines[1].startswith("! bad.yaml:3: word0 ")
    assert lines[2].startswith("  word")
    assert set("".join(line[2:] + " " for line in lines[1:]).split()) <= {
        "bad.yaml:3:",
        "…",
        *words.split(),
    } | {word + "…" for word in words.split()}


def test_where_not_all_have_room_those_that_need_a_look_are_shown() -> None:
    pods = [pod(f"p{number:03}", RUNNING) for number in range(200)] + [pod("zz", REFUSED)]
    problems = tuple(f"f{number}.yaml:1: x" for number in range(50))
    lines = drawn(live.Picture(pods=tuple(pods), problems=problems, events=(warning("e"),)), 100, 24)
    assert any(line.startswith("zz ") for line in lines)
    (more,) = (line for line in lines if line.startswith("and "))
    shown = sum(line.startswith(("p", "zz")) for line in lines)
    assert more == f"and {201 - shown} more: podwire get pods -A"
    assert shown > 5
    told = sum(line.startswith("! f") for line in lines)
    assert f"! and {50 - told} more: podwire get events -A" in lines


def test_a_message_cannot_command_the_terminal() -> None:
    text = "\n".join(drawn(live.Picture(problems=("a: [red]x[/red] \x1b[2J\nb",))))
    assert "[red]x[/red] \\x1b[2J\\nb" in text
    assert "\x1b" not in text
    (_, line) = rows.columns(("A", "B"), [("x\x1b]0;title\x07", "y")])
    assert line == "x\\x1b]0;title\\x07   y"
