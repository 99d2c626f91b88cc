"""Who asks: tokens, and the questions of who one is and what one may do."""

from __future__ import annotations

import dataclasses

import pytest

from tests.contract.api import Api


@pytest.mark.embedded("a cluster may know clients by certificates, and let those in whom it does not know")
@pytest.mark.parametrize("authorization", ["", "Bearer nothing", "Bearer ", "Basic YTpi", "nothing"])
async def test_who_is_unknown_is_refused(api: Api, authorization: str) -> None:
    stranger = Api(dataclasses.replace(api.cluster, headers={}))
    try:
        headers = {"Authorization": authorization}
        answer = await stranger.send("GET", api.at("secrets"), headers=headers)
        assert answer.fails(401, "Unauthorized")["message"] == "Unauthorized"
        assert (await stranger.get("/version")).code == 200
        assert (await stranger.get("/healthz")).code == 200
    finally:
        await stranger.close()


async def test_who_am_i(api: Api) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    made = (await api.create(path, body)).ok(201)
    assert made["kind"] == "SelfSubjectReview"
    assert made["status"]["userInfo"]["username"]
    assert "system:authenticated" in made["status"]["userInfo"]["groups"]
    (await api.get(path)).fails(405, "MethodNotAllowed")


async def test_what_may_i(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    attributes = {"namespace": api.namespace, "verb": "create", "resource": "pods"}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    made = (await api.create(path, {**body, "spec": {"resourceAttributes": attributes}})).ok(201)
    assert made["status"]["allowed"] is True
    assert made["spec"]["resourceAttributes"] == attributes
    asked = {"nonResourceAttributes": {"path": "/version", "verb": "get"}}
    assert (await api.create(path, {**body, "spec": asked})).ok(201)["status"]["allowed"] is True


async def test_which_rules_are_for_me(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": api.namespace},
    }
    status = (await api.create(path, body)).ok(201)["status"]
    assert any("*" in rule["verbs"] for rule in status["resourceRules"])
    assert status["incomplete"] in (False, True)
