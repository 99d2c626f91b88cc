"""Forms, failures, options and documents over HTTP, beside what the contract tests cover."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import aiohttp
import pytest

from tests.apiserver.lab import MAPS, PODS, Lab, config_map, pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PROTOBUF = "application/vnd.kubernetes.protobuf"


async def test_a_table_of_pods(bare: Lab) -> None:
    made = await bare.ok("POST", PODS, pod("a", nodeName="n1"))
    made["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "restartCount": 2,
                "state": {"running": {}},
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2020-01-01T00:00:00Z"}},
            }
        ],
    }
    await bare.ok("PUT", f"{PODS}/a/status", made)
    found = await bare.ok("GET", PODS, Accept=TABLE)
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in found["columnDefinitions"]]
    assert names[:7] == ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"]
    cells = dict(zip(names, found["rows"][0]["cells"], strict=True))
    assert cells["Ready"] == "1/1"
    assert cells["Status"] == "Running"
    assert cells["Restarts"].startswith("2 (")
    assert cells["IP"] == "10.0.0.1"
    assert found["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    whole = await bare.ok("GET", f"{PODS}?includeObject=Object", Accept=TABLE)
    assert whole["rows"][0]["object"]["spec"]["nodeName"] == "n1"


async def test_metadata_alone(bare: Lab) -> None:
    await bare.ok("POST", MAPS, config_map("a", x="y"))
    found = await bare.ok("GET", MAPS, Accept=PARTIAL)
    assert found["kind"] == "PartialObjectMetadataList"
    assert "data" not in found["items"][0]
    assert found["items"][0]["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("accept", "code"),
    [(PROTOBUF, 406), (f"{PROTOBUF},application/json", 200), ("text/html", 406), ("*/*", 200)],
)
async def test_protobuf_is_never_answered(bare: Lab, accept: str, code: int) -> None:
    answer = await bare.ask("GET", MAPS, Accept=accept)
    assert answer.code == code
    assert answer.headers["Content-Type"].startswith("application/json")


def field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


async def test_protobuf_is_understood(bare: Lab) -> None:
    """The encoding of a ConfigMap, written out by hand."""
    meta = field(1, b"a") + field(11, field(1, b"label") + field(2, b"value"))
    message = field(1, meta) + field(2, field(1, b"key") + field(2, b"text")) + bytes([4 << 3, 1])
    kind = field(1, b"v1") + field(2, b"ConfigMap")
    body = b"k8s\0" + field(1, kind) + field(2, message)
    answer = await bare.ask("POST", MAPS, raw=body, Content_Type=PROTOBUF)
    assert answer.code == 201
    assert answer.body["data"] == {"key": "text"}
    assert answer.body["immutable"] is True
    assert answer.body["metadata"]["labels"] == {"label": "value"}
    broken = await bare.ask("POST", MAPS, raw=body[:-3], Content_Type=PROTOBUF)
    assert (broken.code, broken.body["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"metadata":{"name":"a"},"dta":{}}', 'unknown field "dta"'),
        (b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"}}', 'duplicate field "x"'),
    ],
)
async def test_field_validation(bare: Lab, raw: bytes, told: str) -> None:
    strict = await bare.ask(
        "POST", f"{MAPS}?fieldValidation=Strict", raw=raw, Content_Type="application/json"
    )
    assert strict.code == 400
    assert f"strict decoding error: {told}" in strict.body["message"]
    warned = await bare.ask("POST", f"{MAPS}?dryRun=All", raw=raw, Content_Type="application/json")
    assert warned.code == 201
    quoted = told.replace('"', '\\"')
    assert warned.headers.getall("Warning") == [f'299 - "{quoted}"']
    path = f"{MAPS}?fieldValidation=Ignore&dryRun=All"
    ignored = await bare.ask("POST", path, raw=raw, Content_Type="application/json")
    assert "Warning" not in ignored.headers
    other = await bare.ask("POST", f"{MAPS}?fieldValidation=Perhaps", raw=raw)
    assert other.code == 422


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"data": {"x": 1}}, "cannot unmarshal number into Go struct field ConfigMap.data of type"),
        (
            {"immutable": "yes"},
            "cannot unmarshal string into Go struct field ConfigMap.immutable of type bool",
        ),
        ({"binaryData": {"x": "*"}}, "illegal base64 data"),
        ({"kind": "Secret"}, "Secret in version"),
        ({"apiVersion": "v2"}, "the API version in the data (v2) does not match"),
    ],
)
async def test_values_of_wrong_types(bare: Lab, body: dict[str, Any], told: str) -> None:
    answer = await bare.ask("POST", MAPS, {"metadata": {"name": "a"}, **body})
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert told in answer.body["message"]


async def test_nulls_count_as_left_out(bare: Lab) -> None:
    made = await bare.ok(
        "POST", MAPS, {"metadata": {"name": "a", "labels": None, "creationTimestamp": None}, "data": None}
    )
    assert "labels" not in made["metadata"]
    assert "data" not in made


@pytest.mark.parametrize(
    ("method", "path", "code", "reason"),
    [
        ("GET", "/api/v1/unknown", 404, "NotFound"),
        ("GET", "/apis/apps/v1/deployments", 404, "NotFound"),
        ("GET", "/nowhere", 404, "NotFound"),
        ("PUT", MAPS, 405, "MethodNotAllowed"),
        ("POST", f"{MAPS}/a", 405, "MethodNotAllowed"),
        ("POST", "/api/v1/configmaps", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/namespaces", 405, "MethodNotAllowed"),
        ("GET", f"{PODS}/a/log", 404, "NotFound"),
        ("GET", f"{PODS}/a/scale", 404, "NotFound"),
        ("GET", f"{MAPS}?limit=many", 400, "BadRequest"),
        ("GET", f"{MAPS}?continue=nonsense", 400, "BadRequest"),
    ],
)
async def test_failures(bare: Lab, method: str, path: str, code: int, reason: str) -> None:
    answer = await bare.ask(method, path)
    assert (answer.code, answer.body["reason"], answer.body["kind"]) == (code, reason, "Status")
    assert answer.body["code"] == code


async def test_a_body_that_is_too_large(bare: Lab) -> None:
    answer = await bare.ask("POST", MAPS, config_map("a", x="y" * (4 << 20)))
    assert (answer.code, answer.body["reason"]) == (413, "RequestEntityTooLarge")


async def test_yaml_both_ways(bare: Lab) -> None:
    raw = b"metadata: {name: a}\ndata: {x: 'yes'}\n"
    answer = await bare.ask("POST", MAPS, raw=raw, Content_Type="application/yaml", Accept="application/yaml")
    assert answer.code == 201
    assert b"\n  x: 'yes'\n" in answer.body


async def test_only_holders_of_the_token_over_tcp(tmp_path: Any) -> None:
    lab = Lab(tmp_path, controllers=False, port=True)
    await lab.start()
    context = ssl.create_default_context(cafile=str(lab.api.files.authority))
    try:
        async with aiohttp.ClientSession(base_url=lab.api.url) as session:

            async def code(path: str, token: str) -> int:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                async with session.get(path, headers=headers, ssl=context) as answer:
                    return answer.status

            assert await code("/api/v1/pods", lab.api.token) == 200
            assert await code("/api/v1/pods", "") == 401
            assert await code("/api/v1/pods", lab.api.token + "x") == 401
            assert await code("/apis", "") == 401
            assert await code("/readyz", "") == 200
            assert await code("/version", "") == 200
        for path in lab.api.files.directory.iterdir():
            assert not path.stat().st_mode & 0o077 or path.name.startswith("objects.db"), path
        assert not lab.api.files.directory.stat().st_mode & 0o077
    finally:
        await lab.close()


async def test_reviews(bare: Lab) -> None:
    may = await bare.ok(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}},
    )
    assert may["status"]["allowed"] is True
    who = await bare.ok("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert who["status"]["userInfo"]["username"] == "podwire-admin"
    for token, known in ((bare.api.token, True), ("another", False)):
        review = await bare.ok(
            "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}}
        )
        assert review["status"].get("authenticated", False) is known


async def test_aggregated_discovery(bare: Lab) -> None:
    for version in ("v2", "v2beta1"):
        accept = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        found = await bare.ask("GET", "/api", Accept=accept)
        assert f"v={version}" in found.headers["Content-Type"]
        (core,) = found.body["items"]
        pods = next(r for r in core["versions"][0]["resources"] if r["resource"] == "pods")
        assert pods["shortNames"] == ["po"]
        assert {"subresource": "binding", "verbs": ["create"]}.items() <= next(
            s for s in pods["subresources"] if s["subresource"] == "binding"
        ).items()
        same = await bare.ask("GET", "/api", Accept=accept, If_None_Match=found.headers["ETag"])
        assert same.code == 304


async def test_openapi_has_every_kind(bare: Lab) -> None:
    index = (await bare.ok("GET", "/openapi/v3"))["paths"]
    for kind in bare.api.registry.kinds:
        path = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
        document = await bare.ok("GET", index[path]["serverRelativeURL"])
        wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        (schema,) = [
            s
            for s in document["components"]["schemas"].values()
            if s.get("x-kubernetes-group-version-kind") == [wanted]
        ]
        assert {"apiVersion", "kind", "metadata"} <= schema["properties"].keys()
        text = json.dumps(document)
        for reference in text.split('"#/components/schemas/')[1:]:
            assert reference.partition('"')[0] in document["components"]["schemas"]


async def test_a_watch_ends_with_the_server(tmp_path: Any) -> None:
    lab = Lab(tmp_path, controllers=False)
    await lab.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(lab.socket))) as session:
        answer = await session.get(f"http://x{MAPS}?watch=true")
        assert answer.status == 200
        ended = asyncio.ensure_future(answer.read())
        async with asyncio.timeout(5):
            await lab.close()
            assert await ended == b""
