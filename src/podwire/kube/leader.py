"""Only one of several does the work: leader election by a Lease.

After k8s.io/client-go/tools/leaderelection, with two differences. The time for which the role is held
counts from before the renewal was sent, so it is over here before anybody else may think so; and when it is
over the work is ended, and waited for, before that moment. Work that does not end in time is ended with the
process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from podwire.kube.client import Client
from podwire.kube.clock import Clock, deadline, micro_timestamp
from podwire.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from podwire.kube.lease import Lease, LeaseSpec
from podwire.kube.metadata import ObjectMeta
from podwire.kube.ratelimit import Priority
from podwire.kube.resource import LEASES

RELEASE = 5.0
"""Seconds that giving the role back may take."""
OVERRUN_MARGIN = 0.25
"""Seconds before another may begin at which work that has not ended is ended with the process."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as kube-controller-manager has them.

    ``duration``: others wait that long after the last renewal they saw. ``renew_deadline``: the work is
    told to end when the last renewal is older; what is left to ``duration`` is its time to end. ``retry``:
    between tries.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError(f"{self}: retry < renew_deadline < duration is needed")
        if self.duration != int(self.duration):
            raise ValueError(f"{self}: a Lease has whole seconds")


class Leadership:
    """What the work is given: proof of the role, as of now."""

    def __init__(self, clock: Clock, until: float, transitions: int) -> None:
        self._clock = clock
        self.until = until
        """The moment, by the clock, at which another may begin, unless the role is renewed."""
        self.transitions = transitions
        """How often the role has changed hands: a number that only grows, to fence off older holders."""

    @property
    def held(self) -> bool:
        """Whether the role is certainly held now. Ask before what must not be done by two."""
        return self._clock.monotonic() < self.until


Work = Callable[[Leadership], Awaitable[None]]


def end_process() -> None:
    """End this process at once: its work must not go on, and has not ended when told to."""
    os._exit(70)


