"""What a schema must be to be structural, and what a definition must be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from podwire.apiserver.crd import definition as crd
from podwire.apiserver.crd.structural import check
from podwire.serving.status import Failure
from tests.apiserver.crd.definitions import SCHEMA, definition, version

OBJECT = {"type": "object"}
TEXT = {"type": "string"}


def told(schema: dict[str, Any]) -> list[str]:
    return [str(cause) for cause in check(schema, "s")]


def inside(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, "s.type: Required value: must not be empty at the root"),
        (TEXT, 's.type: Invalid value: "string": must be object at the root'),
        (inside({}), "s.properties[a].type: Required value: must not be empty for specified object fields"),
        (
            inside({"type": "strng"}),
            's.properties[a].type: Unsupported value: "strng": supported values: "array",'
            ' "boolean", "integer", "number", "object", "string"',
        ),
        (inside({"type": "array"}), "s.properties[a].items: Required value: must be specified"),
        (
            inside({"type": "array", "items": {}}),
            "s.properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            inside({"type": "array", "items": [TEXT]}),
            "s.properties[a].items: Forbidden: items must be a schema object and not an array",
        ),
        (inside({**TEXT, "$ref": "#/x"}), "s.properties[a].$ref: Forbidden: $ref is not supported"),
        (
            inside({"type": "array", "items": TEXT, "uniqueItems": True}),
            "s.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime"
            " complexity becomes quadratic",
        ),
        (
            inside({**OBJECT, "additionalProperties": False}),
            "s.properties[a].additionalProperties: Forbidden: additionalProperties cannot be set to false",
        ),
        (
            inside({**OBJECT, "properties": {"b": TEXT}, "additionalProperties": TEXT}),
            "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are"
            " mutual exclusive",
        ),
        (
            inside({**TEXT, "pattern": "("}),
            's.properties[a].pattern: Invalid value: "(": must be a valid regular expression',
        ),
        (
            inside({**TEXT, "x-kubernetes-int-or-string": True}),
            's.properties[a].type: Invalid value: "string": must be empty if'
            " x-kubernetes-int-or-string is true",
        ),
        (
            inside({**TEXT, "x-kubernetes-list-type": "set"}),
            's.properties[a].type: Invalid value: "string": must be array if'
            " x-kubernetes-list-type is specified",
        ),
        (
            inside({"type": "array", "items": TEXT, "x-kubernetes-list-type": "map"}),
            "s.properties[a].x-kubernetes-list-map-keys: Required value: must not be empty",
        ),
        (
            inside(
                {
                    "type": "array",
                    "items": {**OBJECT, "properties": {"k": TEXT}},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                }
            ),
            "s.properties[a].items.properties[k].default: Required value: this property is in",
        ),
        (
            inside(
                {
                    "type": "array",
                    "items": OBJECT,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                }
            ),
            's.properties[a].x-kubernetes-list-map-keys[0]: Invalid value: "k": entries must all'
            " be names of item properties",
        ),
        (
            inside({**TEXT, "anyOf": [{"type": "string"}]}),
            "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            inside({**TEXT, "not": {"default": "x"}}),
            "s.properties[a].not.default: Forbidden: must be undefined to be structural",
        ),
        (
            {**OBJECT, "anyOf": [{"properties": {"b": {"pattern": "x"}}}]},
            "s.properties[b]: Required value: because it is defined in s.anyOf[0].properties[b]",
        ),
        (inside({**TEXT, "default": 5}), 's.properties[a].default: Invalid value: "integer"'),
        (
            inside({**OBJECT, "properties": {"b": TEXT}, "default": {"c": 1}}),
            's.properties[a].default: Invalid value: {"c":1}: must not have unknown fields',
        ),
        (
            {**OBJECT, "properties": {"metadata": {**OBJECT, "properties": {"labels": OBJECT}}}},
            "s.properties[metadata].properties[labels]: Forbidden: must not specify anything other than name",
        ),
    ],
)
def test_schemas_that_are_not_structural(schema: dict[str, Any], message: str) -> None:
    assert any(one.startswith(message) for one in told(schema)), told(schema)


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {**OBJECT, "x-kubernetes-preserve-unknown-fields": True},
        inside({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        inside({**OBJECT, "additionalProperties": {"type": "array", "items": TEXT}}),
        {
            **OBJECT,
            "properties": {"b": TEXT},
            "oneOf": [{"required": ["b"]}, {"properties": {"b": {"pattern": "x"}}}],
        },
        inside({**TEXT, "default": "x", "nullable": True}),
    ],
)
def test_schemas_that_are(schema: dict[str, Any]) -> None:
    assert told(schema) == []


def changed(change: Callable[[dict[str, Any]], Any]) -> list[str]:
    obj = copy.deepcopy(definition())
    change(obj)
    assert crd.prune(obj) == []
    crd.defaults(obj)
    return [str(cause) for cause in crd.validate(obj)]


def test_a_good_definition() -> None:
    assert changed(lambda obj: None) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o: o["metadata"].update(name="x"),
            'metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group',
        ),
        (lambda o: o.pop("spec"), "spec: Required value"),
        (
            lambda o: o["spec"].update(group="x"),
            'spec.group: Invalid value: "x": should be a domain with at least one dot',
        ),
        (
            lambda o: o["spec"].update(group="x.k8s.io"),
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups",
        ),
        (lambda o: o["spec"].pop("scope"), "spec.scope: Required value"),
        (
            lambda o: o["spec"].update(scope="Galaxy"),
            'spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced"',
        ),
        (lambda o: o["spec"]["names"].pop("kind"), "spec.names.kind: Required value"),
        (
            lambda o: o["spec"]["names"].update(plural="A_b"),
            'spec.names.plural: Invalid value: "A_b": a DNS-1035',
        ),
        (lambda o: o["spec"]["names"].update(shortNames=["A b"]), "spec.names.shortNames[0]: Invalid value"),
        (
            lambda o: o["spec"].update(versions=[]),
            "spec.versions: Invalid value: []: must have exactly one version",
        ),
        (
            lambda o: o["spec"].update(versions=[version("v1"), version("v2")]),
            'spec.versions: Invalid value: ["v1","v2"]: must have exactly one version marked as'
            " storage version",
        ),
        (lambda o: o["spec"].update(versions=[version("V1")]), 'spec.versions[0].name: Invalid value: "V1"'),
        (
            lambda o: o["spec"]["versions"][0].pop("schema"),
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
        ),
        (
            lambda o: o["spec"]["versions"][0].update(
                additionalPrinterColumns=[{"name": "A", "type": "x", "jsonPath": ".a"}]
            ),
            'spec.versions[0].additionalPrinterColumns[0].type: Invalid value: "x": must be one'
            " of boolean,date",
        ),
        (
            lambda o: o["spec"]["versions"][0].update(
                additionalPrinterColumns=[{"name": "A", "type": "string", "jsonPath": "a"}]
            ),
            'spec.versions[0].additionalPrinterColumns[0].jsonPath: Invalid value: "a": must be a'
            " simple json path",
        ),
        (
            lambda o: o["spec"]["versions"][0].update(
                subresources={"scale": {"specReplicasPath": ".status.r", "statusReplicasPath": ".status.r"}}
            ),
            'spec.versions[0].subresources.scale.specReplicasPath: Invalid value: ".status.r":'
            " should be a json path",
        ),
        (
            lambda o: o["spec"].update(conversion={"strategy": "Magic"}),
            'spec.conversion.strategy: Unsupported value: "Magic"',
        ),
    ],
)
def test_definitions_that_are_refused(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    found = changed(change)
    assert any(one.startswith(message) for one in found), found


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"versions": {}}, "spec.versions"),
        ({"versions": ["v1"]}, "spec.versions[0]"),
        ({"names": []}, "spec.names"),
        ({"group": 5}, "spec.group"),
        (
            {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"a": 5}}}}]},
            "openAPIV3Schema.properties.a",
        ),
        ({"versions": [{"schema": {"openAPIV3Schema": {"required": "a"}}}]}, "openAPIV3Schema.required"),
    ],
)
def test_definitions_of_the_wrong_shape(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(Failure) as caught:
        crd.prune({"metadata": {"name": "x"}, "spec": spec})
    assert caught.value.code == 400
    assert told in caught.value.message


def test_unknown_fields_of_a_definition() -> None:
    obj = copy.deepcopy(definition())
    obj["spec"]["typo"] = 1
    obj["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["typ"] = 1
    assert crd.prune(obj) == ["spec.typo", "spec.versions[0].schema.openAPIV3Schema.properties.spec.typ"]
