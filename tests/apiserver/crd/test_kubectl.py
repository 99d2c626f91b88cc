"""A stock kubectl, the oldest and the newest, with custom resources and with patches of built-in ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.apiserver.crd.cluster import cluster
from tests.apiserver.crd.definitions import crontab, definition, version
from tests.kubectl import Kubectl, plain

KUBECTLS = pytest.mark.parametrize("kubectl", plain(), ids=str)
NAME = "crontabs.example.com"
COLUMNS = [
    {"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Image", "type": "string", "jsonPath": ".spec.image", "priority": 1},
]
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
FULL = definition(
    version(subresources={"status": {}, "scale": SCALE}, additionalPrinterColumns=COLUMNS),
    categories=["all"],
)


@KUBECTLS
async def test_custom_resources(kubectl: Kubectl, tmp_path: Path) -> None:
    async with cluster(tmp_path, kubectl) as k:
        assert "created" in await k("apply", "-f", "-", stdin=FULL)
        await k("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=10s")
        assert "unchanged" in await k("apply", "-f", "-", stdin=FULL)
        assert NAME in await k("get", "crd")
        assert "crontabs" in await k("api-resources", "--api-group=example.com")

        assert "created" in await k("apply", "-f", "-", stdin=crontab(ports=[{"port": 80}]))
        head, line = (await k("get", "ct")).splitlines()
        assert head.split() == ["NAME", "SPEC", "REPLICAS"]
        assert line.split() == ["one", "*", "*", "*", "*", "*", "1"]
        assert "busybox" in await k("get", "crontabs", "-o", "wide")
        assert "crontab.example.com/one" in await k("get", "all")
        assert "Cron Spec" in await k("describe", "ct", "one")

        explained = await k("explain", "ct.spec.cronSpec")
        assert "When it runs." in explained
        assert "<string>" in explained

        refused = await k(
            "patch",
            "ct",
            "one",
            "--type=merge",
            "-p",
            '{"spec":{"replicas":20,"mode":"medium","image":5,"ports":[{"port":1},{"port":1}]}}',
            code=1,
        )
        for told in (
            "spec.replicas: Invalid value: 20: spec.replicas in body should be less than or equal to 10",
            'spec.mode: Unsupported value: "medium": supported values: "fast", "slow"',
            'spec.image: Invalid value: "integer": spec.image in body must be of type string: "integer"',
            'spec.ports[1]: Duplicate value: {"port":1}',
        ):
            assert told in refused
        missing = {**crontab("two"), "spec": {}}
        assert "spec.cronSpec: Required value" in await k(
            "create", "--validate=false", "-f", "-", stdin=missing, code=1
        )
        assert 'unknown field "spec.typo"' in await k(
            "create", "-f", "-", stdin=crontab("two", typo=1), code=1
        )

        await k(
            "patch", "ct", "one", "--type=json", "-p", '[{"op":"add","path":"/spec/mode","value":"fast"}]'
        )
        await k("scale", "ct", "one", "--replicas=4")
        await k("annotate", "ct", "one", "a=b")
        values = await k(
            "get", "ct", "one", "-o", "jsonpath={.spec.mode} {.spec.replicas} {.metadata.generation}"
        )
        assert values == "fast 4 3"

        assert "deleted" in await k("delete", "ct", "one")
        await k("apply", "-f", "-", stdin=crontab("last"))
        assert "deleted" in await k("delete", "crd", NAME)
        assert "No resources found" in await k("get", "crd")
        assert k.server.storage.list("example.com", "crontabs").items == []


def pod(image: str, **more: Any) -> dict[str, Any]:
    container = {"name": "c", "image": image, "ports": [{"containerPort": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [container], **more},
    }


@KUBECTLS
async def test_patches_and_server_side_apply(kubectl: Kubectl, tmp_path: Path) -> None:
    async with cluster(tmp_path, kubectl) as k:

        async def value(path: str) -> str:
            return await k("get", "pod", "p", "-o", f"jsonpath={{{path}}}")

        assert "serverside-applied" in await k("apply", "--server-side", "-f", "-", stdin=pod("one"))
        before = await value(".metadata.resourceVersion")
        await k("apply", "--server-side", "-f", "-", stdin=pod("one"))
        assert await value(".metadata.resourceVersion") == before

        await k("label", "pod", "p", "x=y")
        await k("set", "image", "pod/p", "c=two")
        await k("patch", "pod", "p", "-p", '{"metadata":{"labels":{"x":null,"z":"1"}}}')
        assert json.loads(await value(".metadata.labels")) == {"a": "b", "z": "1"}
        assert await value(".spec.containers[0].ports[0].containerPort") == "80"

        conflict = await k("apply", "--server-side", "-f", "-", stdin=pod("three"), code=1)
        assert 'Apply failed with 1 conflict: conflict with "kubectl-set" using v1:' in conflict
        assert '.spec.containers[name="c"].image' in conflict
        await k("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=pod("three"))
        assert await value(".spec.containers[0].image") == "three"

        without = pod("three")
        del without["metadata"]["labels"]
        await k("apply", "--server-side", "-f", "-", stdin=without)
        assert json.loads(await value(".metadata.labels")) == {"z": "1"}

        test = '[{"op":"test","path":"/metadata/labels/z","value":"2"}]'
        refused = await k("patch", "pod", "p", "--type=json", "-p", test, code=1)
        assert "the server rejected our request due to an error in our request" in refused


@KUBECTLS
async def test_what_was_applied_from_the_client_side_goes_on_at_the_server(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    def settings(**data: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}

    async with cluster(tmp_path, kubectl) as k:
        await k("apply", "-f", "-", stdin=settings(a="1", b="1"))
        await k("apply", "--server-side", "-f", "-", stdin=settings(a="2"))
        assert json.loads(await k("get", "cm", "c", "-o", "jsonpath={.data}")) == {"a": "2"}
        managed = json.loads(await k("get", "cm", "c", "-o", "json", "--show-managed-fields"))
        owners = [(one["manager"], one["operation"]) for one in managed["metadata"]["managedFields"]]
        # The second is kubectl's own, for the annotation that it keeps.
        assert owners == [("kubectl", "Apply"), ("kubectl-last-applied", "Apply")]


@pytest.mark.parametrize(
    ("media", "query", "told"),
    [
        ("apply-patch+yaml", "", "fieldManager: Required value: is required for apply patch"),
        ("merge-patch+json", "?force=true", "force: Forbidden: may not be specified for non-apply patch"),
    ],
)
async def test_options_of_patches(media: str, query: str, told: str, tmp_path: Path) -> None:
    async with cluster(tmp_path) as k, aiohttp.ClientSession() as session:
        url = f"{k.server.url}/api/v1/namespaces/default/configmaps/c{query}"
        headers = {"Authorization": f"Bearer {k.server.token}", "Content-Type": f"application/{media}"}
        async with session.patch(url, data=b"{}", headers=headers, ssl=False) as answer:
            body = await answer.json()
        assert (body["code"], body["message"]) == (422, f'PatchOptions.meta.k8s.io "" is invalid: {told}')
