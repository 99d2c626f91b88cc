"""What a worker does to the runtime for its pod; each step tells its events and updates the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from podwire.kube.objects import Container, LifecycleHandler, Pod
from podwire.node import dns, hashes, logs, translate
from podwire.node.context import Context
from podwire.node.environment import Place
from podwire.node.errors import (
    ContainerConfigError,
    HookFailed,
    MountFailed,
    NetworkNotReady,
    NodeError,
    PodRefused,
    StorageFault,
)
from podwire.node.events import NORMAL, WARNING
from podwire.node.grace import Grace, Graces
from podwire.node.lifecycle import run_hook
from podwire.node.observed import Trouble, is_sidecar
from podwire.node.plan import Start
from podwire.node.status import one_per_family
from podwire.runtime.api import ContainerStatus, SandboxStatus
from podwire.runtime.errors import Code, RuntimeFault

MINIMUM_GRACE = 2.0
"""Seconds that a program has between TERM and KILL even when its preStop hook used up the grace period."""
POST_START_TIMEOUT = 120.0


class StartFailed(NodeError):
    """A container could not be made or started; ``trouble`` is what its status shows meanwhile."""

    def __init__(self, container: str, trouble: Trouble) -> None:
        super().__init__(f"container {container}: {trouble.reason}: {trouble.message}")
        self.container = container
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Actions:
    """The steps for one pod."""

    ctx: Context
    pod: Pod
    graces: Graces

    def event(self, kind: str, reason: str, message: str, container: str = "") -> None:
        """Tell something about the pod or one of its containers."""
        self.ctx.events.pod(self.pod, kind, reason, message, container=container)

    async def create_sandbox(self, attempt: int) -> None:
        """Make the sandbox. Raises what stood in the way, after an event that says so."""
        ctx = self.ctx
        if not self.pod.spec.host_network:
            condition = await ctx.network.condition()
            if not condition.status:
                text = (
                    f"network is not ready: NetworkReady=false reason:{condition.reason} "
                    f"message:{condition.message}"
                )
                self.event(WARNING, "NetworkNotReady", text)
                raise NetworkNotReady(text)
        resolution = dns.resolve(self.pod, ctx.resolver)
        try:
            config = translate.sandbox_config(
                self.pod,
                attempt,
                root=ctx.root,
                dns=resolution.config,
                cluster_domain=ctx.resolver.cluster_domain,
            )
            _directory(Path(config.log_directory))
            sandbox_id = await ctx.runtime.run_pod_sandbox(config)
            await ctx.cache.refresh_sandbox(sandbox_id)
        except (RuntimeFault, StorageFault, PodRefused) as fault:
            self.event(WARNING, "FailedCreatePodSandBox", f"Failed to create pod sandbox: {fault}")
            raise
        for reason, message in resolution.notes:
            self.event(NORMAL if reason == "MissingClusterDNS" else WARNING, reason, message)

    def volumes(self) -> dict[str, Path]:
        """The pod's volumes, made or checked."""
        try:
            return self.ctx.volumes.set_up(self.pod)
        except MountFailed as error:
            self.event(WARNING, "FailedMount", str(error))
            raise

    async def start(self, start: Start, sandbox: SandboxStatus, volumes: Mapping[str, Path]) -> None:
        """Make and start one container and run its postStart hook. Raises :class:`StartFailed`."""
        container, name = start.container, start.container.name
        place = Place(self._pod_ips(sandbox), one_per_family(self.ctx.host_ips))
        try:
            config = translate.container_config(
                self.pod, container, start.attempt, place=place, volumes=volumes
            )
            _directory(translate.log_directory(self.ctx.root, self.pod) / name)
            container_id = await self.ctx.runtime.create_container(sandbox.id, config)
        except ContainerConfigError as error:
            raise self._failed(name, "CreateContainerConfigError", error.message) from error
        except (RuntimeFault, StorageFault) as error:
            raise self._failed(name, "CreateContainerError", str(error)) from error
        self.event(NORMAL, "Created", f"Created container {name}", name)
        try:
            await self.ctx.runtime.start_container(container_id)
        except RuntimeFault as fault:
            await self.ctx.cache.refresh_container(container_id)
            raise self._failed(name, "RunContainerError", fault.message) from fault
        await self.ctx.cache.refresh_container(container_id)
        self.event(NORMAL, "Started", f"Started container {name}", name)
        await self._post_start(container, container_id, place)

    async def _post_start(self, container: Container, container_id: str, place: Place) -> None:
        hook = container.lifecycle.post_start if container.lifecycle is not None else None
        if hook is None:
            return
        running = asyncio.ensure_future(
            run_hook(
                hook,
                container,
                container_id,
                next(iter(place.pod_ips), ""),
                runtime=self.ctx.runtime,
                clock=self.ctx.clock,
                timeout=POST_START_TIMEOUT,
            )
        )
        try:
            if await self.graces.done_or_ending(running):
                await running
        except HookFailed as error:
            self.event(WARNING, "FailedPostStartHook", f"PostStartHook failed: {error}", container.name)
            status = self._seen(container_id)
            if status is not None:
                await self.stop(status, self.graces.begin(self.pod.spec.termination_grace_period_seconds))
            raise StartFailed(container.name, Trouble("PostStartHookError", str(error))) from error
        finally:
            await _abandoned(running)

    def _failed(self, name: str, reason: str, message: str) -> StartFailed:
        self.event(WARNING, "Failed", f"Error: {message}", name)
        return StartFailed(name, Trouble(reason, message))

    def _seen(self, container_id: str) -> ContainerStatus | None:
        observed = self.ctx.cache.observed(self.pod.metadata.uid)
        return next((c for c in observed.running if c.id == container_id), None)

    def _pod_ips(self, sandbox: SandboxStatus) -> list[str]:
        leading = self.ctx.host_ips[0] if self.ctx.host_ips else ""
        ips = self.ctx.host_ips if self.pod.spec.host_network else sandbox.ips
        return one_per_family(ips, leading)

    async def stop(self, status: ContainerStatus, grace: Grace, why: str = "") -> None:
        """Run the preStop hook, then TERM, then KILL, all within ``grace``."""
        name = status.metadata.name
        self.event(NORMAL, "Killing", why or f"Stopping container {name}", name)
        await self._pre_stop(status, grace)
        while not await self._end(status, grace):
            continue
        await self.ctx.cache.refresh_container(status.id)

    async def _end(self, status: ContainerStatus, grace: Grace) -> bool:
        """TERM, then KILL; False if less time is left now than the runtime was told."""
        left = 0.0 if grace.at_once else max(grace.left, MINIMUM_GRACE)
        stopping = asyncio.ensure_future(self.ctx.runtime.stop_container(status.id, left))
        try:
            if not await grace.done_or_shortened(stopping):
                return False
            await stopping
        except RuntimeFault as fault:
            if fault.code != Code.NOT_FOUND:
                raise
        finally:
            await _abandoned(stopping)
        return True

    async def _pre_stop(self, status: ContainerStatus, grace: Grace) -> None:
        text = status.annotations.get(hashes.PRE_STOP)
        if not text or grace.at_once:
            return
        name = status.metadata.name
        known = next(
            (c for c in (*self.pod.spec.init_containers, *self.pod.spec.containers) if c.name == name),
            Container(name=name),
        )
        observed = self.ctx.cache.observed(self.pod.metadata.uid)
        sandbox = next((s for s in observed.sandboxes if s.id == status.sandbox_id), None)
        try:
            handler = msgspec.json.decode(text, type=LifecycleHandler)
            hook = asyncio.ensure_future(
                run_hook(
                    handler,
                    known,
                    status.id,
                    next(iter(self._pod_ips(sandbox)), "") if sandbox is not None else "",
                    runtime=self.ctx.runtime,
                    clock=self.ctx.clock,
                    timeout=grace.left,
                )
            )
            try:
                if not await grace.done_or_cut_short(hook):
                    raise HookFailed("it was cut short, as the grace period was")
                await hook
            finally:
                await _abandoned(hook)
        except (HookFailed, msgspec.MsgspecError) as error:
            self.event(WARNING, "FailedPreStopHook", f"PreStopHook failed: {error}", name)

    async def stop_all(self, statuses: Iterable[ContainerStatus], grace: Grace) -> None:
        """Stop containers side by side, then sidecars one by one, the last first, in what grace is left."""
        order = [c.name for c in self.pod.spec.init_containers if is_sidecar(c)]
        statuses = list(statuses)
        mains = [s for s in statuses if s.metadata.name not in order]
        sidecars = [s for s in statuses if s.metadata.name in order]
        sidecars.sort(key=lambda s: order.index(s.metadata.name), reverse=True)
        await every(self.stop(status, grace) for status in mains)
        for sidecar in sidecars:
            await self.stop(sidecar, grace)

    async def stop_sandbox(self, sandbox: SandboxStatus, grace: Grace) -> None:
        """Stop the sandbox's containers, then the sandbox with its network."""
        observed = self.ctx.cache.observed(self.pod.metadata.uid)
        await self.stop_all([c for c in observed.running if c.sandbox_id == sandbox.id], grace)
        await self.ctx.runtime.stop_pod_sandbox(sandbox.id)
        await self.ctx.cache.refresh_sandbox(sandbox.id)
        for container in observed.containers:
            if container.sandbox_id == sandbox.id:
                await self.ctx.cache.refresh_container(container.id)

    async def remove_container(self, status: ContainerStatus) -> None:
        """Forget an ended container, its log too."""
        await self.ctx.runtime.remove_container(status.id)
        self.ctx.cache.drop_container(status.id)
        if status.log_path:
            for file in logs.files(Path(status.log_path)):
                file.unlink(missing_ok=True)

    async def remove_sandbox(self, sandbox: SandboxStatus) -> None:
        """Forget a sandbox and its containers."""
        await self.ctx.runtime.remove_pod_sandbox(sandbox.id)
        self.ctx.cache.drop_sandbox(sandbox.id)

    async def remove_files(self) -> None:
        """Delete the pod's logs and volumes."""
        await asyncio.to_thread(self.ctx.volumes.remove, self.pod.metadata.uid)


async def every(steps: Iterable[Awaitable[None]]) -> None:
    """Do all steps side by side, to the end of each; then raise the first fault, if there was one."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _abandoned(work: asyncio.Future[None]) -> None:
    """Call it off, if it still goes on, and wait until it has heard of that."""
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))


def _directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFault(f"{error.filename}: {error.strerror}") from error
