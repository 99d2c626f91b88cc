"""Lists: pages, and at which revision."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api, config_map

FUTURE = str(1 << 62)


async def fill(api: Api, count: int) -> list[str]:
    """Make ConfigMaps; their names in order."""
    names = [f"m{number:02}" for number in range(count)]
    for name in names:
        (await api.create(api.at("secrets"), {"metadata": {"name": name}})).ok(201)
    return names


def names_of(body: Any) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_a_list_says_what_it_is(api: Api) -> None:
    await fill(api, 2)
    body = (await api.get(api.at("secrets"))).ok(200)
    assert (body["kind"], body["apiVersion"]) == ("SecretList", "v1")
    assert body["metadata"]["resourceVersion"].isdigit()
    assert "continue" not in body["metadata"]
    assert names_of(body) == ["m00", "m01"]
    newest = max(int(item["metadata"]["resourceVersion"]) for item in body["items"])
    assert int(body["metadata"]["resourceVersion"]) >= newest


async def test_an_empty_list_has_items(api: Api) -> None:
    assert (await api.get(api.at("secrets"))).ok(200)["items"] == []


async def test_pages_are_of_one_revision(api: Api) -> None:
    names = await fill(api, 7)
    first = (await api.get(api.at("secrets"), limit="3")).ok(200)
    assert names_of(first) == names[:3]
    assert first["metadata"]["remainingItemCount"] == 4
    revision = first["metadata"]["resourceVersion"]

    # What happens between pages is not seen.
    (await api.delete(api.at("secrets", "m05"))).ok()
    (await api.create(api.at("secrets"), {"metadata": {"name": "m04a"}})).ok()
    (await api.patch(api.at("secrets", "m04"), {"metadata": {"labels": {"new": "yes"}}})).ok()

    second = (await api.get(api.at("secrets"), limit="3", **{"continue": first["metadata"]["continue"]})).ok()
    assert names_of(second) == names[3:6]
    assert "labels" not in second["items"][1]["metadata"]
    assert second["metadata"]["resourceVersion"] == revision
    assert second["metadata"]["remainingItemCount"] == 1
    third = (await api.get(api.at("secrets"), limit="3", **{"continue": second["metadata"]["continue"]})).ok()
    assert names_of(third) == names[6:]
    assert not third["metadata"].get("continue")
    assert "remainingItemCount" not in third["metadata"]
    assert names_of((await api.get(api.at("secrets"), limit="3")).ok()) == names[:3]


async def test_pages_of_a_selection_do_not_count_what_remains(api: Api) -> None:
    for number in range(4):
        body = {"metadata": {"name": f"s{number}", "labels": {"odd": str(number % 2)}}}
        (await api.create(api.at("secrets"), body)).ok(201)
    page = (await api.get(api.at("secrets"), labelSelector="odd=1", limit="1")).ok()
    assert names_of(page) == ["s1"]
    assert "remainingItemCount" not in page["metadata"]
    token = page["metadata"]["continue"]
    page = (await api.get(api.at("secrets"), labelSelector="odd=1", limit="1", **{"continue": token})).ok()
    assert names_of(page) == ["s3"]


async def test_a_last_page_that_is_full_is_the_last(api: Api) -> None:
    await fill(api, 4)
    first = (await api.get(api.at("secrets"), limit="2")).ok()
    second = (await api.get(api.at("secrets"), limit="2", **{"continue": first["metadata"]["continue"]})).ok()
    assert names_of(second) == ["m02", "m03"]
    assert not second["metadata"].get("continue")


async def test_pages_go_across_namespaces(api: Api) -> None:
    names = await fill(api, 3)
    found: list[str] = []
    token = ""
    while True:
        query = {"limit": "2", **({"continue": token} if token else {})}
        page = (await api.get("/api/v1/secrets", **query)).ok()
        found += [i["metadata"]["name"] for i in page["items"] if i["metadata"]["namespace"] == api.namespace]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == names


@pytest.mark.parametrize("token", ["nothing", "e30", "bm8=", "%%%"])
async def test_a_token_that_is_none(api: Api, token: str) -> None:
    (await api.get(api.at("secrets"), limit="1", **{"continue": token})).fails(
        400, "BadRequest", "continue key is not valid"
    )


async def test_a_token_goes_with_no_version(api: Api) -> None:
    await fill(api, 2)
    meta = (await api.get(api.at("secrets"), limit="1")).ok()["metadata"]
    query = {"continue": meta["continue"], "resourceVersion": meta["resourceVersion"]}
    (await api.get(api.at("secrets"), limit="1", **query)).fails(
        400, "BadRequest", "specifying resource version is not allowed when using continue"
    )


@pytest.mark.embedded("forgets the log of the server's storage")
async def test_a_token_that_has_expired_goes_on_with_what_is_there(api: Api) -> None:
    names = await fill(api, 4)
    first = (await api.get(api.at("secrets"), limit="2")).ok()
    (await api.create(api.at("secrets"), {"metadata": {"name": "m02a"}})).ok()
    assert api.cluster.embedded is not None
    api.cluster.embedded.compact()
    token = first["metadata"]["continue"]
    body = (await api.get(api.at("secrets"), limit="2", **{"continue": token})).fails(
        410, "Expired", "The provided continue parameter is too old to display a consistent list result."
    )
    fresh = body["metadata"]["continue"]
    rest = (await api.get(api.at("secrets"), **{"continue": fresh})).ok()
    assert names_of(rest) == ["m02", "m02a", "m03"]
    assert names[:2] == names_of(first)


@pytest.mark.embedded("forgets the log of the server's storage")
async def test_a_version_that_is_forgotten(api: Api) -> None:
    await fill(api, 1)
    old = (await api.get(api.at("secrets"))).ok()["metadata"]["resourceVersion"]
    await_next = {"metadata": {"name": "later"}}
    (await api.create(api.at("secrets"), await_next)).ok()
    assert api.cluster.embedded is not None
    api.cluster.embedded.compact()
    query = {"resourceVersion": old, "resourceVersionMatch": "Exact"}
    (await api.get(api.at("secrets"), **query)).fails(410, "Expired")
    query = {"resourceVersion": old, "resourceVersionMatch": "NotOlderThan"}
    assert names_of((await api.get(api.at("secrets"), **query)).ok()) == ["later", "m00"]


async def test_at_exactly_one_version(api: Api) -> None:
    await fill(api, 2)
    then = (await api.get(api.at("secrets"))).ok()["metadata"]["resourceVersion"]
    (await api.delete(api.at("secrets", "m00"))).ok()
    (await api.create(api.at("secrets"), {"metadata": {"name": "z"}})).ok()
    query = {"resourceVersion": then, "resourceVersionMatch": "Exact"}
    body = (await api.get(api.at("secrets"), **query)).ok()
    assert names_of(body) == ["m00", "m01"]
    assert body["metadata"]["resourceVersion"] == then
    page = (await api.get(api.at("secrets"), limit="1", **query)).ok()
    assert names_of(page) == ["m00"]
    assert page["metadata"]["resourceVersion"] == then
    token = page["metadata"]["continue"]
    assert names_of((await api.get(api.at("secrets"), **{"continue": token})).ok()) == ["m01"]


@pytest.mark.parametrize("match", ["", "NotOlderThan"])
@pytest.mark.parametrize("version", ["0", "then"])
async def test_not_older_than(api: Api, match: str, version: str) -> None:
    await fill(api, 1)
    then = (await api.get(api.at("secrets"))).ok()["metadata"]["resourceVersion"]
    last = (await api.create(api.at("secrets"), {"metadata": {"name": "z"}})).ok()
    query = {"resourceVersion": then if version == "then" else "0"}
    if match:
        query["resourceVersionMatch"] = match
    body = (await api.get(api.at("secrets"), **query)).ok()
    assert int(body["metadata"]["resourceVersion"]) >= (int(then) if version == "then" else 0)
    if api.cluster.embedded is not None:
        assert names_of(body) == ["m00", "z"]
        assert int(body["metadata"]["resourceVersion"]) >= int(last["metadata"]["resourceVersion"])


@pytest.mark.parametrize("path", ["", "m00"])
@pytest.mark.parametrize("match", ["", "NotOlderThan"])
async def test_a_version_that_is_not_reached(api: Api, path: str, match: str) -> None:
    await fill(api, 1)
    query = {"resourceVersion": FUTURE}
    if match and not path:
        query["resourceVersionMatch"] = match
    body = (await api.get(api.at("secrets", path), **query)).fails(
        504, "Timeout", f"Too large resource version: {FUTURE}, current: "
    )
    assert body["message"].startswith("Timeout: ")
    assert body["details"]["retryAfterSeconds"] >= 1
    assert body["details"]["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]


@pytest.mark.parametrize("version", ["x", "-1", "1.5", "18446744073709551616"])
async def test_a_version_that_is_none(api: Api, version: str) -> None:
    (await api.get(api.at("secrets"), resourceVersion=version)).fails(400, "BadRequest", "resourceVersion")


REFUSED: list[Any] = [
    pytest.param(
        {"resourceVersionMatch": "Exact"},
        "resourceVersionMatch is forbidden unless resourceVersion is provided",
        id="no version",
    ),
    pytest.param(
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"',
        id="exactly 0",
    ),
    pytest.param(
        {"resourceVersionMatch": "About", "resourceVersion": "1"}, "Unsupported value", id="unknown"
    ),
    pytest.param(
        {"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1", "continue": "x"},
        "resourceVersionMatch is forbidden for continue",
        id="with a token",
    ),
    pytest.param(
        {"sendInitialEvents": "true"}, "sendInitialEvents is forbidden for list", id="initial events"
    ),
    pytest.param(
        {"watch": "true", "sendInitialEvents": "true"},
        "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        id="initial events of any version",
    ),
    pytest.param(
        {"watch": "true", "resourceVersionMatch": "NotOlderThan"},
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        id="watch with a match",
    ),
]


@pytest.mark.parametrize(("query", "words"), REFUSED)
async def test_options_that_contradict(api: Api, query: dict[str, str], words: str) -> None:
    body = (await api.get(api.at("secrets"), **query)).fails(422, "Invalid", words)
    assert body["message"].startswith('ListOptions.meta.k8s.io "" is invalid: ')


async def test_a_deleted_collection_is_listed(api: Api) -> None:
    await fill(api, 3)
    body = (await api.delete(api.at("secrets"))).ok(200)
    assert names_of(body) == ["m00", "m01", "m02"]
    assert body["kind"] == "SecretList"
    assert (await api.get(api.at("secrets"))).ok()["items"] == []
    (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
