from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from podwire.kube.objects import Pod
from podwire.node import hashes, plan
from podwire.node.clock import SECOND
from podwire.node.observed import BackOff, Health
from podwire.runtime.api import ContainerStatus, NetworkMode, SandboxState, SandboxStatus
from tests.node.helpers import CREATED, EXITED, NOW, RUNNING, UNKNOWN, container, pod, sandbox, status, view


def steps(made: plan.Plan) -> list[str]:
    """The plan in words, in the order in which it is carried out."""
    words = [f"stop sandbox {s.id}" for s in made.stop_sandboxes]
    if made.create_sandbox is not None:
        words.append(f"create sandbox {made.create_sandbox}")
    words += [f"kill {k.status.id}" for k in made.kill]
    words += [f"remove {c.id}" for c in made.remove_containers]
    words += [f"start {s.container.name} {s.attempt}" for s in made.start]
    words += [f"remove sandbox {s.id}" for s in made.remove_sandboxes]
    return words + ([f"ended {made.ended}"] if made.ended else [])


@dataclass
class Case:
    name: str
    expected: list[str]
    pod: Pod = field(default_factory=pod)
    sandboxes: list[SandboxStatus] = field(default_factory=lambda: [sandbox()])
    containers: list[ContainerStatus] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


HOST = pod(hostNetwork=True)
DEAD = sandbox(state=SandboxState.NOTREADY, ips=())
NEVER, ON_FAILURE = pod(restartPolicy="Never"), pod(restartPolicy="OnFailure")
INITS = pod(initContainers=[container("i1"), container("i2")])
INITS_NEVER = pod(initContainers=[container("i1")], restartPolicy="Never")
SIDECAR = pod(initContainers=[container("side", restartPolicy="Always"), container("i2")])
PROBED_SIDECAR = pod(
    initContainers=[
        container("side", restartPolicy="Always", startupProbe={"tcpSocket": {"port": 1}}),
    ]
)
TWO_NEVER = pod(containers=[container("a"), container("b")], restartPolicy="Never")
TWO_ON_FAILURE = pod(containers=[container("a"), container("b")], restartPolicy="OnFailure")

SANDBOX_CASES = [
    Case("none yet", ["create sandbox 0"], sandboxes=[]),
    Case("will do", ["start main 0"]),
    Case("not ready, but it may hold its network", ["stop sandbox s0", "create sandbox 1"], sandboxes=[DEAD]),
    Case(
        "the newest counts",
        ["stop sandbox s0", "stop sandbox s1", "create sandbox 2"],
        sandboxes=[DEAD, sandbox(1, state=SandboxState.NOTREADY)],
    ),
    Case(
        "two ready",
        ["stop sandbox s0", "stop sandbox s1", "create sandbox 2"],
        sandboxes=[sandbox(), sandbox(1)],
    ),
    Case("no address", ["stop sandbox s0", "create sandbox 1"], sandboxes=[sandbox(ips=())]),
    Case(
        "host network needs no address",
        ["start main 0"],
        pod=HOST,
        sandboxes=[sandbox(ips=(), network=NetworkMode.NODE)],
    ),
    Case("network mode changed", ["stop sandbox s0", "create sandbox 1"], pod=HOST),
    Case(
        "dead but a container is left running",
        ["stop sandbox s0", "create sandbox 1"],
        sandboxes=[DEAD],
        containers=[status("main")],
    ),
    Case(
        "host ports edited under the same UID",
        ["stop sandbox s0", "create sandbox 1"],
        pod=pod(containers=[container("main", ports=[{"containerPort": 80, "hostPort": 81}])]),
        sandboxes=[sandbox(annotations={hashes.SANDBOX_HASH: hashes.sandbox_hash(pod())})],
    ),
    Case(
        "restart count goes on in the new sandbox, the old one stays for its last state",
        ["start main 3"],
        sandboxes=[DEAD, sandbox(1)],
        containers=[status("main", EXITED, 2, exit_code=137)],
    ),
    Case(
        "old sandbox goes when nothing of it is needed",
        ["remove sandbox s0"],
        sandboxes=[DEAD, sandbox(1)],
        containers=[status("main", EXITED, 2), status("main", RUNNING, 3, sandbox_id="s1")],
    ),
]

