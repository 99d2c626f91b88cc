"""The probers of one pod's containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from podwire.kube.objects import Pod
from podwire.node.context import Context
from podwire.node.events import WARNING
from podwire.node.observed import Health, Observed, is_sidecar
from podwire.node.probes import Prober, has_probes
from podwire.node.status import one_per_family
from podwire.runtime.api import ContainerState


class Probers:
    """One prober for each running container that has probes; ``changed`` is called when a verdict changes."""

    def __init__(self, ctx: Context, changed: Callable[[], None]) -> None:
        self._ctx = ctx
        self._changed = changed
        self._probers: dict[str, Prober] = {}

    def health(self) -> dict[str, Health]:
        """The verdicts by container ID."""
        return {identity: prober.health for identity, prober in self._probers.items()}

    async def follow(self, pod: Pod, observed: Observed) -> None:
        """Probe what runs now, and nothing else."""
        wanted = [
            c
            for c in pod.spec.containers + [c for c in pod.spec.init_containers if is_sidecar(c)]
            if has_probes(c)
        ]
        if not wanted and not self._probers:
            return
        running = {}
        for container in wanted:
            status = observed.latest(container.name)
            if status is not None and status.state == ContainerState.RUNNING:
                running[status.id] = (container, status)
        for identity in [i for i in self._probers if i not in running]:
            await self._probers.pop(identity).close()
        sandbox = observed.sandbox
        ips = self._ctx.host_ips if pod.spec.host_network else sandbox.ips if sandbox is not None else ()
        leading = self._ctx.host_ips[0] if self._ctx.host_ips else ""
        for identity, (container, status) in running.items():
            if identity in self._probers:
                continue
            self._probers[identity] = Prober(
                container,
                status,
                next(iter(one_per_family(ips, leading)), ""),
                runtime=self._ctx.runtime,
                clock=self._ctx.clock,
                changed=self._changed,
                report=self._reporter(pod, container.name),
            )

    def _reporter(self, pod: Pod, name: str) -> Callable[[str], None]:
        return lambda text: self._ctx.events.pod(pod, WARNING, "Unhealthy", text, container=name)

    async def close(self) -> None:
        """Probe nothing any more."""
        probers, self._probers = list(self._probers.values()), {}
        await asyncio.gather(*(prober.close() for prober in probers))
