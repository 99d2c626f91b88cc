"""Deletion: preconditions, grace, finalizers, and what is answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.contract.api import Api, Object, config_map, pod, with_meta

HELD = ["contract.example/held"]


async def test_a_deletion_answers_with_a_status(api: Api) -> None:
    made = (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
    body = (await api.delete(api.at("configmaps", "a"))).ok(200)
    details = {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
    (await api.delete(api.at("configmaps", "a"))).fails(404, "NotFound", 'configmaps "a" not found')


@pytest.mark.parametrize("wrong", ["uid", "resourceVersion"])
async def test_preconditions(api: Api, wrong: str) -> None:
    made = (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
    right = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    path = api.at("configmaps", "a")
    body = (await api.delete(path, {"preconditions": {**right, wrong: "17"}})).fails(
        409, "Conflict", "Precondition failed: ", "in precondition: 17", "in object meta: "
    )
    assert body["details"]["name"] == "a"
    (await api.delete(path, {"preconditions": right})).ok(200)


async def test_options_have_a_version_and_a_kind_or_not(api: Api) -> None:
    for number, head in enumerate(({}, {"apiVersion": "v1", "kind": "DeleteOptions"})):
        name = f"a{number}"
        (await api.create(api.at("configmaps"), config_map(name))).ok(201)
        (await api.delete(api.at("configmaps", name), {**head, "gracePeriodSeconds": 0})).ok(200)
    (await api.create(api.at("configmaps"), config_map("b"))).ok(201)
    meta = {"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions"}
    (await api.delete(api.at("configmaps", "b"), meta)).ok(200)


REFUSED: list[Any] = [
    pytest.param({"propagationPolicy": "Later"}, "propagationPolicy", id="unknown policy"),
    pytest.param(
        {"propagationPolicy": "Orphan", "orphanDependents": True}, "propagationPolicy", id="both ways"
    ),
    pytest.param({"dryRun": ["Some"]}, "dryRun", id="unknown dry run"),
]


@pytest.mark.parametrize(("options", "field"), REFUSED)
async def test_options_that_are_refused(api: Api, options: Object, field: str) -> None:
    (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
    body = (await api.delete(api.at("configmaps", "a"), options)).fails(422, "Invalid", field)
    assert body["details"]["kind"] == "DeleteOptions"
    (await api.get(api.at("configmaps", "a"))).ok(200)


async def test_a_finalizer_keeps_an_object(api: Api) -> None:
    path = api.at("configmaps", "a")
    (await api.create(api.at("configmaps"), with_meta(config_map("a"), finalizers=HELD))).ok(201)
    deleted = (await api.delete(path)).ok(200)
    meta = deleted["metadata"]
    assert deleted["kind"] == "ConfigMap"
    assert meta["deletionGracePeriodSeconds"] == 0
    assert datetime.fromisoformat(meta["deletionTimestamp"]) >= datetime.fromisoformat(
        meta["creationTimestamp"]
    )
    again = (await api.delete(path)).ok(200)
    assert again["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
    (await api.create(api.at("configmaps"), config_map("a"))).fails(409, "AlreadyExists")

    # It can be changed still, but no finalizer can be added, and the deletion cannot be taken back.
    assert (await api.patch(path, {"data": {"x": "y"}})).ok()["data"] == {"x": "y"}
    more = {"metadata": {"finalizers": [*HELD, "contract.example/more"]}}
    (await api.patch(path, more)).fails(
        422, "Invalid", "no new finalizers can be added if the object is being deleted"
    )
    kept = (await api.patch(path, {"metadata": {"deletionTimestamp": None}})).ok()
    assert kept["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]

    last = (await api.patch(path, {"metadata": {"finalizers": None}})).ok(200)
    assert last["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
    (await api.get(path)).fails(404, "NotFound")


async def test_a_watch_sees_how_a_held_object_goes(api: Api) -> None:
    body = with_meta(config_map("a"), finalizers=HELD)
    start = (await api.create(api.at("configmaps"), body)).ok(201)["metadata"]["resourceVersion"]
    watch = await api.watch(api.at("configmaps"), resourceVersion=start, fieldSelector="metadata.name=a")
    (await api.delete(api.at("configmaps", "a"))).ok()
    await api.patch(api.at("configmaps", "a"), [{"op": "remove", "path": "/metadata/finalizers"}], JSON)
    assert await watch.take(2) == [("MODIFIED", "a"), ("DELETED", "a")]


JSON = "application/json-patch+json"


@pytest.mark.parametrize("finalizer", ["plain", "a b/c", "Not_A.Domain/x"])
async def test_finalizers_have_qualified_names(api: Api, finalizer: str) -> None:
    body = with_meta(config_map("a"), finalizers=[finalizer])
    (await api.create(api.at("configmaps"), body)).fails(422, "Invalid", "metadata.finalizers")


async def bound(api: Api, name: str, **spec: Any) -> str:
    """A pod on a node that runs nothing; its path."""
    body = pod(name, nodeName=f"{api.namespace}-none", **spec)
    (await api.create(api.at("pods"), body)).ok(201)
    return api.at("pods", name)


async def test_a_pod_on_a_node_ends_with_grace(api: Api) -> None:
    path = await bound(api, "a")
    body = (await api.delete(path)).ok(200)
    meta = body["metadata"]
    assert body["kind"] == "Pod"
    assert meta["deletionGracePeriodSeconds"] == 30
    left = datetime.fromisoformat(meta["deletionTimestamp"]) - datetime.fromisoformat(
        meta["creationTimestamp"]
    )
    assert 29 <= left.total_seconds() <= 35
    assert (await api.get(path)).ok()["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]

    # Grace can be made shorter, and not longer.
    shorter = (await api.delete(path, {"gracePeriodSeconds": 5})).ok(200)["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert shorter["deletionTimestamp"] < meta["deletionTimestamp"]
    longer = (await api.delete(path, {"gracePeriodSeconds": 50})).ok(200)["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 5
    (await api.delete(path, {"gracePeriodSeconds": 0})).ok(200)
    (await api.get(path)).fails(404, "NotFound")


@pytest.mark.parametrize(
    ("spec", "options", "grace"),
    [
        ({"terminationGracePeriodSeconds": 7}, None, 7),
        ({"terminationGracePeriodSeconds": 7}, {"gracePeriodSeconds": 3}, 3),
        ({"terminationGracePeriodSeconds": 7}, {"gracePeriodSeconds": 70}, 70),
    ],
)
async def test_the_grace_of_a_pod(api: Api, spec: Object, options: Object | None, grace: int) -> None:
    path = await bound(api, "a", **spec)
    assert (await api.delete(path, options)).ok(200)["metadata"]["deletionGracePeriodSeconds"] == grace
    await api.delete(path, {"gracePeriodSeconds": 0})


async def test_who_watches_hears_that_no_time_is_left_before_a_pod_is_gone(api: Api) -> None:
    path = await bound(api, "a")
    entered = (await api.get(path)).ok()["metadata"]["resourceVersion"]
    watch = await api.watch(api.at("pods"), resourceVersion=entered)
    await api.delete(path)
    (await api.delete(path, {"gracePeriodSeconds": 0})).ok(200)
    events = [await watch.next() for _ in range(3)]
    told = [(e.type, e.object["metadata"]["deletionGracePeriodSeconds"]) for e in events if e]
    assert told == [("MODIFIED", 30), ("MODIFIED", 0), ("DELETED", 0)]


async def test_grace_in_the_query(api: Api) -> None:
    path = await bound(api, "a")
    assert (await api.delete(path, gracePeriodSeconds="4")).ok()["metadata"][
        "deletionGracePeriodSeconds"
    ] == 4
    (await api.delete(path, gracePeriodSeconds="0")).ok()
    (await api.get(path)).fails(404, "NotFound")


async def test_a_pod_that_runs_nowhere_is_gone_at_once(api: Api) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    assert (await api.delete(api.at("pods", "a"))).ok(200)["kind"] == "Pod"
    (await api.get(api.at("pods", "a"))).fails(404, "NotFound")


async def test_a_pod_that_has_ended_is_gone_at_once(api: Api) -> None:
    path = await bound(api, "a")
    (await api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}})).ok()
    (await api.delete(path)).ok(200)
    (await api.get(path)).fails(404, "NotFound")


async def test_a_deletion_that_begins_counts_as_a_generation(api: Api) -> None:
    path = api.at("networking.k8s.io/v1/networkpolicies", "p")
    body = {"metadata": {"name": "p", "finalizers": HELD}, "spec": {"podSelector": {}}}
    (await api.create(api.at("networking.k8s.io/v1/networkpolicies"), body)).ok(201)
    assert (await api.delete(path)).ok()["metadata"]["generation"] == 2
    (await api.patch(path, {"metadata": {"finalizers": None}})).ok()