CONTAINER_CASES = [
    Case("runs", [], containers=[status("main")]),
    Case("Always restarts success", ["start main 1"], containers=[status("main", EXITED)]),
    Case("Always restarts failure", ["start main 1"], containers=[status("main", EXITED, exit_code=1)]),
    Case("OnFailure, 0", ["ended Succeeded"], pod=ON_FAILURE, containers=[status("main", EXITED)]),
    Case("OnFailure, 1", ["start main 1"], pod=ON_FAILURE, containers=[status("main", EXITED, exit_code=1)]),
    Case("Never, 0", ["ended Succeeded"], pod=NEVER, containers=[status("main", EXITED)]),
    Case("Never, 1", ["ended Failed"], pod=NEVER, containers=[status("main", EXITED, exit_code=1)]),
    Case(
        "ended pods get no new sandbox",
        ["ended Succeeded"],
        pod=NEVER,
        sandboxes=[DEAD],
        containers=[status("main", EXITED)],
    ),
    Case(
        "Never, one still runs",
        [],
        pod=TWO_NEVER,
        containers=[status("a", EXITED, exit_code=1), status("b")],
    ),
    Case(
        "Never, one failed",
        ["ended Failed"],
        pod=TWO_NEVER,
        containers=[status("a", EXITED, exit_code=1), status("b", EXITED)],
    ),
    Case(
        "OnFailure in a new sandbox leaves alone what succeeded",
        ["start b 1"],
        pod=TWO_ON_FAILURE,
        sandboxes=[DEAD, sandbox(1)],
        containers=[status("a", EXITED), status("b", EXITED, exit_code=137)],
    ),
    Case(
        "in back-off",
        [],
        containers=[status("main", EXITED, 1, exit_code=1)],
        more={"back_off": {"main": BackOff(10, NOW - 6 * SECOND)}},
    ),
    Case(
        "back-off over",
        ["start main 2"],
        containers=[status("main", EXITED, 1, exit_code=1, finished_at=NOW - 10 * SECOND)],
        more={"back_off": {"main": BackOff(10, NOW - 11 * SECOND)}},
    ),
    Case(
        "ran ten minutes: back-off forgotten",
        ["start main 2"],
        containers=[status("main", EXITED, 1, exit_code=1, finished_at=NOW - SECOND)],
        more={"back_off": {"main": BackOff(300, NOW - 602 * SECOND)}},
    ),
    Case(
        "a start that was cut short does not count",
        ["remove main-1", "start main 1"],
        containers=[status("main", EXITED), status("main", CREATED, 1)],
    ),
    Case("unknown state", ["kill main-0"], containers=[status("main", UNKNOWN)]),
    Case(
        "definition changed",
        ["kill main-0"],
        containers=[status("main", annotations={hashes.CONTAINER_HASH: "other"})],
    ),
    Case(
        "failed liveness",
        ["kill main-0"],
        containers=[status("main")],
        more={"health": {"main-0": Health(failed="liveness")}},
    ),
    Case(
        "one that is to be replaced leaves only itself as the last state",
        ["remove main-0", "start main 2"],
        containers=[status("main", EXITED, 0), status("main", EXITED, 1)],
    ),
    Case(
        "only the last two ended ones are kept",
        ["remove main-0", "remove main-1"],
        containers=[status("main", EXITED, n) for n in range(3)] + [status("main", RUNNING, 3)],
    ),
]

