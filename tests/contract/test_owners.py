"""Owner references: who goes with whom, and the ends of namespaces."""

from __future__ import annotations

import pytest

from tests.contract.api import MERGE, Api, Object, config_map, with_meta

HELD = ["contract.example/held"]


def owned(name: str, *owners: Object, block: bool = False) -> Object:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **({"blockOwnerDeletion": True} if block else {}),
        }
        for owner in owners
    ]
    return with_meta(config_map(name), ownerReferences=references)


async def make(api: Api, body: Object) -> Object:
    made: Object = (await api.create(api.at("configmaps"), body)).ok(201)
    return made


@pytest.mark.parametrize("options", [None, {"propagationPolicy": "Background"}, {"orphanDependents": False}])
async def test_in_the_background_the_owner_goes_first(api: Api, options: Object | None) -> None:
    owner = await make(api, config_map("owner"))
    child = await make(api, owned("child", owner))
    await make(api, owned("grandchild", child))
    (await api.delete(api.at("configmaps", "owner"), options)).ok()
    (await api.get(api.at("configmaps", "owner"))).fails(404, "NotFound")
    await api.gone(api.at("configmaps", "child"))
    await api.gone(api.at("configmaps", "grandchild"))


async def test_in_the_foreground_the_owner_waits(api: Api) -> None:
    owner = await make(api, config_map("owner"))
    blocking = with_meta(owned("child", owner, block=True), finalizers=HELD)
    await make(api, blocking)
    await make(api, owned("other", owner))
    body = (await api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Foreground"})).ok(200)
    assert body["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert body["metadata"]["deletionTimestamp"]
    await api.until(
        api.at("configmaps", "child"), lambda answer: "deletionTimestamp" in answer.body["metadata"]
    )
    await api.gone(api.at("configmaps", "other"))
    assert (await api.get(api.at("configmaps", "owner"))).ok(200)
    (await api.patch(api.at("configmaps", "child"), {"metadata": {"finalizers": None}}, MERGE)).ok()
    await api.gone(api.at("configmaps", "owner"))


async def test_orphans_stay(api: Api) -> None:
    owner = await make(api, config_map("owner"))
    await make(api, owned("child", owner))
    body = (await api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Orphan"})).ok(200)
    assert body["metadata"]["finalizers"] == ["orphan"]
    await api.gone(api.at("configmaps", "owner"))
    child = (await api.get(api.at("configmaps", "child"))).ok(200)
    assert "ownerReferences" not in child["metadata"]


async def test_one_of_two_owners_is_enough(api: Api) -> None:
    first, second = await make(api, config_map("first")), await make(api, config_map("second"))
    await make(api, owned("child", first, second))
    (await api.delete(api.at("configmaps", "first"))).ok()
    answer = await api.until(
        api.at("configmaps", "child"),
        lambda found: len(found.body["metadata"].get("ownerReferences", [])) == 1,
    )
    assert answer.body["metadata"]["ownerReferences"][0]["name"] == "second"
    (await api.delete(api.at("configmaps", "second"))).ok()
    await api.gone(api.at("configmaps", "child"))


async def test_an_owner_that_never_was(api: Api) -> None:
    owner = {"metadata": {"name": "never", "uid": "5d2ee1a4-0000-4000-8000-000000000000"}}
    await make(api, owned("child", owner))
    await api.gone(api.at("configmaps", "child"))


async def test_an_owner_of_the_same_name_is_another(api: Api) -> None:
    first = await make(api, with_meta(config_map("owner")))
    await make(api, with_meta(owned("child", first), finalizers=HELD))
    (await api.delete(api.at("configmaps", "owner"))).ok()
    await make(api, config_map("owner"))
    await api.until(
        api.at("configmaps", "child"), lambda answer: "deletionTimestamp" in answer.body["metadata"]
    )
    (await api.patch(api.at("configmaps", "child"), {"metadata": {"finalizers": None}}, MERGE)).ok()
    (await api.get(api.at("configmaps", "owner"))).ok(200)


@pytest.mark.parametrize("missing", ["apiVersion", "kind", "name", "uid"])
async def test_a_reference_is_whole(api: Api, missing: str) -> None:
    body = owned("child", {"metadata": {"name": "a", "uid": "b"}})
    body["metadata"]["ownerReferences"][0][missing] = ""
    (await api.create(api.at("configmaps"), body)).fails(
        422, "Invalid", f"metadata.ownerReferences[0].{missing}"
    )


async def test_there_is_one_controller(api: Api) -> None:
    owners = [{"metadata": {"name": name, "uid": name}} for name in ("a", "b")]
    body = owned("child", *owners)
    for reference in body["metadata"]["ownerReferences"]:
        reference["controller"] = True
    (await api.create(api.at("configmaps"), body)).fails(
        422, "Invalid", "Only one reference can have Controller set to true"
    )


async def new_namespace(api: Api, suffix: str) -> str:
    name = f"{api.namespace}-{suffix}"
    (await api.create("/api/v1/namespaces", {"metadata": {"name": name}})).ok(201)
    return name


async def test_a_new_namespace(api: Api) -> None:
    name = await new_namespace(api, "new")
    path = f"/api/v1/namespaces/{name}"
    body = (await api.get(path)).ok(200)
    assert body["status"] == {"phase": "Active"}
    assert body["spec"] == {"finalizers": ["kubernetes"]}
    assert body["metadata"]["labels"] == {"kubernetes.io/metadata.name": name}
    # The label is the server's.
    changed = (await api.patch(path, {"metadata": {"labels": {"kubernetes.io/metadata.name": None}}})).ok()
    assert changed["metadata"]["labels"]["kubernetes.io/metadata.name"] == name
    await api.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda answer: answer.code == 200)
    (await api.delete(path)).ok()


async def test_a_namespace_ends_with_all_that_is_in_it(api: Api) -> None:
    name = await new_namespace(api, "end")
    path = f"/api/v1/namespaces/{name}"
    (await api.create(f"{path}/configmaps", config_map("a"))).ok(201)
    (await api.create(f"{path}/configmaps", with_meta(config_map("held"), finalizers=HELD))).ok(201)
    body = (await api.delete(path)).ok(200)
    assert body["status"]["phase"] == "Terminating"
    assert body["metadata"]["deletionTimestamp"]
    refused = (await api.create(f"{path}/configmaps", config_map("late"))).fails(
        403,
        "Forbidden",
        f"unable to create new content in namespace {name} because it is being terminated",
        causes=(("NamespaceTerminating", "metadata.namespace"),),
    )
    assert refused["details"]["name"] == "late"
    await api.gone(f"{path}/configmaps/a")
    (await api.get(path)).ok(200)
    (await api.patch(f"{path}/configmaps/held", {"metadata": {"finalizers": None}}, MERGE)).ok()
    await api.gone(path)
    assert (await api.get(f"{path}/configmaps")).ok()["items"] == []


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_namespaces_that_stay(api: Api, name: str) -> None:
    (await api.get(f"/api/v1/namespaces/{name}")).ok(200)
    (await api.delete(f"/api/v1/namespaces/{name}", dryRun="All")).fails(
        403, "Forbidden", "this namespace may not be deleted"
    )


async def test_a_namespace_is_finalized(api: Api) -> None:
    name = await new_namespace(api, "fin")
    path = f"/api/v1/namespaces/{name}"
    body = (await api.get(path)).ok(200)
    body["spec"]["finalizers"] = ["kubernetes", "contract.example/own"]
    body = (await api.replace(f"{path}/finalize", body)).ok(200)
    assert body["spec"]["finalizers"] == ["kubernetes", "contract.example/own"]
    # A replace of the namespace itself leaves them alone.
    again = (await api.replace(path, {**body, "spec": {"finalizers": []}})).ok(200)
    assert again["spec"]["finalizers"] == ["kubernetes", "contract.example/own"]
    (await api.delete(path)).ok(200)
    own = ["contract.example/own"]
    answer = await api.until(path, lambda found: found.body["spec"].get("finalizers") == own)
    answer.body["spec"]["finalizers"] = []
    (await api.replace(f"{path}/finalize", answer.body)).ok(200)
    await api.gone(path)
