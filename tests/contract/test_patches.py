"""Merge, JSON and strategic merge patches, and server-side apply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, Object, config_map, pod, with_meta

SERVICE: Object = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s"},
    "spec": {"ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]},
}


async def test_merge_patch_sets_removes_and_replaces_lists(api: Api) -> None:
    body = with_meta(
        config_map("a", x="1", y="2"), labels={"l": "1"}, finalizers=["a.example/1", "a.example/2"]
    )
    (await api.create(api.at("configmaps"), body)).ok(201)
    change = {"data": {"x": None, "z": "3"}, "metadata": {"labels": None, "finalizers": ["a.example/2"]}}
    found = (await api.patch(api.at("configmaps", "a"), change, MERGE)).ok(200)
    assert found["data"] == {"y": "2", "z": "3"}
    assert "labels" not in found["metadata"]
    assert found["metadata"]["finalizers"] == ["a.example/2"]
    (await api.patch(api.at("configmaps", "a"), {"metadata": {"finalizers": []}}, MERGE)).ok(200)


JSON_CASES: list[Any] = [
    pytest.param([{"op": "add", "path": "/data/z", "value": "3"}], {"x": "1", "y": "2", "z": "3"}, id="add"),
    pytest.param([{"op": "remove", "path": "/data/x"}], {"y": "2"}, id="remove"),
    pytest.param([{"op": "replace", "path": "/data/x", "value": "9"}], {"x": "9", "y": "2"}, id="replace"),
    pytest.param([{"op": "move", "from": "/data/x", "path": "/data/z"}], {"y": "2", "z": "1"}, id="move"),
    pytest.param(
        [{"op": "copy", "from": "/data/x", "path": "/data/z"}], {"x": "1", "y": "2", "z": "1"}, id="copy"
    ),
    pytest.param(
        [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "remove", "path": "/data/y"}],
        {"x": "1"},
        id="test",
    ),
    pytest.param([], {"x": "1", "y": "2"}, id="nothing"),
]


@pytest.mark.parametrize(("change", "data"), JSON_CASES)
async def test_json_patch(api: Api, change: list[Object], data: Object) -> None:
    (await api.create(api.at("configmaps"), config_map("a", x="1", y="2"))).ok(201)
    assert (await api.patch(api.at("configmaps", "a"), change, JSON_PATCH)).ok(200)["data"] == data


BAD: list[Any] = [
    pytest.param(
        [{"op": "test", "path": "/data/x", "value": "9"}], JSON_PATCH, 422, "Invalid", id="test fails"
    ),
    pytest.param([{"op": "remove", "path": "/data/none"}], JSON_PATCH, 422, "Invalid", id="nothing there"),
    pytest.param({"op": "remove"}, JSON_PATCH, 400, "BadRequest", id="no list of operations"),
    pytest.param(b"{", MERGE, 400, "BadRequest", id="no JSON"),
    pytest.param(b"{", STRATEGIC, 400, "BadRequest", id="no JSON, strategic"),
    pytest.param({"data": {"x": 1}}, MERGE, 422, "Invalid", id="wrong type"),
    pytest.param({"data": "x"}, STRATEGIC, 422, "Invalid", id="wrong shape"),
    pytest.param({"metadata": {"labels": {"a": "-"}}}, MERGE, 422, "Invalid", id="bad label"),
    pytest.param({}, "application/json", 415, "UnsupportedMediaType", id="no patch"),
    pytest.param({}, "text/plain", 415, "UnsupportedMediaType", id="text"),
]


@pytest.mark.parametrize(("change", "kind", "code", "reason"), BAD)
async def test_patches_that_are_refused(api: Api, change: Any, kind: str, code: int, reason: str) -> None:
    (await api.create(api.at("configmaps"), config_map("a", x="1"))).ok(201)
    before = (await api.get(api.at("configmaps", "a"))).ok()
    (await api.patch(api.at("configmaps", "a"), change, kind)).fails(code, reason)
    assert (await api.get(api.at("configmaps", "a"))).ok() == before


@pytest.mark.parametrize("kind", [MERGE, JSON_PATCH, STRATEGIC])
async def test_only_an_apply_makes_an_object(api: Api, kind: str) -> None:
    change: Any = [] if kind == JSON_PATCH else {}
    (await api.patch(api.at("configmaps", "none"), change, kind)).fails(404, "NotFound")


async def test_strategic_merge_goes_by_keys(api: Api) -> None:
    (await api.create(api.at("services"), SERVICE)).ok(201)
    path = api.at("services", "s")
    change: Object = {"spec": {"ports": [{"port": 53, "name": "names"}, {"port": 443, "name": "https"}]}}
    found = (await api.patch(path, change, STRATEGIC)).ok(200)["spec"]["ports"]
    assert {p["port"]: p["name"] for p in found} == {80: "http", 53: "names", 443: "https"}
    change = {"spec": {"ports": [{"port": 80, "$patch": "delete"}]}}
    found = (await api.patch(path, change, STRATEGIC)).ok(200)["spec"]["ports"]
    assert sorted(p["port"] for p in found) == [53, 443]
    change = {"spec": {"ports": [{"$patch": "replace"}, {"port": 8080}]}}
    found = (await api.patch(path, change, STRATEGIC)).ok(200)["spec"]["ports"]
    assert [p["port"] for p in found] == [8080]


async def test_strategic_merge_of_lists_of_values(api: Api) -> None:
    body = with_meta(config_map("a"), finalizers=["a.example/1", "a.example/2"])
    (await api.create(api.at("configmaps"), body)).ok(201)
    path = api.at("configmaps", "a")
    change: Object = {"metadata": {"finalizers": ["a.example/3"]}}
    found = (await api.patch(path, change, STRATEGIC)).ok()["metadata"]["finalizers"]
    assert sorted(found) == ["a.example/1", "a.example/2", "a.example/3"]
    change = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.example/1", "a.example/3"]}}
    assert (await api.patch(path, change, STRATEGIC)).ok()["metadata"]["finalizers"] == ["a.example/2"]
    change = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.example/2"]}}
    (await api.patch(path, change, STRATEGIC)).ok()


async def test_strategic_merge_replaces_maps_when_told(api: Api) -> None:
    (await api.create(api.at("configmaps"), config_map("a", x="1", y="2"))).ok(201)
    change = {"data": {"$patch": "replace", "z": "3"}}
    assert (await api.patch(api.at("configmaps", "a"), change, STRATEGIC)).ok()["data"] == {"z": "3"}


def managers(body: Object) -> dict[tuple[str, str], Object]:
    """fieldsV1 by manager and operation."""
    found = {}
    for entry in body["metadata"].get("managedFields", []):
        assert entry["fieldsType"] == "FieldsV1"
        found[entry["manager"], entry["operation"]] = entry["fieldsV1"]
    return found


async def apply(api: Api, body: Object, manager: str, **query: str) -> Any:
    plural = {"ConfigMap": "configmaps", "Service": "services", "Pod": "pods"}[body["kind"]]
    path = api.at(plural, body["metadata"]["name"])
    return await api.patch(path, body, APPLY, fieldManager=manager, **query)


async def test_apply_makes_and_changes(api: Api) -> None:
    made = (await apply(api, config_map("a", x="1", y="2"), "one")).ok(201)
    assert managers(made) == {("one", "Apply"): {"f:data": {"f:x": {}, "f:y": {}}}}
    again = (await apply(api, config_map("a", x="1", y="2"), "one")).ok(200)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    found = (await apply(api, config_map("a", x="3"), "one")).ok(200)
    # What is no longer applied, and nobody else's, goes.
    assert found["data"] == {"x": "3"}


async def test_apply_conflicts_name_the_other_manager(api: Api) -> None:
    (await apply(api, config_map("a", x="1"), "one")).ok(201)
    body = (await apply(api, config_map("a", x="2"), "two")).fails(
        409, "Conflict", 'Apply failed with 1 conflict: conflict with "one": .data.x'
    )
    assert body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.x"}
    ]
    forced = (await apply(api, config_map("a", x="2"), "two", force="true")).ok(200)
    assert forced["data"] == {"x": "2"}
    assert managers(forced) == {("two", "Apply"): {"f:data": {"f:x": {}}}}


async def test_the_same_value_is_shared(api: Api) -> None:
    (await apply(api, config_map("a", x="1"), "one")).ok(201)
    both = (await apply(api, config_map("a", x="1"), "two")).ok(200)
    assert set(managers(both)) == {("one", "Apply"), ("two", "Apply")}
    nothing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    left = (await apply(api, nothing, "one")).ok(200)
    assert left["data"] == {"x": "1"}
    assert set(managers(left)) == {("two", "Apply")}


async def test_an_update_takes_fields_over(api: Api) -> None:
    (await apply(api, config_map("a", x="1", y="2"), "one")).ok(201)
    changed = (
        await api.patch(api.at("configmaps", "a"), {"data": {"x": "9"}}, MERGE, fieldManager="ed")
    ).ok()
    assert managers(changed) == {
        ("one", "Apply"): {"f:data": {"f:y": {}}},
        ("ed", "Update"): {"f:data": {"f:x": {}}},
    }
    (await apply(api, config_map("a", x="1", y="2"), "one")).fails(
        409, "Conflict", 'conflict with "ed" using v1: .data.x'
    )


async def test_apply_merges_lists_by_their_keys(api: Api) -> None:
    first = {**SERVICE, "spec": {"ports": [{"name": "http", "port": 80}]}}
    second = {**SERVICE, "spec": {"ports": [{"name": "tls", "port": 443}]}}
    (await apply(api, first, "one")).ok(201)
    both = (await apply(api, second, "two")).ok(200)
    assert [p["port"] for p in both["spec"]["ports"]] == [80, 443]
    fields = managers(both)["two", "Apply"]["f:spec"]["f:ports"]
    key = 'k:{"port":443,"protocol":"TCP"}'
    assert fields == {key: {".": {}, "f:name": {}, "f:port": {}}}


async def test_apply_of_containers(api: Api) -> None:
    (await apply(api, pod("p"), "one")).ok(201)
    image = {"name": "main", "image": "registry.invalid/none:1"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [image]}}
    found = (await apply(api, body, "two")).ok(200)
    fields = managers(found)["two", "Apply"]["f:spec"]["f:containers"]
    assert fields == {'k:{"name":"main"}': {".": {}, "f:name": {}, "f:image": {}}}


async def test_applied_yaml(api: Api) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: applied\ndata:\n  a: b\n"
    made = (await api.patch(api.at("configmaps", "applied"), text, APPLY, fieldManager="one")).ok(201)
    assert made["data"] == {"a": "b"}


async def test_dry_run_of_an_apply(api: Api) -> None:
    (await apply(api, config_map("a", x="1"), "one", dryRun="All")).ok()
    (await api.get(api.at("configmaps", "a"))).fails(404, "NotFound")


BAD_APPLIES: list[Any] = [
    pytest.param(config_map("a"), {}, 422, "Invalid", "fieldManager", id="no manager"),
    pytest.param(
        with_meta(config_map("a"), managedFields=[{"manager": "x"}]),
        {"fieldManager": "m"},
        400,
        "BadRequest",
        "metadata.managedFields must be nil",
        id="managed fields",
    ),
    pytest.param({"metadata": {"name": "a"}}, {"fieldManager": "m"}, 400, "BadRequest", "", id="no kind"),
    pytest.param(
        {**config_map("b")}, {"fieldManager": "m"}, 400, "BadRequest", "does not match", id="another name"
    ),
    pytest.param(
        with_meta(config_map("a"), uid="00000000-0000-0000-0000-000000000000"),
        {"fieldManager": "m"},
        409,
        "Conflict",
        "uid mismatch",
        id="uid of nothing",
    ),
]


@pytest.mark.parametrize(("body", "query", "code", "reason", "words"), BAD_APPLIES)
async def test_applies_that_are_refused(
    api: Api, body: Object, query: dict[str, str], code: int, reason: str, words: str
) -> None:
    (await api.patch(api.at("configmaps", "a"), body, APPLY, **query)).fails(code, reason, words)


async def test_force_is_for_apply(api: Api) -> None:
    (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
    (await api.patch(api.at("configmaps", "a"), {}, MERGE, force="true")).fails(422, "Invalid", "force")


async def test_managed_fields_can_be_dropped(api: Api) -> None:
    (await apply(api, config_map("a", x="1"), "one")).ok(201)
    found = (await api.patch(api.at("configmaps", "a"), {"metadata": {"managedFields": [{}]}}, MERGE)).ok()
    assert not managers(found)


async def test_the_manager_of_a_write_is_its_program(api: Api) -> None:
    headers = {"User-Agent": "some-tool/1.2 (linux)"}
    made = await api.send("POST", api.at("configmaps"), config_map("a", x="1"), headers=headers)
    assert managers(made.ok(201)) == {("some-tool", "Update"): {"f:data": {".": {}, "f:x": {}}}}


async def test_status_has_a_manager_of_its_own(api: Api) -> None:
    (await apply(api, pod("p"), "one")).ok(201)
    change = {"status": {"message": "m"}}
    found = (await api.patch(f"{api.at('pods', 'p')}/status", change, MERGE, fieldManager="node")).ok()
    entry = [e for e in found["metadata"]["managedFields"] if e["manager"] == "node"]
    assert [e["subresource"] for e in entry] == ["status"]
    assert entry[0]["fieldsV1"] == {"f:status": {"f:message": {}}}
