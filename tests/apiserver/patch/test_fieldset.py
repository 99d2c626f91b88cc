"""Sets of fields and their encoding, against texts taken from real clusters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.patch import fieldset
from podwire.apiserver.patch.fieldset import DuplicateItem, NamelessItem, compare, decode, encode, fields_of
from podwire.apiserver.patch.merge_keys import shape_of

POD = shape_of("", "Pod")
SERVICE = shape_of("", "Service")

CONTAINER = {
    "name": "web",
    "image": "nginx",
    "ports": [{"containerPort": 80}],
    "env": [{"name": "A", "value": "1"}],
    "resources": {"limits": {"cpu": "1"}},
    "command": ["a", "b"],
    "securityContext": {},
}


def test_what_an_apply_manages() -> None:
    pod = {
        "metadata": {"labels": {"app.kubernetes.io/name": "x"}, "finalizers": ["a/b"]},
        "spec": {"containers": [CONTAINER], "nodeSelector": {"a": "b"}},
    }
    assert encode(fields_of(pod, POD)) == {
        "f:metadata": {
            "f:finalizers": {'v:"a/b"': {}},
            "f:labels": {"f:app.kubernetes.io/name": {}},
        },
        "f:spec": {
            "f:containers": {
                'k:{"name":"web"}': {
                    ".": {},
                    "f:command": {},
                    "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
                    "f:image": {},
                    "f:name": {},
                    "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                    "f:resources": {"f:limits": {"f:cpu": {}}},
                    "f:securityContext": {},
                }
            },
            "f:nodeSelector": {},
        },
    }


def test_what_a_create_manages() -> None:
    before = {"metadata": {}, "spec": {"containers": None}}
    after = {"metadata": {"labels": {"run": "x"}}, "spec": {"containers": [CONTAINER]}}
    changed, removed = compare(before, after, POD)
    assert not removed
    assert encode(changed) == {
        "f:metadata": {"f:labels": {".": {}, "f:run": {}}},
        "f:spec": {
            "f:containers": {
                'k:{"name":"web"}': {
                    ".": {},
                    "f:command": {},
                    "f:env": {".": {}, 'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
                    "f:image": {},
                    "f:name": {},
                    "f:ports": {
                        ".": {},
                        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}},
                    },
                    "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                    "f:securityContext": {},
                }
            }
        },
    }


def test_ports_of_a_service_are_told_apart_by_protocol() -> None:
    spec = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}], "selector": {"a": "b"}}
    assert set(encode(fields_of({"spec": spec}, SERVICE))["f:spec"]["f:ports"]) == {
        'k:{"port":53,"protocol":"UDP"}',
        'k:{"port":53,"protocol":"TCP"}',
    }


def test_an_item_twice() -> None:
    spec = {"containers": [{"name": "a"}, {"name": "a"}]}
    with pytest.raises(DuplicateItem) as caught:
        fields_of({"spec": spec}, POD, strict=True)
    assert str(caught.value) == '.spec.containers: duplicate entries for key [name="a"]'


@pytest.mark.parametrize("item", [{"image": "x"}, "x", None])
def test_an_item_without_a_name(item: Any) -> None:
    with pytest.raises(NamelessItem) as caught:
        fields_of({"spec": {"containers": [item]}}, POD)
    assert str(caught.value).startswith(".spec.containers: ")


def test_paths_as_messages_show_them() -> None:
    item = 'k:{"containerPort":80,"protocol":"TCP"}'
    path = ("f:spec", "f:containers", 'k:{"name":"a"}', "f:ports", item, "f:hostPort")
    expected = '.spec.containers[name="a"].ports[containerPort=80,protocol="TCP"].hostPort'
    assert fieldset.shown(path) == expected
    assert fieldset.shown(("f:metadata", "f:finalizers", 'v:"x"')) == '.metadata.finalizers[="x"]'


elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
paths = st.lists(elements, min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(st.frozensets(paths, max_size=8))
def test_encoded_and_decoded_is_the_same(fields: fieldset.Fields) -> None:
    assert decode(encode(fields)) == fields


@pytest.mark.parametrize("tree", [[], "x", {"spec": {}}, {"f:a": 1}])
def test_what_is_no_set(tree: Any) -> None:
    with pytest.raises(ValueError):
        decode(tree or [1])


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), unique=True), st.lists(st.sampled_from("abcd"), unique=True))
def test_a_merged_list_has_all_items_in_the_applied_order(live: list[str], config: list[str]) -> None:
    def pod(names: list[str]) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": name} for name in names]}}

    merged = [c["name"] for c in fieldset.merge(pod(live), pod(config), POD)["spec"]["containers"]]
    assert sorted(merged) == sorted(set(live) | set(config))
    assert [name for name in merged if name in config] == config
    assert [name for name in merged if name not in config] == [n for n in live if n not in config]
