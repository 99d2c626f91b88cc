"""Label and field selectors: all of their grammar, and what is refused."""

from __future__ import annotations

import pytest

from tests.contract.api import Api, config_map, pod, with_meta

OBJECTS = {
    "one": {"app": "web", "tier": "front", "size": "3"},
    "two": {"app": "web", "tier": "back", "size": "10"},
    "three": {"app": "db", "x.example/y": "", "size": "many"},
    "four": {},
}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", {"one", "two", "three", "four"}),
        ("app=web", {"one", "two"}),
        ("app==web", {"one", "two"}),
        ("app!=web", {"three", "four"}),
        ("app = web , tier = back", {"two"}),
        ("app", {"one", "two", "three"}),
        ("!app", {"four"}),
        ("! app", {"four"}),
        ("app in (web)", {"one", "two"}),
        ("app in (web, db)", {"one", "two", "three"}),
        ("app in (web,db),tier", {"one", "two"}),
        ("app notin (web)", {"three", "four"}),
        ("tier notin (front, back)", {"three", "four"}),
        ("x.example/y", {"three"}),
        ("x.example/y=", {"three"}),
        ("x.example/y!=", {"one", "two", "four"}),
        ("x.example/y in ()", {"three"}),
        ("x.example/y in (,a)", {"three"}),
        ("size>3", {"two"}),
        ("size > 2,size<10", {"one"}),
        ("size<11", {"one", "two"}),
        ("app=none", set()),
        ("app=web,app=db", set()),
        ("in in (in)", set()),
    ],
)
async def test_label_selectors(api: Api, selector: str, names: set[str]) -> None:
    for name, labels in OBJECTS.items():
        (await api.create(api.at("secrets"), {"metadata": {"name": name, "labels": labels}})).ok(201)
    found = (await api.get(api.at("secrets"), labelSelector=selector)).ok()["items"]
    assert {item["metadata"]["name"] for item in found} == names


@pytest.mark.parametrize(
    "selector",
    [
        "app=",
        "app in",
        "app in (",
        "app in (web",
        "app in web",
        "app web",
        "=web",
        "app=web,",
        ",app=web",
        "!",
        "!app=web",
        "app=-web",
        "a//b",
        "/b",
        "size>many",
        "size>",
        "app=web db",
        "app in (web db)",
        f"{'a' * 64}=b",
        f"a={'b' * 64}",
        "app===web",
        "(app=web)",
    ],
)
async def test_label_selectors_that_are_refused(api: Api, selector: str) -> None:
    answer = await api.get(api.at("secrets"), labelSelector=selector)
    if selector == "app=":
        assert answer.ok()["items"] == []
    else:
        answer.fails(400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", {"a"}),
        ("metadata.name==a", {"a"}),
        ("metadata.name!=a", {"b"}),
        ("metadata.name=a,metadata.name!=b", {"a"}),
        ("metadata.name=a,metadata.name=b", set()),
        ("metadata.name=c", set()),
        ("spec.nodeName=", {"a", "b"}),
        ("spec.nodeName!=", set()),
        ("spec.restartPolicy=Never", {"b"}),
        ("status.phase=Pending,spec.restartPolicy!=Never", {"a"}),
        ("status.phase!=Pending", set()),
        ("spec.schedulerName=nobody", {"a", "b"}),
        ("spec.serviceAccountName=default", {"a", "b"}),
        ("status.podIP=", {"a", "b"}),
        ("spec.hostNetwork=true", set()),
        ("", {"a", "b"}),
    ],
)
async def test_field_selectors(api: Api, selector: str, names: set[str]) -> None:
    (await api.create(api.at("pods"), pod("a"))).ok(201)
    (await api.create(api.at("pods"), pod("b", restartPolicy="Never"))).ok(201)
    found = (await api.get(api.at("pods"), fieldSelector=selector)).ok()["items"]
    assert {item["metadata"]["name"] for item in found} == names


async def test_a_field_selector_names_the_namespace(api: Api) -> None:
    (await api.create(api.at("configmaps"), with_meta(config_map("a"), labels={"mine": "yes"}))).ok(201)
    found = (
        await api.get(
            "/api/v1/configmaps",
            fieldSelector=f"metadata.namespace={api.namespace}",
            labelSelector="mine=yes",
        )
    ).ok()
    assert [item["metadata"]["name"] for item in found["items"]] == ["a"]


@pytest.mark.parametrize(
    ("plural", "selector", "words"),
    [
        ("pods", "spec.nothing=a", "field label not supported: spec.nothing"),
        (
            "configmaps",
            "data.a=b",
            '"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
        ("pods", "metadata.name", "invalid selector: "),
        ("pods", "metadata.name=a=b", "invalid field selector: "),
        ("pods", "metadata.name=a\\x", "invalid field selector: "),
    ],
)
async def test_field_selectors_that_are_refused(api: Api, plural: str, selector: str, words: str) -> None:
    (await api.get(api.at(plural), fieldSelector=selector)).fails(400, "BadRequest", words)


async def test_selected_deletion(api: Api) -> None:
    for name in ("a", "b", "c"):
        body = with_meta(config_map(name), labels={"name": name})
        (await api.create(api.at("configmaps"), body)).ok(201)
    (
        await api.delete(
            api.at("configmaps"), labelSelector="name in (a,b)", fieldSelector="metadata.name!=a"
        )
    ).ok()
    left = (await api.get(api.at("configmaps"), labelSelector="name")).ok()["items"]
    assert [item["metadata"]["name"] for item in left] == ["a", "c"]
