"""The rules of the built-in kinds, as kube-apiserver keeps them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.apiserver.lab import MAPS, PODS, Lab, config_map, pod

SECRETS = "/api/v1/namespaces/default/secrets"
SERVICES = "/api/v1/namespaces/default/services"


def causes(body: Any) -> list[tuple[str, str]]:
    return [(cause["field"], cause["reason"]) for cause in body["details"]["causes"]]


async def test_defaults_of_a_pod(bare: Lab) -> None:
    made = await bare.ok("POST", PODS, pod("a"))
    spec = made["spec"]
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["generation"] == 1
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["serviceAccountName"] == "default"
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert [t["key"] for t in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


async def test_a_pod_that_breaks_rules(bare: Lab) -> None:
    broken = pod("a", restartPolicy="Sometimes", containers=[{"name": "Main_", "image": "x"}, {"name": "b"}])
    answer = await bare.ask("POST", PODS, broken)
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert answer.body["details"]["kind"] == "Pod"
    assert answer.body["message"].startswith('Pod "a" is invalid: [')
    found = causes(answer.body)
    assert ("spec.restartPolicy", "FieldValueNotSupported") in found
    assert ("spec.containers[0].name", "FieldValueInvalid") in found
    assert ("spec.containers[1].image", "FieldValueRequired") in found


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"image": "example/app:2"}, True),
        ({"command": ["x"]}, False),
        ({"env": [{"name": "A", "value": "b"}]}, False),
    ],
)
async def test_what_of_a_pod_can_be_changed(bare: Lab, change: dict[str, Any], allowed: bool) -> None:
    made = await bare.ok("POST", PODS, pod("a"))
    made["spec"]["containers"][0].update(change)
    answer = await bare.ask("PUT", f"{PODS}/a", made)
    if allowed:
        assert answer.code == 200
        assert answer.body["metadata"]["generation"] == 2
    else:
        assert answer.code == 422
        assert causes(answer.body) == [("spec", "FieldValueForbidden")]
        assert "pod updates may not change fields other than" in answer.body["message"]


async def test_a_pods_tolerations_can_only_grow(bare: Lab) -> None:
    made = await bare.ok("POST", PODS, pod("a"))
    made["spec"]["tolerations"].append({"key": "new", "operator": "Exists"})
    made = await bare.ok("PUT", f"{PODS}/a", made)
    del made["spec"]["tolerations"][0]
    assert (await bare.ask("PUT", f"{PODS}/a", made)).code == 422


async def test_the_status_is_left_alone_by_writes_to_the_object(bare: Lab) -> None:
    made = await bare.ok("POST", PODS, {**pod("a"), "status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"
    made["status"]["phase"] = "Running"
    made["metadata"]["labels"] = {"a": "b"}
    after = await bare.ok("PUT", f"{PODS}/a", made)
    assert after["status"]["phase"] == "Pending"
    made = {**after, "spec": {**after["spec"], "nodeName": "elsewhere"}, "status": {"phase": "Running"}}
    after = await bare.ok("PUT", f"{PODS}/a/status", made)
    assert after["status"] == {"phase": "Running"}
    assert "nodeName" not in after["spec"]
    assert after["metadata"]["generation"] == 1


async def test_a_pod_is_bound_once(bare: Lab) -> None:
    await bare.ok("POST", PODS, pod("a"))
    binding = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "a"}}
    assert (await bare.ok("POST", f"{PODS}/a/binding", binding))["status"] == "Success"
    bound = await bare.ok("GET", f"{PODS}/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    again = await bare.ask("POST", f"{PODS}/a/binding", binding)
    assert (again.code, again.body["reason"]) == (409, "Conflict")
    assert 'already assigned to node "n1"' in again.body["message"]


async def test_a_pods_deletion_waits_for_the_node(bare: Lab) -> None:
    """With grace the pod stays, Terminating, until the node deletes it with none; unbound it goes at once."""
    await bare.ok("POST", PODS, pod("a", nodeName="n1", terminationGracePeriodSeconds=7))
    after = await bare.ok("DELETE", f"{PODS}/a")
    assert after["metadata"]["deletionGracePeriodSeconds"] == 7
    assert after["metadata"]["deletionTimestamp"]
    longer = await bare.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 60})
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 7
    shorter = await bare.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 3})
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 3
    uid = after["metadata"]["uid"]
    wrong = {"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}}
    assert (await bare.ask("DELETE", f"{PODS}/a", wrong)).code == 409
    await bare.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
    assert (await bare.ask("GET", f"{PODS}/a")).code == 404
    await bare.ok("POST", PODS, pod("b"))
    await bare.ok("DELETE", f"{PODS}/b")
    assert (await bare.ask("GET", f"{PODS}/b")).code == 404


async def test_eviction_deletes(bare: Lab) -> None:
    await bare.ok("POST", PODS, pod("a"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    await bare.ok("POST", f"{PODS}/a/eviction", eviction)
    assert (await bare.ask("GET", f"{PODS}/a")).code == 404


async def test_an_immutable_config_map_stays_so(bare: Lab) -> None:
    made = await bare.ok("POST", MAPS, {**config_map("a", x="1"), "immutable": True})
    for broken, fields in (
        ({**made, "data": {"x": "2"}}, ["data"]),
        ({**made, "immutable": False}, ["immutable"]),
    ):
        answer = await bare.ask("PUT", f"{MAPS}/a", broken)
        assert [field for field, _ in causes(answer.body)] == fields
    made["metadata"]["labels"] = {"still": "possible"}
    await bare.ok("PUT", f"{MAPS}/a", made)


async def test_keys_of_a_config_map(bare: Lab) -> None:
    answer = await bare.ask("POST", MAPS, config_map("a", **{"not/good": "1"}))
    assert causes(answer.body) == [("data[not/good]", "FieldValueInvalid")]


async def test_a_secrets_texts_become_data(bare: Lab) -> None:
    made = await bare.ok("POST", SECRETS, {"metadata": {"name": "a"}, "stringData": {"k": "värde"}})
    assert base64.b64decode(made["data"]["k"]).decode() == "värde"
    assert made["type"] == "Opaque"
    assert "stringData" not in made
    made["type"] = "kubernetes.io/tls"
    answer = await bare.ask("PUT", f"{SECRETS}/a", made)
    assert ("type", "FieldValueInvalid") in causes(answer.body)


async def test_a_tls_secret_has_both_keys(bare: Lab) -> None:
    answer = await bare.ask("POST", SECRETS, {"metadata": {"name": "a"}, "type": "kubernetes.io/tls"})
    assert causes(answer.body) == [
        ("data[tls.crt]", "FieldValueRequired"),
        ("data[tls.key]", "FieldValueRequired"),
    ]


async def test_services_get_addresses_and_keep_them(bare: Lab) -> None:
    def service(name: str, **spec: Any) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}

    one = await bare.ok("POST", SERVICES, service("one"))
    address = one["spec"]["clusterIP"]
    assert one["spec"]["clusterIPs"] == [address]
    assert one["spec"]["ports"][0] == {"port": 80, "protocol": "TCP", "targetPort": 80}
    taken = await bare.ask("POST", SERVICES, service("two", clusterIP=address))
    assert "provided IP is already allocated" in taken.body["message"]
    kept = await bare.ok("PUT", f"{SERVICES}/one", service("one", selector={"a": "b"}))
    assert kept["spec"]["clusterIP"] == address
    changed = await bare.ask("PUT", f"{SERVICES}/one", service("one", clusterIP="10.203.9.9"))
    assert "may not change once set" in changed.body["message"]
    both = await bare.ok("POST", SERVICES, service("both", ipFamilyPolicy="PreferDualStack", type="NodePort"))
    assert both["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
    assert len(both["spec"]["clusterIPs"]) == 2
    assert both["spec"]["ports"][0]["nodePort"] in range(30000, 32768)
    headless = await bare.ok("POST", SERVICES, service("headless", clusterIP="None"))
    assert headless["spec"]["clusterIPs"] == ["None"]


async def test_events_are_of_both_groups(bare: Lab) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
        "message": "said",
        "reason": "Because",
        "type": "Normal",
    }
    await bare.ok("POST", "/api/v1/namespaces/default/events", event)
    new = await bare.ok("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (new["apiVersion"], new["note"], new["regarding"]["name"]) == ("events.k8s.io/v1", "said", "a")
    found = await bare.ok("GET", "/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Da")
    assert len(found["items"]) == 1
    found = await bare.ok("GET", "/api/v1/events?fieldSelector=involvedObject.name%3Db")
    assert found["items"] == []


async def test_a_node_may_be_created_with_its_status(bare: Lab) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    made = await bare.ok("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "status": status})
    assert made["status"] == status


async def test_a_lease_must_name_the_state_it_replaces(bare: Lab) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    made = await bare.ok("POST", leases, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    del made["metadata"]["resourceVersion"]
    answer = await bare.ask("PUT", f"{leases}/l", made)
    assert causes(answer.body) == [("metadata.resourceVersion", "FieldValueInvalid")]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/namespaces", {"metadata": {"name": "a.b"}}, "metadata.name"),
        (SERVICES, {"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 1}]}}, "metadata.name"),
        (MAPS, {"metadata": {"name": "A"}}, "metadata.name"),
        (MAPS, {"metadata": {"name": "a", "labels": {"a": "b c"}}}, "metadata.labels"),
        (MAPS, {"metadata": {"name": "a", "annotations": {"/": ""}}}, "metadata.annotations"),
        (MAPS, {"metadata": {"name": "a", "finalizers": ["mine"]}}, "metadata.finalizers"),
    ],
)
async def test_names_labels_and_finalizers(bare: Lab, path: str, body: Any, field: str) -> None:
    answer = await bare.ask("POST", path, body)
    assert (answer.code, causes(answer.body)[0]) == (422, (field, "FieldValueInvalid"))


async def test_a_namespace_that_must_stay(bare: Lab) -> None:
    answer = await bare.ask("DELETE", "/api/v1/namespaces/default")
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
