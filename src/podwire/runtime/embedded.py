"""The runtime of a machine without containerd: sandboxes are namespaces, containers its own programs."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import podwire
from podwire.cni.config import NetworkConfigList
from podwire.kernel.errors import KernelError
from podwire.plugins.repair import Repairer
from podwire.runtime import attached, checks, logs
from podwire.runtime.api import (
    ContainerConfig,
    ContainerEvent,
    ContainerState,
    ContainerStatus,
    EventType,
    ExecResult,
    RuntimeCondition,
    SandboxConfig,
    SandboxStatus,
)
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.events import EventHub, EventStream
from podwire.runtime.leftovers import kill_leftovers
from podwire.runtime.network import CniRuntime, PodNetwork
from podwire.runtime.records import ContainerRecord, Phase, Places, SandboxRecord, Unreadable, new_id
from podwire.runtime.sandbox import CALL_SECONDS, OURS, Container, Sandbox, Tools
from podwire.runtime.session import Session
from podwire.runtime.shim import fault
from podwire.runtime.spawning import Spawner

_log = logging.getLogger(__name__)
START_SECONDS = 60.0
KILL_SECONDS = 30.0
LOCK_SECONDS = 2.0
"""How long after KILL a program may take to end: uninterruptible waits of the kernel."""
OUTPUT_LIMIT = 16 << 20
"""Bytes of each stream that exec_sync keeps, as the CRI limits them."""
DRAIN_SECONDS = 1.0
"""How long exec_sync waits for what the program's children still write after its end."""
THREADS = 8
REPAIR_SECONDS = 2.0
"""How often the sandboxes' networks are looked after."""


