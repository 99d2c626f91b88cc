"""A runtime whose every answer has a deadline, as the kubelet gives its requests (pkg/kubelet/cri/remote).

Two minutes; four for a sandbox; a stop has its grace period on top. What runs out is cancelled and raises
DEADLINE_EXCEEDED, naming what was waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from podwire.runtime.api import (
    ContainerConfig,
    ContainerEvent,
    ContainerStatus,
    ExecResult,
    ExecSession,
    RuntimeCondition,
    RuntimeService,
    SandboxConfig,
    SandboxStatus,
)
from podwire.runtime.errors import Code, RuntimeFault

ANSWER = 120.0
SANDBOX = 240.0


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RuntimeFault(
            Code.DEADLINE_EXCEEDED, what, f"the runtime did not answer within {seconds:g} s"
        ) from None


class Deadlines:
    """A :class:`podwire.runtime.api.RuntimeService` around another."""

    def __init__(self, inner: RuntimeService, *, answer: float = ANSWER, sandbox: float = SANDBOX) -> None:
        self._inner = inner
        self._answer = answer
        self._sandbox = sandbox

    async def version(self) -> tuple[str, str]:
        """See RuntimeService."""
        async with _within(self._answer, "version"):
            return await self._inner.version()

    async def status(self) -> tuple[RuntimeCondition, ...]:
        """See RuntimeService."""
        async with _within(self._answer, "status"):
            return await self._inner.status()

    async def run_pod_sandbox(self, config: SandboxConfig) -> str:
        """See RuntimeService."""
        name = f"{config.metadata.namespace}/{config.metadata.name}"
        async with _within(self._sandbox, f"sandbox of pod {name}"):
            return await self._inner.run_pod_sandbox(config)

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """See RuntimeService."""
        async with _within(self._answer, f"stop of sandbox {sandbox_id}"):
            await self._inner.stop_pod_sandbox(sandbox_id)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """See RuntimeService."""
        async with _within(self._answer, f"removal of sandbox {sandbox_id}"):
            await self._inner.remove_pod_sandbox(sandbox_id)

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus:
        """See RuntimeService."""
        async with _within(self._answer, f"status of sandbox {sandbox_id}"):
            return await self._inner.pod_sandbox_status(sandbox_id)

    async def list_pod_sandbox(self) -> list[SandboxStatus]:
        """See RuntimeService."""
        async with _within(self._answer, "list of sandboxes"):
            return await self._inner.list_pod_sandbox()

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """See RuntimeService."""
        async with _within(self._answer, f"creation of container {config.metadata.name}"):
            return await self._inner.create_container(sandbox_id, config)

    async def start_container(self, container_id: str) -> None:
        """See RuntimeService."""
        async with _within(self._answer, f"start of container {container_id}"):
            await self._inner.start_container(container_id)

    async def stop_container(self, container_id: str, timeout: float) -> None:
        """See RuntimeService."""
        seconds = timeout + self._answer
        async with _within(seconds, f"stop of container {container_id}"):
            await self._inner.stop_container(container_id, timeout)

    async def remove_container(self, container_id: str) -> None:
        """See RuntimeService."""
        async with _within(self._answer, f"removal of container {container_id}"):
            await self._inner.remove_container(container_id)

    async def container_status(self, container_id: str) -> ContainerStatus:
        """See RuntimeService."""
        async with _within(self._answer, f"status of container {container_id}"):
            return await self._inner.container_status(container_id)

    async def list_containers(self) -> list[ContainerStatus]:
        """See RuntimeService."""
        async with _within(self._answer, "list of containers"):
            return await self._inner.list_containers()

    async def exec_sync(self, container_id: str, command: tuple[str, ...], timeout: float) -> ExecResult:
        """See RuntimeService; the runtime keeps ``timeout`` itself."""
        seconds = timeout + self._answer
        async with _within(seconds, f"exec in container {container_id}"):
            return await self._inner.exec_sync(container_id, command, timeout)

    async def exec(
        self,
        container_id: str,
        command: tuple[str, ...],
        *,
        stdin: bool = False,
        tty: bool = False,
        size: tuple[int, int] | None = None,
    ) -> ExecSession:
        """See RuntimeService; the deadline is for the start alone."""
        async with _within(self._answer, f"exec in container {container_id}"):
            return await self._inner.exec(container_id, command, stdin=stdin, tty=tty, size=size)

    async def attach(self, container_id: str, *, stdin: bool = False) -> ExecSession:
        """See RuntimeService; the deadline is for the start alone."""
        async with _within(self._answer, f"attach to container {container_id}"):
            return await self._inner.attach(container_id, stdin=stdin)

    def events(self) -> AsyncIterator[ContainerEvent]:
        """See RuntimeService; no deadline."""
        return self._inner.events()

    async def close(self) -> None:
        """See RuntimeService."""
        await self._inner.close()
