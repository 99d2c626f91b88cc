from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from podwire.kube.objects import HTTPGetAction, LifecycleHandler
from podwire.node.clock import VirtualClock
from podwire.node.errors import HookFailed
from podwire.node.lifecycle import run_hook
from podwire.runtime.api import ExecResult
from podwire.runtime.fake import FakeRuntime, Program
from tests.node.helpers import bench, container, pod


async def test_pre_stop_runs_within_the_grace_period(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        hook = {"preStop": {"sleep": {"seconds": 8}}}
        b.runtime.programs["main"] = Program(on_term=60)
        b.give(pod(terminationGracePeriodSeconds=10, containers=[container("main", lifecycle=hook)]))
        await b.running("web")
        b.give()
        await clock.advance(7.9)
        assert b.runtime.count("stop_container") == 0
        await clock.advance(0.2)
        assert b.runtime.count("stop_container") == 1
        assert b.runtime.addresses
        await clock.advance(2)
        await b.until(lambda: not b.node.pods())


async def test_terminating_pod_is_shown_as_such(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs["main"] = Program(on_term=5)
        b.give(pod(terminationGracePeriodSeconds=20))
        await b.running("web")
        b.give()
        await clock.settle()
        shown = b.shown("web")
        assert shown.metadata.deletion_timestamp is not None
        assert shown.metadata.deletion_grace_period_seconds == 20
        await clock.advance(5)
        await b.until(lambda: not b.node.pods())


async def test_sidecars_stop_after_the_others_the_last_first(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.programs.update({name: Program(on_term=1) for name in ("one", "two", "a", "b")})
        sidecars = [container(name, restartPolicy="Always") for name in ("one", "two")]
        b.give(pod(initContainers=sidecars, containers=[container("a"), container("b")]))
        await b.running("web")
        b.runtime.calls.clear()
        b.give()
        await clock.advance(10)
        await b.until(lambda: not b.node.pods())
        stops = [call.subject for call in b.runtime.calls if call.method == "stop_container"]
        assert sorted(stops[:2]) == ["a", "b"]
        assert stops[2:] == ["two", "one"]


async def test_failed_post_start_stops_the_container_and_says_why(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.on_exec = lambda _n, _c: ExecResult(b"", b"not yet", 4)
        hook = {"postStart": {"exec": {"command": ["prepare", "it"]}}}
        b.give(pod(containers=[container("main", lifecycle=hook)]))
        await b.until(lambda: "FailedPostStartHook" in b.reasons("web"))
        event = next(e for e in b.node.events() if e.reason == "FailedPostStartHook")
        assert event.message == "PostStartHook failed: command 'prepare it' exited with 4: not yet"
        await b.until(lambda: b.runtime.count("stop_container") == 1)
        b.runtime.on_exec = lambda _n, _c: ExecResult(b"", b"", 0)
        await clock.advance(1)
        await b.running("web")
        assert b.shown("web").status.container_statuses[0].restart_count == 1


async def test_pre_stop_of_an_orphan_is_still_run(tmp_path: Path) -> None:
    runtime = FakeRuntime(clock := VirtualClock())
    hook = {"preStop": {"exec": {"command": ["bye"]}}}
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give(pod(containers=[container("main", lifecycle=hook)]))
        await b.running("web")
    async with bench(tmp_path, clock=clock, runtime=runtime) as b:
        b.give()
        await clock.settle()
        await clock.advance(2.1)
        await b.until(lambda: not runtime.addresses)
        assert runtime.count("exec_sync", "bye") == 1
        assert b.node.pods() == []


async def test_container_that_cannot_be_made_shows_why_and_recovers(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.fail("create_container", "no space", times=1)
        b.give(pod())
        await b.until(lambda: b.shown("web").status.container_statuses != [] and "Failed" in b.reasons("web"))
        await clock.settle()
        waiting = b.shown("web").status.container_statuses[0].state.waiting
        assert waiting is not None
        assert (waiting.reason, waiting.message) == ("CreateContainerError", "no space")
        await clock.advance(1)
        await b.running("web")


async def test_program_that_cannot_run_is_tried_again_with_back_off(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        b.runtime.fail("start_container", "/bin/nope: no such file", times=2)
        b.give(pod())
        await b.until(lambda: "Failed" in b.reasons("web"))
        await clock.advance(1)
        assert b.runtime.count("start_container") == 2
        await clock.advance(8)
        shown = b.shown("web").status.container_statuses[0]
        assert shown.state.waiting is not None and shown.state.waiting.reason == "CrashLoopBackOff"
        assert shown.last_state.terminated is not None
        assert shown.last_state.terminated.reason == "ContainerCannotRun"
        await clock.advance(3)
        await b.running("web")


async def test_refused_pod_says_the_field_and_runs_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}]))
        await b.until(lambda: b.phase("web") == "Failed")
        status = b.shown("web").status
        assert status.reason == "UnsupportedField"
        assert status.message.startswith("spec.volumes[0].secret: volume 'v' cannot be had on this node")
        assert b.reasons("web") == ["UnsupportedField"]
        assert b.runtime.count("run_pod_sandbox") == 0
        b.give(pod())
        await b.running("web")
        assert b.shown("web").status.reason == ""


async def test_edit_under_the_same_uid_restarts_the_changed_container_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.give(pod(containers=[container("a"), container("b")]))
        await b.running("web")
        b.give(pod(containers=[container("a"), container("b", args=["new"])]))
        await b.until(lambda: b.runtime.count("start_container", "b") == 2)
        assert b.runtime.count("start_container", "a") == 1
        assert b.runtime.count("run_pod_sandbox") == 1


async def test_http_hook_fails_on_an_error_status() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=int(request.query["code"]))

    app = web.Application()
    app.router.add_get("/hook", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    clock = VirtualClock()
    (main,) = pod().spec.containers

    async def call(code: int) -> None:
        handler = LifecycleHandler(http_get=HTTPGetAction(port=port, path=f"/hook?code={code}"))
        await run_hook(handler, main, "id", "127.0.0.1", runtime=FakeRuntime(clock), clock=clock, timeout=5)

    try:
        await call(200)
        with pytest.raises(HookFailed, match="HTTP status 500"):
            await call(500)
    finally:
        await runner.cleanup()
