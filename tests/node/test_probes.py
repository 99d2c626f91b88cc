from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from podwire.kube.objects import HTTPGetAction, HTTPHeader, Probe, TCPSocketAction
from podwire.node.clock import VirtualClock
from podwire.node.handlers import Unreachable, http_get, tcp_connect
from podwire.node.probes import Streak
from podwire.runtime.api import ExecResult
from tests.node.helpers import bench, container, pod


def check(**fields: Any) -> dict[str, Any]:
    return {"exec": {"command": ["check"]}, **fields}


@pytest.mark.parametrize(
    ("start", "results", "changes"),
    [
        (True, "101001000", [False]),
        (True, "1110", []),
        (False, "1", []),
        (False, "011", [True]),
        (False, "0101", []),
        (False, "11000011", [True, False, True]),
        (None, "000", [False]),
    ],
)
def test_thresholds_count_results_in_a_row(start: bool | None, results: str, changes: list[bool]) -> None:
    probe = Probe(success_threshold=2, failure_threshold=3)
    streak = Streak(start)
    seen = [streak.verdict for result in results if streak.add(probe, result == "1")]
    assert seen == changes


async def test_failed_liveness_restarts_the_container(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        healthy = True
        b.runtime.on_exec = lambda _n, _c: ExecResult(b"", b"" if healthy else b"no answer", not healthy)
        probe = check(initialDelaySeconds=5, periodSeconds=10, failureThreshold=2)
        b.give(pod(containers=[container("main", livenessProbe=probe)]))
        await b.running("web")
        await clock.advance(4)
        assert b.runtime.count("exec_sync") == 0
        await clock.advance(2)
        assert b.runtime.count("exec_sync") == 1
        healthy = False
        await clock.advance(10)
        assert b.runtime.count("stop_container") == 0
        await clock.advance(10)
        healthy = True
        await b.until(lambda: b.runtime.count("start_container") == 2)
        assert b.shown("web").status.container_statuses[0].restart_count == 1
        events = {e.reason: e for e in b.node.events() if e.involved_object.name == "web"}
        assert events["Unhealthy"].message == "Liveness probe failed: no answer"
        assert events["Unhealthy"].count == 2
        assert events["Killing"].message == "Container main failed liveness probe, will be restarted"


async def test_readiness_turns_ready_on_and_off_without_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        code = 1
        b.runtime.on_exec = lambda _n, _c: ExecResult(b"", b"", code)
        b.give(pod(containers=[container("main", readinessProbe=check(periodSeconds=1))]))
        await b.running("web")

        def ready() -> bool:
            return b.shown("web").status.container_statuses[0].ready

        await clock.advance(1)
        assert not ready()
        code = 0
        await clock.advance(1)
        assert ready()
        code = 1
        await clock.advance(2)
        assert ready(), "fewer than three failures"
        await clock.advance(1)
        assert not ready()
        assert b.runtime.count("start_container") == 1


async def test_startup_probe_holds_the_others_back(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with bench(tmp_path, clock=clock) as b:
        asked: list[str] = []
        up = False

        def answer(_name: str, command: tuple[str, ...]) -> ExecResult:
            asked.append(command[0])
            return ExecResult(b"", b"", 0 if up else 1)

        b.runtime.on_exec = answer
        startup = {"exec": {"command": ["up"]}, "periodSeconds": 1, "failureThreshold": 30}
        liveness = {"exec": {"command": ["alive"]}, "periodSeconds": 1}
        b.give(pod(containers=[container("main", startupProbe=startup, livenessProbe=liveness)]))
        await b.running("web")
        await clock.advance(5)
        assert set(asked) == {"up"}
        assert b.shown("web").status.container_statuses[0].started is False
        up = True
        await clock.advance(1)
        assert b.shown("web").status.container_statuses[0].started is True
        asked.clear()
        await clock.advance(3)
        assert set(asked) == {"alive"}


async def test_adopted_containers_are_probed(tmp_path: Path) -> None:
    clock = VirtualClock()
    probed = pod(containers=[container("main", readinessProbe=check(periodSeconds=1))])
    async with bench(tmp_path, clock=clock) as b:
        b.give(probed)
        await b.running("web")
    b.runtime.calls.clear()
    async with bench(tmp_path, clock=clock, runtime=b.runtime) as again:
        again.give(probed)
        await again.running("web")
        await clock.advance(1)
        assert again.runtime.count("exec_sync") > 0
        assert again.shown("web").status.container_statuses[0].ready


@asynccontextmanager
async def web_server() -> AsyncIterator[tuple[int, list[web.Request]]]:
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(status=int(request.query.get("code", "200")), text="body")

    app = web.Application()
    app.router.add_get("/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1], seen
    finally:
        await runner.cleanup()


async def test_http_get_goes_to_a_named_port_with_its_headers() -> None:
    async with web_server() as (port, seen):
        named = {"name": "http", "containerPort": port}
        (main,) = pod(containers=[container("main", ports=[named])]).spec.containers
        headers = [HTTPHeader(name="X-A", value="b")]
        action = HTTPGetAction(port="http", path="healthz?code=503", http_headers=headers)
        assert await http_get(action, main, "127.0.0.1", 5) == (503, "body")
        assert seen[0].path == "/healthz"
        assert seen[0].headers["X-A"] == "b"
        await tcp_connect(TCPSocketAction(port=port), main, "127.0.0.1", 5)
        with pytest.raises(Unreachable, match="no port named 'nope'"):
            await http_get(HTTPGetAction(port="nope"), main, "127.0.0.1", 5)


async def test_nobody_there_and_no_answer_are_told_apart() -> None:
    (main,) = pod().spec.containers
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
            await http_get(HTTPGetAction(port=port), main, "127.0.0.1", 0.05)
    with pytest.raises(Unreachable, match=r"refused|Connect call failed"):
        await tcp_connect(TCPSocketAction(port=port), main, "127.0.0.1", 5)
    with pytest.raises(Unreachable, match=rf"http://127\.0\.0\.1:{port}/"):
        await http_get(HTTPGetAction(port=port), main, "127.0.0.1", 5)
