"""Custom objects against their schema, in the words of kube-apiserver."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from podwire.apiserver.crd.pruning import fill, prune
from podwire.apiserver.crd.schema import read, shape
from podwire.apiserver.crd.validation import validate
from tests.apiserver.patch.values import objects

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
FREE = {"x-kubernetes-preserve-unknown-fields": True}


def told(value: Any, schema: dict[str, Any], path: str = "spec.a") -> list[str]:
    return [str(cause) for cause in validate(value, read(schema), path)]


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (TEXT, 5, 'Invalid value: "integer": spec.a in body must be of type string: "integer"'),
        (TEXT, None, 'Invalid value: "null": spec.a in body must be of type string: "null"'),
        (NUMBER, 1.5, 'Invalid value: "number": spec.a in body must be of type integer: "number"'),
        (NUMBER, True, 'Invalid value: "boolean": spec.a in body must be of type integer: "boolean"'),
        (
            {"type": "array", "items": TEXT},
            {},
            'Invalid value: "object": spec.a in body must be of type array: "object"',
        ),
        (
            {"type": "integer", "maximum": 3},
            4,
            "Invalid value: 4: spec.a in body should be less than or equal to 3",
        ),
        (
            {"type": "integer", "maximum": 3, "exclusiveMaximum": True},
            3,
            "Invalid value: 3: spec.a in body should be less than 3",
        ),
        (
            {"type": "integer", "minimum": 3},
            2,
            "Invalid value: 2: spec.a in body should be greater than or equal to 3",
        ),
        (
            {"type": "number", "minimum": 3, "exclusiveMinimum": True},
            3,
            "Invalid value: 3: spec.a in body should be greater than 3",
        ),
        (
            {"type": "integer", "multipleOf": 2},
            3,
            "Invalid value: 3: spec.a in body should be a multiple of 2",
        ),
        (
            {"type": "string", "minLength": 3},
            "ab",
            'Invalid value: "ab": spec.a in body should be at least 3 chars long',
        ),
        ({"type": "string", "maxLength": 1}, "ab", "Too long: may not be more than 1 bytes"),
        (
            {"type": "string", "pattern": "^a+$"},
            "b",
            "Invalid value: \"b\": spec.a in body should match '^a+$'",
        ),
        ({"type": "string", "enum": ["x", "y"]}, "z", 'Unsupported value: "z": supported values: "x", "y"'),
        ({"type": "integer", "enum": [1]}, 2, 'Unsupported value: 2: supported values: "1"'),
        (
            {"type": "string", "format": "date-time"},
            "now",
            'Invalid value: "now": spec.a in body must be of type date-time: "now"',
        ),
        (
            {"type": "array", "items": TEXT, "maxItems": 1},
            ["a", "b"],
            "Too many: 2: must have at most 1 items",
        ),
        (
            {"type": "array", "items": TEXT, "minItems": 1},
            [],
            "Invalid value: []: spec.a in body should have at least 1 items",
        ),
        (
            {"type": "object", "additionalProperties": TEXT, "minProperties": 1},
            {},
            "Invalid value: {}: spec.a in body should have at least 1 properties",
        ),
        (
            {"type": "object", "additionalProperties": TEXT, "maxProperties": 0},
            {"b": ""},
            "Too many: 1: must have at most 0 items",
        ),
        (
            {"x-kubernetes-int-or-string": True},
            1.5,
            'Invalid value: "number": spec.a in body must be of type integer,string: "number"',
        ),
        (
            {"type": "string", "anyOf": [{"pattern": "^a"}, {"pattern": "^b"}]},
            "c",
            'Invalid value: "c": "spec.a" must validate at least one schema (anyOf)',
        ),
        (
            {"type": "string", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
            "ab",
            'Invalid value: "ab": "spec.a" must validate one and only one schema (oneOf). Found 2'
            " valid alternatives",
        ),
        (
            {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]},
            "a",
            'Invalid value: "a": "spec.a" must validate all the schemas (allOf)',
        ),
        (
            {"type": "string", "not": {"enum": ["a"]}},
            "a",
            'Invalid value: "a": "spec.a" must not validate the schema (not)',
        ),
    ],
)
def test_what_is_wrong(schema: dict[str, Any], value: Any, message: str) -> None:
    assert told(value, schema)[0] == f"spec.a: {message}"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (TEXT, "x"),
        ({"type": "string", "nullable": True}, None),
        (NUMBER, 2.0),
        ({"type": "number"}, 2),
        ({"x-kubernetes-int-or-string": True}, "80%"),
        ({"x-kubernetes-int-or-string": True}, 80),
        (FREE, {"any": ["thing"]}),
        ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00.123456789Z"),
        ({"type": "string", "format": "ipv4"}, "10.0.0.1"),
        ({"type": "string", "format": "cidr"}, "fd00::1/64"),
        ({"type": "string", "format": "duration"}, "1h30m"),
        ({"type": "string", "format": "byte"}, "YQ=="),
        ({"type": "string", "format": "somethingelse"}, "whatever"),
        ({"type": "integer", "format": "int64"}, (1 << 63) - 1),
    ],
)
def test_what_is_right(schema: dict[str, Any], value: Any) -> None:
    assert told(value, schema) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("date", "2026-13-01"),
        ("ipv4", "10.0.0"),
        ("ipv6", "10.0.0.1"),
        ("cidr", "10.0.0.1"),
        ("uuid", "x"),
        ("email", "x"),
        ("hostname", "-x"),
        ("mac", "00:11"),
        ("duration", "1 hour"),
        ("byte", "*"),
        ("uri", "http://[x"),
        ("date-time", "2026-02-30T00:00:00Z"),
    ],
)
def test_formats_that_are_not_met(name: str, value: str) -> None:
    assert f"must be of type {name}" in told(value, {"type": "string", "format": name})[0]


def test_paths_lead_to_the_field() -> None:
    item = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "port": NUMBER}}
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": item},
            "map": {"type": "object", "additionalProperties": NUMBER},
        },
    }
    value = {"list": [{"name": "a", "port": "x"}, {}], "map": {"k": "v"}}
    assert [cause.field for cause in validate(value, read(schema), "spec")] == [
        "spec.list[0].port",
        "spec.list[1].name",
        "spec.map.k",
    ]


def test_items_that_are_there_twice() -> None:
    keyed = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "properties": {"name": TEXT}},
    }
    assert told([{"name": "a"}, {"name": "b"}, {"name": "a"}], keyed) == [
        'spec.a[2]: Duplicate value: {"name":"a"}'
    ]
    unique = {"type": "array", "x-kubernetes-list-type": "set", "items": TEXT}
    assert told(["a", "a"], unique) == ['spec.a[1]: Duplicate value: "a"']


def test_what_stays_as_it_was_is_not_looked_at() -> None:
    item = {"type": "object", "properties": {"name": TEXT, "port": {"type": "integer", "maximum": 9}}}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    schema = {
        "type": "object",
        "required": ["new"],
        "properties": {
            "mode": {"type": "string", "enum": ["x"]},
            "keyed": {"type": "array", "items": item, **keyed},
            "plain": {"type": "array", "items": item},
            "inner": {"type": "object", "required": ["new"], "properties": {"other": TEXT}},
        },
    }
    old = {
        "mode": "gone",
        "keyed": [{"name": "a", "port": 80}, {"name": "b", "port": 80}],
        "plain": [{"name": "a", "port": 80}],
        "inner": {"other": "1"},
    }

    def wrong(**changes: Any) -> list[str]:
        new = {**copy.deepcopy(old), **changes}
        return [cause.field for cause in validate(new, read(schema), "s", old=old)]

    assert [cause.field for cause in validate(old, read(schema), "s", old=copy.deepcopy(old))] == []
    assert wrong(extra=1) == ["s.new"]
    assert wrong(extra=1, mode="also gone") == ["s.new", "s.mode"]
    # Items of a list that is a map are known by their keys, wherever they are now.
    moved = [{"name": "b", "port": 80}, {"name": "c", "port": 81}]
    assert wrong(keyed=moved) == ["s.new", "s.keyed[1].port"]
    assert wrong(plain=[{"name": "a", "port": 80}, {"name": "z"}]) == ["s.new", "s.plain[0].port"]
    assert wrong(inner={"other": "2"}) == ["s.new", "s.inner.new"]


SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "default": {},
            "properties": {
                "a": {"type": "string", "default": "x"},
                "list": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"b": {"type": "integer", "default": 1}}},
                },
                "free": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": True,
                    "properties": {"c": {"type": "object", "properties": {}}},
                },
                "any": {"type": "object", "additionalProperties": True},
                "null": {"type": "string", "nullable": True, "default": "y"},
                "pod": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "properties": {"spec": {"type": "object"}},
                },
            },
        }
    },
}


def test_unknown_fields_are_removed_and_told() -> None:
    obj = {
        "apiVersion": "x/v1",
        "kind": "X",
        "metadata": {"name": "x"},
        "top": 1,
        "spec": {
            "zz": 1,
            "list": [{"b": 1, "q": 2}],
            "free": {"kept": 1, "c": {"gone": 1}},
            "any": {"kept": {"deep": 1}},
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "gone": 1},
        },
    }
    assert sorted(prune(obj, read(SCHEMA))) == [
        "spec.free.c.gone",
        "spec.list[0].q",
        "spec.pod.gone",
        "spec.zz",
        "top",
    ]
    assert obj == {
        "apiVersion": "x/v1",
        "kind": "X",
        "metadata": {"name": "x"},
        "spec": {
            "list": [{"b": 1}],
            "free": {"kept": 1, "c": {}},
            "any": {"kept": {"deep": 1}},
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}},
        },
    }


def test_defaults_are_put_in() -> None:
    obj: dict[str, Any] = {"spec": {"list": [{}, {"b": 2}], "a": None, "null": None}}
    fill(obj, read(SCHEMA))
    assert obj == {"spec": {"list": [{"b": 1}, {"b": 2}], "a": "x", "null": None}}
    empty: dict[str, Any] = {}
    fill(empty, read(SCHEMA))
    assert empty == {"spec": {"a": "x", "null": "y"}}


@settings(deadline=None)
@given(objects())
def test_pruned_and_filled_twice_is_once(obj: dict[str, Any]) -> None:
    schema = read(SCHEMA)
    obj = {"spec": obj}
    prune(obj, schema)
    fill(obj, schema)
    once = copy.deepcopy(obj)
    assert prune(obj, schema) == []
    fill(obj, schema)
    assert obj == once


def test_the_shape_for_server_side_apply() -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "ports": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port", "protocol"],
                        "items": {
                            "type": "object",
                            "properties": {"port": NUMBER, "protocol": {"type": "string", "default": "TCP"}},
                        },
                    },
                    "names": {"type": "array", "x-kubernetes-list-type": "set", "items": TEXT},
                    "plain": {"type": "array", "items": TEXT},
                    "whole": {"type": "object", "x-kubernetes-map-type": "atomic"},
                },
            }
        },
    }
    spec = shape(read(schema)).member("spec")
    ports = spec.member("ports")
    assert (ports.keys, ports.key_defaults) == (("port", "protocol"), {"protocol": "TCP"})
    assert spec.member("names").unique
    assert spec.member("plain").whole
    assert spec.member("whole").atomic
