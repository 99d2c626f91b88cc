"""Liveness, readiness and startup probes of one running container.

Rules: k8s.io/kubernetes pkg/kubelet/prober/worker.go. The startup probe runs alone until it succeeds; results
count when they come ``successThreshold`` or ``failureThreshold`` times in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from podwire.kube.objects import Container, Probe
from podwire.node.clock import SECOND, Clock
from podwire.node.handlers import Unreachable, http_get, tcp_connect
from podwire.node.observed import Health
from podwire.runtime.api import ContainerStatus, RuntimeService
from podwire.runtime.errors import RuntimeFault

Report = Callable[[str], None]
"""Called with what a probe failed with."""


@dataclass(slots=True)
class Streak:
    """Results in a row, and the verdict that they led to."""

    verdict: bool | None
    last: bool | None = None
    run: int = 0

    def add(self, probe: Probe, result: bool) -> bool:
        """Take in a result; whether the verdict changed."""
        self.run = self.run + 1 if result == self.last else 1
        self.last = result
        needed = probe.success_threshold if result else probe.failure_threshold
        if self.run < needed or self.verdict == result:
            return False
        self.verdict = result
        return True


def has_probes(container: Container) -> bool:
    """Whether there is anything to probe."""
    return any((container.startup_probe, container.liveness_probe, container.readiness_probe))


class Prober:
    """Probes one container until :meth:`close`; ``changed`` is called when :attr:`health` has changed."""

    def __init__(
        self,
        container: Container,
        status: ContainerStatus,
        pod_ip: str,
        *,
        runtime: RuntimeService,
        clock: Clock,
        changed: Callable[[], None],
        report: Report,
    ) -> None:
        self._container = container
        self._status = status
        self._pod_ip = pod_ip
        self._runtime = runtime
        self._clock = clock
        self._changed = changed
        self._report = report
        started = container.startup_probe is None
        self.health = Health(started=started, ready=started and container.readiness_probe is None)
        self._tasks: set[asyncio.Task[None]] = set()
        if container.startup_probe is not None:
            self._run(self._startup(container.startup_probe))
        else:
            self._after_startup()

    async def close(self) -> None:
        """Probe no more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _after_startup(self) -> None:
        if self._container.liveness_probe is not None:
            self._run(self._liveness(self._container.liveness_probe))
        if self._container.readiness_probe is not None:
            self._run(self._readiness(self._container.readiness_probe))

    def _set(self, health: Health) -> None:
        if health != self.health:
            self.health = health
            self._changed()

    async def _startup(self, probe: Probe) -> None:
        streak = Streak(None)
        await self._delay(probe)
        while True:
            if streak.add(probe, await self._once("Startup", probe)):
                if not streak.verdict:
                    self._fail("startup", probe)
                    return
                self._set(Health(started=True, ready=self._container.readiness_probe is None))
                self._after_startup()
                return
            await self._clock.sleep(probe.period_seconds)

    async def _liveness(self, probe: Probe) -> None:
        streak = Streak(True)
        await self._delay(probe)
        while True:
            if streak.add(probe, await self._once("Liveness", probe)) and not streak.verdict:
                self._fail("liveness", probe)
                return
            await self._clock.sleep(probe.period_seconds)

    async def _readiness(self, probe: Probe) -> None:
        streak = Streak(False)
        await self._delay(probe)
        while True:
            if streak.add(probe, await self._once("Readiness", probe)):
                self._set(Health(True, bool(streak.verdict), self.health.failed, self.health.grace))
            await self._clock.sleep(probe.period_seconds)

    def _fail(self, kind: str, probe: Probe) -> None:
        text = f"Container {self._container.name} failed {kind} probe, will be restarted"
        grace = probe.termination_grace_period_seconds
        self._set(Health(self.health.started, self.health.ready, text, grace))

    async def _delay(self, probe: Probe) -> None:
        since = (self._clock.wall() - self._status.started_at) / SECOND
        await self._clock.sleep(max(0.0, probe.initial_delay_seconds - since))

    async def _once(self, kind: str, probe: Probe) -> bool:
        try:
            said = await self._ask(probe)
        except (Unreachable, RuntimeFault) as error:
            said = str(error)
        if said is None:
            return True
        self._report(f"{kind} probe failed: {said}")
        return False

    async def _ask(self, probe: Probe) -> str | None:
        """None for success, else what came back."""
        timeout = float(probe.timeout_seconds)
        if probe.exec is not None:
            result = await self._runtime.exec_sync(self._status.id, tuple(probe.exec.command), timeout)
            if result.exit_code == 0:
                return None
            return (result.stdout + result.stderr).decode(errors="replace").strip()[:1024] or (
                f"exit code {result.exit_code}"
            )
        if probe.http_get is not None:
            code, _ = await http_get(probe.http_get, self._container, self._pod_ip, timeout)
            return None if 200 <= code < 400 else f"HTTP probe failed with statuscode: {code}"
        if probe.tcp_socket is not None:
            await tcp_connect(probe.tcp_socket, self._container, self._pod_ip, timeout)
        return None
