"""Clients that others wrote, against the API server unchanged: the official Python client, and kopf.

``PODWIRE_TEST_CLIENTS`` is a Python that has both; the one that runs the tests if it is not set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import Kind, WriteOptions
from podwire.apiserver.server import ApiServer
from podwire.serving.status import Failure
from tests.apiserver.crd.cluster import cluster, kubectls

PYTHON = os.environ.get("PODWIRE_TEST_CLIENTS") or sys.executable
ROOT = Path(__file__).parents[2]
OPERATOR = ROOT / "examples" / "operator" / "operator.py"
FLEETS = ROOT / "examples" / "operator" / "fleet.yaml"
SECONDS = 60.0


@contextlib.asynccontextmanager
async def program(kubeconfig: Path, home: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program with the server's kubeconfig; ended at the end."""
    home.mkdir(exist_ok=True)
    started = await asyncio.create_subprocess_exec(
        PYTHON,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig)},
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.communicate()


def served(server: ApiServer, group: str, plural: str) -> Kind:
    """A kind in version v1."""
    kind = server.registry.lookup(group, "v1", plural)
    assert kind is not None
    return kind


async def until(server: ApiServer, condition: Callable[[], bool], *resources: tuple[str, str]) -> None:
    """Wait for something that a change of these resources brings about."""
    bell = asyncio.Event()
    storage = server.storage
    watches = [storage.watch(*resource, since=storage.revision) for resource in resources]

    async def ring(watch: Any) -> None:
        async for _ in watch:
            bell.set()

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ring(watch)) for watch in watches]
        while not condition():
            await bell.wait()
            bell.clear()
        for watch, task in zip(watches, tasks, strict=True):
            task.cancel()
            watch.close()


async def test_the_official_client(tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "apiserver" / "official_client.py")
    async with (
        cluster(tmp_path) as k,
        program(k.kubeconfig, tmp_path / "home", script, str(FLEETS)) as ran,
    ):
        async with asyncio.timeout(SECONDS):
            out, errors = await ran.communicate()
        assert ran.returncode == 0, errors.decode()
    assert json.loads(out) == {
        "created": ["ConfigMap", "c", True],
        "again": [409, "AlreadyExists"],
        "missing": [404, "NotFound"],
        "merged": {"k": "1", "x": "y"},
        "stale": [409, "Conflict"],
        "json patch": {"k": "1"},
        "pages": [6, 4],
        "selected": ["c"],
        "invalid": [422, "Invalid"],
        "status": "Running",
        "events": [["ADDED", "s"], ["MODIFIED", "s"], ["DELETED", "s"]],
        "conditions": ["Established", "NamesAccepted"],
        "custom": {"image": "busybox", "size": 1},
        "custom invalid": [422, "Invalid"],
        "custom status": {"size": 2, "selector": "a=b"},
        "scale": [1, 2, "a=b"],
        "applied": ["other", 3],
        "managers": ["me Apply", "OpenAPI-Generator Update", "OpenAPI-Generator Update"],
        "listed": ["f"],
        "version": "1",
    }


async def test_an_operator_with_kopf(tmp_path: Path) -> None:
    pods, fleets, maps = ("", "pods"), ("example.com", "fleets"), ("", "configmaps")
    async with cluster(tmp_path, kubectls()[-1]) as k:
        server, registry = k.server, k.server.registry
        await k("apply", "-f", str(FLEETS))
        kind = served(server, "example.com", "fleets")

        def names() -> list[str]:
            return sorted(one.object["metadata"]["name"] for one in server.storage.list(*pods).items)

        def fleet() -> dict[str, Any]:
            try:
                return registry.get(kind, "default", "web").object
            except Failure:
                return {}

        def filled(size: int) -> Callable[[], bool]:
            wanted = [f"web-{number}" for number in range(size)]
            return lambda: names() == wanted and (fleet().get("status") or {}).get("size") == size

        arguments = ("-m", "kopf", "run", "--all-namespaces", str(OPERATOR))
        async with program(k.kubeconfig, tmp_path / "operator", *arguments):
            made = {
                "apiVersion": "example.com/v1",
                "kind": "Fleet",
                "metadata": {"name": "web"},
                "spec": {"image": "busybox", "size": 3},
            }
            await registry.create(kind, "default", made, WriteOptions(field_manager="test"))
            await until(server, filled(3), pods, fleets)
            owner = server.storage.list(*pods).items[0].object["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["uid"]) == ("Fleet", fleet()["metadata"]["uid"])
            # kopf's finalizer holds the object until its handlers are done.
            assert fleet()["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]

            await k("scale", "fleet", "web", "--replicas=1")
            await until(server, filled(1), pods, fleets)
            before = server.storage.list(*pods).items[0].object["metadata"]["uid"]
            await registry.delete(served(server, "", "pods"), "default", "web-0", DeleteOptions(grace=0))

            def again() -> bool:
                found = server.storage.list(*pods).items
                return bool(found) and found[0].object["metadata"]["uid"] != before

            await until(server, again, pods)
            assert "Filled" in await k("get", "events")
            await registry.delete(kind, "default", "web", DeleteOptions())
            await until(server, lambda: not names() and not fleet(), pods, fleets)
            notes = [one.object for one in server.storage.list(*maps).items]
            assert [(one["metadata"]["name"], one["data"]) for one in notes] == [
                ("web-was-here", {"fleet": "web"})
            ]
