"""How commands speak with the node that runs on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from podwire.cli.errors import CommandError
from podwire.cli.locations import Locations
from podwire.kube.objects import Pod

if TYPE_CHECKING:
    from podwire.node.client import NodeClient

T = TypeVar("T")


def ask(places: Locations, question: Callable[[NodeClient], Awaitable[T]]) -> T:
    """Run ``question`` against the node of ``places``; without a node, an error says how to start one."""
    try:
        there = places.socket.exists()
    except PermissionError as error:
        raise CommandError(
            f"{places.socket}: {error.strerror}", hint="Only root can ask this node: try it with sudo."
        ) from error
    if not there:
        raise no_node(places)
    from podwire.node.client import NodeClient, NotRunning

    async def talk() -> T:
        async with NodeClient(places.socket) as client:
            return await question(client)

    try:
        return asyncio.run(talk())
    except NotRunning as error:
        raise no_node(places) from error


def no_node(places: Locations) -> CommandError:
    """No node answers in ``places``; if an earlier one left pods running, the error says how to go on."""
    reason = f"no node runs here: nothing listens on {places.socket}"
    left = _left_behind(places)
    if not left:
        return CommandError(reason, hint=f"Start one with: podwire up{places.flags} PATH")
    pods = "1 pod of an earlier node is" if left == 1 else f"{left} pods of an earlier node are"
    return CommandError(
        f"{reason}; {pods} still there",
        hint=f"Take over: podwire up{places.flags} PATH. Stop and remove: podwire down{places.flags}",
    )


def _left_behind(places: Locations) -> int:
    """How many pods have a record, whoever keeps it now."""
    try:
        return sum(1 for entry in (places.state / "sandboxes").iterdir() if entry.is_dir())
    except OSError:
        return 0


async def find_pod(client: NodeClient, name: str, namespace: str | None) -> Pod:
    """The pod that a person means by ``name``: its name, or the name in its manifest where that is unique.

    A static pod is called ``<name in the manifest>-<node name>``. Without ``namespace`` it is ``default``.
    """
    wanted = namespace or "default"
    name = name.removeprefix("pods/").removeprefix("pod/")
    pods = await client.pods(wanted)
    for pod in pods:
        if pod.metadata.name == name:
            return pod
    matching = [
        pod for pod in pods if pod.spec.node_name and pod.metadata.name == f"{name}-{pod.spec.node_name}"
    ]
    if len(matching) == 1:
        return matching[0]
    elsewhere = sorted(
        {
            pod.metadata.namespace
            for pod in await client.pods(None)
            if pod.metadata.name in {name, f"{name}-{pod.spec.node_name}"}
        }
    )
    hint = f"It is in namespace {', '.join(elsewhere)}: give -n {elsewhere[0]}" if elsewhere else ""
    raise CommandError(f'pod "{name}" not found in namespace "{wanted}"', hint=hint)


def container_of(pod: Pod, name: str) -> str:
    """The container ``name`` of ``pod``, or its first one; an unknown name is an error with the list."""
    known = [container.name for container in (*pod.spec.init_containers, *pod.spec.containers)]
    if name:
        if name not in known:
            raise CommandError(
                f'container "{name}" is not in pod "{pod.metadata.name}"', hint=f"It has: {', '.join(known)}"
            )
        return name
    return pod.spec.containers[0].name
