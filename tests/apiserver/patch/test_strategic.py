"""Strategic merge patches of pods and services, as kubectl makes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.patch.merge_keys import shape_of
from podwire.apiserver.patch.shape import Shape
from podwire.apiserver.patch.strategic import BadDirective, BadPatch, MergeFault, merge

POD = shape_of("", "Pod")


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def patched(patch: dict[str, Any], **spec: Any) -> Any:
    return merge(pod(**spec), {"spec": patch}, POD)["spec"]


def test_containers_are_merged_by_name() -> None:
    containers = [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]
    found = patched({"containers": [{"name": "b", "image": "2"}]}, containers=containers)
    assert found == {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}


def test_a_container_is_added_and_another_removed() -> None:
    patch = {"containers": [{"$patch": "delete", "name": "a"}, {"name": "c", "image": "3"}]}
    found = patched(patch, containers=[{"name": "a"}, {"name": "b"}])
    assert sorted(found["containers"], key=lambda c: c["name"]) == [
        {"name": "b"},
        {"name": "c", "image": "3"},
    ]


def test_a_list_is_replaced_on_demand() -> None:
    patch = {"containers": [{"name": "c"}, {"$patch": "replace"}]}
    assert patched(patch, containers=[{"name": "a"}]) == {"containers": [{"name": "c"}]}


def test_a_mapping_is_replaced_on_demand() -> None:
    patch = {"securityContext": {"$patch": "replace", "runAsUser": 1}}
    found = patched(patch, securityContext={"runAsGroup": 5})
    assert found == {"securityContext": {"runAsUser": 1}}


def test_a_mapping_is_emptied_on_demand() -> None:
    found = patched({"securityContext": {"$patch": "delete"}}, securityContext={"runAsGroup": 5})
    assert found == {"securityContext": {}}


def test_the_order_of_items_is_the_one_that_was_asked_for() -> None:
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "new"}],
    }
    found = patched(patch, containers=[{"name": "a"}, {"name": "b"}, {"name": "c"}])
    assert [c["name"] for c in found["containers"]] == ["b", "c", "a"]


def test_an_item_that_only_the_server_has_stays_behind_its_neighbour() -> None:
    patch = {"$setElementOrder/containers": [{"name": "a"}, {"name": "z"}], "containers": [{"name": "z"}]}
    found = patched(patch, containers=[{"name": "a"}, {"name": "injected"}])
    assert [c["name"] for c in found["containers"]] == ["a", "injected", "z"]


def test_the_order_alone_moves_items() -> None:
    patch = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    found = patched(patch, containers=[{"name": "a"}, {"name": "b"}])
    assert [c["name"] for c in found["containers"]] == ["b", "a"]


def test_retain_keys_removes_all_others() -> None:
    patch = {"volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}]}
    found = patched(patch, volumes=[{"name": "v", "hostPath": {"path": "/x"}}])
    assert found == {"volumes": [{"name": "v", "emptyDir": {}}]}


def test_values_are_taken_out_of_a_list_of_finalizers() -> None:
    original = {"metadata": {"finalizers": ["a/x", "b/x", "c/x"]}}
    patch = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["b/x"],
            "$setElementOrder/finalizers": ["a/x", "d/x"],
            "finalizers": ["d/x"],
        }
    }
    assert merge(original, patch, POD) == {"metadata": {"finalizers": ["a/x", "c/x", "d/x"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}}
    assert merge(original, patch, POD) == {"metadata": {"finalizers": ["b/x", "c/x"]}}


def test_finalizers_are_united() -> None:
    original = {"metadata": {"finalizers": ["a/x"]}}
    assert merge(original, {"metadata": {"finalizers": ["b/x", "a/x"]}}, POD) == {
        "metadata": {"finalizers": ["b/x", "a/x"]}
    }


def test_a_list_without_strategy_is_replaced() -> None:
    found = patched({"tolerations": [{"key": "b"}]}, tolerations=[{"key": "a"}])
    assert found == {"tolerations": [{"key": "b"}]}


def test_null_removes_and_is_not_kept() -> None:
    patch: dict[str, Any] = {"nodeName": None, "affinity": {"podAffinity": None, "nodeAffinity": {}}}
    assert patched(patch, nodeName="n", hostNetwork=True) == {
        "hostNetwork": True,
        "affinity": {"nodeAffinity": {}},
    }


@pytest.mark.parametrize(
    ("field", "key", "first", "second"),
    [
        ("ports", "containerPort", 80, 81),
        ("env", "name", "A", "B"),
        ("volumeMounts", "mountPath", "/a", "/b"),
        ("volumeDevices", "devicePath", "/a", "/b"),
    ],
)
def test_keys_inside_of_containers(field: str, key: str, first: Any, second: Any) -> None:
    held = [{key: first, "x": 1}, {key: second, "x": 1}]
    patch = {"containers": [{"name": "a", field: [{key: second, "x": 2}]}]}
    found = patched(patch, containers=[{"name": "a", field: held}])
    assert found["containers"][0][field] == [{key: first, "x": 1}, {key: second, "x": 2}]


@pytest.mark.parametrize(
    ("kind", "path", "key"),
    [
        ("Pod", "spec.hostAliases", "ip"),
        ("Pod", "spec.imagePullSecrets", "name"),
        ("Pod", "spec.topologySpreadConstraints", "topologyKey"),
        ("Pod", "spec.initContainers", "name"),
        ("Pod", "status.conditions", "type"),
        ("Pod", "status.podIPs", "ip"),
        ("Pod", "metadata.ownerReferences", "uid"),
        ("Service", "spec.ports", "port"),
        ("Node", "status.conditions", "type"),
        ("Node", "status.addresses", "type"),
        ("ServiceAccount", "secrets", "name"),
    ],
)
def test_keys_of_lists(kind: str, path: str, key: str) -> None:
    def tree(items: list[Any]) -> Any:
        value: Any = items
        for name in reversed(path.split(".")):
            value = {name: value}
        return value

    found = merge(tree([{key: "a"}, {key: "b"}]), tree([{key: "b", "more": "x"}]), shape_of("", kind))
    assert found == tree([{key: "a"}, {key: "b", "more": "x"}])


@pytest.mark.parametrize(
    ("patch", "fault"),
    [
        ({"containers": [{"image": "x"}]}, MergeFault),
        ({"containers": [{"name": "a", "$patch": "melt"}]}, BadDirective),
        ({"securityContext": {"$patch": "melt"}}, BadDirective),
        ({"containers": [[]]}, BadDirective),
        ({"containers": ["a"]}, BadDirective),
        ({"$retainKeys": "x"}, BadPatch),
        ({"$retainKeys": ["a"], "b": 1}, BadPatch),
        ({"$setElementOrder/containers": 5}, BadPatch),
        ({"$setElementOrder/containers": [{"name": "z"}], "containers": [{"name": "a"}]}, BadPatch),
        ({"$deleteFromPrimitiveList/x": 5}, BadPatch),
    ],
)
def test_malformed_patches(patch: dict[str, Any], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        patched(patch, containers=[{"name": "a"}], securityContext={})


names = st.sampled_from(["a", "b", "c", "d"])
envs = st.lists(
    st.fixed_dictionaries({"name": names, "value": names}), max_size=3, unique_by=lambda e: e["name"]
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": names, "image": names}, optional={"env": envs, "command": st.lists(names)}
    ),
    max_size=4,
    unique_by=lambda c: c["name"],
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(names, names),
                "finalizers": st.lists(names, unique=True),
            },
        ),
        "spec": st.fixed_dictionaries({}, optional={"containers": containers, "nodeName": names}),
    }
)


def difference(before: Any, after: Any, shape: Shape) -> dict[str, Any]:
    """The patch that kubectl would make: a diff with deletions and the order of lists."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif before[name] == value:
            continue
        elif isinstance(value, dict):
            patch[name] = difference(before[name], value, shape.member(name))
        elif not shape.member(name).merged:
            patch[name] = value
        elif not value:
            patch[name] = None
        else:
            patch.update(_list_difference(name, before[name], value, shape.member(name)))
    return patch


def _list_difference(name: str, before: list[Any], after: list[Any], shape: Shape) -> dict[str, Any]:
    key = shape.merge_key
    if not key:
        return {
            f"$setElementOrder/{name}": after,
            f"$deleteFromPrimitiveList/{name}": [one for one in before if one not in after],
            name: [one for one in after if one not in before],
        }
    held = {one[key]: one for one in before}
    wanted = {one[key] for one in after}
    items: list[Any] = []
    for one in after:
        old = held.get(one[key])
        if old is None:
            items.append(one)
        elif old != one:
            items.append({**difference(old, one, shape.item), key: one[key]})
    items += [{"$patch": "delete", key: one} for one in held if one not in wanted]
    return {f"$setElementOrder/{name}": [{key: one[key]} for one in after], name: items}


def _pruned(value: Any) -> Any:
    """Without empty lists of merged fields: a patch removes a list that it empties."""
    if isinstance(value, dict):
        return {k: _pruned(v) for k, v in value.items() if not (v == [] and k != "command")}
    return [_pruned(one) for one in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(pods, pods)
def test_the_difference_leads_there(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = difference(before, after, POD)
    once = merge(before, patch, POD)
    assert _pruned(once) == _pruned(after)
    assert merge(once, patch, POD) == once
