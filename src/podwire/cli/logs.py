"""``podwire logs``."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.cli import arguments, nodeapi, output, selectors
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations
from podwire.kube.objects import Pod

if TYPE_CHECKING:
    from podwire.node.client import NodeClient

TAIL_OF_MANY = 10
"""Lines of each container where pods are chosen by their labels, as kubectl has it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What of the log is wanted; ``tail`` None means all lines."""

    container: str = ""
    all_containers: bool = False
    selector: str = ""
    follow: bool = False
    tail: int | None = None
    since: str = ""
    timestamps: bool = False
    previous: bool = False
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class _Log:
    pod: Pod
    container: str

    @property
    def prefix(self) -> bytes:
        return f"[pod/{self.pod.metadata.name}/{self.container}] ".encode()


def run(pod: str, options: Options, namespace: str | None, places: Locations) -> int:
    """Copy the logs of one container, or of several, to standard output."""
    if bool(pod) == bool(options.selector):
        raise usage(
            f"a pod ({pod}) and --selector do not go together" if pod else "which pod?",
            hint="Write: podwire logs POD, or podwire logs -l k=v",
        )
    if options.container and options.all_containers:
        raise usage(f"--container {options.container} and --all-containers do not go together")
    selector = selectors.parse(options.selector)

    async def copy(client: NodeClient) -> int:
        if pod:
            pods = [await nodeapi.find_pod(client, pod, namespace)]
        else:
            where = namespace or "default"
            pods = [found for found in await client.pods(where) if selector.matches(found.metadata.labels)]
            if not pods:
                output.note(f"No pods found in namespace {where}.")
                return 0
        return await _copy(client, [log for found in pods for log in _logs(found, options)], options)

    return nodeapi.ask(places, copy)


def _logs(pod: Pod, options: Options) -> list[_Log]:
    if options.all_containers:
        return [_Log(pod, entry.name) for entry in (*pod.spec.init_containers, *pod.spec.containers)]
    container = nodeapi.container_of(pod, options.container)
    if not options.container and len(pod.spec.containers) > 1 and not options.selector:
        names = ", ".join(entry.name for entry in pod.spec.containers)
        output.note(f"container {container} of: {names} (choose with -c, or --all-containers)")
    return [_Log(pod, container)]


async def _copy(client: NodeClient, logs: Sequence[_Log], options: Options) -> int:
    """One after the other; side by side, whole lines at a time, where they are followed."""
    from podwire.node.client import ApiError

    failures = []

    async def one(log: _Log) -> None:
        try:
            await _copy_one(client, log, options, whole=len(logs) > 1)
        except ApiError as error:
            failures.append(error)

    if options.follow and len(logs) > 1:
        async with asyncio.TaskGroup() as group:
            for log in logs:
                group.create_task(one(log))
    else:
        for log in logs:
            await one(log)
    for failure in failures[:-1]:
        output.note(f"error: {failure}")
    if failures:
        raise CommandError(str(failures[-1]))
    return 0


async def _copy_one(client: NodeClient, log: _Log, options: Options, *, whole: bool) -> None:
    tail = TAIL_OF_MANY if options.tail is None and options.selector else options.tail
    chunks = client.log(
        log.pod.metadata.namespace,
        log.pod.metadata.name,
        container=log.container,
        follow=options.follow,
        tail=None if tail is None or tail < 0 else tail,
        timestamps=options.timestamps,
        previous=options.previous,
        since_seconds=math.ceil(arguments.parse_duration(options.since)) if options.since else None,
    )
    prefix = log.prefix if options.prefix else b""
    rest = b""
    async for chunk in chunks:
        if prefix or whole:
            *lines, rest = (rest + chunk).split(b"\n")
            _write(b"".join(prefix + line + b"\n" for line in lines))
        else:
            _write(chunk)
    if rest:
        _write(prefix + rest + b"\n")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
