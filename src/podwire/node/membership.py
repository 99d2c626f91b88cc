"""The node as a member of what an API server describes: all that it reads and writes there."""

from __future__ import annotations

import asyncio

from podwire.kube.client import Client
from podwire.node.apipods import ApiPods
from podwire.node.mirror import MirrorPods
from podwire.node.registration import Registration
from podwire.node.reports import EventReports
from podwire.node.service import Node
from podwire.node.statuses import StatusWriter
from podwire.sources.api import APISource


class Membership:
    """Registers the node, writes back what becomes of its pods, keeps mirror pods, reports events.

    ``source`` is to be run as a source of the node's mux. ``make_namespaces``: those of static pods are made
    where they are missing, because the server is the node's own.
    """

    def __init__(self, client: Client, node: Node, *, make_namespaces: bool = False) -> None:
        self.pods = ApiPods()
        self.registration = Registration(client, node)
        self._parts = (
            self.registration,
            StatusWriter(client, self.pods, node),
            MirrorPods(client, self.pods, node, self.registration, make_namespaces=make_namespaces),
            EventReports(client, self.pods, node),
        )
        self.source = APISource(client, node.node_name, self.registration.known, self.pods.replace)
        self._node = node

    async def run(self) -> None:
        """Work until cancelled, from the moment that the node is ready."""
        await self._node.ready.wait()
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(part.run())
