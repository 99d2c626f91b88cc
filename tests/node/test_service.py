from __future__ import annotations

import asyncio
import time
from pathlib import Path

from podwire.node.clock import SystemClock, VirtualClock
from podwire.runtime.api import SandboxState
from podwire.runtime.fake import FakeRuntime, Program
from tests.node.helpers import HOST_IPS, bench, container, pod


async def test_pod_runs_with_its_addresses_and_events(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod("web"))
        await b.running("web")
        status = b.shown("web").status
        assert status.pod_ip == "10.88.0.1"
        assert [ip.ip for ip in status.pod_ips] == ["10.88.0.1", "fd00:88::1"]
        assert [ip.ip for ip in status.host_ips] == list(HOST_IPS)
        assert {c.type: c.status for c in status.conditions} == dict.fromkeys(
            ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
        )
        assert b.reasons("web") == ["Created", "Started"]


async def test_removed_pod_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod("web", volumes=[{"name": "v", "emptyDir": {}}]))
        await b.running("web")
        assert list((tmp_path / "pods").iterdir())
        b.give()
        await b.until(lambda: not b.node.pods())
        assert b.runtime.addresses == []
        assert await b.runtime.list_pod_sandbox() == []
        assert list((tmp_path / "pods").iterdir()) == []
        assert list((tmp_path / "logs").iterdir()) == []


async def test_two_hundred_pods_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        began = time.monotonic()
        b.give(*(pod(f"p{i}") for i in range(200)))
        await b.running(*(f"p{i}" for i in range(200)))
        assert time.monotonic() - began < 3
        assert len(set(b.runtime.addresses)) == 400
        assert b.runtime.count("list_containers") == 1, "a worker listed everything"
        assert b.runtime.count("run_pod_sandbox") == 200


async def test_one_slow_pod_delays_no_other(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        gate = b.runtime.hold("run_pod_sandbox", match="slow")
        b.give(pod("slow"), pod("quick"))
        await b.running("quick")
        assert b.phase("slow") == "Pending"
        gate.set()
        await b.running("slow")


async def test_h01_same_uid_removed_and_put_back_at_once_runs_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod("web"))
        await b.running("web")
        gate = b.runtime.hold("stop_pod_sandbox")
        b.give()
        b.give(pod("web"))
        await b.until(lambda: b.runtime.count("stop_pod_sandbox") == 1)
        assert b.runtime.count("run_pod_sandbox") == 1
        gate.set()
        await b.until(lambda: b.runtime.count("run_pod_sandbox") == 2)
        await b.running("web")
        assert len(await b.runtime.list_pod_sandbox()) == 1


