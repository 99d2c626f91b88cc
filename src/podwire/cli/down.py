"""``podwire down``: everything that ``up`` made goes, and what it changed is put back."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podwire.cli import checks, lock, output, progress
from podwire.cli.errors import CommandError
from podwire.cli.locations import Locations
from podwire.node import hoststate
from podwire.node.hoststate import HostState, HostStateError

if TYPE_CHECKING:
    from podwire.kernel.host import Kernel
    from podwire.runtime.api import ContainerStatus, RuntimeService, SandboxStatus

NODE_ENDS_WITHIN = 15.0
"""Seconds that a running node gets to let go of its pods, before it is killed."""


def run(places: Locations, *, timeout: float) -> int:
    """Take the node of ``places`` off this machine; ``timeout`` bounds every pod's grace period (seconds)."""
    checks.root()
    if not places.state.exists() and not places.run.exists():
        print(f"Nothing to do: no node is or was up here ({places.state} and {places.run} do not exist).")
        return 0
    _end_node(places, timeout)
    state, lost = _record(places)
    places.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock.hold(places.lock):
        left = [*lost, *_remove_all(places, state, timeout)]
    for line in left:
        output.note(line)
    if lost:
        print("The rest is removed.")
    elif left:
        print(f"The rest is removed. Once that is free: podwire down{places.flags}")
    else:
        print("Everything is removed.")
    return 1 if left else 0


def _record(places: Locations) -> tuple[HostState | None, list[str]]:
    """What was changed on the host; where that cannot be read, what therefore stays, in words."""
    try:
        return hoststate.load(places.ledger), []
    except HostStateError as error:
        return None, [f"{error}: the bridge, sysctls and directories stay as they are"]


def _remove_all(places: Locations, state: HostState | None, timeout: float) -> list[str]:
    """Pods, then what they hung on, then the records. Returns what could not be done, in words."""
    from podwire.cli import shutdown
    from podwire.kernel.host import Kernel

    left: list[str] = []
    with Kernel.open() as kernel:
        faults = asyncio.run(_remove_pods(places, kernel, timeout))
        if faults:
            again = f"What is left is recorded: run podwire down{places.flags} again."
            raise CommandError(
                f"{len(faults)} of the pods could not be removed: {faults[0]}",
                hint="\n".join([*faults[1:], again]),
            )
        if state is not None:
            left += filter(None, [shutdown.remove_bridge(kernel, state.bridge)])
        left += filter(None, [shutdown.remove_rules(kernel)])
    if state is not None:
        for key, (now, before) in hoststate.restore(state).items():
            output.note(f"{key.replace('/', '.')} stays {now}: somebody changed it since (it was {before})")
    shutdown.remove_tree(places.run)
    if left and state is not None:
        # What stays is still this node's to remove: the next `podwire down` finds it by the record.
        shutdown.remove_tree(places.state, keep=places.ledger)
        return left
    shutdown.remove_tree(places.state)
    if state is not None:
        shutdown.remove_empty(state.directories)
    return left


async def _remove_pods(places: Locations, kernel: Kernel, timeout: float) -> list[str]:
    from podwire.cli import assembly
    from podwire.runtime.errors import RuntimeFault

    async with assembly.runtime(places, kernel, None) as runtime:
        sandboxes = await runtime.list_pod_sandbox()
        containers = await runtime.list_containers()
        if not sandboxes:
            return []
        faults: list[str] = []
        with progress.bar(_removing(len(sandboxes)), len(sandboxes)) as advance:

            async def remove(sandbox: SandboxStatus) -> None:
                own = [entry for entry in containers if entry.sandbox_id == sandbox.id]
                try:
                    await _remove_pod(runtime, sandbox, own, timeout)
                except RuntimeFault as error:
                    faults.append(f"{sandbox.metadata.namespace}/{sandbox.metadata.name}: {error}")
                advance()

            async with asyncio.TaskGroup() as group:
                for sandbox in sandboxes:
                    group.create_task(remove(sandbox))
        return faults


async def _remove_pod(
    runtime: RuntimeService, sandbox: SandboxStatus, containers: Sequence[ContainerStatus], timeout: float
) -> None:
    async with asyncio.TaskGroup() as group:
        for container in containers:
            group.create_task(runtime.stop_container(container.id, min(timeout, _grace(container, timeout))))
    await runtime.remove_pod_sandbox(sandbox.id)


def _grace(container: ContainerStatus, default: float) -> float:
    """The pod's own grace period, which the node notes on every container as the kubelet does."""
    text = container.annotations.get("io.kubernetes.pod.terminationGracePeriod", "")
    return float(text) if text.isdigit() else default


def _end_node(places: Locations, timeout: float) -> None:
    """A node that runs takes its pods down, with their preStop hooks, and ends.

    If it does not answer, it is told to end by a signal; what it leaves is taken down from the records.
    """
    pid = lock.holder(places.lock)
    if pid is None:
        return
    print(f"Ending the node (process {pid})", flush=True)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        asyncio.run(_ask_to_end(places, timeout))
        ended, _, _ = select.select([process], [], [], NODE_ENDS_WITHIN)
        if ended:
            return
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], NODE_ENDS_WITHIN)
        if not ended:
            output.note(f"process {pid} does not end: killing it")
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], NODE_ENDS_WITHIN)
    finally:
        os.close(process)


async def _ask_to_end(places: Locations, timeout: float) -> None:
    from podwire.node.client import ClientError, NodeClient

    try:
        async with asyncio.timeout(timeout + NODE_ENDS_WITHIN), NodeClient(places.socket) as client:
            pods = await client.pods()
            longest = max((pod.spec.termination_grace_period_seconds for pod in pods), default=0)
            with progress.bar(_removing(len(pods)), len(pods)) as advance:
                left = len(pods)
                async for remaining in client.shutdown(
                    remove=True, grace=timeout if longest > timeout else None
                ):
                    for _ in range(left - len(remaining)):
                        advance()
                    left = min(left, len(remaining))
    except ClientError as error:
        output.note(f"the node cannot be asked to end: {error}")
    except TimeoutError:
        output.note("the node has not removed its pods in time")


def _removing(count: int) -> str:
    return f"Removing {count} pod{'' if count == 1 else 's'}"
