"""One sandbox in the runtime's hands: made all or nothing, found again, watched, taken down."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from podwire.cni.errors import CNIError
from podwire.kernel import netns
from podwire.kernel.errors import KernelError
from podwire.runtime import atomic, hosts, shim, wire
from podwire.runtime.api import (
    ContainerEvent,
    ContainerState,
    ContainerStatus,
    EventType,
    NetworkMode,
    SandboxState,
    SandboxStatus,
)
from podwire.runtime.checks import sysctl_path
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.events import EventHub
from podwire.runtime.leftovers import kill_leftovers
from podwire.runtime.network import PodNetwork
from podwire.runtime.records import ContainerRecord, Phase, Places, RunState, SandboxRecord
from podwire.runtime.spawning import Spawner
from podwire.runtime.supervisor import Spec

T = TypeVar("T")
_log = logging.getLogger(__name__)

CREATE_SECONDS = 180.0
"""For all of a sandbox: with the time to undo it, below the 4 minutes that the kubelet gives it."""
DETACH_SECONDS = 60.0
"""For a DEL, whatever is left of the request that led to it."""
END_SECONDS = 20.0
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What fails for want of descriptors or memory says nothing about the other side."""
CALL_SECONDS = 30.0
AGAIN_SECONDS = 1.0
LOST = "the sandbox's supervisor ended"


@dataclass
class Tools:
    """What all sandboxes of a runtime share."""

    places: Places
    network: PodNetwork
    spawner: Spawner
    hub: EventHub
    pool: ThreadPoolExecutor
    log_limit: int
    log_files: int
    attach_stall: float

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call what may block in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)


@dataclass
class Container:
    """A container and what became of it."""

    record: ContainerRecord
    state: RunState = field(default_factory=RunState)

    def status(self, log_directory: str) -> ContainerStatus:
        """As the CRI shows it."""
        config, state = self.record.config, self.state
        return ContainerStatus(
            id=self.record.id,
            sandbox_id=self.record.sandbox_id,
            metadata=config.metadata,
            state=state.state,
            created_at=self.record.created_at,
            started_at=state.started_at,
            finished_at=state.finished_at,
            exit_code=state.exit_code,
            signal=state.signal,
            image=config.image,
            reason=state.reason,
            message=state.message,
            labels=config.labels,
            annotations=config.annotations,
            log_path=os.path.join(log_directory, config.log_path) if config.log_path else "",  # noqa: PTH118
            pid=state.pid if state.state is ContainerState.RUNNING else 0,
        )


