"""Parts of objects with paths of their own: status, binding, eviction, scale, tokens."""

from __future__ import annotations

import pytest

from tests.contract.api import MERGE, STRATEGIC, Api, Object, pod, with_meta

CONDITION = {
    "type": "Ready",
    "status": "True",
    "lastProbeTime": None,
    "lastTransitionTime": "2024-01-01T00:00:00Z",
}


async def test_status_and_spec_are_written_apart(api: Api) -> None:
    body = {**pod("a"), "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    made = (await api.create(api.at("pods"), body)).ok(201)
    assert made["status"]["phase"] == "Pending"
    assert "podIP" not in made["status"]
    path = api.at("pods", "a")

    changed = (await api.patch(path, {"status": {"phase": "Failed"}}, MERGE)).ok(200)
    assert changed["status"]["phase"] == "Pending"
    status = {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
    change = {"status": status, "spec": {"nodeName": "elsewhere"}, "metadata": {"labels": {"a": "b"}}}
    after = (await api.patch(f"{path}/status", change, MERGE)).ok(200)
    assert after["status"]["podIP"] == "10.0.0.1"
    assert "nodeName" not in after["spec"]
    replaced = (await api.replace(f"{path}/status", {**after, "status": {"phase": "Succeeded"}})).ok(200)
    assert replaced["status"]["phase"] == "Succeeded"
    assert (await api.get(f"{path}/status")).ok()["status"]["phase"] == "Succeeded"
    old = {**after, "status": {"phase": "Running"}}
    (await api.replace(f"{path}/status", old)).fails(409, "Conflict")


async def test_conditions_are_merged_by_type(api: Api) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    path = f"{api.at('pods', 'a')}/status"
    found: Object = {}
    for one in ({**CONDITION}, {**CONDITION, "type": "Initialized"}, {**CONDITION, "status": "False"}):
        found = (await api.patch(path, {"status": {"conditions": [one]}}, STRATEGIC)).ok()
    states = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert (states["Ready"], states["Initialized"]) == ("False", "True")


async def test_a_binding_assigns_once(api: Api) -> None:
    made = (await api.create(api.at("pods"), pod("a"))).ok(201)
    path = api.at("pods", "a", "binding")
    binding: Object = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "annotations": {"by": "test"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": f"{api.namespace}-none"},
    }
    wrong = with_meta(binding, uid="00000000-0000-0000-0000-000000000000")
    (await api.create(path, wrong)).fails(409, "Conflict")
    answer = (await api.create(path, with_meta(binding, uid=made["metadata"]["uid"]))).ok(201)
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    found = (await api.get(api.at("pods", "a"))).ok()
    assert found["spec"]["nodeName"] == f"{api.namespace}-none"
    assert found["metadata"]["annotations"]["by"] == "test"
    scheduled = [c for c in found["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert scheduled[0]["status"] == "True"
    (await api.create(path, binding)).fails(409, "Conflict", "already assigned to node")
    (await api.create(api.at("pods", "none", "binding"), {**binding, "metadata": {"name": "none"}})).fails(
        404, "NotFound"
    )


@pytest.mark.parametrize("target", [{}, {"kind": "Pod", "name": "x"}])
async def test_a_binding_has_a_target(api: Api, target: Object) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    body = {"metadata": {"name": "a"}, "target": target}
    (await api.create(api.at("pods", "a", "binding"), body)).fails(422, "Invalid", "target")


async def test_an_eviction_deletes(api: Api) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    eviction: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    dry = {**eviction, "deleteOptions": {"dryRun": ["All"]}}
    (await api.create(api.at("pods", "a", "eviction"), dry)).ok(201)
    (await api.get(api.at("pods", "a"))).ok()
    answer = (await api.create(api.at("pods", "a", "eviction"), eviction)).ok(201)
    assert answer["status"] == "Success"
    (await api.get(api.at("pods", "a"))).fails(404, "NotFound")
    (await api.create(api.at("pods", "a", "eviction"), eviction)).fails(404, "NotFound")


async def test_a_part_that_there_is_not(api: Api) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    (await api.get(api.at("pods", "a", "scale"))).fails(404, "NotFound")
    (await api.get(api.at("pods", "none", "status"))).fails(404, "NotFound")


async def test_ephemeral_containers_do_not_come_with_the_pod(api: Api) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    path = api.at("pods", "a")
    one = {"name": "debug", "image": "registry.invalid/debug:1"}
    change = {"spec": {"ephemeralContainers": [one]}}
    (await api.patch(path, change, STRATEGIC)).fails(422, "Invalid", "pod updates may not")


async def test_logs_of_a_pod_that_runs_nowhere(api: Api) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    (await api.get(api.at("pods", "none", "log"))).fails(404, "NotFound")
    answer = await api.get(api.at("pods", "a", "log"), container="none")
    assert answer.code in (400, 503), answer.told
