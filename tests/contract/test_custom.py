"""CustomResourceDefinitions and their objects."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.api import APPLY, MERGE, STRATEGIC, TABLE, Api, Object

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SCHEMA: Object = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "mode": {"type": "string", "enum": ["fast", "safe"], "default": "safe"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "port": {"x-kubernetes-int-or-string": True},
                "replicas": {"type": "integer"},
                "items": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {
                        "type": "object",
                        "required": ["id"],
                        "properties": {"id": {"type": "string"}, "note": {"type": "string"}},
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["id"],
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "ready": {"type": "boolean"},
                "replicas": {"type": "integer"},
                "selector": {"type": "string"},
            },
        },
    },
}


def definition(group: str) -> Object:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How large."},
        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {"status": {}, "scale": scale},
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "plural": "widgets",
                "singular": "widget",
                "kind": "Widget",
                "shortNames": ["wd"],
                "categories": ["contract"],
            },
            "versions": [version],
        },
    }


def established(answer: Any) -> bool:
    conditions = {c["type"]: c["status"] for c in answer.body.get("status", {}).get("conditions", [])}
    return conditions.get("Established") == "True" and conditions.get("NamesAccepted") == "True"


@pytest.fixture
async def group(api: Api) -> AsyncIterator[str]:
    """The group of a definition that is established; it goes with the test."""
    name = f"{api.namespace}.example"
    (await api.create(DEFINITIONS, definition(name))).ok(201)
    path = f"{DEFINITIONS}/widgets.{name}"
    await api.until(path, established)
    await api.until(path, lambda _: True)
    yield name
    await api.delete(path)
    await api.gone(path)


def widget(group: str, name: str, /, **spec: Any) -> Object:
    return {
        "apiVersion": f"{group}/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


async def test_an_established_definition_is_discovered(api: Api, group: str) -> None:
    body = (await api.get(f"{DEFINITIONS}/widgets.{group}")).ok()
    assert body["status"]["acceptedNames"]["kind"] == "Widget"
    assert body["status"]["storedVersions"] == ["v1"]
    assert body["spec"]["names"]["listKind"] == "WidgetList"
    resources = {one["name"]: one for one in (await api.get(f"/apis/{group}/v1")).ok()["resources"]}
    assert resources.keys() == {"widgets", "widgets/status", "widgets/scale"}
    one = resources["widgets"]
    assert (one["kind"], one["singularName"], one["shortNames"]) == ("Widget", "widget", ["wd"])
    assert one["categories"] == ["contract"]
    scale = resources["widgets/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")
    document = (await api.get(f"/openapi/v3/apis/{group}/v1")).ok()
    assert any(name.endswith(".Widget") for name in document["components"]["schemas"])


async def test_custom_objects_live_like_others(api: Api, group: str) -> None:
    at = f"{group}/v1/widgets"
    made = (await api.create(api.at(at), widget(group, "a", size=2, none="x"), fieldValidation="Warn")).ok(
        201
    )
    # Defaults are filled in, what the schema does not know is dropped.
    assert made["spec"] == {"size": 2, "mode": "safe"}
    assert made["metadata"]["generation"] == 1
    watch = await api.watch(api.at(at), resourceVersion=made["metadata"]["resourceVersion"])
    found = (await api.patch(api.at(at, "a"), {"spec": {"size": 3, "free": {"any": [1]}}}, MERGE)).ok()
    assert found["spec"] == {"size": 3, "mode": "safe", "free": {"any": [1]}}
    assert found["metadata"]["generation"] == 2
    assert (await api.get(api.at(at))).ok()["kind"] == "WidgetList"
    deleted = (await api.delete(api.at(at, "a"))).ok(200)
    assert deleted["status"] == "Success"
    assert await watch.take(2) == [("MODIFIED", "a"), ("DELETED", "a")]
    (await api.get(api.at(at, "a"))).fails(404, "NotFound", f'widgets.{group} "a" not found')
    (await api.patch(api.at(at, "a"), {}, STRATEGIC)).fails(415, "UnsupportedMediaType")


FAULTS: list[Any] = [
    pytest.param({"size": 0}, "FieldValueInvalid", "spec.size", id="too small"),
    pytest.param({"size": 11}, "FieldValueInvalid", "spec.size", id="too large"),
    pytest.param({"size": "1"}, "FieldValueTypeInvalid", "spec.size", id="type"),
    pytest.param({"mode": "slow"}, "FieldValueNotSupported", "spec.mode", id="enumeration"),
    pytest.param({"name": "A"}, "FieldValueInvalid", "spec.name", id="pattern"),
    pytest.param({"name": "abcdef"}, "FieldValueTooLong", "spec.name", id="length"),
    pytest.param({"items": [{"note": "x"}]}, "FieldValueRequired", "spec.items[0].id", id="required"),
    pytest.param({"items": [{"id": "a"}, {"id": "a"}]}, "FieldValueDuplicate", "spec.items[1]", id="map"),
    pytest.param(
        {"items": [{"id": str(n)} for n in range(4)]}, "FieldValueTooMany", "spec.items", id="items"
    ),
]


@pytest.mark.parametrize(("spec", "reason", "field"), FAULTS)
async def test_schemas_are_kept(api: Api, group: str, spec: Object, reason: str, field: str) -> None:
    at = f"{group}/v1/widgets"
    body = (await api.create(api.at(at), widget(group, "a", **spec))).fails(
        422, "Invalid", causes=((reason, field),)
    )
    assert body["message"].startswith(f'Widget.{group} "a" is invalid: ')
    assert body["details"]["group"] == group


async def test_what_is_required(api: Api, group: str) -> None:
    at = f"{group}/v1/widgets"
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "a"}}
    (await api.create(api.at(at), body)).fails(422, "Invalid", causes=(("FieldValueRequired", "spec"),))
    (await api.create(api.at(at), {**body, "spec": {}})).fails(
        422, "Invalid", causes=(("FieldValueRequired", "spec.size"),)
    )
    (await api.create(api.at(at), {**widget(group, "a", none=1)}, fieldValidation="Strict")).fails(
        400, "BadRequest", 'strict decoding error: unknown field "spec.none"'
    )


async def test_status_of_a_custom_object(api: Api, group: str) -> None:
    at = f"{group}/v1/widgets"
    body = {**widget(group, "a"), "status": {"ready": True}}
    made = (await api.create(api.at(at), body)).ok(201)
    assert "status" not in made
    path = api.at(at, "a")
    assert "status" not in (await api.patch(path, {"status": {"ready": True}}, MERGE)).ok()
    change = {"status": {"ready": True}, "spec": {"size": 9}}
    found = (await api.patch(f"{path}/status", change, MERGE)).ok()
    assert (found["status"], found["spec"]["size"]) == ({"ready": True}, 1)
    assert found["metadata"]["generation"] == 1
    (await api.patch(f"{path}/status", {"status": {"ready": "x"}}, MERGE)).fails(
        422, "Invalid", "status.ready"
    )


async def test_scale_of_a_custom_object(api: Api, group: str) -> None:
    at = f"{group}/v1/widgets"
    (await api.create(api.at(at), widget(group, "a", replicas=2))).ok(201)
    path = api.at(at, "a")
    (await api.patch(f"{path}/status", {"status": {"replicas": 1, "selector": "a=b"}}, MERGE)).ok()
    scale = (await api.get(f"{path}/scale")).ok()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 1, "selector": "a=b"}
    assert scale["metadata"]["name"] == "a"
    scale["spec"]["replicas"] = 5
    assert (await api.replace(f"{path}/scale", scale)).ok()["spec"] == {"replicas": 5}
    assert (await api.get(path)).ok()["spec"]["replicas"] == 5
    (await api.replace(f"{path}/scale", scale)).fails(409, "Conflict")
    assert (await api.patch(f"{path}/scale", {"spec": {"replicas": 3}}, MERGE)).ok()["spec"] == {
        "replicas": 3
    }


async def test_columns_of_a_custom_object(api: Api, group: str) -> None:
    at = f"{group}/v1/widgets"
    (await api.create(api.at(at), widget(group, "a", size=4))).ok(201)
    table = (await api.send("GET", api.at(at), accept=TABLE)).ok()
    assert [(c["name"], c["priority"]) for c in table["columnDefinitions"]] == [
        ("Name", 0),
        ("Size", 0),
        ("Mode", 1),
        ("Age", 0),
    ]
    assert table["rows"][0]["cells"][:3] == ["a", 4, "safe"]


async def test_apply_of_a_custom_object(api: Api, group: str) -> None:
    path = api.at(f"{group}/v1/widgets", "a")
    first = widget(group, "a", items=[{"id": "x", "note": "1"}])
    (await api.patch(path, first, APPLY, fieldManager="one")).ok(201)
    second = {**first, "spec": {"size": 1, "items": [{"id": "y"}]}}
    found = (await api.patch(path, second, APPLY, fieldManager="two")).ok(200)
    assert [item["id"] for item in found["spec"]["items"]] == ["x", "y"]
    third = widget(group, "a", size=2)
    (await api.patch(path, third, APPLY, fieldManager="three")).fails(409, "Conflict", ".spec.size")


async def test_a_definition_takes_its_objects_with_it(api: Api, group: str) -> None:
    at = f"{group}/v1/widgets"
    (await api.create(api.at(at), widget(group, "a"))).ok(201)
    path = f"{DEFINITIONS}/widgets.{group}"
    (await api.delete(path)).ok(200)
    await api.gone(path)
    (await api.get(api.at(at))).fails(404, "NotFound")
    (await api.create(DEFINITIONS, definition(group))).ok(201)
    await api.until(path, established)
    assert (await api.get(api.at(at))).ok()["items"] == []


BAD: list[Any] = [
    pytest.param(("metadata", "name"), "x.example", "metadata.name", id="name"),
    pytest.param(("spec", "scope"), "Wide", "spec.scope", id="scope"),
    pytest.param(("spec", "versions"), [], "spec.versions", id="no versions"),
    pytest.param(("spec", "names", "plural"), "Widgets", "spec.names.plural", id="plural"),
    pytest.param(
        ("spec", "versions", 0, "schema"), None, "spec.versions[0].schema.openAPIV3Schema", id="no schema"
    ),
    pytest.param(
        ("spec", "versions", 0, "schema", "openAPIV3Schema", "properties"),
        {"spec": {}},
        "spec.versions[0].schema.openAPIV3Schema.properties[spec].type",
        id="not structural",
    ),
]


@pytest.mark.parametrize(("place", "value", "field"), BAD)
async def test_definitions_that_are_refused(api: Api, place: tuple[Any, ...], value: Any, field: str) -> None:
    body = copy.deepcopy(definition(f"{api.namespace}.example"))
    target: Any = body
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    answer = (await api.create(DEFINITIONS, body)).fails(422, "Invalid")
    fields = {cause.get("field", "") for cause in answer["details"]["causes"]}
    assert any(found.startswith(field) for found in fields), fields
