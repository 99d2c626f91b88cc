"""Tables, metadata alone, and how they are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import PARTIAL, PARTIAL_LIST, TABLE, Api, Object, config_map, pod, with_meta

COLUMNS: list[Any] = [
    pytest.param(
        "pods",
        pod("x"),
        ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"],
        5,
        id="pods",
    ),
    pytest.param("configmaps", config_map("x", a="b"), ["Name", "Data", "Age"], 3, id="configmaps"),
    pytest.param("secrets", {"metadata": {}}, ["Name", "Type", "Data", "Age"], 4, id="secrets"),
    pytest.param(
        "services",
        {"metadata": {}, "spec": {"ports": [{"port": 80}]}},
        ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"],
        6,
        id="services",
    ),
    pytest.param("endpoints", {"metadata": {}}, ["Name", "Endpoints", "Age"], 3, id="endpoints"),
    pytest.param("serviceaccounts", {"metadata": {}}, None, None, id="serviceaccounts"),
    pytest.param(
        "coordination.k8s.io/v1/leases",
        {"metadata": {}, "spec": {}},
        ["Name", "Holder", "Age"],
        3,
        id="leases",
    ),
]


@pytest.mark.parametrize(("plural", "body", "names", "narrow"), COLUMNS)
async def test_columns(
    api: Api, plural: str, body: Object, names: list[str] | None, narrow: int | None
) -> None:
    (await api.create(api.at(plural), with_meta(body, name="x"))).ok(201)
    table = (await api.send("GET", api.at(plural), accept=TABLE, fieldSelector="metadata.name=x")).ok(200)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["metadata"]["resourceVersion"].isdigit()
    columns = table["columnDefinitions"]
    for column in columns:
        assert column.keys() == {"name", "type", "format", "description", "priority"}
    assert (columns[0]["name"], columns[0]["type"], columns[0]["format"]) == ("Name", "string", "name")
    if names is not None:
        assert [c["name"] for c in columns] == names
        assert [c["priority"] > 0 for c in columns] == [i >= (narrow or 0) for i in range(len(names))]
    (row,) = table["rows"]
    assert len(row["cells"]) == len(columns)
    assert row["cells"][0] == "x"
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "x"
    assert row["object"].keys() == {"kind", "apiVersion", "metadata"}


async def test_cells_of_a_pod(api: Api) -> None:
    (await api.create(api.at("pods"), pod("x"))).ok(201)
    table = (await api.send("GET", api.at("pods", "x"), accept=TABLE)).ok(200)
    cells = table["rows"][0]["cells"]
    assert cells[:4] == ["x", "0/1", "Pending", "0"] or cells[:4] == ["x", "0/1", "Pending", 0]
    assert cells[5:] == ["<none>", "<none>", "<none>", "<none>"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "Secret")]
)
async def test_what_a_row_includes(api: Api, include: str, kind: str | None) -> None:
    (await api.create(api.at("secrets"), {"metadata": {"name": "x"}})).ok(201)
    table = (await api.send("GET", api.at("secrets"), accept=TABLE, includeObject=include)).ok(200)
    found = table["rows"][0].get("object") or {}
    assert found.get("kind") == kind


async def test_an_empty_table(api: Api) -> None:
    table = (await api.send("GET", api.at("secrets"), accept=TABLE)).ok(200)
    assert table["rows"] == []
    assert table["columnDefinitions"]


async def test_pages_of_a_table(api: Api) -> None:
    for name in ("a", "b", "c"):
        (await api.create(api.at("secrets"), {"metadata": {"name": name}})).ok(201)
    table = (await api.send("GET", api.at("secrets"), accept=TABLE, limit="2")).ok(200)
    assert [row["cells"][0] for row in table["rows"]] == ["a", "b"]
    assert table["metadata"]["remainingItemCount"] == 1
    token = table["metadata"]["continue"]
    rest = (await api.send("GET", api.at("secrets"), accept=TABLE, limit="2", **{"continue": token})).ok(200)
    assert [row["cells"][0] for row in rest["rows"]] == ["c"]


async def test_a_failure_is_no_table(api: Api) -> None:
    (await api.send("GET", api.at("secrets", "none"), accept=f"{TABLE},application/json")).fails(
        404, "NotFound"
    )


async def test_metadata_alone(api: Api) -> None:
    (await api.create(api.at("configmaps"), config_map("x", a="b"))).ok(201)
    one = (await api.send("GET", api.at("configmaps", "x"), accept=PARTIAL)).ok(200)
    assert (one["kind"], one["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert "data" not in one
    many = (await api.send("GET", api.at("configmaps"), accept=PARTIAL_LIST)).ok(200)
    assert (many["kind"], many["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert many["metadata"]["resourceVersion"].isdigit()
    assert all("data" not in item for item in many["items"])
    assert "x" in [item["metadata"]["name"] for item in many["items"]]


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kubernetes.protobuf,application/json",
        "application/vnd.kubernetes.protobuf;q=1,application/json;q=0.5",
        "application/json;as=Table;v=v9;g=meta.k8s.io,application/json",
        "application/json;as=Nothing;v=v1;g=meta.k8s.io,application/json",
        "*/*",
        "",
    ],
)
async def test_the_second_choice(api: Api, accept: str) -> None:
    answer = await api.send("GET", api.at("secrets"), accept=accept)
    if answer.headers["Content-Type"] == "application/json":
        assert answer.ok(200)["kind"] == "SecretList"
    else:
        assert "protobuf" in accept
