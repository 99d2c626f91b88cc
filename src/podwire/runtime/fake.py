"""A runtime that keeps its state in memory, for tests of what stands above the runtime interface.

It behaves like a real one where callers can tell: sandboxes get unique addresses and give them back, programs
run and end, stop and remove are idempotent, events are sent. Failures, delays and the ends of programs are
programmed, and time comes from the clock it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from podwire.runtime.api import (
    ContainerConfig,
    ContainerEvent,
    ContainerState,
    ContainerStatus,
    EventType,
    ExecResult,
    ExecSession,
    NetworkMode,
    RuntimeCondition,
    SandboxConfig,
    SandboxState,
    SandboxStatus,
)
from podwire.runtime.errors import Code, RuntimeFault


class Time(Protocol):
    """The clock that the fake lives by."""

    def wall(self) -> int:
        """Nanoseconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request that the fake was sent: the method and the pod, container or ID it was about."""

    method: str
    subject: str


@dataclass(slots=True)
class Rule:
    """What is to happen to calls of ``method`` whose subject contains ``match``."""

    method: str
    match: str = ""
    fault: RuntimeFault | None = None
    times: int | None = None
    delay: float = 0.0
    gate: asyncio.Event | None = None

    def takes(self, method: str, subject: str) -> bool:
        """Whether this call is meant; uses up one of ``times``."""
        if method != self.method or self.match not in subject or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class Program:
    """How the containers of one name behave.

    ``ends`` gives (seconds, exit code) for each start in turn, the last one repeated; empty runs for ever.
    ``on_term``: seconds from TERM to the end.
    """

    ends: list[tuple[float, int]] = field(default_factory=list)
    on_term: float = 0.0
    term_code: int = 143


class FakeExec:
    """An exec session that echoes its stdin to stdout and ends when stdin is closed."""

    def __init__(self, result: ExecResult, stdin: bool) -> None:
        self._result = result
        self._queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self.sizes: list[tuple[int, int]] = []
        self.closed = False
        if result.stdout:
            self._queue.put_nowait((1, result.stdout))
        if result.stderr:
            self._queue.put_nowait((2, result.stderr))
        if not stdin:
            self._queue.put_nowait(None)

    async def write_stdin(self, data: bytes) -> None:
        """Echo it; empty ends the program."""
        self._queue.put_nowait((1, data) if data else None)

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """What the program was told to say, then the echo."""
        while (item := await self._queue.get()) is not None:
            yield item

    async def resize(self, columns: int, rows: int) -> None:
        """Remember the size."""
        self.sizes.append((columns, rows))

    async def wait(self) -> int:
        """The programmed exit code."""
        return self._result.exit_code

    async def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class FakeRuntime:
    """A :class:`podwire.runtime.api.RuntimeService` in memory."""

    def __init__(self, clock: Time) -> None:
        self.clock = clock
        self.calls: list[Call] = []
        self.programs: dict[str, Program] = {}
        self.network = RuntimeCondition("NetworkReady", True)
        self.on_exec: Callable[[str, tuple[str, ...]], ExecResult] = lambda _name, _command: ExecResult(
            b"", b"", 0
        )
        self.sandbox_configs: dict[str, SandboxConfig] = {}
        self.container_configs: dict[str, ContainerConfig] = {}
        self.sessions: list[FakeExec] = []
        self._rules: list[Rule] = []
        self._sandboxes: dict[str, SandboxStatus] = {}
        self._containers: dict[str, ContainerStatus] = {}
        self._listeners: set[asyncio.Queue[ContainerEvent | None]] = set()
        self._timers: set[asyncio.Task[None]] = set()
        self._starts: dict[str, int] = {}
        self._serial = 0

    def fail(self, method: str, message: str, *, match: str = "", times: int | None = 1) -> Rule:
        """Make calls of ``method`` fail, for ever with ``times=None``, until :meth:`cure`."""
        rule = Rule(method, match, RuntimeFault(Code.UNAVAILABLE, match, message), times)
        self._rules.append(rule)
        return rule

    def delay(self, method: str, seconds: float, *, match: str = "") -> Rule:
        """Make calls of ``method`` take that long."""
        rule = Rule(method, match, delay=seconds)
        self._rules.append(rule)
        return rule

    def hold(self, method: str, *, match: str = "") -> asyncio.Event:
        """Make calls of ``method`` wait until the event that is returned is set."""
        rule = Rule(method, match, gate=asyncio.Event())
        self._rules.append(rule)
        assert rule.gate is not None
        return rule.gate

    def cure(self, rule: Rule) -> None:
        """Take a rule back."""
        self._rules.remove(rule)

    def exit(self, container: str, code: int = 0) -> None:
        """End the running containers of that name or ID."""
        for status in list(self._containers.values()):
            if container in (status.id, status.metadata.name):
                self._end(status.id, code)

    def lose_sandbox(self, sandbox_id: str) -> None:
        """End a sandbox from outside: its programs are killed, its network is gone."""
        self._down(sandbox_id)

    def mute(self) -> None:
        """Send no event any more to those who listen now."""
        self._listeners.clear()

    def drop_listeners(self) -> None:
        """Break the event streams off, as a runtime that restarts does."""
        for listener in self._listeners:
            listener.put_nowait(None)

    def count(self, method: str, match: str = "") -> int:
        """How often ``method`` was called about a subject that contains ``match``."""
        return sum(1 for call in self.calls if call.method == method and match in call.subject)

    @property
    def addresses(self) -> list[str]:
        """All addresses in use."""
        return [ip for sandbox in self._sandboxes.values() for ip in sandbox.ips]

    async def version(self) -> tuple[str, str]:
        """See the interface."""
        return "fake", "1"

    async def status(self) -> tuple[RuntimeCondition, ...]:
        """See the interface."""
        return RuntimeCondition("RuntimeReady", True), self.network

    async def run_pod_sandbox(self, config: SandboxConfig) -> str:
        """See the interface."""
        metadata = config.metadata
        await self._enter("run_pod_sandbox", f"{metadata.namespace}/{metadata.name}")
        for sandbox in self._sandboxes.values():
            if sandbox.metadata == metadata:
                raise RuntimeFault(Code.ALREADY_EXISTS, metadata.name, "the sandbox is there already")
        self._serial += 1
        identity = f"sandbox-{self._serial}"
        number = self._serial
        ips: tuple[str, ...] = ()
        if config.network == NetworkMode.POD:
            ips = (f"10.88.{number >> 8}.{number & 255}", f"fd00:88::{number:x}")
        self.sandbox_configs[identity] = config
        self._sandboxes[identity] = SandboxStatus(
            id=identity,
            metadata=metadata,
            state=SandboxState.READY,
            created_at=self.clock.wall(),
            network=config.network,
            ips=ips,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
            netns=f"/run/netns/{identity}" if ips else "",
        )
        self._tell(EventType.STARTED, identity, identity)
        return identity

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """See the interface."""
        await self._enter("stop_pod_sandbox", self._subject(sandbox_id))
        self._down(sandbox_id)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """See the interface."""
        await self._enter("remove_pod_sandbox", self._subject(sandbox_id))
        self._down(sandbox_id)
        for container in [c for c in self._containers.values() if c.sandbox_id == sandbox_id]:
            self._forget(container.id)
        if sandbox_id in self._sandboxes:
            self._tell(EventType.DELETED, sandbox_id, sandbox_id)
            del self._sandboxes[sandbox_id]

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus:
        """See the interface."""
        await self._enter("pod_sandbox_status", sandbox_id)
        return self._sandbox(sandbox_id)

    async def list_pod_sandbox(self) -> list[SandboxStatus]:
        """See the interface."""
        await self._enter("list_pod_sandbox", "")
        return list(self._sandboxes.values())

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """See the interface."""
        await self._enter("create_container", config.metadata.name)
        if self._sandbox(sandbox_id).state != SandboxState.READY:
            raise RuntimeFault(Code.FAILED_PRECONDITION, sandbox_id, "the sandbox is not ready")
        self._serial += 1
        identity = f"container-{self._serial}"
        self.container_configs[identity] = config
        self._containers[identity] = ContainerStatus(
            id=identity,
            sandbox_id=sandbox_id,
            metadata=config.metadata,
            state=ContainerState.CREATED,
            created_at=self.clock.wall(),
            image=config.image,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
            log_path=f"{self.sandbox_configs[sandbox_id].log_directory}/{config.log_path}",
        )
        self._tell(EventType.CREATED, sandbox_id, identity)
        return identity

    async def start_container(self, container_id: str) -> None:
        """See the interface."""
        status = self._container(container_id)
        name = status.metadata.name
        try:
            await self._enter("start_container", name)
        except RuntimeFault as fault:
            self._end(container_id, 128, reason="ContainerCannotRun", message=fault.message, force=True)
            raise
        self._put(
            replace(status, state=ContainerState.RUNNING, started_at=self.clock.wall(), pid=self._serial)
        )
        self._tell(EventType.STARTED, status.sandbox_id, container_id)
        ends = self.programs.get(name, Program()).ends
        if ends:
            turn = self._starts.get(name, 0)
            self._starts[name] = turn + 1
            seconds, code = ends[min(turn, len(ends) - 1)]
            self._after(seconds, container_id, code)

    async def stop_container(self, container_id: str, timeout: float) -> None:
        """See the interface."""
        await self._enter("stop_container", self._subject(container_id))
        status = self._containers.get(container_id)
        if status is None or status.state != ContainerState.RUNNING:
            return
        program = self.programs.get(status.metadata.name, Program())
        if program.on_term > timeout:
            await self.clock.sleep(timeout)
            self._end(container_id, 137)
        else:
            await self.clock.sleep(program.on_term)
            self._end(container_id, program.term_code)

    async def remove_container(self, container_id: str) -> None:
        """See the interface."""
        await self._enter("remove_container", self._subject(container_id))
        self._end(container_id, 137)
        self._forget(container_id)

    async def container_status(self, container_id: str) -> ContainerStatus:
        """See the interface."""
        await self._enter("container_status", container_id)
        return self._container(container_id)

    async def list_containers(self) -> list[ContainerStatus]:
        """See the interface."""
        await self._enter("list_containers", "")
        return list(self._containers.values())

    async def exec_sync(self, container_id: str, command: tuple[str, ...], timeout: float) -> ExecResult:
        """See the interface; the answer is :attr:`on_exec`'s."""
        name = self._container(container_id).metadata.name
        await self._enter("exec_sync", f"{name} {' '.join(command)}")
        return self.on_exec(name, command)

    async def exec(
        self,
        container_id: str,
        command: tuple[str, ...],
        *,
        stdin: bool = False,
        tty: bool = False,
        size: tuple[int, int] | None = None,
    ) -> ExecSession:
        """See the interface; :attr:`on_exec` says what is printed first and the exit code."""
        name = self._container(container_id).metadata.name
        await self._enter("exec", f"{name} {' '.join(command)}")
        session = FakeExec(self.on_exec(name, command), stdin)
        if size is not None:
            await session.resize(*size)
        self.sessions.append(session)
        return session

    async def attach(self, container_id: str, *, stdin: bool = False) -> ExecSession:
        """See the interface; the session echoes what is written, if the container has a stdin."""
        await self._enter("attach", self._container(container_id).metadata.name)
        session = FakeExec(ExecResult(b"", b"", 0), True)
        self.sessions.append(session)
        return session

    def events(self) -> AsyncIterator[ContainerEvent]:
        """See the interface."""
        queue: asyncio.Queue[ContainerEvent | None] = asyncio.Queue()
        self._listeners.add(queue)
        return self._listen(queue)

    async def _listen(self, queue: asyncio.Queue[ContainerEvent | None]) -> AsyncIterator[ContainerEvent]:
        try:
            while (event := await queue.get()) is not None:
                yield event
            raise RuntimeFault(Code.UNAVAILABLE, "events", "the runtime went away")
        finally:
            self._listeners.discard(queue)

    async def close(self) -> None:
        """Stop the timers; the state stays, so that a test can look at it or adopt it."""
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)

    async def _enter(self, method: str, subject: str) -> None:
        self.calls.append(Call(method, subject))
        for rule in list(self._rules):
            if rule.takes(method, subject):
                if rule.gate is not None:
                    await rule.gate.wait()
                if rule.delay:
                    await self.clock.sleep(rule.delay)
                if rule.fault is not None:
                    raise rule.fault
        await asyncio.sleep(0)

    def _subject(self, identity: str) -> str:
        if identity in self._sandboxes:
            metadata = self._sandboxes[identity].metadata
            return f"{metadata.namespace}/{metadata.name}"
        if identity in self._containers:
            return self._containers[identity].metadata.name
        return identity

    def _sandbox(self, sandbox_id: str) -> SandboxStatus:
        try:
            return self._sandboxes[sandbox_id]
        except KeyError:
            raise RuntimeFault(Code.NOT_FOUND, sandbox_id, "no such sandbox") from None

    def _container(self, container_id: str) -> ContainerStatus:
        try:
            return self._containers[container_id]
        except KeyError:
            raise RuntimeFault(Code.NOT_FOUND, container_id, "no such container") from None

    def _put(self, status: ContainerStatus) -> None:
        self._containers[status.id] = status

    def _down(self, sandbox_id: str) -> None:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state == SandboxState.NOTREADY:
            return
        for container in [c for c in self._containers.values() if c.sandbox_id == sandbox_id]:
            self._end(container.id, 137)
        self._sandboxes[sandbox_id] = replace(sandbox, state=SandboxState.NOTREADY, ips=(), netns="")
        self._tell(EventType.STOPPED, sandbox_id, sandbox_id)

    def _forget(self, container_id: str) -> None:
        status = self._containers.pop(container_id, None)
        if status is not None:
            self._tell(EventType.DELETED, status.sandbox_id, container_id)

    def _end(
        self, container_id: str, code: int, *, reason: str = "", message: str = "", force: bool = False
    ) -> None:
        status = self._containers.get(container_id)
        if status is None or not (force or status.state == ContainerState.RUNNING):
            return
        self._put(
            replace(
                status,
                state=ContainerState.EXITED,
                finished_at=self.clock.wall(),
                exit_code=code,
                signal=code - 128 if code > 128 and not reason else 0,
                reason=reason or ("Completed" if code == 0 else "Error"),
                message=message,
                pid=0,
            )
        )
        self._tell(EventType.STOPPED, status.sandbox_id, container_id)

    def _after(self, seconds: float, container_id: str, code: int) -> None:
        async def timer() -> None:
            await self.clock.sleep(seconds)
            self._end(container_id, code)

        task = asyncio.create_task(timer())
        self._timers.add(task)
        task.add_done_callback(self._timers.discard)

    def _tell(self, kind: EventType, sandbox_id: str, container_id: str) -> None:
        event = ContainerEvent(kind, sandbox_id, container_id, self._sandboxes[sandbox_id].metadata)
        for listener in self._listeners:
            listener.put_nowait(event)
