"""Patches as the registry asks for them: results, managedFields and failures as kube-apiserver has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podwire.apiserver.kind import STATUS, Kind, WriteOptions
from podwire.apiserver.patch import apply_patch, track
from podwire.serving.status import Failure

POD = Kind(
    group="",
    version="v1",
    kind="Pod",
    plural="pods",
    subresources={"status": STATUS},
    message="core.Pod",
)
CONFIG_MAP = Kind(group="", version="v1", kind="ConfigMap", plural="configmaps")
WIDGET = Kind(group="example.com", version="v1", kind="Widget", plural="widgets", custom=True)

JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def options(manager: str = "me", *, force: bool = False, subresource: str = "") -> WriteOptions:
    return WriteOptions(field_manager=manager, force=force, subresource=subresource)


def config(data: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **meta}, "data": data}


def applied(
    obj: dict[str, Any], current: dict[str, Any] | None = None, *, kind: Kind = CONFIG_MAP, **how: Any
) -> dict[str, Any]:
    return apply_patch(kind, current or {}, json.dumps(obj).encode(), APPLY, options(**how))


def created(
    obj: dict[str, Any], *, kind: Kind = CONFIG_MAP, manager: str = "kubectl-create"
) -> dict[str, Any]:
    track(kind, obj, {}, options(manager))
    return obj


def failure(call: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        call()
    return caught.value


def managers(obj: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["manager"], one["operation"]) for one in obj["metadata"]["managedFields"]]


def test_a_create_is_tracked() -> None:
    obj = created(config({"a": "1"}))
    (entry,) = obj["metadata"]["managedFields"]
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "manager": "kubectl-create",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {".": {}, "f:a": {}}},
    }


def test_an_apply_creates_and_is_tracked() -> None:
    obj = applied(config({"a": "1"}), manager="owner")
    (entry,) = obj["metadata"]["managedFields"]
    assert (entry["operation"], entry["fieldsV1"]) == ("Apply", {"f:data": {"f:a": {}}})
    assert obj["data"] == {"a": "1"}


def test_a_conflict_tells_who_has_what() -> None:
    live = created(config({"a": "1", "b": "1"}))
    found = failure(lambda: applied(config({"a": "2"}), live))
    assert found.code == 409
    assert found.body["reason"] == "Conflict"
    assert found.message == ('Apply failed with 1 conflict: conflict with "kubectl-create" using v1: .data.a')
    assert found.body["details"] == {
        "causes": [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "kubectl-create" using v1',
                "field": ".data.a",
            }
        ]
    }


def test_conflicts_are_told_by_manager() -> None:
    live = applied(config({"c": "1"}), created(config({"a": "1", "b": "1"})), manager="other")
    found = failure(lambda: applied(config({"a": "2", "b": "2", "c": "2"}), live))
    assert found.message == (
        'Apply failed with 3 conflicts: conflicts with "kubectl-create" using v1:\n'
        '- .data.a\n- .data.b\nconflicts with "other":\n- .data.c'
    )


def test_force_takes_over() -> None:
    live = created(config({"a": "1", "b": "1"}))
    obj = applied(config({"a": "2"}), live, force=True)
    assert obj["data"] == {"a": "2", "b": "1"}
    assert [one["fieldsV1"] for one in obj["metadata"]["managedFields"]] == [
        {"f:data": {"f:a": {}}},
        {"f:data": {".": {}, "f:b": {}}},
    ]


def test_the_same_value_is_shared_and_survives_one_owner() -> None:
    first = applied(config({"a": "1"}), manager="x")
    both = applied(config({"a": "1"}), first, manager="y")
    assert managers(both) == [("x", "Apply"), ("y", "Apply")]
    one = applied(config({}), both, manager="x")
    assert one["data"] == {"a": "1"}
    assert managers(one) == [("x", "Apply"), ("y", "Apply")]
    gone = applied(config({}), one, manager="y")
    assert "a" not in (gone.get("data") or {})


def test_an_apply_that_changes_nothing_changes_nothing() -> None:
    first = applied(config({"a": "1"}))
    first["metadata"]["managedFields"][0]["time"] = "2020-01-01T00:00:00Z"
    assert applied(config({"a": "1"}), first) == first


def test_an_object_whose_managers_are_not_known() -> None:
    live = config({"a": "1"}, uid="u")
    obj = applied(config({"b": "2"}), live)
    assert managers(obj) == [("me", "Apply"), ("before-first-apply", "Update")]
    track(CONFIG_MAP, changed := config({"a": "2"}, uid="u"), live, options())
    assert "managedFields" not in changed["metadata"]


def test_a_client_empties_the_list() -> None:
    live = created(config({"a": "1"}, uid="u"))
    after = config({"a": "1"}, uid="u", managedFields=[{}])
    track(CONFIG_MAP, after, live, options())
    assert "managedFields" not in after["metadata"]


def test_a_client_that_knows_nothing_of_it_does_not_lose_it() -> None:
    live = created(config({"a": "1"}, uid="u"))
    after = config({"a": "2"}, uid="u")
    track(CONFIG_MAP, after, live, options("editor"))
    entries = {one["manager"]: one["fieldsV1"] for one in after["metadata"]["managedFields"]}
    assert entries == {"kubectl-create": {"f:data": {}}, "editor": {"f:data": {"f:a": {}}}}


def test_the_status_has_managers_of_its_own() -> None:
    spec = {"containers": [{"name": "a", "image": "i"}]}
    meta = {"name": "p", "uid": "u"}
    live = created({"apiVersion": "v1", "kind": "Pod", "metadata": dict(meta), "spec": spec}, kind=POD)
    after = {**live, "metadata": dict(live["metadata"]), "status": {"phase": "Running"}}
    track(POD, after, live, options("kubelet", subresource="status"))
    entry = next(one for one in after["metadata"]["managedFields"] if one["manager"] == "kubelet")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {"f:status": {"f:phase": {}}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": "Failed"}}
    found = failure(lambda: applied(body, after, kind=POD, subresource="status"))
    assert found.message.endswith('conflict with "kubelet" with subresource "status" using v1: .status.phase')
    # Through the object itself a status counts for nothing.
    assert applied(body, after, kind=POD)["status"] == {"phase": "Running"}


def test_kubectl_takes_over_what_it_applied_from_the_client_side() -> None:
    applied_before = config({"a": "1", "b": "1"})
    live = config({"a": "1", "b": "1"}, annotations={ANNOTATION: json.dumps(applied_before)})
    live = created(live, manager="kubectl-client-side-apply")
    obj = applied(config({"a": "2", "b": "1"}), live, manager="kubectl")
    assert obj["data"] == {"a": "2", "b": "1"}
    assert json.loads(obj["metadata"]["annotations"][ANNOTATION])["data"] == {"a": "2", "b": "1"}
    assert failure(lambda: applied(config({"a": "2"}), live, manager="else")).code == 409


def test_more_than_ten_who_update_are_put_together() -> None:
    obj = created(config({"k": "0"}, uid="u"))
    for number in range(14):
        before = obj
        obj = config({**before["data"], f"k{number}": "1"}, uid="u")
        track(CONFIG_MAP, obj, before, options(f"m{number:02}"))
    names = [name for name, _ in managers(obj)]
    assert len(names) == 10
    assert "ancient-changes" in names


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    body = (
        b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  day: 2020-01-01\n  time: 12:30:00\n"
    )
    assert apply_patch(CONFIG_MAP, {}, body, APPLY, options())["data"] == {
        "day": "2020-01-01",
        "time": "12:30:00",
    }


LIVE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}


@pytest.mark.parametrize(
    ("media", "body", "code", "message"),
    [
        (JSON, b"[", 400, "error decoding patch: "),
        (JSON, b"{}", 400, "json: cannot unmarshal"),
        (JSON, b'[{"op":"remove","path":"/x"}]', 422, "the server rejected our request due to an error"),
        (JSON, b'[{"op":"replace","path":"","value":1}]', 400, "the patched object"),
        (MERGE, b"[]", 400, "error decoding patch: "),
        (MERGE, b'{"metadata":null}', 400, "the patched object"),
        (STRATEGIC, b'{"data":{"$patch":"x"}}', 422, "the server rejected our request"),
        (STRATEGIC, b'{"$retainKeys":1}', 400, "invalid patch format of retainKeys"),
        (STRATEGIC, b'{"metadata":{"ownerReferences":[{"name":"x"}]}}', 200, ""),
        (APPLY, b"a: [", 400, "error decoding YAML: line 2"),
        (APPLY, b"- a", 400, "error decoding YAML: an object"),
        (
            APPLY,
            b"kind: ConfigMap",
            400,
            "Incorrect version specified in apply patch. Specified patch version: ,",
        ),
        (APPLY, b"{apiVersion: v1, kind: Pod}", 400, "the kind in the data (Pod)"),
        (
            APPLY,
            b"{apiVersion: v1, kind: ConfigMap, metadata: {managedFields: [{}]}}",
            400,
            "metadata.managedFields must be nil",
        ),
        (
            APPLY,
            b"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, finalizers: [a, a]}}",
            500,
            "failed to create typed patch object (c; /v1, Kind=ConfigMap): .metadata.finalizers:"
            ' duplicate entries for key [="a"]',
        ),
        ("application/json", b"{}", 415, "the body of the request was in an unknown format"),
    ],
)
def test_bad_patches(media: str, body: bytes, code: int, message: str) -> None:
    if code == 200:
        assert apply_patch(CONFIG_MAP, LIVE, body, media, options())
        return
    found = failure(lambda: apply_patch(CONFIG_MAP, LIVE, body, media, options()))
    assert (found.code, found.message[: len(message)]) == (code, message)


def test_a_field_that_is_not_declared_cannot_be_applied() -> None:
    spec = {"containers": [{"name": "a", "env": [{"name": "B", "valeu": "x"}]}], "nodeNaem": "n"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"}, "spec": spec}
    found = failure(lambda: applied(body, kind=POD))
    assert (found.code, found.message) == (
        500,
        "failed to create typed patch object (d/p; /v1, Kind=Pod): errors:\n"
        '  .spec.containers[name="a"].env[name="B"].valeu: field not declared in schema\n'
        "  .spec.nodeNaem: field not declared in schema",
    )


def test_an_item_without_its_merge_key() -> None:
    live = {**LIVE, "metadata": {"name": "c", "ownerReferences": [{"uid": "1"}]}}
    body = b'{"metadata":{"ownerReferences":[{"name":"x"}]}}'
    found = failure(lambda: apply_patch(CONFIG_MAP, live, body, STRATEGIC, options()))
    assert found.code == 500
    assert found.message.endswith("does not contain declared merge key: uid")


def test_custom_objects_have_no_strategic_merge_patch() -> None:
    live = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    found = failure(lambda: apply_patch(WIDGET, live, b"{}", STRATEGIC, options()))
    assert found.code == 415
    assert found.message == (
        "the body of the request was in an unknown format - accepted media types include:"
        " application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )
