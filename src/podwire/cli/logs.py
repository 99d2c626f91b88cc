"""``podwire logs``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.cli import nodeapi, output
from podwire.cli.locations import Locations

if TYPE_CHECKING:
    from podwire.node.client import NodeClient


@dataclass(frozen=True, slots=True)
class Options:
    """What of the log is wanted; ``tail`` None means all lines."""

    container: str = ""
    follow: bool = False
    tail: int | None = None
    timestamps: bool = False
    previous: bool = False


def run(pod: str, options: Options, namespace: str | None, places: Locations) -> int:
    """Copy a container's log to standard output."""

    async def copy(client: NodeClient) -> int:
        found = await nodeapi.find_pod(client, pod, namespace)
        container = nodeapi.container_of(found, options.container)
        if not options.container and len(found.spec.containers) > 1:
            names = ", ".join(entry.name for entry in found.spec.containers)
            output.note(f"container {container} of: {names} (choose with -c)")
        chunks = client.log(
            found.metadata.namespace,
            found.metadata.name,
            container=container,
            follow=options.follow,
            tail=options.tail,
            timestamps=options.timestamps,
            previous=options.previous,
        )
        async for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return 0

    return nodeapi.ask(places, copy)
