"""Writes to what is there: versions, identity, and what may not change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.api import MERGE, Api, Object, config_map, pod, with_meta

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


async def test_an_old_version_is_a_conflict(api: Api) -> None:
    path = api.at("configmaps", "a")
    first = (await api.create(api.at("configmaps"), config_map("a", x="1"))).ok(201)
    (await api.replace(path, {**first, "data": {"x": "2"}})).ok(200)
    body = (await api.replace(path, {**first, "data": {"x": "3"}})).fails(409, "Conflict", MODIFIED)
    assert body["message"].startswith('Operation cannot be fulfilled on configmaps "a": ')
    assert body["details"] == {"name": "a", "kind": "configmaps"}
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"x": "4"}}
    (await api.patch(path, stale)).fails(409, "Conflict", MODIFIED)
    assert (await api.get(path)).ok()["data"] == {"x": "2"}


async def test_without_a_version_the_last_one_wins(api: Api) -> None:
    path = api.at("configmaps", "a")
    (await api.create(api.at("configmaps"), config_map("a", x="1"))).ok(201)
    assert (await api.replace(path, config_map("a", y="2"))).ok(200)["data"] == {"y": "2"}


@pytest.mark.parametrize("plural", ["services", "coordination.k8s.io/v1/leases", "configmaps"])
async def test_another_uid_is_another_object(api: Api, plural: str) -> None:
    group, _, name = plural.rpartition("/")
    kind = {"services": "Service", "leases": "Lease", "configmaps": "ConfigMap"}[name]
    body: Object = {"apiVersion": group or "v1", "kind": kind, "metadata": {"name": "a"}}
    if name == "services":
        body["spec"] = {"ports": [{"port": 80}]}
    made = (await api.create(api.at(plural), body)).ok(201)
    other = with_meta(made, uid="00000000-0000-0000-0000-000000000000")
    (await api.replace(api.at(plural, "a"), other)).fails(
        409, "Conflict", "Precondition failed: UID in precondition"
    )


@pytest.mark.parametrize(
    ("name", "answered"),
    [pytest.param("a", 404, id="no such object"), pytest.param("b", 400, id="other name")],
)
async def test_replace_is_of_the_object_in_the_path(api: Api, name: str, answered: int) -> None:
    answer = await api.replace(api.at("configmaps", "a"), config_map(name))
    assert answer.code == answered, answer.told
    if answered == 400:
        answer.fails(400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)")


async def test_identity_stays(api: Api) -> None:
    path = api.at("configmaps", "a")
    made = (await api.create(api.at("configmaps"), config_map("a"))).ok(201)["metadata"]
    sent = with_meta(config_map("a", x="1"), creationTimestamp=None, generation=9, selfLink="/x")
    meta = (await api.replace(path, sent)).ok(200)["metadata"]
    for kept in ("uid", "creationTimestamp", "name", "namespace"):
        assert meta[kept] == made[kept]
    assert "generation" not in meta
    change = {"metadata": {"uid": "x"}}
    assert (await api.patch(path, change)).code in (409, 422)
    (await api.patch(path, {"metadata": {"name": "b"}})).fails(400, "BadRequest")
    (await api.patch(path, {"metadata": {"namespace": "b"}})).fails(400, "BadRequest")
    later = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}
    answer = await api.patch(path, later)
    assert answer.code == 422 or answer.ok()["metadata"]["creationTimestamp"] == made["creationTimestamp"]


async def test_generation_counts_changes_of_the_spec(api: Api) -> None:
    plural = "networking.k8s.io/v1/networkpolicies"
    body = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "p"},
        "spec": {"podSelector": {}},
    }
    assert (await api.create(api.at(plural), body)).ok(201)["metadata"]["generation"] == 1
    path = api.at(plural, "p")
    for change, generation in (
        ({"metadata": {"labels": {"a": "b"}}}, 1),
        ({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}, 2),
        ({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}, 2),
        ({"spec": {"policyTypes": ["Egress"]}}, 3),
    ):
        assert (await api.patch(path, change)).ok()["metadata"]["generation"] == generation


async def test_nothing_changed_nothing_written(api: Api) -> None:
    path = api.at("configmaps", "a")
    made = (await api.create(api.at("configmaps"), config_map("a", x="1"))).ok(201)
    again = (await api.patch(path, {"data": {"x": "1"}})).ok(200)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    again = (await api.replace(path, made)).ok(200)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_many_writers_by_versions_lose_nothing(api: Api) -> None:
    path = api.at("configmaps", "counter")
    (await api.create(api.at("configmaps"), config_map("counter", n="0"))).ok(201)

    async def add() -> int:
        conflicts = 0
        while True:
            current = (await api.get(path)).ok()
            current["data"]["n"] = str(int(current["data"]["n"]) + 1)
            answer = await api.replace(path, current)
            if answer.code == 200:
                return conflicts
            answer.fails(409, "Conflict")
            conflicts += 1

    await asyncio.gather(*[add() for _ in range(20)])
    assert (await api.get(path)).ok()["data"]["n"] == "20"


async def test_many_writers_by_patches_lose_nothing(api: Api) -> None:
    path = api.at("configmaps", "many")
    (await api.create(api.at("configmaps"), config_map("many"))).ok(201)
    answers = await asyncio.gather(*[api.patch(path, {"data": {f"k{n}": "v"}}) for n in range(20)])
    assert {answer.code for answer in answers} == {200}
    assert len((await api.get(path)).ok()["data"]) == 20


IMMUTABLE: list[Any] = [
    pytest.param(
        "configmaps",
        {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True, "data": {"a": "b"}},
        {"data": {"a": "c"}},
        ("FieldValueForbidden", "data"),
        "field is immutable when `immutable` is set",
        id="immutable configmap",
    ),
    pytest.param(
        "configmaps",
        {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True, "data": {"a": "b"}},
        {"immutable": False},
        ("FieldValueForbidden", "immutable"),
        "field is immutable when `immutable` is set",
        id="immutable itself",
    ),
    pytest.param(
        "secrets",
        {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"},
        {"type": "kubernetes.io/tls"},
        ("FieldValueInvalid", "type"),
        "field is immutable",
        id="type of a secret",
    ),
    pytest.param(
        "secrets",
        {"apiVersion": "v1", "kind": "Secret", "immutable": True, "stringData": {"a": "b"}},
        {"stringData": {"a": "c"}},
        ("FieldValueForbidden", "data"),
        "field is immutable when `immutable` is set",
        id="immutable secret",
    ),
    pytest.param(
        "services",
        {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}},
        {"spec": {"clusterIP": "10.255.255.254", "clusterIPs": ["10.255.255.254"]}},
        ("FieldValueInvalid", "spec.clusterIPs[0]"),
        "may not change once set",
        id="cluster address of a service",
    ),
    pytest.param(
        "discovery.k8s.io/v1/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "endpoints": [],
        },
        {"addressType": "IPv6"},
        ("FieldValueInvalid", "addressType"),
        "field is immutable",
        id="address type of a slice",
    ),
    pytest.param(
        "pods",
        pod("x"),
        {"spec": {"restartPolicy": "Never"}},
        ("FieldValueForbidden", "spec"),
        "pod updates may not change fields other than",
        id="spec of a pod",
    ),
    pytest.param(
        "pods",
        pod("x"),
        {"spec": {"containers": []}},
        ("FieldValueForbidden", "spec.containers"),
        "pod updates may not add or remove containers",
        id="containers of a pod",
    ),
]


@pytest.mark.parametrize(("plural", "body", "change", "cause", "words"), IMMUTABLE)
async def test_what_may_not_change(
    api: Api, plural: str, body: Object, change: Object, cause: tuple[str, str], words: str
) -> None:
    (await api.create(api.at(plural), {**body, "metadata": {"name": "x"}})).ok(201)
    before = (await api.get(api.at(plural, "x"))).ok()
    (await api.patch(api.at(plural, "x"), change, MERGE)).fails(422, "Invalid", words, causes=(cause,))
    assert (await api.get(api.at(plural, "x"))).ok() == before


async def test_what_may_change_of_a_pod(api: Api) -> None:
    (await api.create(api.at("pods"), pod("x", activeDeadlineSeconds=100))).ok(201)
    path = api.at("pods", "x")
    container = {"name": "main", "image": "registry.invalid/other:2"}
    change = {"spec": {"containers": [container], "activeDeadlineSeconds": 50}}
    answered = (await api.patch(path, change, "application/strategic-merge-patch+json")).ok()
    assert answered["spec"]["containers"][0]["image"] == "registry.invalid/other:2"
    assert answered["spec"]["activeDeadlineSeconds"] == 50
    tolerations = [*answered["spec"]["tolerations"], {"key": "a", "operator": "Exists"}]
    assert (
        len((await api.patch(path, {"spec": {"tolerations": tolerations}})).ok()["spec"]["tolerations"]) == 3
    )
    (await api.patch(path, {"spec": {"activeDeadlineSeconds": 200}})).fails(422, "Invalid")


async def test_what_is_false_or_empty_is_as_if_it_were_not_there(api: Api) -> None:
    made = pod("a", hostNetwork=False, nodeSelector={}, hostname="")
    made["spec"]["containers"][0].update(tty=False, stdin=False, args=[])
    (await api.create(api.at("pods"), made)).ok(201)
    path = api.at("pods", "a")
    spec = (await api.get(path)).ok()["spec"]
    assert not {"hostNetwork", "hostPID"} & spec.keys()
    assert not {"tty", "stdin"} & spec["containers"][0].keys()
    (await api.patch(path, {"spec": {"hostPID": False, "hostNetwork": None}}, MERGE)).ok(200)
    without: Object = {"nodeSelector": None, "hostname": None, "subdomain": "", "initContainers": []}
    (await api.patch(path, {"spec": without}, MERGE)).ok(200)
    (await api.patch(path, {"spec": {"hostPID": True}}, MERGE)).fails(422, "Invalid", "pod updates may not")
