"""Definitions in a registry: what is served when, in which version, and what a deletion takes along."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from podwire.apiserver import patch
from podwire.apiserver.controllers.namespaces import Namespaces
from podwire.apiserver.crd import DEFINITIONS, Definitions
from podwire.apiserver.crd.definition import GROUP, PLURAL
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import Kind, WriteOptions
from podwire.apiserver.kinds import builtin
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Storage
from podwire.serving.status import Failure
from tests.apiserver.crd.definitions import crontab, definition, version

NAME = "crontabs.example.com"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Registry]:
    storage = Storage(None)
    registry = Registry(storage, builtin())
    registry.patcher, registry.track = patch.apply_patch, patch.track
    definitions = Definitions(registry)
    try:
        await Namespaces(registry).furnish()
        await definitions.start()
        yield registry
    finally:
        await definitions.close()
        await storage.close()


def options(**given: Any) -> WriteOptions:
    return WriteOptions(field_manager="test", **given)


async def define(registry: Registry, obj: dict[str, Any]) -> None:
    await registry.create(DEFINITIONS, "", obj, options())


def served(registry: Registry, name: str = "v1") -> Kind:
    kind = registry.lookup("example.com", name, "crontabs")
    assert kind is not None
    return kind


async def until(registry: Registry, condition: Callable[[], bool]) -> None:
    """Wait for something that a change of the kinds or of an object brings about."""
    bell = asyncio.Event()
    registry.on_change(bell.set)

    async def ring(plural: str, group: str) -> None:
        async for _ in registry.storage.watch(group, plural, since=registry.storage.revision):
            bell.set()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ring(*one)) for one in ((PLURAL, GROUP), ("crontabs", "example.com"))]
        await asyncio.sleep(0)
        while not condition():
            await bell.wait()
            bell.clear()
        for task in tasks:
            task.cancel()


def conditions(registry: Registry, name: str = NAME) -> dict[str, tuple[str, str]]:
    obj = registry.get(DEFINITIONS, "", name).object
    return {one["type"]: (one["status"], one["reason"]) for one in obj["status"]["conditions"]}


async def test_a_definition_is_served_when_its_create_is_answered() -> None:
    async with serving() as registry:
        await define(registry, definition())
        assert served(registry).short_names == ("ct",)
        await until(registry, lambda: "status" in registry.get(DEFINITIONS, "", NAME).object)
        assert conditions(registry) == {
            "NamesAccepted": ("True", "NoConflicts"),
            "Established": ("True", "InitialNamesAccepted"),
        }
        status = registry.get(DEFINITIONS, "", NAME).object["status"]
        assert status["storedVersions"] == ["v1"]
        assert status["acceptedNames"]["listKind"] == "CronTabList"


async def test_names_that_are_taken_are_not_accepted() -> None:
    async with serving() as registry:
        await define(registry, definition())
        await define(registry, definition(plural="others", kind="Other", shortNames=["ct"]))
        await until(registry, lambda: "status" in registry.get(DEFINITIONS, "", "others.example.com").object)
        assert conditions(registry, "others.example.com") == {
            "NamesAccepted": ("False", "ShortNamesConflict"),
            "Established": ("False", "NotAccepted"),
        }
        assert registry.lookup("example.com", "v1", "others") is None
        await registry.delete(DEFINITIONS, "", NAME, DeleteOptions())
        await until(registry, lambda: registry.lookup("example.com", "v1", "others") is not None)


async def test_a_built_in_kind_cannot_be_defined_anew() -> None:
    async with serving() as registry:
        obj = definition(plural="leases", kind="Lease", shortNames=[])
        obj["spec"]["group"] = "coordination.k8s.io"
        obj["metadata"] = {
            "name": "leases.coordination.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://example.com"},
        }
        built_in = registry.lookup("coordination.k8s.io", "v1", "leases")
        await define(registry, obj)
        await until(
            registry, lambda: "status" in registry.get(DEFINITIONS, "", obj["metadata"]["name"]).object
        )
        assert conditions(registry, "leases.coordination.k8s.io")["NamesAccepted"] == (
            "False",
            "PluralConflict",
        )
        assert registry.lookup("coordination.k8s.io", "v1", "leases") is built_in


async def test_defaults_and_generation() -> None:
    async with serving() as registry:
        await define(registry, definition(version(subresources={"status": {}})))
        kind = served(registry)
        made = await registry.create(kind, "default", {**crontab(), "status": {"replicas": 9}}, options())
        assert made.object["spec"] == {"cronSpec": "* * * * *", "image": "busybox", "replicas": 1}
        assert made.object["metadata"]["generation"] == 1
        assert "status" not in made.object
        part = kind.subresources["status"]
        body = b'{"status":{"replicas":3},"spec":{"replicas":7}}'
        media = "application/merge-patch+json"
        after, _ = await registry.patch(
            kind, "default", "one", body=body, content_type=media, options=options(), subresource=part
        )
        assert (after.object["status"], after.object["spec"]["replicas"]) == ({"replicas": 3}, 1)
        assert after.object["metadata"]["generation"] == 1


async def test_metadata_of_custom_objects_is_checked() -> None:
    async with serving() as registry:
        await define(registry, definition())
        kind = served(registry)
        wrong = crontab()
        wrong["metadata"]["labels"] = 5
        with pytest.raises(Failure) as caught:
            await registry.create(kind, "default", wrong, options())
        assert caught.value.code == 400
        assert "json: cannot unmarshal number" in caught.value.message
        typo = crontab()
        typo["metadata"]["lables"] = {}
        told = options()
        await registry.create(kind, "default", typo, told)
        assert told.warnings == ['unknown field "metadata.lables"']


async def test_an_update_needs_a_resource_version() -> None:
    async with serving() as registry:
        await define(registry, definition())
        kind = served(registry)
        await registry.create(kind, "default", crontab(), options())
        with pytest.raises(Failure) as caught:
            await registry.replace(kind, "default", "one", obj=crontab(replicas=2), options=options())
        assert "metadata.resourceVersion: Invalid value" in caught.value.message


async def test_versions_show_the_same_objects() -> None:
    async with serving() as registry:
        await define(registry, definition(version("v1"), version("v1beta1", storage=False)))
        old = served(registry, "v1beta1")
        made = crontab(api_version="example.com/v1beta1")
        stored = await registry.create(old, "default", made, options())
        assert stored.object["apiVersion"] == "example.com/v1"
        seen = registry.view(old, registry.get(old, "default", "one"))
        assert seen["apiVersion"] == "example.com/v1beta1"
        new = served(registry, "v1")
        assert registry.view(new, registry.get(new, "default", "one"))["apiVersion"] == "example.com/v1"


async def test_a_version_that_is_not_served_any_more_goes() -> None:
    async with serving() as registry:
        await define(registry, definition(version("v1"), version("v1beta1", storage=False)))
        body = b'[{"op":"replace","path":"/spec/versions/1/served","value":false}]'
        media = "application/json-patch+json"
        await registry.patch(DEFINITIONS, "", NAME, body=body, content_type=media, options=options())
        await until(registry, lambda: registry.lookup("example.com", "v1beta1", "crontabs") is None)
        assert served(registry, "v1").version == "v1"


async def test_what_may_not_change() -> None:
    async with serving() as registry:
        await define(registry, definition())
        await until(registry, lambda: "status" in registry.get(DEFINITIONS, "", NAME).object)

        async def refused(patched: bytes) -> str:
            with pytest.raises(Failure) as caught:
                await registry.patch(
                    DEFINITIONS,
                    "",
                    NAME,
                    body=patched,
                    content_type="application/json-patch+json",
                    options=options(),
                )
            return caught.value.message

        scope = b'[{"op":"replace","path":"/spec/scope","value":"Cluster"}]'
        assert 'spec.scope: Invalid value: "Cluster": field is immutable' in await refused(scope)
        renamed = b'[{"op":"replace","path":"/spec/versions/0/name","value":"v2"}]'
        assert 'status.storedVersions[0]: Invalid value: "v1": missing from spec.versions' in await refused(
            renamed
        )


async def test_a_deletion_takes_the_objects_along() -> None:
    async with serving() as registry:
        await define(registry, definition())
        kind = served(registry)
        for name in ("one", "two"):
            await registry.create(kind, "default", crontab(name), options())
        _, gone = await registry.delete(DEFINITIONS, "", NAME, DeleteOptions())
        assert not gone
        await until(registry, lambda: registry.lookup("example.com", "v1", "crontabs") is None)
        assert registry.storage.list("example.com", "crontabs").items == []
        with pytest.raises(Failure):
            registry.get(DEFINITIONS, "", NAME)


async def test_a_deletion_waits_for_finalizers_of_objects() -> None:
    async with serving() as registry:
        await define(registry, definition())
        kind = served(registry)
        held = crontab()
        held["metadata"]["finalizers"] = ["hold"]
        await registry.create(kind, "default", held, options())
        await registry.delete(DEFINITIONS, "", NAME, DeleteOptions())
        await until(registry, lambda: "Terminating" in conditions(registry))
        await until(
            registry, lambda: "deletionTimestamp" in registry.get(kind, "default", "one").object["metadata"]
        )
        # Nothing is made of a resource that is going.
        assert "create" not in served(registry).verbs

        def release(obj: dict[str, Any]) -> dict[str, Any]:
            obj["metadata"]["finalizers"] = []
            return obj

        await registry.update(kind, "default", "one", release)
        await until(registry, lambda: registry.lookup("example.com", "v1", "crontabs") is None)


async def test_a_restart_serves_what_was_there(tmp_path: Any) -> None:
    for turn in range(2):
        storage = Storage(tmp_path / "db")
        registry = Registry(storage, builtin())
        definitions = Definitions(registry)
        if not turn:
            await Namespaces(registry).furnish()
        await definitions.start()
        if turn:
            assert registry.get(served(registry), "default", "one").object["kind"] == "CronTab"
        else:
            await define(registry, definition())
            await registry.create(served(registry), "default", crontab(), options())
        await definitions.close()
        await storage.close()


async def test_what_this_server_leaves_out_is_told() -> None:
    async with serving() as registry:
        told = options()
        obj = definition()
        obj["spec"]["conversion"] = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}}
        await registry.create(DEFINITIONS, "", obj, told)
        assert told.warnings == [
            "spec.conversion: webhooks are not called; objects are converted by their apiVersion alone"
        ]