class LeaderElector:
    """Holds a Lease while it can, and does the work only then."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        timing: Timing | None = None,
        overrun: Callable[[], None] = end_process,
        observed: Callable[[str], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``identity`` names this process among all that want the role: a host name and something random.

        ``overrun`` is called when the work has not ended in time, ``observed`` with each new holder.
        """
        if not identity:
            raise ValueError("an identity is needed")
        self.identity = identity
        self.holder = ""
        """Who holds the role, as far as is known; empty for nobody."""
        self._client = client
        self._clock = client.clock
        self._name = name
        self._namespace = namespace
        self._timing = timing or Timing()
        self._overrun = overrun
        self._observed_holder = observed
        self._random = rng or random.Random()
        self._seen: Lease | None = None
        """The Lease as the server has it, if that is certain."""
        self._last_spec: LeaseSpec | None = None
        self._last_spec_at = 0.0

    async def run(self, work: Work) -> None:
        """Wait for the role, do the work, and give the role back when it is done.

        When the role is lost the work is cancelled, and begun anew once the role is had again. An exception
        of the work is raised after the role was given back; so is cancellation.
        """
        while True:
            leadership = await self._acquire()
            _log.info("lease %s/%s: %s leads", self._namespace, self._name, self.identity)
            if await self._lead(leadership, work):
                return
            _log.warning("lease %s/%s: %s leads no longer", self._namespace, self._name, self.identity)

    async def _acquire(self) -> Leadership:
        while True:
            began = self._clock.monotonic()
            if await self._try(self._timing.renew_deadline):
                assert self._seen is not None
                transitions = self._seen.spec.lease_transitions or 0
                return Leadership(self._clock, began + self._timing.duration, transitions)
            await self._clock.sleep(self._timing.retry * (1 + 0.2 * self._random.random()))

    async def _lead(self, leadership: Leadership, work: Work) -> bool:
        """Do the work while the role is held; True when it ended by itself, False when the role was lost."""
        task = asyncio.ensure_future(work(leadership))
        renewing = asyncio.ensure_future(self._renew(leadership))
        finished = False
        try:
            await asyncio.wait((task, renewing), return_when=asyncio.FIRST_COMPLETED)
            finished = task.done()
        finally:
            await self._end(task, renewing, leadership)
        if not task.done():
            return (
                True  # it has overrun, and the process goes on against all advice: no second work beside it
            )
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                raise error
        return finished

    async def _end(
        self, task: asyncio.Future[None], renewing: asyncio.Future[None], leadership: Leadership
    ) -> None:
        """End the work, then the renewals, and give the role back; cancellation does not cut that short.

        One that comes meanwhile ends the renewals: the work has what is left of the term.
        """
        ending = asyncio.ensure_future(self._give_up(task, renewing, leadership))
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
                renewing.cancel()
        if cancelled is not None:
            raise cancelled

    async def _give_up(
        self, task: asyncio.Future[None], renewing: asyncio.Future[None], leadership: Leadership
    ) -> None:
        await self._stop(task, leadership)
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        if task.done():
            await self._release()

    async def _stop(self, task: asyncio.Future[None], leadership: Leadership) -> None:
        """End the work before another may begin; while the role is renewed it has time."""
        if not task.done():
            task.cancel()
        while not task.done():
            left = leadership.until - OVERRUN_MARGIN - self._clock.monotonic()
            if left <= 0:
                _log.critical("lease %s/%s: the work has not ended in time", self._namespace, self._name)
                self._overrun()
                return
            try:
                async with deadline(self._clock, left):
                    await asyncio.wait((task,))
            except TimeoutError:
                continue

    async def _renew(self, leadership: Leadership) -> None:
        """Renew until that fails for too long; returns when the role is lost."""
        timing = self._timing
        longest = max(timing.retry, timing.renew_deadline / 3)
        while True:
            ends = leadership.until - timing.duration + timing.renew_deadline
            await self._clock.sleep(min(timing.retry, ends - self._clock.monotonic()))
            began = self._clock.monotonic()
            if began >= ends:
                return
            if await self._try(min(ends - began, longest)):
                leadership.until = began + timing.duration
            elif self.holder not in ("", self.identity):
                return  # another has it, whatever the clocks say

    async def _try(self, seconds: float) -> bool:
        """Take or renew the Lease; whether it is ours now."""
        try:
            async with deadline(self._clock, seconds):
                try:
                    return await self._take()
                except Conflict:  # an earlier try may have arrived, though its answer did not
                    self._seen = None
                    return await self._take()
        except TimeoutError:
            self._seen = None  # whether it was done is not known
            return False
        except KubeError as error:
            _log.warning("lease %s/%s: %s: %s", self._namespace, self._name, type(error).__name__, error)
            self._seen = None  # read it anew
            return False

    async def _take(self) -> bool:
        lease = self._seen
        if lease is None or lease.spec.holder_identity != self.identity:
            try:
                lease = await self._client.get(
                    LEASES,
                    self._name,
                    self._namespace,
                    priority=Priority.URGENT,
                    timeout=self._timing.renew_deadline,
                )
            except NotFound:
                return await self._create()
            self._observe(lease)
        spec = lease.spec
        ours = spec.holder_identity == self.identity
        if not ours and spec.holder_identity and self._clock.monotonic() < self._free_at(spec):
            return False
        now = micro_timestamp(self._clock.wall())
        transitions = spec.lease_transitions or 0
        wanted = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=int(self._timing.duration),
            acquire_time=spec.acquire_time if ours else now,
            renew_time=now,
            lease_transitions=transitions if ours else transitions + 1,
        )
        # The resource version in it makes this fail if anybody else was faster.
        self._observe(await self._replace(lease, wanted))
        return True

    def _free_at(self, spec: LeaseSpec) -> float:
        """When another's Lease ends by our clock: its duration after we first saw it as it is."""
        return self._last_spec_at + (spec.lease_duration_seconds or self._timing.duration)

    async def _create(self) -> bool:
        now = micro_timestamp(self._clock.wall())
        made = Lease(
            metadata=ObjectMeta(name=self._name, namespace=self._namespace),
            spec=LeaseSpec(
                holder_identity=self.identity,
                lease_duration_seconds=int(self._timing.duration),
                acquire_time=now,
                renew_time=now,
                lease_transitions=0,
            ),
        )
        try:
            self._observe(await self._client.create(LEASES, made, self._namespace, priority=Priority.URGENT))
        except AlreadyExists:
            return False
        return True

    async def _release(self) -> None:
        """Say that nobody holds the role, so that others need not wait."""
        try:
            async with deadline(self._clock, min(RELEASE, self._timing.renew_deadline)):
                try:
                    await self._give_back(self._seen)
                except Conflict:  # a renewal was under way
                    await self._give_back(None)
        except (TimeoutError, KubeError) as error:
            _log.info("lease %s/%s: not given back: %s", self._namespace, self._name, error)
            self._seen = None

    async def _give_back(self, lease: Lease | None) -> None:
        if lease is None:
            lease = await self._client.get(LEASES, self._name, self._namespace, priority=Priority.URGENT)
            self._observe(lease)
        if lease.spec.holder_identity != self.identity:
            return
        now = micro_timestamp(self._clock.wall())
        nobody = LeaseSpec(
            holder_identity="",
            lease_duration_seconds=1,
            acquire_time=now,
            renew_time=now,
            lease_transitions=lease.spec.lease_transitions,
        )
        self._observe(await self._replace(lease, nobody))

    async def _replace(self, lease: Lease, spec: LeaseSpec) -> Lease:
        return await self._client.replace(
            LEASES,
            msgspec.structs.replace(lease, spec=spec),
            self._name,
            self._namespace,
            priority=Priority.URGENT,
            timeout=self._timing.renew_deadline,
        )

    def _observe(self, lease: Lease) -> None:
        self._seen = lease
        if self._last_spec != lease.spec:
            self._last_spec = lease.spec
            self._last_spec_at = self._clock.monotonic()
        holder = lease.spec.holder_identity or ""
        if holder != self.holder:
            self.holder = holder
            if self._observed_holder is not None:
                self._observed_holder(holder)
