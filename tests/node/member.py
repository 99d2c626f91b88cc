"""A node over a fake runtime that is a member of an embedded API server, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from podwire.apiserver.http.app import Server
from podwire.apiserver.kinds import builtin
from podwire.apiserver.patch.hook import apply_patch, track
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Key, Storage
from podwire.kube.client import Client
from podwire.kube.config import Config
from podwire.kube.defaults import static_pod
from podwire.kube.objects import Pod
from podwire.kube.resource import unstructured
from podwire.node.clock import Clock
from podwire.node.membership import Membership
from podwire.node.service import Node
from podwire.runtime.fake import FakeRuntime
from podwire.sources.mux import Mux
from podwire.sources.updates import Snapshot
from tests.node.helpers import HOST_IPS, Bench, pod

Object = dict[str, Any]
RAW_PODS = unstructured("", "v1", "pods", "Pod")
NAMESPACES = ("default", "kube-system", "kube-node-lease")


class Cluster:
    """An API server and its objects."""

    def __init__(self) -> None:
        self.storage = Storage()
        self.registry = Registry(self.storage, builtin())
        self.registry.patcher, self.registry.track = apply_patch, track
        self.server = TestServer(Server(self.registry).application())

    def object(self, plural: str, name: str, namespace: str = "default", group: str = "") -> Object | None:
        """An object as it is stored."""
        found = self.storage.get(Key(group, plural, namespace, name))
        return None if found is None else found.object

    def pod(self, name: str) -> Object:
        """A pod, empty if there is none."""
        return self.object("pods", name) or {}

    def client(self) -> Client:
        """A client of this server."""
        return Client(Config(server=str(self.server.make_url("")).rstrip("/")), qps=1000, burst=1000)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """A server that runs, with the namespaces that every cluster has."""
    made = Cluster()
    for name in NAMESPACES:
        at = Key("", "namespaces", "", name)
        await made.storage.create(at, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await made.server.start_server(shutdown_timeout=0.1)
    try:
        yield made
    finally:
        await made.server.close()
        await made.storage.close()


class Member(Bench):
    """A node with the sources file and api, and the server that it belongs to."""

    def __init__(
        self, root: Path, made: Cluster, client: Client, clock: Clock | None, runtime: FakeRuntime | None
    ) -> None:
        super().__init__(root, clock, runtime)
        self.cluster = made
        self.client = client
        self.mux = Mux("file", "api")
        self.node = Node(self.runtime, self.mux, "node", root=root, host_ips=HOST_IPS, clock=self.clock)
        self.member = Membership(client, self.node)
        self.markers = 0

    async def gone(self, name: str) -> None:
        """Wait until the server has no such pod."""
        await self.until(lambda: not self.cluster.pod(name))

    async def phase_is(self, name: str, phase: str) -> None:
        """Wait until the server shows the phase."""
        await self.until(lambda: self.cluster.pod(name).get("status", {}).get("phase") == phase)

    async def check(self, what: Callable[[Object], bool], name: str) -> Object:
        """Wait until something holds for the server's pod; that pod."""
        await self.until(lambda: bool(self.cluster.pod(name)) and what(self.cluster.pod(name)))
        return self.cluster.pod(name)

    async def caught_up(self) -> None:
        """Wait until what the server told so far is acted on: a pod that comes after it runs."""
        self.markers += 1
        name = f"marker-{self.markers}"
        await self.client.create(RAW_PODS, api_pod(name), "default")
        await self.phase_is(name, "Running")


@asynccontextmanager
async def member(
    root: Path, made: Cluster, *, clock: Clock | None = None, runtime: FakeRuntime | None = None
) -> AsyncIterator[Member]:
    """A running node; its runtime's state stays at the end."""
    async with made.client() as client:
        built = Member(root, made, client, clock, runtime)
        tasks = [
            asyncio.create_task(built.node.run()),
            asyncio.create_task(built.member.run()),
            asyncio.create_task(built.member.source.run(built.mux.merge)),
        ]
        ready = asyncio.create_task(built.node.ready.wait())
        await asyncio.wait((*tasks, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        try:
            yield built
        finally:
            built.node.stop()
            await tasks[0]
            for task in tasks[1:]:
                task.cancel()
            results = await asyncio.gather(*tasks[1:], return_exceptions=True)
            if runtime is None:
                await built.runtime.close()
            for result in results:
                if isinstance(result, Exception):
                    raise result


def api_pod(name: str = "web", **spec: Any) -> Object:
    """A pod for the server, bound to the node."""
    spec.setdefault("containers", [{"name": "main", "image": "example.org/image", "command": ["/bin/true"]}])
    metadata = spec.pop("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"nodeName": "node", **spec},
    }


def static(name: str = "web", **spec: Any) -> Pod:
    """A pod as the file source gives it; its name ends with ``-node``."""
    made = pod(name, **spec)
    plain = pod(name, **spec, metadata={"uid": ""}) if made.metadata.uid.startswith("uid-") else made
    return static_pod(plain, node_name="node", source="file", path=f"/manifests/{name}.yaml")


def given(*pods: Pod) -> Snapshot:
    """These are all pods of the file source."""
    return Snapshot("file", pods)