class Sandbox:
    """See the module. Making and taking down happen under ``lock``."""

    def __init__(self, tools: Tools, record: SandboxRecord, containers: Sequence[Container] = ()) -> None:
        self.record = record
        self.containers = {container.record.id: container for container in containers}
        self.lock = asyncio.Lock()
        self._tools = tools
        self._shim: shim.Connection | None = None
        self._process: shim.Process | None = None
        self._ending = False
        self._watch: asyncio.Task[None] | None = None
        self._loose = False
        """Whether there may be processes of it that no supervisor answers for."""
        self._cut_off = ""
        """Why its network is gone for good, if it is; its programs run on until it is stopped."""
        self._unmended = ""

    @property
    def ready(self) -> bool:
        """Whether programs can run in it."""
        return self.record.phase is Phase.READY and self._shim is not None and not self._shim.lost

    @property
    def status(self) -> SandboxStatus:
        """As the CRI shows it."""
        record, config = self.record, self.record.config
        return SandboxStatus(
            id=record.id,
            metadata=config.metadata,
            state=SandboxState.READY if self.ready and not self._cut_off else SandboxState.NOTREADY,
            created_at=record.created_at,
            network=config.network,
            ips=record.ips,
            labels=config.labels,
            annotations=config.annotations,
            netns=record.netns,
            reason=self._cut_off,
        )

    def shim(self) -> shim.Connection:
        """The supervisor; RuntimeFault FAILED_PRECONDITION if there is none."""
        if not self.ready or self._shim is None:
            raise RuntimeFault(Code.FAILED_PRECONDITION, self.record.subject, "the sandbox is not ready")
        return self._shim

    async def _save(self, **changes: Any) -> None:
        record = replace(self.record, **changes)
        await self._tools.run(self._tools.places.save, record)
        self.record = record

    async def _note(self, **changes: Any) -> None:
        """Record how far taking it down has come.

        A disk that is full, or read-only, does not stop that: each step can be done again by whoever finds
        the old record.
        """
        try:
            await self._save(**changes)
        except OSError as error:
            _log.warning("%s: its record cannot be written: %s", self.record.subject, error)
            self.record = replace(self.record, **changes)

    async def create(self) -> None:
        """Make it, all or nothing. Raises RuntimeFault with the cause; what was made is unmade before."""
        tools, made, step = self._tools, False, "its record"
        async with self.lock:
            try:
                async with asyncio.timeout(CREATE_SECONDS):
                    pod_network = self.record.config.network is NetworkMode.POD
                    configuration = tools.network.configuration() if pod_network else ""
                    path = str(tools.places.netns(self.record.id)) if pod_network else ""
                    await self._save(netns=path, network=configuration, attached=bool(configuration))
                    if pod_network:
                        step = "its network namespace"
                        await tools.run(netns.create, path)
                        step = "its network (CNI ADD)"
                        # Cancelled, it returns when the ADD has really ended: DEL must not overtake it.
                        ips = await tools.network.attach(self.record)
                        self.record = replace(self.record, ips=ips)
                    step = "its supervisor"
                    await tools.run(self._write_files)
                    await self._spawn()
                    await self._save(phase=Phase.READY)
                    answer = await self.shim().call("keep", CALL_SECONDS)
                    if "error" in answer:
                        raise shim.fault(self.record.subject, answer)
                made = True
            except TimeoutError as error:
                raise RuntimeFault(
                    Code.DEADLINE_EXCEEDED,
                    self.record.subject,
                    f"the sandbox was not made in {CREATE_SECONDS:g} s: waited for {step}",
                ) from error
            except (OSError, KernelError, CNIError) as error:
                raise RuntimeFault(Code.INTERNAL, self.record.subject, str(error)) from error
            finally:
                if not made:
                    await _to_the_end(self._unwind())
        self._publish(EventType.STARTED)

    async def _unwind(self) -> None:
        """Take down what a failed creation has made; what withstands keeps its record, for a retry."""
        try:
            await self._take_down()
            await self._tools.run(self._tools.places.forget, self.record.id)
        except RuntimeFault as fault:
            self.record = replace(self.record, phase=Phase.STOPPED, trouble=fault.message)
        except OSError as error:
            self.record = replace(self.record, phase=Phase.STOPPED, trouble=str(error))

    @property
    def left_behind(self) -> bool:
        """Whether a failed creation could not be undone, so that the sandbox has to be stopped again."""
        return self.record.phase is Phase.STOPPED

    def _write_files(self) -> None:
        config, state = self.record.config, self._tools.places.state(self.record.id)
        machine = Path("/etc/hosts")
        text = machine.read_text(errors="surrogateescape") if machine.exists() else ""
        files = {}
        if config.network is NetworkMode.POD or config.host_aliases:
            files["hosts"] = hosts.hosts(config, self.record.ips, text)
        if config.network is NetworkMode.POD:
            files["hostname"] = f"{config.hostname}\n"
        if config.dns is not None:
            files["resolv.conf"] = hosts.resolv_conf(config.dns)
        for name, content in files.items():
            atomic.write(str(state / name), content.encode(errors="surrogateescape"), mode=0o644)

    async def _spawn(self) -> None:
        tools, record, config = self._tools, self.record, self.record.config
        self._loose = True
        run_dir = tools.places.run(record.id)
        await tools.run(lambda: run_dir.mkdir(mode=0o700, parents=True, exist_ok=True))
        spec = Spec(
            id=record.id,
            state_dir=str(tools.places.state(record.id)),
            run_dir=str(run_dir),
            netns=record.netns,
            hostname=config.hostname if record.netns else os.uname().nodename,
            log_directory=config.log_directory,
            pid_mode=int(config.pid),
            sysctls={sysctl_path(key): value for key, value in config.sysctls.items()},
            log_limit=tools.log_limit,
            log_files=tools.log_files,
            attach_stall=tools.attach_stall,
        )
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await tools.run(tools.spawner.spawn, spec, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        await self._speak(ours)

    async def adopt(self) -> bool:
        """Find its supervisor again; False if that is no more. OSError if this process cannot look."""
        try:
            await self._speak(await self._tools.run(shim.connect, self._tools.places.run(self.record.id)))
        except RuntimeFault:
            return False
        except OSError as error:
            if error.errno in OURS:
                raise
            return False
        return True

    async def _speak(self, sock: socket.socket) -> None:
        connection = shim.Connection(self.record.subject, self._on_event, self._on_lost)
        await connection.attach(sock)
        try:
            hello = await connection.hello()
            process = shim.Process(hello["pid"])
        except BaseException:
            connection.close()
            raise
        if self._process is not None:
            self._process.close()
        self._shim, self._process, self._loose = connection, process, False
        for container_id, state in hello["containers"].items():
            self._apply(container_id, state)

    def _apply(self, container_id: str, state: wire.Frame) -> None:
        """Take in what a supervisor says of a container, and publish what is new."""
        container = self.containers.get(container_id)
        if container is None:
            return
        before, container.state = container.state, msgspec.convert(state, RunState)
        self._publish_change(container, before.state)

    def _publish_change(self, container: Container, before: ContainerState) -> None:
        after = container.state.state
        if after is before:
            return
        self._publish(
            EventType.STARTED if after is ContainerState.RUNNING else EventType.STOPPED, container.record.id
        )

    def _publish(self, kind: EventType, container_id: str = "") -> None:
        record = self.record
        self._tools.hub.publish(
            ContainerEvent(kind, record.id, container_id or record.id, record.config.metadata)
        )

    def _on_event(self, frame: wire.Frame) -> None:
        if frame["event"] == "container":
            self._apply(frame["container"], frame["state"])

    def _on_lost(self) -> None:
        if not self._ending and self._shim is not None and self.record.phase is Phase.READY:
            self._watch = asyncio.ensure_future(self._look_after_it())

    async def _look_after_it(self) -> None:
        """The connection has ended: the supervisor is dead, or dropped us."""
        async with self.lock:
            if self._ending or self._process is None:
                return
            while True:
                try:
                    if await self._process.ended(2) or not await self.adopt():
                        await self._bury()
                    return
                except OSError as error:
                    _log.warning("%s: its supervisor was lost: %s", self.record.subject, error)
                    await asyncio.sleep(AGAIN_SECONDS)

    async def lost(self) -> None:
        """Wait until the loss of the supervisor, if it is lost, is dealt with."""
        if self._watch is not None:
            await asyncio.wait({self._watch})

    async def _bury(self) -> None:
        """The supervisor is dead or as good as: end what it left, record the end of its containers."""
        if self._process is not None:
            self._process.kill()
            await self._process.ended(END_SECONDS)
        await self._tools.run(kill_leftovers, {self.record.id})
        await self.settle()
        self._publish(EventType.STOPPED)

    async def settle(self) -> None:
        """Record the end of containers that nobody has seen the end of."""
        for container in self.containers.values():
            before = container.state
            if before.state is not ContainerState.RUNNING:
                continue
            container.state = replace(
                before,
                state=ContainerState.EXITED,
                finished_at=time.time_ns(),
                exit_code=128 + signal.SIGKILL,
                signal=int(signal.SIGKILL),
                reason="Error",
                message=LOST,
            )
            try:
                await self._tools.run(self._tools.places.save_state, container.record, container.state)
            except OSError as error:
                container.state = replace(container.state, message=f"{LOST}; {error}")
            self._publish_change(container, before.state)

    @property
    def attached(self) -> bool:
        """Whether it has a network that should be whole."""
        return self.record.phase is Phase.READY and self.record.attached and not self._cut_off

    async def mend(self) -> None:
        """Put back what others took from its network; if that cannot be, it is not ready any more."""
        async with self.lock:
            if not self.attached or self._ending:
                return
            try:
                mended = await self._tools.run(self._tools.network.mend, self.record)
            except (CNIError, KernelError, OSError) as error:
                if str(error) != self._unmended:
                    _log.warning("%s: its network cannot be mended: %s", self.record.subject, error)
                self._unmended = str(error)
                return
            self._unmended = ""
            if mended.back:
                _log.warning(
                    "%s: its network was damaged, and is mended: %s",
                    self.record.subject,
                    "; ".join(mended.back),
                )
            if mended.lost:
                self._cut_off = f"its network is gone: {mended.lost}"
                self._publish(EventType.STOPPED)

    async def stop(self) -> None:
        """Stop its programs and take its network down; RuntimeFault if that has to be retried."""
        async with self.lock:
            was = self.record.phase
            if was is Phase.STOPPED and not self.record.netns and not self.record.attached:
                return
            try:
                if was is not Phase.STOPPED:
                    await self._note(phase=Phase.STOPPED)
                await _to_the_end(self._take_down())
            except OSError as error:
                raise RuntimeFault(Code.INTERNAL, self.record.subject, str(error)) from error
        if was is not Phase.STOPPED:
            self._publish(EventType.STOPPED)

    async def _take_down(self) -> None:
        """In the reverse order of creation. Raises RuntimeFault."""
        tools, record = self._tools, self.record
        self._ending = True
        await self._end_supervisor()
        if record.attached:
            try:
                async with asyncio.timeout(DETACH_SECONDS):
                    await tools.network.detach(record)
            except TimeoutError as error:
                raise await self._still_up(
                    Code.DEADLINE_EXCEEDED, f"DEL took over {DETACH_SECONDS:g} s", error
                ) from error
            except CNIError as error:
                raise await self._still_up(Code.INTERNAL, str(error), error) from error
            await self._note(attached=False, trouble="")
        if record.netns:
            try:
                await tools.run(netns.remove, record.netns)
            except (OSError, KernelError) as error:
                raise await self._still_up(Code.INTERNAL, str(error), error) from error
            await self._note(netns="")

    async def _still_up(self, code: Code, message: str, cause: Exception) -> RuntimeFault:
        await self._note(trouble=message)
        return RuntimeFault(code, self.record.subject, f"its network could not be taken down: {message}")

    async def _end_supervisor(self) -> None:
        """Shut it down, or kill it and what it leaves."""
        if self._shim is None and not await self.adopt():
            if self._loose:
                await self._tools.run(kill_leftovers, {self.record.id})
                self._loose = False
            await self.settle()
            return
        assert self._shim is not None
        assert self._process is not None
        try:
            await self._shim.call("shutdown", CALL_SECONDS)
        except RuntimeFault:
            self._loose = True
        if self._loose or not await self._process.ended(END_SECONDS):
            self._process.kill()
            await self._process.ended(END_SECONDS)
            await self._tools.run(kill_leftovers, {self.record.id})
            self._loose = False
        await self.settle()
        self.let_go()
        self._shim = self._process = None

    async def remove(self) -> None:
        """Stop it and remove its files."""
        await self.stop()
        async with self.lock:
            try:
                await self._tools.run(self._tools.places.forget, self.record.id)
            except OSError as error:
                raise RuntimeFault(Code.INTERNAL, self.record.subject, str(error)) from error
            for container_id in self.containers:
                self._publish(EventType.DELETED, container_id)
            self.containers.clear()
        self._publish(EventType.DELETED)

    def let_go(self) -> None:
        """Close the connection; the supervisor goes on."""
        self._ending = True
        if self._watch is not None:
            self._watch.cancel()
        if self._shim is not None:
            self._shim.close()
        if self._process is not None:
            self._process.close()


async def _to_the_end(work: Awaitable[T]) -> T:
    """Wait for ``work`` even if the caller is cancelled; the cancellation comes through after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
