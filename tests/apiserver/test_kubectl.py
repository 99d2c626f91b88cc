"""Stock kubectl, the oldest and the newest of this machine, against the server with its own kubeconfig."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver import kubectl
from tests.apiserver.kubectl import Kubectl
from tests.apiserver.lab import MAPS, PODS, Lab, node

PROGRAMS = [one for one in kubectl.found() if not one.environment]


class Shell:
    """One kubectl with the kubeconfig of one server."""

    def __init__(self, program: Kubectl, lab: Lab, home: Path) -> None:
        self._program, self.lab, self._home = program, lab, home

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        config = str(self.lab.api.files.kubeconfig)
        return [self._program.path, "--kubeconfig", config, "--cache-dir", str(self._home), *arguments]

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *self._command(arguments),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self._program.variables(self._home),
        )

    async def run(self, *arguments: str, stdin: Any = None) -> tuple[int, str, str]:
        process = await self.start(*arguments)
        try:
            async with asyncio.timeout(kubectl.SECONDS):
                text = b"" if stdin is None else yaml.safe_dump_all(stdin).encode()
                out, err = await process.communicate(text)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def __call__(self, *arguments: str, stdin: Any = None) -> str:
        code, out, err = await self.run(*arguments, stdin=stdin)
        assert code == 0, err
        return out


@pytest.fixture(params=PROGRAMS, ids=str)
async def shell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shell]:
    lab = Lab(tmp_path, port=True)
    await lab.start()
    yield Shell(request.param, lab, tmp_path / "home")
    await lab.close()


MANIFESTS = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}]}]},
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    },
]


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


async def test_get_in_all_forms(shell: Shell) -> None:
    await shell.lab.ok("POST", "/api/v1/nodes", node("n1"))
    await shell("create", "-f", "-", stdin=MANIFESTS)
    await shell.lab.until(f"{PODS}/web", lambda a: bool(a.body["spec"].get("nodeName")))
    heading, row = columns(await shell("get", "pods"))
    assert heading == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[:4] == ["web", "0/1", "Pending", "0"]
    wide = columns(await shell("get", "pod", "web", "-o", "wide"))
    assert wide[0][5:7] == ["IP", "NODE"]
    assert "n1" in wide[1]
    assert json.loads(await shell("get", "pod", "web", "-o", "json"))["kind"] == "Pod"
    assert yaml.safe_load(await shell("get", "svc,pods", "-o", "yaml"))["kind"] == "List"
    assert await shell("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}") == "i:1"
    assert await shell("get", "pods", "-o", "name", "-l", "app in (web),!gone") == "pod/web\n"
    assert await shell("get", "pods", "-o", "name", "--field-selector", "spec.nodeName=n2") == ""
    assert columns(await shell("get", "pods", "-L", "app", "--sort-by", ".metadata.name"))[1][-1] == "web"
    assert columns(await shell("get", "all", "-A"))[0][0] == "NAMESPACE"
    code, _, err = await shell.run("get", "pod", "missing")
    assert (code, err) == (1, 'Error from server (NotFound): pods "missing" not found\n')


async def test_watch(shell: Shell) -> None:
    process = await shell.start("get", "pods", "-w", "-o", "name")
    assert process.stdout is not None
    try:
        await shell("create", "-f", "-", stdin=MANIFESTS[:1])
        async with asyncio.timeout(kubectl.SECONDS):
            assert await process.stdout.readline() == b"pod/web\n"
    finally:
        process.kill()
        await process.communicate()


async def test_describe_tells_of_events(shell: Shell) -> None:
    await shell.lab.ok("POST", "/api/v1/nodes", node("n1"))
    await shell("create", "-f", "-", stdin=MANIFESTS)
    told = "/api/v1/namespaces/default/events"
    await shell.lab.until(told, lambda a: any(e["reason"] == "Scheduled" for e in a.body["items"]))
    described = await shell("describe", "pod", "web")
    assert "Successfully assigned default/web to n1" in described
    assert "n1" in await shell("describe", "node", "n1")
    assert "Scheduled" in await shell("events")
    assert "Scheduled" in await shell("get", "events")


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client", "server"])
async def test_apply(shell: Shell, flags: tuple[str, ...]) -> None:
    await shell("apply", *flags, "-f", "-", stdin=MANIFESTS)
    again = await shell("apply", *flags, "-f", "-", stdin=MANIFESTS)
    assert ("unchanged" in again) or flags
    changed = json.loads(json.dumps(MANIFESTS))
    changed[0]["spec"]["containers"][0]["image"] = "i:2"
    changed[1]["spec"]["ports"][0]["port"] = 81
    await shell("apply", *flags, "-f", "-", stdin=changed)
    assert await shell("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}") == "i:2"
    assert await shell("get", "svc", "web", "-o", "jsonpath={.spec.ports[*].port}") == "81"
    await shell("delete", "-f", "-", stdin=changed)


async def test_label_annotate_patch_wait(shell: Shell) -> None:
    await shell("create", "configmap", "a", "--from-literal=k=v")
    await shell("label", "cm", "a", "x=1")
    await shell("annotate", "cm", "a", "y=2")
    for kind, patch in (
        ("strategic", '{"data":{"s":"1"}}'),
        ("merge", '{"data":{"k":null}}'),
        ("json", '[{"op":"add","path":"/data/j","value":"1"}]'),
    ):
        await shell("patch", "cm", "a", "--type", kind, "-p", patch)
    made = await shell.lab.ok("GET", f"{MAPS}/a")
    assert made["data"] == {"s": "1", "j": "1"}
    assert (made["metadata"]["labels"], made["metadata"]["annotations"]) == ({"x": "1"}, {"y": "2"})
    await shell("wait", "--for=jsonpath={.data.j}=1", "cm/a", "--timeout=10s")
    await shell("delete", "cm", "a")
    await shell("wait", "--for=delete", "cm/a", "--timeout=10s")


async def test_create_in_its_many_ways(shell: Shell) -> None:
    """Newer kubectl posts these as protobuf."""
    for arguments in (
        ("namespace", "x"),
        ("configmap", "c", "--from-literal=a=b"),
        ("secret", "generic", "s", "--from-literal=a=b"),
        ("serviceaccount", "sa"),
        ("service", "clusterip", "svc", "--tcp=80:8080"),
        ("service", "nodeport", "np", "--tcp=80:8080"),
        ("ingress", "ing", "--rule=example.com/*=svc:80"),
    ):
        assert "created" in await shell("create", *arguments)
    service = await shell.lab.ok("GET", "/api/v1/namespaces/default/services/svc")
    assert service["spec"]["ports"][0]["targetPort"] == 8080
    assert "can-i" not in await shell("auth", "can-i", "create", "pods")
    await shell("run", "p", "--image=i:1", "--restart=Never", "--labels=a=b", "--", "sleep", "1")
    await shell("delete", "ns", "x")
    await shell("delete", "pod", "p", "--grace-period=0", "--force")


async def test_validation_is_the_servers(shell: Shell) -> None:
    broken = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dta": {}}]
    code, _, err = await shell.run("create", "-f", "-", stdin=broken)
    assert code == 1
    assert 'unknown field "dta"' in err
    code, _, err = await shell.run("create", "--validate=warn", "-f", "-", stdin=broken)
    assert (code, 'Warning: unknown field "dta"' in err) == (0, True)


async def test_what_there_is(shell: Shell) -> None:
    resources = columns(await shell("api-resources", "--no-headers"))
    assert ["pods", "po", "v1", "true", "Pod"] in resources
    assert "networking.k8s.io/v1\n" in await shell("api-versions")
    assert "FIELD: containers <[]Container>" in await shell("explain", "pods.spec.containers")
    assert "holderIdentity" in await shell("explain", "leases.spec")
    assert "Server Version" in await shell("version")


async def test_cordon_and_drain(shell: Shell) -> None:
    await shell.lab.ok("POST", "/api/v1/nodes", node("n1"))
    await shell("cordon", "n1")
    assert columns(await shell("get", "nodes"))[1][1] == "Ready,SchedulingDisabled"
    await shell("drain", "n1")
    await shell("uncordon", "n1")


async def test_top_and_logs_say_why_not(shell: Shell) -> None:
    code, _, err = await shell.run("top", "pods")
    assert (code, err) == (1, "error: Metrics API not available\n")
    await shell("create", "-f", "-", stdin=MANIFESTS[:1])
    code, _, err = await shell.run("logs", "web")
    assert code == 1
    assert "no node runs pods here" in err
