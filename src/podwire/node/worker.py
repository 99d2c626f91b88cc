"""One pod's worker: from the manifest to running containers, and back to nothing.

A worker goes through its stages in one direction. It handles one thing at a time; what comes meanwhile
replaces what waited (only the newest manifest counts). Failed steps are tried again from the pod's own state
(:mod:`podwire.node.backoff`), also while it is taken down.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from podwire.kube.objects import Pod, PodStatus
from podwire.node import backoff, plan, policy, status, support
from podwire.node.actions import Actions, StartFailed, every
from podwire.node.clock import timestamp
from podwire.node.context import Context
from podwire.node.errors import NetworkNotReady, NodeError, PodRefused
from podwire.node.events import NORMAL, WARNING
from podwire.node.grace import Graces
from podwire.node.health import Probers
from podwire.node.observed import BackOff, Trouble, View
from podwire.runtime.errors import RuntimeFault
from podwire.sources.mux import is_static

NETWORK_RETRY = 1.0


class Stage(enum.IntEnum):
    """How far a worker has come; it never goes back."""

    WAITING = 0
    """Another pod of the same name is not gone yet."""
    SYNC = 1
    TERMINATING = 2
    TERMINATED = 3
    """Nothing runs any more; what is known about the pod is kept until it is removed."""
    GONE = 4


@dataclass(frozen=True, slots=True)
class Removal:
    """The pod is not wanted any more; its programs have ``grace`` seconds, from the last request on."""

    grace: float
    at: int


class PodWorker:
    """The worker of one pod UID, which starts when the ``predecessors`` of the same name are gone."""

    def __init__(
        self,
        ctx: Context,
        pod: Pod,
        predecessors: Sequence[PodWorker] = (),
        *,
        orphan: bool = False,
        blocked: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ctx = ctx
        self.uid = pod.metadata.uid
        self.full_name = pod.full_name
        self.stage = Stage.WAITING
        self.removal: Removal | None = None
        self._orphan = orphan
        self._blocked = blocked
        self._pod = pod
        # A static pod's manifest may carry the status of somewhere else.
        self._status = PodStatus() if is_static(pod) else pod.status
        self._predecessors = tuple(predecessors)
        self._successors: list[PodWorker] = []
        for predecessor in predecessors:
            predecessor._successors.append(self)
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._paused = False
        self._checked: Pod | None = None
        self._held_back = False
        self._back_off: dict[str, BackOff] = {}
        self._told: dict[str, str] = {}
        self._trouble: dict[str, Trouble] = {}
        self._ended: tuple[str, str] | None = None
        self._probers = Probers(ctx, self.poke)
        self._graces = Graces(ctx.clock)

    def wait_for(self, other: PodWorker) -> None:
        """Begin only when ``other``, of the same name, is gone."""
        self._predecessors = (*self._predecessors, other)
        other._successors.append(self)

    def update(self, pod: Pod) -> None:
        """The manifest has changed."""
        self._pod = pod
        self._urge()

    def remove(self, grace: float | None = None) -> None:
        """The pod is not wanted any more, and has ``grace`` seconds in place of its own, if given.

        A later call can only shorten the time, also while the pod is being stopped.
        """
        if self.removal is None:
            own = float(self._pod.spec.termination_grace_period_seconds)
            self.removal = Removal(own if grace is None else grace, self.ctx.clock.wall())
        elif grace is None or grace >= self.removal.grace:
            return
        else:
            self.removal = Removal(grace, self.removal.at)
            self._publish(self._status)
        self._graces.allow(self.removal.grace)
        self._urge()

    def poke(self) -> None:
        """Something about the pod has changed: look again."""
        self._wake.set()

    def pause(self) -> None:
        """Finish the step at hand, then stop working; what runs goes on running."""
        self._paused = True
        self._urge()

    async def run(self) -> None:
        """Work until the pod is gone or :meth:`pause` is called."""
        try:
            if not self._orphan:
                await self._turn()
                await self._live()
            await self._until_done(Stage.TERMINATING, self._terminate)
            await self._until_done(Stage.TERMINATED, self._kept)
            await self._until_done(Stage.TERMINATED, self._forget)
        finally:
            await self._probers.close()
        if not self._paused:
            self.stage = Stage.GONE
            for successor in self._successors:
                successor.poke()

    @property
    def _stopping(self) -> bool:
        return self.removal is not None or self._paused

    def _over(self) -> bool:
        return self._stopping or self._ended is not None

    def _urge(self) -> None:
        self._urgent.set()
        self._wake.set()

    async def _turn(self) -> None:
        """Wait until every earlier pod of the same name is gone, also one that an earlier run left."""
        while not self._stopping and (
            self._blocked() or any(p.stage < Stage.GONE for p in self._predecessors)
        ):
            self._wake.clear()
            self._publish(status.pending(self._pod, now=self.ctx.clock.wall()))
            await self._wake.wait()
        self._predecessors = ()

    async def _live(self) -> None:
        """Keep the pod as it is wanted, until it ends or is not wanted any more."""
        if self._status.phase in status.TERMINAL:
            # The API server knows of its end, though an earlier run or another machine's crash saw it.
            self._ended = (self._status.phase, "")
        failures = 0
        while not self._over():
            self.stage = Stage.SYNC
            self._wake.clear()
            self._urgent.clear()
            wait: float | None
            try:
                wait = await self._sync()
                failures = 0
            except NetworkNotReady:
                wait, failures = NETWORK_RETRY, 1
            except (NodeError, RuntimeFault):
                failures += 1
                wait = backoff.retry_delay(failures)
            except OSError as error:
                # The machine's trouble: a full disk, no descriptors.
                self.ctx.events.pod(self._pod, WARNING, "FailedSync", f"error syncing pod: {error}")
                failures += 1
                wait = backoff.retry_delay(failures)
            self._show()
            if self._over():
                return
            if failures and wait is not None:
                await self._wait_out(wait)
            else:
                await self.ctx.clock.wait(self._wake, wait)

    async def _wait_out(self, seconds: float) -> None:
        """Let a back-off pass; only a new manifest or the pod's end cuts it short. Changes are shown."""
        until = self.ctx.clock.monotonic() + seconds
        while not self._urgent.is_set():
            left = until - self.ctx.clock.monotonic()
            self._wake.clear()
            if left <= 0 or not await self.ctx.clock.wait(self._wake, left):
                return
            self._show()

    async def _sync(self) -> float | None:
        """Do what there is to do now; seconds until there is more, None for not before a change."""
        pod = self._pod
        actions = Actions(self.ctx, pod, self._graces)
        if not self._admitted(pod, actions):
            return None
        while not self._stopping:
            before = self.ctx.cache.observed(self.uid)
            await self._probers.follow(pod, before)
            view = self._view()
            todo = plan.make(view)
            if todo.ended is not None:
                self._ended = (todo.ended, todo.ended_reason)
                return None
            self._show(view)
            self._tell_back_off(todo, actions)
            if todo.idle:
                return todo.requeue
            await self._execute(todo, actions)
            if self.ctx.cache.observed(self.uid) == before:
                # The runtime said yes and nothing came of it: no reason to ask again at once.
                return backoff.RETRY_INITIAL
        return None

    def _admitted(self, pod: Pod, actions: Actions) -> bool:
        """Whether the pod may run here; if not, its status says why."""
        now = self.ctx.clock.wall()
        try:
            self._check_fields(pod, actions)
            running = bool(self.ctx.cache.observed(self.uid).ready_sandboxes)
            conflict = self.ctx.ports.take(pod, running=running)
        except PodRefused as refusal:
            reason, message = refusal.reason, refusal.message
            held = status.refused(pod, reason, message, now=now)
        else:
            if conflict is None:
                if self._held_back:
                    self._held_back = False
                    self._status = PodStatus()
                return True
            reason, message = "NodePorts", conflict.message
            held = status.pending(pod, reason, message, now=now)
        if (self._status.reason, self._status.message) != (reason, message):
            actions.event(WARNING, reason, message)
        self._held_back = True
        self._publish(held)
        return False

    def _check_fields(self, pod: Pod, actions: Actions) -> None:
        """Say once what is not honoured; raise :class:`PodRefused` where that must not be."""
        found = support.findings(pod)
        if self._checked is not pod:
            self._checked = pod
            for finding in found:
                if not finding.fatal:
                    actions.event(WARNING, "UnsupportedField", finding.text)
        fatal = [finding.text for finding in found if finding.fatal]
        if fatal:
            raise PodRefused("UnsupportedField", "; ".join(fatal))

    def _tell_back_off(self, todo: plan.Plan, actions: Actions) -> None:
        """Say once for each end of a container that it waits before it starts again."""
        for held in todo.backing_off:
            name = held.metadata.name
            if self._told.get(name) != held.id:
                self._told[name] = held.id
                text = f"Back-off restarting failed container {name} in pod {actions.pod.metadata.name}"
                actions.event(WARNING, "BackOff", text, name)

    async def _execute(self, todo: plan.Plan, actions: Actions) -> None:
        grace = float(actions.pod.spec.termination_grace_period_seconds)
        if todo.sandbox_reason:
            text = f"Pod sandbox changed, it will be killed and re-created: {todo.sandbox_reason}"
            actions.event(NORMAL, "SandboxChanged", text)
        for sandbox in todo.stop_sandboxes:
            await actions.stop_sandbox(sandbox, self._graces.begin(grace))
        if todo.create_sandbox is not None:
            await actions.create_sandbox(todo.create_sandbox)
            return
        await every(
            actions.stop(
                kill.status, self._graces.begin(grace if kill.grace is None else kill.grace), kill.reason
            )
            for kill in todo.kill
        )
        for container in todo.remove_containers:
            await actions.remove_container(container)
        await self._start(todo, actions)
        for sandbox in todo.remove_sandboxes:
            await actions.remove_sandbox(sandbox)

    async def _start(self, todo: plan.Plan, actions: Actions) -> None:
        sandbox = self.ctx.cache.observed(self.uid).sandbox
        if not todo.start or sandbox is None:
            return
        if any(start.finished_at is not None for start in todo.start):
            # Containers that ended may have ended with their sandbox, of which no event has come yet.
            await self.ctx.cache.refresh_sandbox(sandbox.id)
            if self.ctx.cache.observed(self.uid).sandbox != sandbox:
                return
        volumes = actions.volumes()
        failure: StartFailed | None = None
        for start in todo.start:
            if self._stopping:
                return
            name = start.container.name
            if start.finished_at is not None:
                self._back_off[name] = backoff.after_restart(
                    self._back_off.get(name), start.finished_at, self.ctx.clock.wall()
                )
            try:
                await actions.start(start, sandbox, volumes)
                self._trouble.pop(name, None)
            except StartFailed as error:
                self._trouble[name] = error.trouble
                failure = failure or error
        if failure is not None:
            raise failure

    async def _until_done(self, stage: Stage, work: Callable[[], Awaitable[None]]) -> None:
        """Try ``work`` until it succeeds."""
        if self._paused:
            return
        self.stage = max(self.stage, stage)
        failures = 0
        while not self._paused:
            self._urgent.clear()
            try:
                await work()
                return
            except (NodeError, RuntimeFault, OSError) as fault:
                failures += 1
                self.ctx.events.pod(self._pod, WARNING, "FailedKillPod", f"error killing pod: {fault}")
                await self.ctx.clock.wait(self._urgent, backoff.retry_delay(failures))

    async def _terminate(self) -> None:
        """Stop everything of the pod."""
        await self._probers.close()
        actions = Actions(self.ctx, self._pod, self._graces)
        own = float(self._pod.spec.termination_grace_period_seconds)
        self._show()
        observed = self.ctx.cache.observed(self.uid)
        grace = own if self.removal is None else self.removal.grace
        await actions.stop_all(observed.running, self._graces.begin(grace))
        for sandbox in observed.sandboxes:
            await actions.stop_sandbox(sandbox, self._graces.begin(0.0))
        self.ctx.ports.release(self.uid)
        if self.removal is not None and self._ended is None and not is_static(self._pod):
            # The API's last word of a pod is a final phase (status_manager.go, TerminatePod).
            self._ended = (policy.verdict(self._pod, self.ctx.cache.observed(self.uid)), "")
        self._show()

    async def _kept(self) -> None:
        """Keep what is known of a pod that ended by itself, until it is removed."""
        while self.removal is None and self._ended is not None and not self._paused:
            self._urgent.clear()
            await self._urgent.wait()
            self._show()

    async def _forget(self) -> None:
        """Remove every record of the pod."""
        if self._paused:
            return
        actions = Actions(self.ctx, self._pod, self._graces)
        for sandbox in self.ctx.cache.observed(self.uid).sandboxes:
            await actions.remove_sandbox(sandbox)
        await actions.remove_files()
        self.ctx.board.withdraw(self.uid)

    def _view(self) -> View:
        return View(
            pod=replace(self._pod, status=self._status),
            observed=self.ctx.cache.observed(self.uid),
            now=self.ctx.clock.wall(),
            health=self._probers.health(),
            back_off=self._back_off,
            trouble=self._trouble,
        )

    def _show(self, view: View | None = None) -> None:
        """Publish the pod's status as it is now."""
        if self._held_back:
            self._publish(self._status)
            return
        ended, reason = self._ended or (None, "")
        message = "Pod was active on the node longer than the specified deadline" if reason else ""
        self._publish(
            status.build(
                view or self._view(),
                host_ips=self.ctx.host_ips,
                runtime_name=self.ctx.runtime_name,
                ended=ended,
                reason=reason,
                message=message,
            )
        )

    def _publish(self, new: PodStatus) -> None:
        self._status = new
        if self._orphan:
            return
        metadata = self._pod.metadata
        if metadata.creation_timestamp is None:
            metadata = replace(metadata, creation_timestamp=new.start_time)
        if self.removal is not None and metadata.deletion_timestamp is None:
            metadata = replace(
                metadata,
                deletion_timestamp=timestamp(self.removal.at),
                deletion_grace_period_seconds=int(self.removal.grace),
            )
        self.ctx.board.publish(replace(self._pod, metadata=metadata, status=new))
