"""Client, informer, leader and recorder beside the API server in the box, over TLS with its kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from podwire.apiserver.server import ApiServer, Settings
from podwire.kube import config, errors
from podwire.kube.client import Client
from podwire.kube.decode import identity
from podwire.kube.informer import Change, Informer
from podwire.kube.leader import LeaderElector, Leadership, Timing
from podwire.kube.objects import Pod
from podwire.kube.recorder import Recorder
from podwire.kube.resource import CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, PODS


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    server = ApiServer(Settings(directory=directory, listen=("127.0.0.1:0",), controllers=False))
    await server.start()
    try:
        async with Client(config.load(server.files.kubeconfig), qps=1000, burst=1000) as client:
            for name in ("default", "kube-system"):
                with contextlib.suppress(errors.AlreadyExists):
                    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                    await client.create(NAMESPACES, namespace)
            yield server, client
    finally:
        await server.close()


def pod(name: str, node: str = "", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [{"name": "c", "image": "example.org/i"}],
            **({"nodeName": node} if node else {}),
        },
    }


async def until(informer: Informer[Pod], condition: Callable[[], bool]) -> None:
    """Wait for what a change brings about."""
    bell = asyncio.Event()
    registration = informer.add_handler(lambda change: bell.set())
    async with asyncio.timeout(20):
        while not condition():
            bell.clear()
            await bell.wait()
    registration.remove()


async def test_verbs_errors_and_patches(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        made = await client.create(PODS, pod("web", tier="front"), "default", field_manager="test")
        assert isinstance(made, Pod)
        assert made.metadata.uid
        with pytest.raises(errors.AlreadyExists):
            await client.create(PODS, pod("web"), "default")
        with pytest.raises(errors.Invalid) as caught:
            await client.create(PODS, pod("Not A Name"), "default")
        assert caught.value.details is not None
        assert caught.value.details.causes
        labels = {"metadata": {"labels": {"tier": None, "x": "1"}}}
        merged = await client.patch(PODS, labels, "web", "default")
        assert merged.metadata.labels == {"x": "1"}
        changed = await client.patch(
            PODS,
            {"spec": {"containers": [{"name": "c", "image": "example.org/j"}]}},
            "web",
            "default",
            kind="strategic",
        )
        assert [(each.name, each.image) for each in changed.spec.containers] == [("c", "example.org/j")]
        steps = [
            {"op": "test", "path": "/metadata/labels/x", "value": "1"},
            {"op": "remove", "path": "/metadata/labels/x"},
        ]
        assert (await client.patch(PODS, steps, "web", "default", kind="json")).metadata.labels == {}
        status = await client.patch(
            PODS,
            {"status": {"phase": "Running", "podIP": "10.1.2.3"}},
            "web",
            "default",
            subresource="status",
        )
        assert (status.status.phase, status.status.pod_ip) == ("Running", "10.1.2.3")
        with pytest.raises(errors.Conflict):
            await client.delete(PODS, "web", "default", uid="another")
        await client.delete(PODS, "web", "default", uid=made.metadata.uid, grace=0)
        with pytest.raises(errors.NotFound):
            await client.get(PODS, "web", "default")


async def test_apply_takes_fields_over_only_by_force(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": {"a": "1"}}
        await client.patch(CONFIG_MAPS, settings, "s", "default", kind="apply", field_manager="one")
        other = {**settings, "data": {"a": "2"}}
        with pytest.raises(errors.Conflict):
            await client.patch(CONFIG_MAPS, other, "s", "default", kind="apply", field_manager="two")
        found = await client.patch(
            CONFIG_MAPS, other, "s", "default", kind="apply", field_manager="two", force=True
        )
        assert found["data"] == {"a": "2"}
        dry = await client.patch(CONFIG_MAPS, {"data": {"a": "3"}}, "s", "default", dry_run=True)
        assert dry["data"] == {"a": "3"}
        assert (await client.get(CONFIG_MAPS, "s", "default"))["data"] == {"a": "2"}


async def test_who_is_not_known_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, client):
        stranger = config.Config(server=server.url, ca=client.config.ca)
        async with Client(stranger) as other:
            with pytest.raises(errors.ApiError) as caught:
                await other.list(PODS)
            assert isinstance(caught.value, errors.Unauthorized | errors.Forbidden)


@pytest.mark.parametrize("watch_list", [True, False])
async def test_an_informer_of_one_nodes_pods(tmp_path: Path, watch_list: bool) -> None:
    async with serving(tmp_path) as (_, client):
        for number in range(12):
            await client.create(PODS, pod(f"p{number:02}", f"n{number % 2}"), "default")
        informer = Informer(client, PODS, fields="spec.nodeName=n1", watch_list=watch_list)
        informer.reflector._page = 4
        changes: list[Change[Pod]] = []
        informer.add_handler(changes.append)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert len(informer.store) == 6
        assert informer.reflector.counts.lists == (0 if watch_list else 1)
        await until(informer, lambda: len(changes) == 6)
        await client.create(PODS, pod("late", "n1"), "default")
        await client.create(PODS, pod("other", "n0"), "default")
        await client.patch(PODS, {"metadata": {"labels": {"x": "y"}}}, "p01", "default")
        await client.delete(PODS, "p03", "default", grace=0)
        await until(informer, lambda: any(each.type == "delete" for each in changes))
        told = [
            (each.type, each.key)
            for each in changes[6:]
            if not (each.type == "update" and each.key.endswith("p03"))
        ]
        assert told == [("add", "default/late"), ("update", "default/p01"), ("delete", "default/p03")]
        page = await client.list_all(PODS, fields="spec.nodeName=n1", page=3)
        assert {identity(each) for each in page.items} == {identity(each) for each in informer.store.values()}
        assert informer.reflector.counts.errors == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_informer_outlives_its_server(tmp_path: Path) -> None:
    """I05: what was deleted while nobody watched is told, whatever the new server still knows."""
    server = ApiServer(Settings(directory=tmp_path, listen=("127.0.0.1:0",), controllers=False))
    await server.start()
    async with Client(config.load(server.files.kubeconfig), qps=1000, burst=1000) as client:
        await client.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        )
        for name in ("a", "b"):
            await client.create(PODS, pod(name), "default")
        informer = Informer(client, PODS, problem=lambda error: None)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        port = server.url.rsplit(":", 1)[1]
        await server.close()
        server = ApiServer(Settings(directory=tmp_path, listen=(f"127.0.0.1:{port}",), controllers=False))
        await server.start()
        await client.delete(PODS, "a", "default", grace=0)
        await client.create(PODS, pod("c"), "default")
        await until(informer, lambda: sorted(informer.store.keys()) == ["default/b", "default/c"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()


async def test_k7_a_lease_is_held_and_given_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        order: list[str] = []

        def candidate(name: str) -> asyncio.Task[None]:
            async def work(leadership: Leadership) -> None:
                order.append(name)
                await asyncio.sleep(0.4)
                order.append(f"{name} ends")

            timing = Timing(duration=3, renew_deadline=2, retry=0.1)
            return asyncio.create_task(
                LeaderElector(client, "role", "kube-system", name, timing=timing).run(work)
            )

        async with asyncio.timeout(15):
            await asyncio.gather(candidate("one"), candidate("two"))
        first, second = order[0], order[2]
        assert order == [first, f"{first} ends", second, f"{second} ends"]
        assert {first, second} == {"one", "two"}
        lease = await client.get(LEASES, "role", "kube-system")
        assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("", 1)


async def test_events_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        found = await client.create(PODS, pod("web"), "default")
        recorder = Recorder(client, "podwire", host="n1")
        running = asyncio.create_task(recorder.run())
        for _ in range(3):
            assert recorder.event(found, "Warning", "Failed", "it broke")
        async with asyncio.timeout(10):
            await recorder.flushed()
        page = await client.list(EVENTS, "default", fields="involvedObject.name=web")
        assert [(each.reason, each.count, each.involved_object.uid) for each in page.items] == [
            ("Failed", 3, found.metadata.uid)
        ]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