async def test_h02_termination_is_retried_from_own_state_then_the_pod_restarts(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.give(pod("web"))
        await b.running("web")
        b.runtime.fail("stop_container", "No such container", times=2)
        b.give()
        b.give(pod("web"))
        await b.until(lambda: b.runtime.count("stop_container") == 1)
        await clock.advance(1)
        await b.until(lambda: b.runtime.count("stop_container") == 2)
        assert b.runtime.count("run_pod_sandbox") == 1
        await clock.advance(2)
        await b.until(lambda: b.runtime.count("run_pod_sandbox") == 2)
        await b.running("web")
        assert "FailedKillPod" in b.reasons("web")


async def test_changed_manifest_waits_for_the_old_pod_of_that_name(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod("web", uid="one"))
        await b.running("web")
        gate = b.runtime.hold("remove_pod_sandbox")
        b.give(pod("web", uid="two"))
        await b.until(lambda: b.runtime.count("remove_pod_sandbox") == 1)
        assert b.shown("web").metadata.uid == "two"
        assert b.phase("web") == "Pending"
        gate.set()
        await b.running("web")
        assert [s.metadata.uid for s in await b.runtime.list_pod_sandbox()] == ["two"]


async def test_h04_pod_without_its_host_port_is_tried_again_when_the_holder_goes(tmp_path: Path) -> None:
    port = {"containerPort": 80, "hostPort": 8080}
    first = pod("first", containers=[container("main", ports=[port])])
    second = pod("second", containers=[container("main", ports=[port])])
    async with bench(tmp_path) as b:
        b.give(first)
        await b.running("first")
        b.give(first, second)
        await b.until(lambda: b.shown("second").status.reason == "NodePorts")
        status = b.shown("second").status
        assert status.phase == "Pending"
        assert "default/first" in status.message
        assert "node(s) didn't have free ports for the requested pod ports" in status.message
        b.give(second)
        await b.running("second")
        assert b.shown("second").status.reason == ""


async def test_h11_removed_pod_stops_with_the_file_source_alone(tmp_path: Path) -> None:
    runtime = FakeRuntime(clock := VirtualClock())
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(pod("web"))
        await b.running("web")
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        await clock.advance(5)
        assert len(await runtime.list_pod_sandbox()) == 1, "removed before the source was seen"
        b.give()
        await clock.settle()
        await clock.advance(2.1)
        await b.until(lambda: not b.runtime.addresses)
        assert await runtime.list_pod_sandbox() == []


async def test_e05_pod_removed_while_its_sandbox_is_made_gives_the_address_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        gate = b.runtime.hold("run_pod_sandbox")
        b.give(pod("web"))
        await b.until(lambda: b.runtime.count("run_pod_sandbox") == 1)
        b.give()
        gate.set()
        await b.until(lambda: not b.node.pods())
        assert b.runtime.count("remove_pod_sandbox") == 1
        assert b.runtime.addresses == []
        assert b.runtime.count("create_container") == 0


async def test_failed_sandbox_shows_the_true_cause_and_is_retried(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        cause = "plugin bridge: no address left in 10.88.0.0/30"
        rule = b.runtime.fail("run_pod_sandbox", cause, times=None)
        b.give(pod("web"))
        await b.until(lambda: "FailedCreatePodSandBox" in b.reasons("web"))
        event = next(e for e in b.node.events() if e.reason == "FailedCreatePodSandBox")
        assert event.message == f"Failed to create pod sandbox: {cause}"
        status = b.shown("web").status
        assert status.phase == "Pending"
        waiting = status.container_statuses[0].state.waiting
        assert waiting is not None and waiting.reason == "ContainerCreating"
        assert next(c.status for c in status.conditions if c.type == "PodReadyToStartContainers") == "False"
        for expected in (2, 3):
            await clock.advance(2 ** (expected - 2))
            assert b.runtime.count("run_pod_sandbox") == expected
        b.runtime.cure(rule)
        await clock.advance(4)
        await b.running("web")
        assert next(e for e in b.node.events() if e.reason == "FailedCreatePodSandBox").count == 3


async def test_lost_sandbox_is_made_again_and_restart_counts_go_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod("web"))
        await b.running("web")
        b.runtime.lose_sandbox((await b.runtime.list_pod_sandbox())[0].id)
        await b.until(lambda: b.runtime.count("run_pod_sandbox") == 2)
        await b.until(lambda: b.shown("web").status.container_statuses[0].state.running is not None)
        sandboxes = await b.runtime.list_pod_sandbox()
        assert [s.metadata.attempt for s in sandboxes if s.state == SandboxState.READY] == [1]
        assert b.shown("web").status.container_statuses[0].restart_count == 1
        assert "SandboxChanged" in b.reasons("web")
        assert "Failed" not in b.reasons("web"), "a container was started in the dead sandbox"


async def test_crash_loop_waits_10_then_20_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(ends=[(0.5, 3)])
        b.give(pod("web"))
        await b.running("web")
        await clock.advance(0.6)
        assert b.runtime.count("start_container") == 2, "the first restart is at once"
        await clock.advance(0.6)
        status = b.shown("web").status.container_statuses[0]
        assert status.state.waiting is not None and status.state.waiting.reason == "CrashLoopBackOff"
        assert status.state.waiting.message.startswith("back-off 10s restarting failed container=main")
        assert status.last_state.terminated is not None and status.last_state.terminated.exit_code == 3
        await clock.advance(9)
        assert b.runtime.count("start_container") == 2
        await clock.advance(1)
        assert b.runtime.count("start_container") == 3
        await clock.advance(19.5)
        assert b.runtime.count("start_container") == 3
        await clock.advance(1.5)
        assert b.runtime.count("start_container") == 4
        assert b.shown("web").status.container_statuses[0].restart_count == 3
        assert b.phase("web") == "Running"


async def test_finished_pod_frees_its_network_and_stays_shown(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.runtime.programs["main"] = Program(ends=[(0.01, 0)])
        b.give(pod("job", restartPolicy="Never"))
        await b.until(lambda: b.phase("job") == "Succeeded")
        await b.until(lambda: b.runtime.addresses == [])
        terminated = b.shown("job").status.container_statuses[0].state.terminated
        assert terminated is not None and terminated.reason == "Completed"
        b.give()
        await b.until(lambda: not b.node.pods())
        assert await b.runtime.list_pod_sandbox() == []


async def test_active_deadline_fails_the_pod(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.give(pod("job", activeDeadlineSeconds=30))
        await b.running("job")
        await clock.advance(29)
        assert b.phase("job") == "Running"
        await clock.advance(2)
        await b.until(lambda: b.phase("job") == "Failed")
        assert b.shown("job").status.reason == "DeadlineExceeded"
        await b.until(lambda: b.runtime.addresses == [])


async def test_restart_adopts_running_pods_and_their_restart_counts(tmp_path: Path) -> None:
    runtime = FakeRuntime(clock := VirtualClock())
    runtime.programs["main"] = Program(ends=[(1, 1), (1e9, 0)])
    web, gone = pod("web"), pod("gone", containers=[container("other")])
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(web, gone)
        await b.running("web", "gone")
        await clock.advance(1.1)
        await b.until(lambda: b.shown("web").status.container_statuses[0].restart_count == 1)
    before = [c.id for c in await runtime.list_containers() if c.metadata.name == "main"]
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(web)
        await b.running("web")
        assert b.shown("web").status.container_statuses[0].restart_count == 1
        await clock.advance(2.1)
        await b.until(lambda: len(runtime.addresses) == 2)
        assert [s.metadata.name for s in await runtime.list_pod_sandbox()] == ["web"]
        assert [c.id for c in await runtime.list_containers()] == before
        assert runtime.count("run_pod_sandbox") == 2


async def test_network_not_ready_holds_all_but_host_network_pods(tmp_path: Path) -> None:
    clock = VirtualClock()
    runtime = FakeRuntime(clock)
    ready = runtime.network
    runtime.network = type(ready)("NetworkReady", False, "NetworkPluginNotReady", "no conflist")
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(pod("web"), pod("host", hostNetwork=True))
        await b.running("host")
        assert [ip.ip for ip in b.shown("host").status.pod_ips] == list(HOST_IPS)
        assert "NetworkNotReady" in b.reasons("web")
        assert b.phase("web") == "Pending"
        runtime.network = ready
        await clock.advance(1.5)
        await b.running("web")


async def test_shutdown_removes_all_pods_side_by_side(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(on_term=5)
        b.give(pod("a"), pod("b"), pod("c"))
        await b.running("a", "b", "c")
        seen: list[int] = []

        async def shut_down() -> None:
            async for progress in b.node.shutting_down():
                seen.append(len(progress.remaining))

        ending = asyncio.create_task(shut_down())
        await clock.advance(5)
        await b.until(ending.done)
        assert seen[0] == 3 and seen[-1] == 0
        assert await b.runtime.list_pod_sandbox() == []


async def test_e16_the_runtime_is_told_the_uid_of_each_pod_of_a_name(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod("web", uid="one"))
        await b.until(lambda: b.runtime.count("start_container") == 1)
        b.give(pod("web", uid="two"))
        await b.until(lambda: b.runtime.count("start_container") == 2)
        configs = b.runtime.sandbox_configs.values()
        assert [config.metadata.uid for config in configs] == ["one", "two"]
        assert [config.labels["io.kubernetes.pod.uid"] for config in configs] == ["one", "two"]


async def test_e17_pod_replaced_while_the_node_was_down_starts_after_the_old_one_is_gone(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(clock := VirtualClock())
    runtime.programs["main"] = Program(on_term=3)
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(pod("web", uid="one"))
        await b.running("web")
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(pod("web", uid="two"))
        await clock.advance(2.9)
        assert b.shown("web").metadata.uid == "two"
        assert b.phase("web") == "Pending"
        assert runtime.count("run_pod_sandbox") == 1
        await clock.advance(0.2)
        await b.running("web")
        assert [s.metadata.uid for s in await runtime.list_pod_sandbox()] == ["two"]


async def test_e18_pod_removed_while_it_waits_for_another_ends_at_once(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(on_term=20)
        b.give(pod("web", uid="one"))
        await b.running("web")
        b.give(pod("web", uid="two"))
        await clock.settle()
        b.give()
        await b.until(lambda: [p.metadata.uid for p in b.node.pods()] == ["one"])
        assert b.runtime.count("run_pod_sandbox") == 1
        await clock.advance(20)
        await b.until(lambda: not b.node.pods())


async def test_back_off_is_said_once_for_each_end(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(ends=[(0.5, 3)])
        b.give(pod("web"))
        await b.running("web")
        await clock.advance(12)
        event = next(e for e in b.node.events() if e.reason == "BackOff")
        assert event.message == "Back-off restarting failed container main in pod web"
        assert event.count == 2


async def test_status_in_a_manifest_is_not_believed(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from podwire.kube.objects import PodStatus

    async with bench(tmp_path) as b:
        b.give(replace(pod("web"), status=PodStatus(phase="Succeeded", pod_ip="1.2.3.4")))
        await b.running("web")
        assert b.shown("web").status.pod_ip == "10.88.0.1"


async def test_missed_event_is_made_good_by_the_relist(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.give(pod("web"))
        await b.running("web")
        b.runtime.mute()
        b.runtime.exit("main", 9)
        await clock.advance(5)
        assert b.runtime.count("start_container") == 1
        await clock.advance(6)
        assert b.runtime.count("start_container") == 2


async def test_runtime_that_goes_away_is_followed_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.give(pod("web"))
        await b.running("web")
        b.runtime.drop_listeners()
        await clock.settle()
        b.runtime.exit("main", 9)
        await clock.advance(1.1)
        assert b.runtime.count("start_container") == 2
        b.runtime.exit("main", 9)
        await clock.advance(0)
        assert b.shown("web").status.container_statuses[0].last_state.terminated is not None


async def test_adopted_pod_keeps_its_host_port_whatever_the_order_of_the_manifests(tmp_path: Path) -> None:
    runtime = FakeRuntime(clock := VirtualClock())
    port = {"containerPort": 80, "hostPort": 8080}
    old = pod("old", containers=[container("main", ports=[port])])
    new = pod("new", containers=[container("main", ports=[port])])
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(old)
        await b.running("old")
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(new, old)
        await b.until(lambda: b.shown("new").status.reason == "NodePorts" and b.phase("old") == "Running")
        assert runtime.count("run_pod_sandbox") == 1


async def test_back_off_is_not_said_again_when_the_worker_looks_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(ends=[(0.5, 3)])
        looping = pod("web", containers=[container("main"), container("other")])
        b.give(looping)
        await b.running("web")
        await clock.advance(1.2)
        b.runtime.exit("other", 0)
        await clock.advance(1)
        assert b.runtime.count("start_container", "other") == 2
        assert [e.count for e in b.node.events() if e.reason == "BackOff"] == [1]


async def test_files_of_pods_that_are_no_more_are_removed_and_no_others(tmp_path: Path) -> None:
    clock = VirtualClock()
    for uid in ("uid-web", "long-gone"):
        (tmp_path / "pods" / uid / "volumes").mkdir(parents=True)
    (tmp_path / "logs" / "default_old_long-gone").mkdir(parents=True)
    async with bench(tmp_path, clock=clock) as b:
        await clock.advance(11)
        assert (tmp_path / "pods" / "long-gone").exists(), "removed before the source was seen"
        b.give(pod("web"))
        await b.running("web")
        await clock.advance(10)
        await b.until(lambda: not (tmp_path / "logs" / "default_old_long-gone").exists())
        assert [path.name for path in (tmp_path / "pods").iterdir()] == ["uid-web"]
        assert [path.name for path in (tmp_path / "logs").iterdir()] == ["default_web_uid-web"]


async def test_manifests_that_come_during_a_shutdown_start_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(on_term=5)
        b.give(pod("a"))
        await b.running("a")
        one = asyncio.create_task(b.node.shutdown())
        two = asyncio.create_task(b.node.shutdown())
        await clock.settle()
        b.give(pod("a"), pod("b"))
        await clock.advance(6)
        await asyncio.wait_for(asyncio.gather(one, two), 5)
        assert b.runtime.count("run_pod_sandbox") == 1
        assert await b.runtime.list_pod_sandbox() == []


async def test_a_uid_that_an_earlier_run_left_under_another_name_holds_up_nobody(tmp_path: Path) -> None:
    runtime = FakeRuntime(SystemClock())
    async with bench(tmp_path, runtime=runtime) as b:
        b.give(pod("old", uid="a"))
        await b.running("old")
    async with bench(tmp_path, runtime=runtime) as b:
        b.give(pod("new", uid="a"), pod("old", uid="c"))
        await b.running("new", "old")
        names = {s.metadata.uid: s.metadata.name for s in await runtime.list_pod_sandbox()}
        assert names == {"a": "new", "c": "old"}


async def test_the_pod_that_an_earlier_run_left_keeps_its_name_from_one_that_is_seen_first(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(SystemClock())
    async with bench(tmp_path, runtime=runtime) as b:
        b.give(pod("web", uid="a"))
        await b.running("web")
    async with bench(tmp_path, runtime=runtime) as b:
        workers = b.node._workers
        workers.want(pod("web", uid="c"))
        await b.until(lambda: b.node.board.get("c") is not None)
        workers.want(pod("web", uid="a"))
        await b.until(lambda: b.node.board.get("a") is not None)
        assert [s.metadata.uid for s in await runtime.list_pod_sandbox()] == ["a"]
        assert runtime.count("stop_pod_sandbox") == 0
        workers.remove("a")
        await b.until(lambda: (b.node.board.get("c") or pod()).status.phase == "Running")
        assert [s.metadata.uid for s in await runtime.list_pod_sandbox()] == ["c"]