class EmbeddedRuntime:
    """Implements :class:`podwire.runtime.api.RuntimeService` over Linux itself.

    ``root`` keeps the records (durable), ``run_dir`` sockets and network namespaces. Sandboxes are attached
    by ``cni`` to ``network``; with None for either they get loopback only. Use it in one event loop. It loads
    what is there at the first call, or at :meth:`open`.
    """

    def __init__(
        self,
        root: Path,
        run_dir: Path,
        cni: CniRuntime | None,
        network: NetworkConfigList | None,
        *,
        repairer: Repairer | None = None,
        repair_seconds: float = REPAIR_SECONDS,
        log_limit: int = logs.SIZE_LIMIT,
        log_files: int = logs.FILES,
        attach_stall: float = attached.STALLED_SECONDS,
    ) -> None:
        """``repairer`` looks after the networks of what runs, every ``repair_seconds``.

        ``log_limit``: bytes of a log file before it is rotated; ``log_files``: how many are kept.
        ``attach_stall``: seconds after which an attached client that takes nothing is let go.
        """
        self._places = Places(Path(root).absolute(), Path(run_dir).absolute())
        self._tools = Tools(
            places=self._places,
            network=PodNetwork(cni, network, repairer),
            spawner=Spawner(self._places.run_dir / "spawner.log"),
            hub=EventHub(),
            pool=ThreadPoolExecutor(THREADS, "podwire-runtime"),
            log_limit=log_limit,
            log_files=log_files,
            attach_stall=attach_stall,
        )
        self._sandboxes: dict[str, Sandbox] = {}
        self._problems: list[str] = []
        self._opening: asyncio.Task[None] | None = None
        self._lock = -1
        self._repair_seconds = repair_seconds
        self._repairs: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Find what is there: adopt what runs, tear down what was being made. Raises RuntimeFault.

        UNAVAILABLE if another runtime has the same ``root`` open.
        """
        if self._closed:
            raise RuntimeFault(Code.UNAVAILABLE, str(self._places.root), "the runtime is closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(self._opening)
        except RuntimeFault:
            self._opening = None
            raise

    async def _open(self) -> None:
        try:
            await self._tools.run(self._take_lock)
            loaded = await self._tools.run(self._load)
            alive = await asyncio.gather(*(sandbox.adopt() for sandbox in loaded))
            dead = [sandbox for sandbox, there in zip(loaded, alive, strict=True) if not there]
            if dead:
                await self._tools.run(kill_leftovers, {sandbox.record.id for sandbox in dead})
        except OSError as error:
            raise RuntimeFault(Code.UNAVAILABLE, str(self._places.root), str(error)) from error
        for sandbox in dead:
            await sandbox.settle()
        unfinished = [sandbox for sandbox in loaded if sandbox.record.phase is Phase.CREATING]
        outcomes = await asyncio.gather(*(sandbox.remove() for sandbox in unfinished), return_exceptions=True)
        for sandbox, outcome in zip(unfinished, outcomes, strict=True):
            if isinstance(outcome, RuntimeFault):
                self._problems.append(str(outcome))
            elif outcome is not None:
                raise outcome
            else:
                loaded.remove(sandbox)
        loaded.sort(key=lambda sandbox: sandbox.record.created_at)
        self._sandboxes = {sandbox.record.id: sandbox for sandbox in loaded}
        if self._tools.network.repairs:
            self._repairs = asyncio.create_task(self._repair_now_and_then(), name="repairs")
            self._repairs.add_done_callback(_tell_fault)

    async def _repair_now_and_then(self) -> None:
        while True:
            records = [sandbox.record for sandbox in self._sandboxes.values() if sandbox.attached]
            try:
                suspects = await self._tools.run(self._tools.network.suspects, records)
            except (KernelError, OSError) as error:
                _log.warning("the pods' networks cannot be looked at: %s", error)
                suspects = set()
            there = [self._sandboxes[each] for each in suspects if each in self._sandboxes]
            await asyncio.gather(*(sandbox.mend() for sandbox in there))
            await asyncio.sleep(self._repair_seconds)

    def _take_lock(self) -> None:
        """One runtime a root: another would tear down what this one is making."""
        self._places.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._places.root / "runtime.lock"
        limit = time.monotonic() + LOCK_SECONDS
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The one before may have removed the file between the two calls.
                if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
                    self._lock = fd
                    return
            except BlockingIOError:
                # A child that a killed node had just forked holds the lock until it has called exec(2).
                if time.monotonic() > limit:
                    os.close(fd)
                    raise RuntimeFault(
                        Code.UNAVAILABLE, str(self._places.root), "another podwire has this directory open"
                    ) from None
                time.sleep(0.02)
            os.close(fd)

    def _load(self) -> list[Sandbox]:
        found = []
        for sandbox_id in self._places.known():
            try:
                record, containers = self._places.load(sandbox_id)
            except (Unreadable, OSError) as error:
                if isinstance(error, OSError) and error.errno in OURS:
                    raise
                self._problems.append(f"left alone: {error}")
                continue
            found.append(Sandbox(self._tools, record, [Container(*pair) for pair in containers]))
        return found

    async def close(self) -> None:
        """Let go of everything; what runs goes on running."""
        if self._closed:
            return
        self._closed = True
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._repairs is not None:
            self._repairs.cancel()
            await asyncio.wait({self._repairs})
        for sandbox in self._sandboxes.values():
            sandbox.let_go()
        self._tools.hub.close()
        await self._tools.run(self._tools.spawner.close)
        await self._tools.run(self._leave)
        self._tools.pool.shutdown(wait=True)
        # Transports close in the loop's next round.
        await asyncio.sleep(0)

    def _leave(self) -> None:
        """Release the lock; with no sandbox left, our empty directories go too."""
        if self._lock < 0:
            return
        places = self._places
        if not self._sandboxes:
            for file in (places.run_dir / "spawner.log", places.root / "runtime.lock"):
                file.unlink(missing_ok=True)
            for directory in (
                places.sandboxes,
                places.root,
                places.run_dir / "sandboxes",
                places.run_dir / "netns",
                places.run_dir,
            ):
                try:
                    directory.rmdir()
                except OSError:  # not empty: somebody else's things, or gone already
                    continue
        os.close(self._lock)
        self._lock = -1

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise RuntimeFault(Code.NOT_FOUND, f"sandbox {sandbox_id}", "no such sandbox")
        return sandbox

    def _find(self, container_id: str) -> tuple[Sandbox, Container] | None:
        for sandbox in self._sandboxes.values():
            container = sandbox.containers.get(container_id)
            if container is not None:
                return sandbox, container
        return None

    def _container(self, container_id: str) -> tuple[Sandbox, Container]:
        found = self._find(container_id)
        if found is None:
            raise RuntimeFault(Code.NOT_FOUND, f"container {container_id}", "no such container")
        return found

    async def version(self) -> tuple[str, str]:
        """Name and version of the runtime."""
        return "podwire", podwire.__version__

    async def status(self) -> tuple[RuntimeCondition, ...]:
        """RuntimeReady, whose message tells of records that could not be read or removed; NetworkReady."""
        await self.open()
        ready = RuntimeCondition("RuntimeReady", True, message="; ".join(self._problems))
        return ready, self._tools.network.condition()

    async def run_pod_sandbox(self, config: SandboxConfig) -> str:
        """See RuntimeService. ALREADY_EXISTS if a sandbox is there for the same pod and attempt."""
        await self.open()
        checks.check_sandbox(config)
        for other in self._sandboxes.values():
            if other.record.config.metadata == config.metadata and not other.left_behind:
                raise RuntimeFault(
                    Code.ALREADY_EXISTS,
                    other.record.subject,
                    f"attempt {config.metadata.attempt} is {other.record.id}",
                )
        record = SandboxRecord(id=new_id(), created_at=time.time_ns(), config=config, phase=Phase.CREATING)
        sandbox = Sandbox(self._tools, record)
        self._sandboxes[record.id] = sandbox
        made = False
        try:
            await sandbox.create()
            made = True
        finally:
            if not made and not sandbox.left_behind:
                del self._sandboxes[record.id]
        return record.id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """See RuntimeService. A DEL that fails raises, and is done again by the next call."""
        await self.open()
        if sandbox_id in self._sandboxes:
            await self._sandboxes[sandbox_id].stop()

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """See RuntimeService. The record stays until the network is down."""
        await self.open()
        if sandbox_id in self._sandboxes:
            await self._sandboxes[sandbox_id].remove()
            self._sandboxes.pop(sandbox_id, None)

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus:
        """See RuntimeService."""
        await self.open()
        return self._sandbox(sandbox_id).status

    async def list_pod_sandbox(self) -> list[SandboxStatus]:
        """See RuntimeService. Sandboxes in the making are not in it."""
        await self.open()
        known = self._sandboxes.values()
        return [sandbox.status for sandbox in known if sandbox.record.phase is not Phase.CREATING]

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """See RuntimeService. INVALID_ARGUMENT without a command: there are no images here."""
        await self.open()
        checks.check_container(config)
        sandbox = self._sandbox(sandbox_id)
        async with sandbox.lock:
            sandbox.shim()
            record = ContainerRecord(new_id(), sandbox_id, time.time_ns(), config)
            try:
                await self._tools.run(self._places.save_container, record)
            except OSError as error:
                raise RuntimeFault(Code.INTERNAL, _subject(config), str(error)) from error
            sandbox.containers[record.id] = Container(record)
        self._publish(EventType.CREATED, sandbox, record.id)
        return record.id

    async def start_container(self, container_id: str) -> None:
        """See RuntimeService."""
        await self.open()
        sandbox, container = self._container(container_id)
        answer = await sandbox.shim().call("start", START_SECONDS, container=container_id)
        if "error" in answer:
            raise fault(_subject(container.record.config), answer)

    async def stop_container(self, container_id: str, timeout: float) -> None:
        """See RuntimeService."""
        await self.open()
        found = self._find(container_id)
        if found is not None:
            await self._end(*found, timeout)

    async def _end(self, sandbox: Sandbox, container: Container, timeout: float) -> None:
        if container.state.state is ContainerState.EXITED or not sandbox.ready:
            return
        try:
            answer = await sandbox.shim().call(
                "stop", timeout + KILL_SECONDS, container=container.record.id, grace=timeout
            )
        except RuntimeFault as error:
            if error.code is Code.UNAVAILABLE:  # its supervisor is dead, and so is it
                await sandbox.lost()
                return
            raise
        if "error" in answer:
            raise fault(_subject(container.record.config), answer)

    async def remove_container(self, container_id: str) -> None:
        """See RuntimeService."""
        await self.open()
        found = self._find(container_id)
        if found is None:
            return
        sandbox, container = found
        await self._end(sandbox, container, 0)
        async with sandbox.lock:
            if sandbox.ready:
                answer = await sandbox.shim().call("forget", CALL_SECONDS, container=container_id)
                if "error" in answer:
                    raise fault(_subject(container.record.config), answer)
            try:
                await self._tools.run(self._places.forget_container, container.record)
            except OSError as error:
                raise RuntimeFault(Code.INTERNAL, _subject(container.record.config), str(error)) from error
            there = sandbox.containers.pop(container_id, None)
        if there is not None:
            self._publish(EventType.DELETED, sandbox, container_id)

    async def container_status(self, container_id: str) -> ContainerStatus:
        """See RuntimeService."""
        await self.open()
        sandbox, container = self._container(container_id)
        return container.status(sandbox.record.config.log_directory)

    async def list_containers(self) -> list[ContainerStatus]:
        """See RuntimeService."""
        await self.open()
        pairs = [
            (sandbox, one) for sandbox in self._sandboxes.values() for one in sandbox.containers.values()
        ]
        pairs.sort(key=lambda pair: pair[1].record.created_at)
        return [one.status(sandbox.record.config.log_directory) for sandbox, one in pairs]

    async def exec_sync(self, container_id: str, command: tuple[str, ...], timeout: float) -> ExecResult:
        """See RuntimeService. ``timeout`` 0: none. Of each stream the first 16 MiB are kept."""
        session = await self._exec(container_id, command, stdin=False, tty=False)
        kept = {1: bytearray(), 2: bytearray()}

        async def collect() -> None:
            async for number, data in session.output():
                kept[number] += data[: max(0, OUTPUT_LIMIT - len(kept[number]))]

        collector = asyncio.ensure_future(collect())
        try:
            async with asyncio.timeout(timeout or None):
                code = await session.wait()
            await asyncio.wait({collector}, timeout=DRAIN_SECONDS)
        except TimeoutError:
            raise RuntimeFault(
                Code.DEADLINE_EXCEEDED,
                f"container {container_id}",
                f"{command[0]} did not end in {timeout:g} s",
            ) from None
        finally:
            collector.cancel()
            await asyncio.wait({collector})
            await session.close()
        return ExecResult(bytes(kept[1]), bytes(kept[2]), code)

    async def exec(
        self,
        container_id: str,
        command: tuple[str, ...],
        *,
        stdin: bool = False,
        tty: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Session:
        """See RuntimeService."""
        return await self._exec(container_id, command, stdin=stdin, tty=tty, size=size)

    async def _exec(
        self,
        container_id: str,
        command: tuple[str, ...],
        *,
        stdin: bool,
        tty: bool,
        size: tuple[int, int] | None = None,
    ) -> Session:
        await self.open()
        if not command:
            subject = _subject(self._container(container_id)[1].record.config)
            raise RuntimeFault(Code.INVALID_ARGUMENT, subject, "exec: no command")
        return await self._session(
            container_id,
            "exec",
            lambda session, run: session.start(run, container_id, command, stdin, tty, size=size),
        )

    async def attach(self, container_id: str, *, stdin: bool = False) -> Session:
        """See RuntimeService."""
        await self.open()
        return await self._session(
            container_id, "attach", lambda session, run: session.attach(run, container_id, stdin=stdin)
        )

    async def _session(
        self, container_id: str, what: str, begin: Callable[[Session, Path], Awaitable[None]]
    ) -> Session:
        """A session with the supervisor of a container that runs."""
        sandbox, container = self._container(container_id)
        subject = _subject(container.record.config)
        if container.state.state is not ContainerState.RUNNING:
            raise RuntimeFault(Code.FAILED_PRECONDITION, subject, "it does not run")
        sandbox.shim()
        session = Session(subject)
        try:
            await begin(session, self._places.run(sandbox.record.id))
        except OSError as error:
            raise RuntimeFault(Code.UNAVAILABLE, subject, f"{what}: {error}") from error
        return session

    def events(self) -> EventStream:
        """See RuntimeService."""
        return self._tools.hub.subscribe()

    def _publish(self, kind: EventType, sandbox: Sandbox, container_id: str) -> None:
        record = sandbox.record
        self._tools.hub.publish(ContainerEvent(kind, record.id, container_id, record.config.metadata))


def _tell_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        _log.error("the pods' networks are not looked after any more", exc_info=fault)


def _subject(config: ContainerConfig) -> str:
    return f'container "{config.metadata.name}"'
