"""Every kind through every verb, and what is refused before a kind is even asked."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.contract.api import JSON_PATCH, MERGE, Api, Object, config_map, pod, with_meta

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

SERVICE: Object = {"metadata": {}, "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}}
SLICE: Object = {
    "metadata": {"labels": {"kubernetes.io/service-name": "x"}},
    "addressType": "IPv4",
    "endpoints": [],
    "ports": [],
}
EVENT: Object = {
    "metadata": {},
    "involvedObject": {"kind": "Pod", "name": "x"},
    "reason": "R",
    "message": "m",
    "type": "Normal",
}
LEASE: Object = {"metadata": {}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 40}}
POLICY: Object = {"metadata": {}, "spec": {"podSelector": {}}}
KINDS: list[Any] = [
    pytest.param("configmaps", "v1", "ConfigMap", {"metadata": {}, "data": {"a": "b"}}, id="configmaps"),
    pytest.param("secrets", "v1", "Secret", {"metadata": {}, "data": {"a": "Yg=="}}, id="secrets"),
    pytest.param("serviceaccounts", "v1", "ServiceAccount", {"metadata": {}}, id="serviceaccounts"),
    pytest.param("services", "v1", "Service", SERVICE, id="services"),
    pytest.param("endpoints", "v1", "Endpoints", {"metadata": {}, "subsets": []}, id="endpoints"),
    pytest.param("pods", "v1", "Pod", pod("x"), id="pods"),
    pytest.param("events", "v1", "Event", EVENT, id="events"),
    pytest.param(
        "discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice", SLICE, id="slices"
    ),
    pytest.param("coordination.k8s.io/v1/leases", "coordination.k8s.io/v1", "Lease", LEASE, id="leases"),
    pytest.param(
        "networking.k8s.io/v1/networkpolicies", "networking.k8s.io/v1", "NetworkPolicy", POLICY, id="policies"
    ),
]


@pytest.mark.parametrize(("plural", "version", "kind", "body"), KINDS)
async def test_a_kind_goes_through_every_verb(
    api: Api, plural: str, version: str, kind: str, body: Object
) -> None:
    collection, one = api.at(plural), api.at(plural, "life")
    if kind == "Event":
        body = {**body, "involvedObject": {**body["involvedObject"], "namespace": api.namespace}}
    sent = with_meta({"apiVersion": version, "kind": kind, **body}, name="life")

    made = (await api.create(collection, sent)).ok(201)
    meta = made["metadata"]
    assert (made["apiVersion"], made["kind"]) == (version, kind)
    assert (meta["name"], meta["namespace"]) == ("life", api.namespace)
    assert UUID.fullmatch(meta["uid"])
    assert TIME.fullmatch(meta["creationTimestamp"])
    assert meta["resourceVersion"].isdigit()
    assert "selfLink" not in meta

    assert (await api.get(one)).ok(200)["metadata"]["uid"] == meta["uid"]
    found = (await api.get(collection)).ok(200)
    assert (found["kind"], found["apiVersion"]) == (f"{kind}List", version)
    listed = {item["metadata"]["name"]: item for item in found["items"]}
    assert listed["life"]["metadata"]["uid"] == meta["uid"]

    made["metadata"]["labels"] = {**made["metadata"].get("labels", {}), "step": "replaced"}
    replaced = (await api.replace(one, made)).ok(200)
    assert replaced["metadata"]["labels"]["step"] == "replaced"
    assert int(replaced["metadata"]["resourceVersion"]) > int(meta["resourceVersion"])

    patched = (await api.patch(one, {"metadata": {"labels": {"step": "patched"}}}, MERGE)).ok(200)
    assert patched["metadata"]["labels"]["step"] == "patched"
    change = [{"op": "replace", "path": "/metadata/labels/step", "value": "again"}]
    assert (await api.patch(one, change, JSON_PATCH)).ok(200)["metadata"]["labels"]["step"] == "again"

    deleted = (await api.delete(one)).ok(200)
    assert deleted["kind"] in ("Status", kind)
    if deleted["kind"] == "Status":
        assert deleted["status"] == "Success"
        assert deleted["details"]["name"] == "life"
        assert deleted["details"]["kind"] == plural.rpartition("/")[2]
        assert deleted["details"]["uid"] == meta["uid"]
    (await api.get(one)).fails(404, "NotFound", '"life" not found')

    for name in ("c1", "c2"):
        (await api.create(collection, with_meta(sent, name=name, labels={"many": "yes"}))).ok(201)
    (await api.delete(collection, labelSelector="many=yes")).ok(200)
    left = (await api.get(collection, labelSelector="many=yes")).ok()["items"]
    assert left == []


async def test_a_namespace_and_a_node_are_of_no_namespace(api: Api) -> None:
    name = f"{api.namespace}-node"
    path = f"/api/v1/nodes/{name}"
    made = (await api.create("/api/v1/nodes", {"metadata": {"name": name}})).ok(201)
    assert "namespace" not in made["metadata"]
    (await api.delete(path)).ok(200)
    (await api.get(path)).fails(404, "NotFound")
    refused = {"metadata": {"name": name, "namespace": api.namespace}}
    answer = await api.create("/api/v1/nodes", refused)
    assert answer.code in (400, 422), answer.told


async def test_status_of_a_failure_names_the_object(api: Api) -> None:
    body = (await api.get(api.at("configmaps", "none"))).fails(404, "NotFound", 'configmaps "none" not found')
    assert body["details"] == {"name": "none", "kind": "configmaps"}
    path = api.at("coordination.k8s.io/v1/leases", "none")
    body = (await api.get(path)).fails(404, "NotFound", 'leases.coordination.k8s.io "none" not found')
    assert body["details"] == {"name": "none", "group": "coordination.k8s.io", "kind": "leases"}
    assert body["metadata"] == {}


async def test_twice_created(api: Api) -> None:
    (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
    body = (await api.create(api.at("configmaps"), config_map("a"))).fails(
        409, "AlreadyExists", 'configmaps "a" already exists'
    )
    assert body["details"] == {"name": "a", "kind": "configmaps"}


@pytest.mark.parametrize(
    ("method", "path", "code", "reason"),
    [
        pytest.param("GET", "/api/v1/nothings", 404, "NotFound", id="no such resource"),
        pytest.param("GET", "/apis/no.such.group/v1/things", 404, "NotFound", id="no such group"),
        pytest.param("GET", "/apis/apps/v9/deployments", 404, "NotFound", id="no such version"),
        pytest.param("GET", "/api/v1/namespaces/default/configmaps/a/nothing", 404, "NotFound", id="no part"),
        pytest.param("PUT", "/api/v1/namespaces/default/configmaps", 405, "MethodNotAllowed", id="put many"),
        pytest.param("POST", "/api/v1/configmaps", 405, "MethodNotAllowed", id="create in no namespace"),
        pytest.param(
            "POST", "/api/v1/namespaces/default/configmaps/a", 405, "MethodNotAllowed", id="post to one"
        ),
        pytest.param("DELETE", "/api/v1/namespaces", 405, "MethodNotAllowed", id="all namespaces"),
        pytest.param("GET", "/no/such/path", 404, "", id="no such path"),
    ],
)
async def test_what_is_not_there(api: Api, method: str, path: str, code: int, reason: str) -> None:
    answer = await api.send(method, path, {} if method in ("PUT", "POST") else None)
    assert answer.code == code, answer.told
    if reason and isinstance(answer.body, dict):
        answer.fails(code, reason)


@pytest.mark.parametrize(
    ("body", "content", "code", "reason", "words"),
    [
        pytest.param(b"{", "application/json", 400, "BadRequest", (), id="no JSON"),
        pytest.param(b"[]", "application/json", 400, "BadRequest", (), id="a list"),
        pytest.param(b"", "application/json", 400, "BadRequest", (), id="nothing"),
        pytest.param(b"{}", "text/html", 415, "UnsupportedMediaType", (), id="HTML"),
        pytest.param(
            b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}',
            "application/json",
            400,
            "BadRequest",
            ("cannot be handled as a ConfigMap",),
            id="another kind",
        ),
        pytest.param(
            b'{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"a"}}',
            "application/json",
            400,
            "BadRequest",
            (),
            id="another version",
        ),
        pytest.param(
            b'{"metadata":{"name":"a"},"data":{"a":1}}',
            "application/json",
            400,
            "BadRequest",
            ("cannot unmarshal number into Go struct field", "of type string"),
            id="wrong type",
        ),
        pytest.param(
            b'{"metadata":{"name":"a","namespace":"other"}}',
            "application/json",
            400,
            "BadRequest",
            ("the namespace of the provided object does not match the namespace sent on the request",),
            id="another namespace",
        ),
    ],
)
async def test_bodies_that_are_no_object(
    api: Api, body: bytes, content: str, code: int, reason: str, words: tuple[str, ...]
) -> None:
    answer = await api.send("POST", api.at("configmaps"), body, content=content)
    answer.fails(code, reason, *words)


async def test_a_body_may_be_yaml(api: Api) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: b}\n"
    made = await api.send("POST", api.at("configmaps"), text, content="application/yaml")
    assert made.ok(201)["data"] == {"a": "b"}
    answer = await api.send("GET", api.at("configmaps", "y"), accept="application/yaml")
    assert answer.code == 200
    assert answer.headers["Content-Type"] == "application/yaml"
    assert "kind: ConfigMap" in answer.body


async def test_a_form_that_is_not_known_is_not_acceptable(api: Api) -> None:
    answer = await api.send("GET", api.at("configmaps"), accept="text/html")
    assert answer.code == 406, answer.told
    answer = await api.send("GET", api.at("configmaps"), accept="text/html, application/json;q=0.1")
    assert answer.code == 200, answer.told


async def test_an_object_too_large(api: Api) -> None:
    body = config_map("large", a="x" * (4 << 20))
    answer = await api.create(api.at("configmaps"), body)
    answer.fails(413, "RequestEntityTooLarge")


async def test_names_are_made_from_a_prefix(api: Api) -> None:
    body = {"metadata": {"generateName": "made-"}}
    names = set()
    for _ in range(5):
        made = (await api.create(api.at("configmaps"), body)).ok(201)
        assert made["metadata"]["generateName"] == "made-"
        names.add(made["metadata"]["name"])
    assert len(names) == 5
    assert all(re.fullmatch(r"made-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names), names
    long = {"metadata": {"generateName": "a" * 80}}
    made = (await api.create(api.at("configmaps"), long)).ok(201)
    assert len(made["metadata"]["name"]) == 63
    both = {"metadata": {"name": "own", "generateName": "made-"}}
    assert (await api.create(api.at("configmaps"), both)).ok(201)["metadata"]["name"] == "own"


async def test_a_new_object_has_no_version_of_its_own(api: Api) -> None:
    body = with_meta(config_map("a"), resourceVersion="5")
    answer = await api.create(api.at("configmaps"), body)
    assert answer.code == 500, answer.told
    assert "resourceVersion should not be set on objects to be created" in answer.body["message"]


async def test_what_the_server_sets_is_ignored_in_a_new_object(api: Api) -> None:
    body = with_meta(
        config_map("a"),
        uid="mine",
        creationTimestamp="2001-01-01T00:00:00Z",
        deletionTimestamp="2001-01-01T00:00:00Z",
        deletionGracePeriodSeconds=5,
        generation=7,
    )
    meta = (await api.create(api.at("configmaps"), body)).ok(201)["metadata"]
    assert UUID.fullmatch(meta["uid"])
    assert not meta["creationTimestamp"].startswith("2001")
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds"} & meta.keys()


async def test_a_namespace_that_is_not_there(api: Api) -> None:
    path = "/api/v1/namespaces/contract-none/configmaps"
    body = (await api.create(path, config_map("a"))).fails(
        404, "NotFound", 'namespaces "contract-none" not found'
    )
    assert body["details"] == {"name": "contract-none", "kind": "namespaces"}
    assert (await api.get(path)).ok(200)["items"] == []


async def test_dry_run_changes_nothing(api: Api) -> None:
    path = api.at("configmaps", "dry")
    made = (await api.create(api.at("configmaps"), config_map("dry"), dryRun="All")).ok(201)
    assert made["metadata"]["uid"]
    assert "resourceVersion" not in made["metadata"]
    (await api.get(path)).fails(404, "NotFound")
    (await api.create(api.at("configmaps"), config_map("dry", a="1"))).ok(201)
    (await api.create(api.at("configmaps"), config_map("dry"), dryRun="All")).fails(409, "AlreadyExists")
    before = (await api.get(path)).ok()
    assert (await api.patch(path, {"data": {"a": "2"}}, dryRun="All")).ok()["data"] == {"a": "2"}
    changed = {**before, "data": {"a": "3"}}
    assert (await api.replace(path, changed, dryRun="All")).ok()["data"] == {"a": "3"}
    (await api.delete(path, {"dryRun": ["All"]})).ok(200)
    (await api.delete(path, dryRun="All")).ok(200)
    (await api.delete(api.at("configmaps"), dryRun="All")).ok(200)
    assert (await api.get(path)).ok() == before
    answer = await api.create(api.at("configmaps"), config_map("x"), dryRun="Some")
    answer.fails(422, "Invalid", "dryRun", causes=(("FieldValueNotSupported", "dryRun"),))


async def test_of_many_who_create_one_succeeds(api: Api) -> None:
    answers = await asyncio.gather(
        *[api.create(api.at("configmaps"), config_map("one", by=str(n))) for n in range(10)]
    )
    assert sorted(answer.code for answer in answers) == [201] + [409] * 9
    winner = next(answer for answer in answers if answer.code == 201)
    assert (await api.get(api.at("configmaps", "one"))).ok() == winner.body


@pytest.mark.parametrize(
    ("plural", "creates"),
    [
        ("coordination.k8s.io/v1/leases", True),
        ("endpoints", True),
        ("services", True),
        ("configmaps", False),
        ("pods", False),
    ],
)
async def test_a_replace_of_nothing(api: Api, plural: str, creates: bool) -> None:
    kind = {
        "leases": "Lease",
        "endpoints": "Endpoints",
        "configmaps": "ConfigMap",
        "pods": "Pod",
        "services": "Service",
    }
    group, _, name = plural.rpartition("/")
    bodies = {"pods": pod("a"), "services": with_meta(SERVICE, name="a")}
    body = bodies.get(name, {"metadata": {"name": "a"}})
    answer = await api.replace(api.at(plural, "a"), {**body, "apiVersion": group or "v1", "kind": kind[name]})
    if creates:
        answer.ok(201)
    else:
        answer.fails(404, "NotFound")


async def test_an_object_of_a_namespace_is_not_found_without(api: Api) -> None:
    (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
    assert (await api.get("/api/v1/configmaps/a")).code == 404
