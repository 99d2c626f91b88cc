from __future__ import annotations

import pytest
from msgspec.structs import replace

from podwire.kube.defaults import qos_class
from podwire.kube.objects import Pod, PodStatus
from podwire.node import status as pod_status
from podwire.node.clock import SECOND, timestamp
from podwire.node.observed import BackOff, Health, Trouble
from podwire.runtime.api import ContainerStatus, SandboxState
from tests.node.helpers import (
    CREATED,
    EXITED,
    HOST_IPS,
    NOW,
    RUNNING,
    container,
    pod,
    sandbox,
    status,
    view,
)

READY = [sandbox(ips=("10.88.0.2", "fd00::2"))]
INIT = pod(initContainers=[container("i1")])
SIDECAR = pod(initContainers=[container("side", restartPolicy="Always")])


def conditions(built: PodStatus) -> dict[str, tuple[str, object]]:
    return {c.type: (c.status, c.reason or "") for c in built.conditions}


def word(built: PodStatus, position: int = 0, *, init: bool = False) -> str:
    """How the container stands: the waiting or terminated reason, or Running."""
    state = (built.init_container_statuses if init else built.container_statuses)[position].state
    if state.waiting is not None:
        return state.waiting.reason
    if state.terminated is not None:
        return str(state.terminated.reason)
    return "Running"


@pytest.mark.parametrize(
    ("made", "containers", "phase", "main"),
    [
        (pod(), [], "Pending", "ContainerCreating"),
        (pod(), [status("main", CREATED)], "Pending", "ContainerCreating"),
        (pod(), [status("main")], "Running", "Running"),
        (pod(), [status("main", EXITED)], "Running", "Completed"),
        (pod(), [status("main", EXITED, exit_code=2)], "Running", "Error"),
        (INIT, [], "Pending", "PodInitializing"),
        (INIT, [status("i1")], "Pending", "PodInitializing"),
        (INIT, [status("i1", EXITED)], "Pending", "PodInitializing"),
        (INIT, [status("i1", EXITED), status("main")], "Running", "Running"),
        (SIDECAR, [status("side"), status("main")], "Running", "Running"),
    ],
)
def test_phase_and_container_state(
    made: Pod, containers: list[ContainerStatus], phase: str, main: str
) -> None:
    built = pod_status.build(view(made, READY, containers))
    assert (built.phase, word(built)) == (phase, main)


def test_crash_loop_shows_the_wait_and_the_last_end() -> None:
    containers = [status("main", EXITED, 0, exit_code=1), status("main", EXITED, 1, exit_code=3)]
    back_off = {"main": BackOff(20, NOW - 10 * SECOND)}
    built = pod_status.build(view(pod(), READY, containers, back_off=back_off))
    (shown,) = built.container_statuses
    assert word(built) == "CrashLoopBackOff"
    assert shown.last_state.terminated is not None and shown.last_state.terminated.exit_code == 3
    assert (shown.restart_count, shown.ready, built.phase) == (1, False, "Running")


def test_running_again_shows_how_the_last_one_ended() -> None:
    containers = [status("main", EXITED, 0, exit_code=137, signal=9), status("main", RUNNING, 1)]
    (shown,) = pod_status.build(view(pod(), READY, containers), runtime_name="embedded").container_statuses
    assert shown.last_state.terminated is not None
    assert (shown.last_state.terminated.exit_code, shown.last_state.terminated.signal) == (137, 9)
    assert shown.last_state.terminated.container_id == "embedded://main-0"
    assert (shown.container_id, shown.restart_count, shown.ready) == ("embedded://main-1", 1, True)


def test_trouble_is_the_waiting_reason() -> None:
    trouble = {"main": Trouble("CreateContainerError", "no such directory: /x")}
    built = pod_status.build(view(pod(), READY, [], trouble=trouble))
    waiting = built.container_statuses[0].state.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.message) == ("CreateContainerError", "no such directory: /x")