INIT_CASES = [
    Case("first init", ["start i1 0"], pod=INITS),
    Case("first runs", [], pod=INITS, containers=[status("i1")]),
    Case("first done", ["start i2 0"], pod=INITS, containers=[status("i1", EXITED)]),
    Case("first failed", ["start i1 1"], pod=INITS, containers=[status("i1", EXITED, exit_code=1)]),
    Case(
        "first failed, Never",
        ["ended Failed"],
        pod=INITS_NEVER,
        containers=[status("i1", EXITED, exit_code=1)],
    ),
    Case("all done", ["start main 0"], pod=INITS, containers=[status("i1", EXITED), status("i2", EXITED)]),
    Case(
        "run again in a new sandbox",
        ["start i1 1"],
        pod=INITS,
        sandboxes=[DEAD, sandbox(1)],
        containers=[status("i1", EXITED), status("i2", EXITED), status("main", EXITED, exit_code=137)],
    ),
    Case("not run again once main has run", [], pod=INITS, containers=[status("main")]),
    Case("sidecar first", ["start side 0"], pod=SIDECAR),
    Case("sidecar started unblocks the next", ["start i2 0"], pod=SIDECAR, containers=[status("side")]),
    Case("sidecar not started blocks", [], pod=PROBED_SIDECAR, containers=[status("side")]),
    Case(
        "sidecar passed its startup probe",
        ["start main 0"],
        pod=PROBED_SIDECAR,
        containers=[status("side")],
        more={"health": {"side-0": Health(started=True)}},
    ),
    Case(
        "sidecar restarts beside main, whatever its exit code",
        ["start side 1"],
        pod=SIDECAR,
        containers=[status("side", EXITED), status("i2", EXITED), status("main")],
    ),
    Case(
        "sidecars do not keep an ended pod",
        ["ended Succeeded"],
        pod=pod(initContainers=[container("side", restartPolicy="Always")], restartPolicy="Never"),
        containers=[status("side"), status("main", EXITED)],
    ),
]


@pytest.mark.parametrize("case", [*SANDBOX_CASES, *CONTAINER_CASES, *INIT_CASES], ids=lambda case: case.name)
def test_next_steps(case: Case) -> None:
    made = plan.make(view(case.pod, case.sandboxes, case.containers, **case.more))
    assert steps(made) == case.expected


def test_requeue_is_the_shortest_wait() -> None:
    two = pod(containers=[container("a"), container("b")])
    containers = [status("a", EXITED, 1, exit_code=1), status("b", EXITED, 1, exit_code=1)]
    back_off = {"a": BackOff(40, NOW - 6 * SECOND), "b": BackOff(20, NOW - 6 * SECOND)}
    made = plan.make(view(two, [sandbox()], containers, back_off=back_off))
    assert made.requeue == 15.0
    assert made.idle


@pytest.mark.parametrize(("seconds", "ended"), [(999, "Failed"), (1000, "Failed"), (1001, None)])
def test_active_deadline_counts_from_the_first_sandbox(seconds: int, ended: str | None) -> None:
    made = plan.make(view(pod(activeDeadlineSeconds=seconds), [sandbox()], [status("main")]))
    assert made.ended == ended
    assert made.ended_reason == ("DeadlineExceeded" if ended else "")
    assert made.requeue == (None if ended else 1.0)


def test_a_pod_that_succeeded_before_its_deadline_stays_succeeded() -> None:
    job = pod(activeDeadlineSeconds=1, restartPolicy="Never")
    assert plan.make(view(job, [sandbox()], [status("main", EXITED)])).ended == "Succeeded"


def test_failed_probe_brings_its_own_grace_and_reason() -> None:
    health = {"main-0": Health(failed="Container main failed liveness probe, will be restarted", grace=3)}
    (kill,) = plan.make(view(pod(), [sandbox()], [status("main")], health=health)).kill
    assert (kill.grace, kill.reason) == (3, "Container main failed liveness probe, will be restarted")


def test_the_sandbox_made_from_a_pod_is_not_thought_changed() -> None:
    made = pod(containers=[container("main", ports=[{"containerPort": 80, "hostPort": 81}])])
    same = sandbox(annotations={hashes.SANDBOX_HASH: hashes.sandbox_hash(made)})
    running = status(
        "main", annotations={hashes.CONTAINER_HASH: hashes.container_hash(made.spec.containers[0])}
    )
    assert plan.make(view(made, [same], [running])).idle
