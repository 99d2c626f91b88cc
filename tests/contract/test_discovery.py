"""What a server says of itself: groups, resources, their schemas, its version and health."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api, Object

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList,application/json"
CORE = {
    "configmaps": ("ConfigMap", True, {"cm"}),
    "endpoints": ("Endpoints", True, {"ep"}),
    "events": ("Event", True, {"ev"}),
    "namespaces": ("Namespace", False, {"ns"}),
    "nodes": ("Node", False, {"no"}),
    "pods": ("Pod", True, {"po"}),
    "secrets": ("Secret", True, set()),
    "serviceaccounts": ("ServiceAccount", True, {"sa"}),
    "services": ("Service", True, {"svc"}),
}
GROUPS = {
    "apiextensions.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "networking.k8s.io",
}
VERBS = {"create", "delete", "get", "list", "patch", "update", "watch"}


async def test_core_resources(api: Api) -> None:
    body = (await api.get("/api/v1")).ok(200)
    assert (body["kind"], body["groupVersion"]) == ("APIResourceList", "v1")
    found = {one["name"]: one for one in body["resources"]}
    for name, (kind, namespaced, short) in CORE.items():
        one = found[name]
        assert (one["kind"], one["namespaced"]) == (kind, namespaced)
        assert set(one.get("shortNames", [])) == short
        assert one["singularName"] == kind.lower()
        assert set(one["verbs"]) - {"deletecollection"} == VERBS
    assert "all" in found["pods"]["categories"]
    assert found["pods/status"]["verbs"] == ["get", "patch", "update"]
    eviction = found["pods/eviction"]
    assert (eviction["group"], eviction["version"], eviction["kind"]) == ("policy", "v1", "Eviction")
    assert found["pods/binding"]["verbs"] == ["create"]
    assert {"pods/log", "pods/exec", "pods/attach", "pods/portforward"} <= found.keys()


async def test_groups(api: Api) -> None:
    versions = (await api.get("/api")).ok(200)
    assert (versions["kind"], versions["versions"]) == ("APIVersions", ["v1"])
    body = (await api.get("/apis")).ok(200)
    assert (body["kind"], body["apiVersion"]) == ("APIGroupList", "v1")
    found = {group["name"]: group for group in body["groups"]}
    assert found.keys() >= GROUPS
    for name, group in found.items():
        assert group["preferredVersion"] in group["versions"]
        one = (await api.get(f"/apis/{name}")).ok(200)
        assert one["kind"] == "APIGroup"
        assert one["name"] == name
        for version in group["versions"]:
            assert version["groupVersion"] == f"{name}/{version['version']}"
            listed = (await api.get(f"/apis/{version['groupVersion']}")).ok(200)
            assert listed["groupVersion"] == version["groupVersion"]
            assert listed["resources"]


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
@pytest.mark.parametrize("root", ["/api", "/apis"])
async def test_aggregated_discovery(api: Api, root: str, version: str) -> None:
    accept = AGGREGATED.format(version)
    answer = await api.send("GET", root, accept=accept)
    body = answer.ok(200)
    media = answer.headers["Content-Type"]
    if "as=APIGroupDiscoveryList" not in media:
        pytest.fail(f"not aggregated: {media}")
    assert body["kind"] == "APIGroupDiscoveryList"
    assert body["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    for group in body["items"]:
        name = group["metadata"].get("name", "")
        for one in group["versions"]:
            path = f"/apis/{name}/{one['version']}" if name else f"/api/{one['version']}"
            listed = {entry["name"]: entry for entry in (await api.get(path)).ok()["resources"]}
            assert {r["resource"] for r in one["resources"]} == {n for n in listed if "/" not in n}
            for resource in one["resources"]:
                entry = listed[resource["resource"]]
                assert resource["scope"] == ("Namespaced" if entry["namespaced"] else "Cluster")
                assert resource["responseKind"]["kind"] == entry["kind"]
                assert sorted(resource["verbs"]) == sorted(entry["verbs"])
                parts = {
                    f"{resource['resource']}/{p['subresource']}" for p in resource.get("subresources", [])
                }
                assert parts == {n for n in listed if n.startswith(f"{resource['resource']}/")}
    tag = answer.headers["ETag"]
    again = await api.send("GET", root, accept=accept, headers={"If-None-Match": tag})
    assert again.code == 304


async def test_version_and_health(api: Api) -> None:
    body = (await api.get("/version")).ok(200)
    assert body["major"] == "1"
    assert body["minor"].rstrip("+").isdigit()
    assert body["gitVersion"].startswith(f"v1.{body['minor'].rstrip('+')}.")
    assert body["platform"].startswith("linux/")
    for path in ("/healthz", "/livez", "/readyz"):
        answer = await api.get(path)
        assert (answer.code, answer.body) == (200, "ok")
    told = (await api.get("/readyz", verbose="true")).ok(200)
    assert "[+]ping ok\n" in told and told.endswith("readyz check passed\n")
    assert (await api.get("/readyz/ping")).ok(200) == "ok"
    assert (await api.get("/readyz/none")).code == 404
    assert "/api" in (await api.get("/")).ok(200)["paths"]


def references(value: Any) -> set[str]:
    """All that is referred to."""
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(references, value.values())) if value else found
    return set().union(*map(references, value)) if isinstance(value, list) and value else set()


async def test_schemas(api: Api) -> None:
    index = (await api.get("/openapi/v3")).ok(200)["paths"]
    assert {"api/v1", *(f"apis/{group}/v1" for group in GROUPS)} <= index.keys()
    for path, entry in index.items():
        url = entry["serverRelativeURL"]
        assert url.startswith(f"/openapi/v3/{path}?hash=")
        document: Object = (await api.get(url)).ok(200)
        assert document["openapi"].startswith("3.0")
        schemas = document.get("components", {}).get("schemas", {})
        missing = {
            ref for ref in references(document) if ref.removeprefix("#/components/schemas/") not in schemas
        }
        assert not missing, (path, missing)


@pytest.mark.parametrize(
    ("path", "kind", "fields"),
    [
        ("api/v1", "Pod", {"spec", "status", "metadata", "kind", "apiVersion"}),
        ("api/v1", "ConfigMap", {"data", "binaryData", "immutable", "metadata"}),
        ("apis/networking.k8s.io/v1", "NetworkPolicy", {"spec", "metadata"}),
        ("apis/apiextensions.k8s.io/v1", "CustomResourceDefinition", {"spec", "status", "metadata"}),
    ],
)
async def test_the_schema_of_a_kind(api: Api, path: str, kind: str, fields: set[str]) -> None:
    document = (await api.get(f"/openapi/v3/{path}")).ok(200)
    wanted = {"group": path.split("/")[1] if path.startswith("apis") else "", "version": "v1", "kind": kind}
    found = [
        schema
        for schema in document["components"]["schemas"].values()
        if wanted in schema.get("x-kubernetes-group-version-kind", [])
    ]
    assert len(found) == 1
    assert found[0]["properties"].keys() >= fields
    assert found[0]["description"]
    # kubectl finds the kind of a path by its operations.
    paths = [
        operation.get("x-kubernetes-group-version-kind")
        for item in document["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict)
    ]
    assert wanted in paths