@pytest.mark.parametrize(
    ("health", "started", "ready"),
    [
        (Health(started=False, ready=False), False, False),
        (Health(started=True, ready=False), True, False),
        (Health(started=True, ready=True), True, True),
    ],
)
def test_probes_make_ready(health: Health, started: bool, ready: bool) -> None:
    built = pod_status.build(view(pod(), READY, [status("main")], health={"main-0": health}))
    (shown,) = built.container_statuses
    assert (shown.started, shown.ready) == (started, ready)
    assert conditions(built)["Ready"] == (("True", "") if ready else ("False", "ContainersNotReady"))


def test_unready_sidecar_makes_the_pod_unready() -> None:
    health = {"side-0": Health(started=True, ready=False)}
    built = pod_status.build(view(SIDECAR, READY, [status("side"), status("main")], health=health))
    message = next(c.message for c in built.conditions if c.type == "Ready")
    assert message == "containers with unready status: [side]"


def test_conditions_of_a_pod_that_initializes_and_of_one_that_ended() -> None:
    built = pod_status.build(view(INIT, READY, [status("i1")]))
    assert conditions(built) == {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("False", "ContainersNotInitialized"),
        "Ready": ("False", "ContainersNotReady"),
        "ContainersReady": ("False", "ContainersNotReady"),
        "PodScheduled": ("True", ""),
    }
    gone = [sandbox(state=SandboxState.NOTREADY, ips=())]
    done = pod_status.build(
        view(pod(restartPolicy="Never"), gone, [status("main", EXITED)]), ended="Succeeded"
    )
    assert conditions(done)["PodReadyToStartContainers"] == ("False", "")
    assert conditions(done)["Ready"] == ("False", "PodCompleted")
    assert done.phase == "Succeeded"


def test_transition_time_moves_only_with_the_status() -> None:
    first = pod_status.build(view(pod(), READY, []))
    later = view(replace(pod(), status=first), READY, [status("main")])
    second = pod_status.build(type(later)(later.pod, later.observed, NOW + 60 * SECOND))
    times = {c.type: c.last_transition_time for c in second.conditions}
    assert times["Ready"] == timestamp(NOW + 60 * SECOND)
    assert times["PodScheduled"] == times["PodReadyToStartContainers"] == timestamp(NOW)


def test_terminal_phase_is_never_left() -> None:
    before = PodStatus(phase="Failed", reason="DeadlineExceeded", message="too long")
    built = pod_status.build(view(replace(pod(), status=before), READY, [status("main")]))
    assert (built.phase, built.reason, built.message) == ("Failed", "DeadlineExceeded", "too long")


@pytest.mark.parametrize(
    ("ips", "hosts", "expected"),
    [
        (("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"), ("192.0.2.1",), ["10.0.0.1", "fd00::1"]),
        (("10.0.0.1", "fd00::1"), ("2001:db8::1", "192.0.2.1"), ["fd00::1", "10.0.0.1"]),
        (("fd00::1",), ("192.0.2.1",), ["fd00::1"]),
        (("fd00::1", "10.0.0.1"), (), ["fd00::1", "10.0.0.1"]),
    ],
)
def test_one_address_per_family_the_nodes_first(
    ips: tuple[str, ...], hosts: tuple[str, ...], expected: list[str]
) -> None:
    built = pod_status.build(view(pod(), [sandbox(ips=ips)], []), host_ips=hosts)
    assert [ip.ip for ip in built.pod_ips] == expected
    assert built.pod_ip == expected[0]


def test_host_network_pod_has_the_hosts_addresses_once_it_has_a_sandbox() -> None:
    host = pod(hostNetwork=True)
    assert pod_status.build(view(host, [], []), host_ips=HOST_IPS).pod_ips == []
    built = pod_status.build(view(host, [sandbox(ips=())], []), host_ips=HOST_IPS)
    assert [ip.ip for ip in built.pod_ips] == list(HOST_IPS)
    assert conditions(built)["PodReadyToStartContainers"] == ("True", "")


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "0"}}, "BestEffort"),
        ({"requests": {"cpu": "100m"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1024Mi"}, "requests": {"memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_quality_of_service(resources: dict[str, object], expected: str) -> None:
    assert qos_class(pod(containers=[container("main", resources=resources)])) == expected
