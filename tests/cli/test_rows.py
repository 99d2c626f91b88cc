"""The words of the tables."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from podwire.cli import output, rows
from podwire.kube import ages
from podwire.kube.objects import (
    Container,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateUnion,
    ContainerStateWaiting,
    ContainerStatus,
    Event,
    ObjectMeta,
    ObjectReference,
    Pod,
    PodCondition,
    PodIP,
    PodSpec,
    PodStatus,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUNNING = ContainerStateUnion(running=ContainerStateRunning(started_at="2026-01-02T03:00:00Z"))


def waiting(reason: str, message: str = "") -> ContainerStateUnion:
    return ContainerStateUnion(waiting=ContainerStateWaiting(reason=reason, message=message))


def ended(code: int, reason: str = "", signal: int = 0) -> ContainerStateUnion:
    terminated = ContainerStateTerminated(exit_code=code, reason=reason, signal=signal)
    return ContainerStateUnion(terminated=terminated)


def container(
    name: str, state: ContainerStateUnion, *, ready: bool = False, restarts: int = 0, started: bool = False
) -> ContainerStatus:
    return ContainerStatus(name=name, state=state, ready=ready, restart_count=restarts, started=started)


def pod(
    *containers: ContainerStatus,
    init: tuple[ContainerStatus, ...] = (),
    sidecars: tuple[str, ...] = (),
    phase: str = "Running",
    reason: str = "",
    deleted: bool = False,
    ready: bool = True,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name="web-n1",
            namespace="default",
            uid="u",
            creation_timestamp="2026-01-02T03:03:05Z",
            deletion_timestamp="2026-01-02T03:04:00Z" if deleted else None,
        ),
        spec=PodSpec(
            node_name="n1",
            containers=[Container(name=status.name) for status in containers],
            init_containers=[
                Container(name=status.name, restart_policy="Always" if status.name in sidecars else "")
                for status in init
            ],
        ),
        status=PodStatus(
            phase=phase,
            reason=reason,
            pod_ip="10.0.0.2",
            pod_ips=[PodIP(ip="10.0.0.2"), PodIP(ip="fd00::2")],
            container_statuses=list(containers),
            init_container_statuses=list(init),
            conditions=[PodCondition(type="Ready", status="True" if ready else "False")],
        ),
    )


@pytest.mark.parametrize(
    ("given", "status", "ready"),
    [
        (pod(container("a", RUNNING, ready=True)), "Running", "1/1"),
        (pod(container("a", waiting("ContainerCreating")), phase="Pending"), "ContainerCreating", "0/1"),
        (pod(container("a", waiting("CrashLoopBackOff"))), "CrashLoopBackOff", "0/1"),
        (pod(container("a", ended(0, "Completed")), phase="Succeeded"), "Completed", "0/1"),
        (pod(container("a", ended(3, "Error")), phase="Failed"), "Error", "0/1"),
        (pod(container("a", ended(137, signal=9)), phase="Failed"), "Signal:9", "0/1"),
        (pod(container("a", ended(3)), phase="Failed"), "ExitCode:3", "0/1"),
        (
            pod(container("a", ended(0, "Completed")), container("b", RUNNING, ready=True)),
            "Running",
            "1/2",
        ),
        (
            pod(container("a", ended(0, "Completed")), container("b", RUNNING, ready=True), ready=False),
            "NotReady",
            "1/2",
        ),
        (pod(container("a", RUNNING, ready=True), deleted=True), "Terminating", "1/1"),
        (pod(container("a", waiting("PodInitializing")), init=(container("i", RUNNING),)), "Init:0/1", "0/1"),
        (
            pod(
                container("a", waiting("PodInitializing")),
                init=(container("i", ended(0)), container("j", waiting("CrashLoopBackOff"))),
            ),
            "Init:CrashLoopBackOff",
            "0/1",
        ),
        (pod(container("a", waiting("")), init=(container("i", ended(1, "Error")),)), "Init:Error", "0/1"),
        (
            pod(
                container("a", RUNNING, ready=True),
                init=(container("s", RUNNING, ready=True, started=True),),
                sidecars=("s",),
            ),
            "Running",
            "2/2",
        ),
        (pod(phase="Failed", reason="Evicted"), "Evicted", "0/0"),
    ],
)
def test_status_and_ready_are_kubectls(given: Pod, status: str, ready: str) -> None:
    assert (rows.status(given), rows.ready(given)) == (status, ready)


def test_restarts_are_the_init_containers_until_they_are_done() -> None:
    init = container("i", waiting("CrashLoopBackOff"), restarts=4)
    assert rows.restarts(pod(container("a", waiting("PodInitializing"), restarts=0), init=(init,))) == 4
    done = container("i", ended(0), restarts=4)
    assert rows.restarts(pod(container("a", RUNNING, restarts=2), init=(done,))) == 2


def test_a_row_holds_what_its_headings_say() -> None:
    row = rows.pod_row(pod(container("a", RUNNING, ready=True)), AT, wide=True, namespace=True)
    headings = rows.pod_headings(wide=True, namespace=True)
    assert dict(zip(headings, row, strict=True)) == {
        "NAMESPACE": "default",
        "NAME": "web-n1",
        "READY": "1/1",
        "STATUS": "Running",
        "RESTARTS": "0",
        "AGE": "60s",
        "IP": "10.0.0.2,fd00::2",
        "NODE": "n1",
    }


def test_the_reason_is_the_deepest_that_is_known() -> None:
    held = pod(container("a", waiting("CreateContainerError", "no such program: /bin/nope")))
    assert rows.reason(held) == "a: no such program: /bin/nope"
    assert rows.reason(pod(container("a", ended(3, "Error")))) == "a: exit code 3"
    assert not rows.reason(pod(container("a", RUNNING)))


@pytest.mark.parametrize(
    ("seconds", "short"),
    [
        (-1, "0s"),
        (-3, "<invalid>"),
        (119, "119s"),
        (120, "2m"),
        (185, "3m5s"),
        (3600, "60m"),
        (3 * 3600 + 60, "3h1m"),
        (9 * 3600, "9h"),
        (49 * 3600, "2d1h"),
        (9 * 86400 + 5, "9d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (740 * 86400, "2y10d"),
        (8 * 365 * 86400 + 86400, "8y"),
    ],
)
def test_durations_are_kubectls(seconds: float, short: str) -> None:
    assert ages.duration(seconds) == short


def test_an_event_row_counts_repeats() -> None:
    event = Event(
        involved_object=ObjectReference(kind="Pod", name="web-n1", namespace="default"),
        reason="BackOff",
        message="waiting",
        type="Warning",
        count=3,
        last_timestamp="2026-01-02T03:04:00Z",
    )
    assert rows.event_row(event, AT) == ("5s", "Warning", "BackOff", "pod/web-n1", "waiting (x3)")


def test_node_row() -> None:
    node = {
        "metadata": {"name": "n1", "creationTimestamp": "2026-01-02T03:04:00Z"},
        "spec": {"podCIDRs": ["10.201.0.0/16", "fd00::/64"]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "Hostname", "address": "n1"},
            ],
            "nodeInfo": {"kubeletVersion": "podwire-0.1"},
        },
    }
    assert rows.node_row(node, AT, wide=True) == (
        "n1",
        "Ready",
        "5s",
        "podwire-0.1",
        "192.0.2.1",
        "10.201.0.0/16,fd00::/64",
    )


def test_columns_line_up_under_their_headings() -> None:
    assert rows.columns(("A", "LONG"), [("aaaa", "b"), ("c", "dddddd")]) == [
        "A      LONG",
        "aaaa   b",
        "c      dddddd",
    ]


def test_colour_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    output.print_table(("NAME", "STATUS"), [("web", "Running")])
    assert capsys.readouterr().out == "NAME   STATUS\nweb    Running\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.print_table(("NAME", "STATUS"), [("web", "Running")])
    assert "\x1b[32mRunning\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    output.print_table(("NAME", "STATUS"), [("web", "Running")])
    assert capsys.readouterr().out == "NAME   STATUS\nweb    Running\n"
