"""What a stock kubectl does with the embedded API server, command by command.

The oldest and the newest kubectl of the machine; every one with ``PODWIRE_TEST_KUBECTL=all``. Logs, exec,
attach, port-forward and cp have tests of their own (test_streaming.py).
"""

from __future__ import annotations

import itertools
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.kubectl import Kubectl, plain
from tests.apiserver.lab import node
from tests.apiserver.stock import Stock
from tests.contract.cluster import Cluster, embedded

Object = dict[str, Any]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with embedded(tmp_path_factory.mktemp("apiserver")) as found:
        yield found


@pytest.fixture(scope="module", params=plain(), ids=str)
def program(request: pytest.FixtureRequest) -> Kubectl:
    found: Kubectl = request.param
    return found


@pytest.fixture(scope="module")
def home(program: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one kubectl keeps what it has discovered, for all its tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def k(server: Cluster, program: Kubectl, home: Path) -> Iterator[Stock]:
    stock = Stock(program.path, server.kubeconfig, home, f"stock-{next(_numbers)}")
    stock("create", "namespace", stock.namespace)
    yield stock
    stock("delete", "namespace", stock.namespace, "--wait=false")


def pod(name: str, **spec: Any) -> Object:
    container = {"name": "main", "image": "registry.invalid/none:1", "ports": [{"containerPort": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "schedulerName": "nobody", **spec},
    }


def config(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def rows(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def editor(home: Path, old: str, new: str) -> str:
    """A program that changes a text as an editor would."""
    path = home / "editor"
    path.write_text(f"#!/bin/sh\nsed -i 's/{old}/{new}/' \"$1\"\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_get_in_every_form(k: Stock) -> None:
    k("create", "-f", "-", stdin=pod("web"))
    head, row = rows(k("get", "pods"))
    assert head == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[:4] == ["web", "0/1", "Pending", "0"]
    assert re.fullmatch(r"\d+s", row[4])
    head, row = rows(k("get", "po", "web", "-o", "wide"))
    assert head[5:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert row[5:] == ["<none>"] * 4
    assert "kind: Pod" in k("get", "pod/web", "-o", "yaml")
    assert k.json("get", "pod", "web")["metadata"]["name"] == "web"
    assert k.json("get", "pods")["kind"] == "List"
    assert k("get", "pods", "-o", "name") == "pod/web\n"
    assert (
        k("get", "pods", "-o", "jsonpath={.items[0].spec.containers[0].image}") == "registry.invalid/none:1"
    )
    shown = k("get", "pods", "-o", "custom-columns=N:.metadata.name,P:.status.phase")
    assert rows(shown) == [["N", "P"], ["web", "Pending"]]
    assert k("get", "pods", "-o", "go-template={{range .items}}{{.metadata.name}}{{end}}") == "web"
    assert "app=web" in k("get", "pods", "--show-labels")
    assert rows(k("get", "pods", "-L", "app"))[1][-1] == "web"
    assert k("get", "pods", "-l", "app=web", "-o", "name") == "pod/web\n"
    assert k("get", "pods", "-l", "app!=web", "-o", "name") == ""
    assert k("get", "pods", "--field-selector", "status.phase=Pending", "-o", "name") == "pod/web\n"
    assert k.namespace in k("get", "pods", "-A")
    assert "web" in k("get", "pods", "--sort-by=.metadata.name")
    assert k("get", "pods", "--chunk-size=1", "-o", "name") == "pod/web\n"
    assert json.loads(k("get", "--raw", f"/api/v1/namespaces/{k.namespace}/pods"))["kind"] == "PodList"
    assert 'pods "none" not found' in k("get", "pod", "none", code=1)
    assert k("get", "pod", "none", "--ignore-not-found") == ""
    assert "the server doesn't have a resource type" in k("get", "nothings", code=1)
    assert "pod/web" in k("get", "all")
    assert k.json("get", "svc,pods")["kind"] == "List"
    assert "metadata:" in k("get", "pod", "web", "-o", "yaml", "--show-managed-fields")


def test_every_kind_is_listed(k: Stock) -> None:
    core = ("nodes", "services", "configmaps", "secrets", "namespaces", "sa", "ep", "events")
    for kind in (*core, "endpointslices", "leases", "networkpolicies", "ingresses", "crds"):
        k("get", kind, "-o", "wide")
        assert k.json("get", kind)["kind"] == "List"


def test_get_watches(k: Stock) -> None:
    with k.beside("get", "pods", "-w") as watch:
        k("create", "-f", "-", stdin=pod("one"))
        watch.until("NAME", "one", "Pending")
        k(
            "patch",
            "pod",
            "one",
            "--subresource=status",
            "--type=merge",
            "-p",
            '{"status":{"phase":"Running"}}',
        )
        watch.until("Running")
        k("create", "-f", "-", stdin=pod("two"))
        text = watch.until("two")
    assert text.count("NAME") == 1
    with k.beside("get", "pods", "-w", "--output-watch-events") as watch:
        watch.until("ADDED", "two")
        k("delete", "pod", "two")
        watch.until("DELETED", "two")
    with k.beside("get", "pods", "--watch-only") as watch:
        # It does not tell when it has begun.
        assert any(
            k("label", "pod", "one", f"seen={number}", "--overwrite") and watch.shows("one")
            for number in range(20)
        )


def test_describe(k: Stock) -> None:
    spec = {"nodeName": f"{k.namespace}-node"}
    k("create", "-f", "-", stdin=pod("web", **spec))
    k("create", "-f", "-", stdin=node(spec["nodeName"]))
    uid = k.json("get", "pod", "web")["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.1"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": k.namespace, "uid": uid},
        "reason": "Tested",
        "message": "it was described",
        "type": "Normal",
    }
    k("create", "-f", "-", stdin=event)
    k("create", "configmap", "c", "--from-literal=key=value")
    k("create", "secret", "generic", "s", "--from-literal=key=value")
    k("expose", "pod", "web", "--port=80", "--name=svc")
    text = k("describe", "pod", "web")
    for line in (r"Name:\s+web", r"Image:\s+registry.invalid/none:1", r"QoS Class:\s+BestEffort"):
        assert re.search(line, text)
    assert "it was described" in text
    assert "Non-terminated Pods:" in k("describe", "node", spec["nodeName"])
    assert re.search(r"Selector:\s+app=web", k("describe", "service", "svc"))
    assert "key:\n----\nvalue" in k("describe", "configmap", "c")
    assert "key:  5 bytes" in k("describe", "secret", "s")
    assert re.search(r"Status:\s+Active", k("describe", "namespace", k.namespace))
    assert "not found" in k("describe", "pod", "none", code=1)
    k("delete", "node", spec["nodeName"])


def test_create(k: Stock, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(config("a", x="1")))
    (tmp_path / "b.json").write_text(json.dumps(config("b", x="1")))
    assert k("create", "-f", str(tmp_path)) == "configmap/a created\nconfigmap/b created\n"
    assert "AlreadyExists" in k("create", "-f", str(tmp_path / "a.json"), code=1)
    k("create", "configmap", "c", "--from-literal=x=1", f"--from-file={tmp_path / 'a.json'}")
    assert k.json("get", "cm", "c")["data"].keys() == {"x", "a.json"}
    k("create", "secret", "generic", "s", "--from-literal=x=1")
    assert k.json("get", "secret", "s")["data"] == {"x": "MQ=="}
    k("create", "serviceaccount", "robot")
    k("create", "service", "clusterip", "svc", "--tcp=80:8080")
    assert k.json("get", "svc", "svc")["spec"]["ports"][0]["targetPort"] == 8080
    k("create", "service", "nodeport", "np", "--tcp=80:8080")
    k("create", "ingress", "ing", "--rule=example.com/*=svc:80")
    assert "created (server dry run)" in k("create", "configmap", "dry", "--dry-run=server")
    assert "kind: ConfigMap" in k("create", "configmap", "dry", "--dry-run=client", "-o", "yaml")
    assert "NotFound" in k("get", "cm", "dry", code=1)
    wrong = {**config("w"), "dat": {}}
    assert "unknown field" in k("create", "-f", "-", stdin=wrong, code=1)
    k("create", "-f", "-", "--validate=false", stdin=wrong)
    wrong["metadata"] = {"name": "warned"}
    k("create", "-f", "-", "--validate=warn", stdin=wrong)


def test_apply_from_the_client(k: Stock) -> None:
    assert k("apply", "-f", "-", stdin=config("a", x="1", y="2")) == "configmap/a created\n"
    assert k("apply", "-f", "-", stdin=config("a", x="1", y="2")) == "configmap/a unchanged\n"
    k("patch", "cm", "a", "--type=merge", "-p", '{"data":{"other":"3"}}')
    assert k("apply", "-f", "-", stdin=config("a", x="9")) == "configmap/a configured\n"
    assert k.json("get", "cm", "a")["data"] == {"x": "9", "other": "3"}
    assert 'x: "9"' in k("apply", "view-last-applied", "cm", "a")
    k("apply", "set-last-applied", "-f", "-", stdin=config("a", x="9", other="3"))
    assert "server dry run" in k("apply", "-f", "-", "--dry-run=server", stdin=config("a", x="0"))
    assert k("apply", "-f", "-", stdin=pod("web")) == "pod/web created\n"
    assert k("apply", "-f", "-", stdin=pod("web")) == "pod/web unchanged\n"
    changed = pod("web")
    changed["spec"]["restartPolicy"] = "Never"
    told = k("apply", "-f", "-", stdin=changed, code=1)
    assert "pod updates may not change fields" in told
    assert told.endswith('\n- spec.restartPolicy: "Always"\n+ spec.restartPolicy: "Never"\n')


def test_apply_at_the_server(k: Stock) -> None:
    for _ in range(2):
        told = k("apply", "--server-side", "-f", "-", stdin=config("a", x="1"))
        assert told == "configmap/a serverside-applied\n"
    other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    told = k(*other, stdin=config("a", x="2"), code=1)
    assert 'conflict with "kubectl": .data.x' in told
    k(*other, "--force-conflicts", stdin=config("a", x="2"))
    assert k.json("get", "cm", "a")["data"] == {"x": "2"}
    # From the client's side to the server's, and back.
    k("apply", "-f", "-", stdin=config("b", x="1"))
    k("apply", "--server-side", "-f", "-", stdin=config("b", x="2"))
    assert k.json("get", "cm", "b")["data"] == {"x": "2"}
    assert "configmap/b" in k("apply", "-f", "-", stdin=config("b", x="3"))


def test_diff(k: Stock) -> None:
    k("apply", "-f", "-", stdin=config("a", x="1"))
    assert k("diff", "-f", "-", stdin=config("a", x="1")) == ""
    told = k("diff", "-f", "-", stdin=config("a", x="2"), code=1)
    assert '-  x: "1"\n+  x: "2"' in told
    server = ("diff", "--server-side", "--force-conflicts", "-f", "-")
    assert '+  x: "2"' in k(*server, stdin=config("a", x="2"), code=1)
    assert "+kind: ConfigMap" in k("diff", "-f", "-", stdin=config("new"), code=1)


def test_edit(k: Stock) -> None:
    k("create", "-f", "-", stdin=config("a", x="before"))
    assert "edited" in k("edit", "cm", "a", EDITOR=editor(k.home, "before", "after"))
    assert k.json("get", "cm", "a")["data"] == {"x": "after"}
    before = k.json("get", "cm", "a")
    assert k("edit", "cm", "a", EDITOR="true") == ""
    assert k.json("get", "cm", "a") == before
    k("create", "-f", "-", stdin=pod("web"))
    command = ("edit", "pod", "web", "--subresource=status")
    k(*command, EDITOR=editor(k.home, "phase: Pending", "phase: Running"))
    assert k.json("get", "pod", "web")["status"]["phase"] == "Running"


def test_patch(k: Stock) -> None:
    k("create", "-f", "-", stdin=pod("web"))
    change = {"spec": {"containers": [{"name": "main", "image": "registry.invalid/none:2"}]}}
    assert k("patch", "pod", "web", "-p", json.dumps(change)) == "pod/web patched\n"
    container = k.json("get", "pod", "web")["spec"]["containers"][0]
    assert (container["image"], container["ports"][0]["containerPort"]) == ("registry.invalid/none:2", 80)
    k("patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}')
    operation = [{"op": "replace", "path": "/metadata/labels/a", "value": "c"}]
    k("patch", "pod", "web", "--type=json", "-p", json.dumps(operation))
    assert k.json("get", "pod", "web")["metadata"]["labels"]["a"] == "c"
    assert "(no change)" in k("patch", "pod", "web", "--type=merge", "-p", "{}")
    assert "pod updates may not" in k("patch", "pod", "web", "-p", '{"spec":{"hostNetwork":true}}', code=1)
    k("set", "image", "pod/web", "main=registry.invalid/none:3")
    assert k.json("get", "pod", "web")["spec"]["containers"][0]["image"] == "registry.invalid/none:3"


def test_label_and_annotate(k: Stock) -> None:
    k("create", "-f", "-", stdin=config("a"))
    assert k("label", "cm", "a", "x=1", "y=2") == "configmap/a labeled\n"
    assert "--overwrite is false" in k("label", "cm", "a", "x=2", code=1)
    k("label", "cm", "a", "x=2", "--overwrite")
    assert k("label", "cm", "a", "y-") == "configmap/a unlabeled\n"
    assert "y" not in k.json("get", "cm", "a")["metadata"]["labels"]
    assert k("annotate", "cm", "a", "note=some words").startswith("configmap/a annotate")
    k("annotate", "cm", "--all", "note=others", "--overwrite")
    assert k.json("get", "cm", "a")["metadata"]["annotations"]["note"] == "others"
    assert k("label", "cm", "a", "--list") == "x=2\n"


def test_replace(k: Stock) -> None:
    k("create", "-f", "-", stdin=config("a", x="1"))
    assert k("replace", "-f", "-", stdin=config("a", y="2")) == "configmap/a replaced\n"
    found = k.json("get", "cm", "a")
    assert found["data"] == {"y": "2"}
    k("label", "cm", "a", "x=1")
    assert "the object has been modified" in k("replace", "-f", "-", stdin=found, code=1)
    told = k("replace", "--force", "-f", "-", stdin=config("a", z="3"))
    assert "replaced" in told
    assert k.json("get", "cm", "a")["metadata"]["uid"] != found["metadata"]["uid"]
    assert "NotFound" in k("replace", "-f", "-", stdin=config("none"), code=1)


def test_delete(k: Stock) -> None:
    place = f"{k.namespace}-node"
    for name in ("a", "b", "c", "d"):
        k("create", "-f", "-", stdin=pod(name, nodeName=place))
    assert 'pod "a" deleted' in k("delete", "pod", "a", "--wait=false")
    assert k.json("get", "pod", "a")["metadata"]["deletionGracePeriodSeconds"] == 30
    assert "Terminating" in k("get", "pod", "a")
    assert 'pod "a" force deleted' in k("delete", "pod", "a", "--grace-period=0", "--force")
    assert "NotFound" in k("get", "pod", "a", code=1)
    k("delete", "pod", "b", "--now", "--wait=false")
    assert k.json("get", "pod", "b")["metadata"]["deletionGracePeriodSeconds"] == 1
    k("delete", "pod", "c", "--grace-period=7", "--wait=false")
    assert k.json("get", "pod", "c")["metadata"]["deletionGracePeriodSeconds"] == 7
    assert "timed out waiting" in k("delete", "pod", "d", "--timeout=1s", code=1)
    with k.beside("delete", "pod", "d") as waiting:
        waiting.until('pod "d" deleted')
        k("delete", "pod", "d", "--grace-period=0", "--force")
        waiting.ends()
    k("delete", "pods", "--all", "--grace-period=0", "--force")
    assert k("get", "pods", "-o", "name") == ""
    assert "not found" in k("delete", "pod", "none", code=1)
    assert k("delete", "pod", "none", "--ignore-not-found") == ""
    k("create", "configmap", "x")
    k("label", "cm", "x", "go=yes")
    assert 'configmap "x" deleted' in k("delete", "cm", "-l", "go=yes")


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_delete_with_what_is_owned(k: Stock, cascade: str) -> None:
    k("create", "configmap", "owner")
    owner = k.json("get", "cm", "owner")["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    child = config("child")
    child["metadata"]["ownerReferences"] = [{**reference, "blockOwnerDeletion": True}]
    k("create", "-f", "-", stdin=child)
    k("delete", "cm", "owner", f"--cascade={cascade}")
    assert "NotFound" in k("get", "cm", "owner", code=1)
    if cascade == "orphan":
        assert "ownerReferences" not in k.json("get", "cm", "child")["metadata"]
    else:
        k("wait", "--for=delete", "cm/child", "--timeout=10s")


def test_what_there_is(k: Stock) -> None:
    found = k("api-resources")
    assert re.search(r"pods\s+po\s+v1\s+true\s+Pod\n", found)
    assert re.search(r"namespaces\s+ns\s+v1\s+false\s+Namespace\n", found)
    assert "customresourcedefinitions" in k("api-resources", "--api-group=apiextensions.k8s.io", "-o", "name")
    assert "create,delete" in k("api-resources", "-o", "wide")
    versions = k("api-versions").split()
    assert {"v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1", "networking.k8s.io/v1"} <= set(versions)
    assert "Server Version" in k("version")
    assert json.loads(k("version", "-o", "json"))["serverVersion"]["major"] == "1"
    assert "is running at" in k("cluster-info")


def test_explain(k: Stock) -> None:
    text = k("explain", "pod.spec.containers")
    for word in ("KIND:", "Pod", "FIELD", "imagePullPolicy", "<string>"):
        assert word in text
    assert "restartPolicy" in k("explain", "pod", "--recursive")
    assert "binaryData" in k("explain", "configmaps")
    assert "holderIdentity" in k("explain", "leases.spec")
    assert "does not exist" in k("explain", "pod.spec.none", code=1)


def test_wait(k: Stock) -> None:
    k("create", "-f", "-", stdin=pod("web"))
    path = ("pod", "web", "--subresource=status", "--type=merge", "-p")
    with k.beside("wait", "--for=condition=Ready", "pod/web", "--timeout=20s") as waiting:
        condition = {"type": "Ready", "status": "True"}
        k("patch", *path, json.dumps({"status": {"phase": "Running", "conditions": [condition]}}))
        waiting.until("condition met")
        waiting.ends()
    assert "met" in k(
        "wait", "--for=jsonpath={.status.phase}=Running", "pod", "-l", "app=web", "--timeout=10s"
    )
    assert "timed out" in k("wait", "--for=condition=Other", "pod/web", "--timeout=1s", code=1)
    with k.beside("wait", "--for=delete", "pod/web", "--timeout=20s") as waiting:
        k("delete", "pod", "web", "--grace-period=0", "--force")
        waiting.ends()


def test_events(k: Stock) -> None:
    event: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": k.namespace},
        "reason": "Tested",
        "message": "words",
        "type": "Warning",
        "firstTimestamp": "2024-01-01T00:00:00Z",
        "lastTimestamp": "2024-01-01T00:00:00Z",
        "count": 3,
    }
    k("create", "-f", "-", stdin=event)
    for command in (("events",), ("events", "--for", "pod/web"), ("events", "--types=Warning")):
        assert re.search(r"Warning\s+Tested\s+Pod/web\s+words", k(*command))
    head, row = rows(k("get", "events"))
    assert head == ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert row[1:] == ["Warning", "Tested", "pod/web", "words"]
    assert "e" in k("get", "events.events.k8s.io", "-o", "name")
    with k.beside("events", "-w") as watch:
        watch.until("words")
        event["metadata"] = {"name": "f"}
        event["message"] = "more"
        k("create", "-f", "-", stdin=event)
        watch.until("more")


def test_who_may(k: Stock) -> None:
    assert k("auth", "can-i", "create", "pods") == "yes\n"
    assert k("auth", "can-i", "*", "*", "-A") == "yes\n"
    assert "Resources" in k("auth", "can-i", "--list")
    assert "podwire-admin" in k("auth", "whoami")


def test_run_and_expose(k: Stock) -> None:
    k("run", "web", "--image=registry.invalid/none:1", "--port=80", "--labels=app=web", "--restart=Never")
    found = k.json("get", "pod", "web")
    assert found["spec"]["restartPolicy"] == "Never"
    assert "service/web exposed" in k("expose", "pod", "web", "--port=8080", "--target-port=80")
    spec = k.json("get", "service", "web")["spec"]
    assert spec["selector"] == {"app": "web"}
    head, row = rows(k("get", "svc"))
    assert head == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]
    assert row[:2] + row[3:5] == ["web", "ClusterIP", "<none>", "8080/TCP"]


NOT_HERE = [
    (("top", "pods"), "Metrics API not available"),
    (("top", "nodes"), "Metrics API not available"),
    (("scale", "deployment/web", "--replicas=2"), "the server doesn't have a resource type"),
    (("rollout", "status", "deployment/web"), "the server doesn't have a resource type"),
    (("rollout", "restart", "deployment/web"), "the server doesn't have a resource type"),
    (("autoscale", "deployment/web", "--max=2"), "the server doesn't have a resource type"),
    (("get", "deployments"), "the server doesn't have a resource type"),
    (("create", "deployment", "web", "--image=i"), "deployments of apps/v1 are not served here"),
    (("logs", "none"), 'pods "none" not found'),
]


def test_what_is_not_here_is_told(k: Stock) -> None:
    for command, words in NOT_HERE:
        assert words in k(*command, code=1)
    k("create", "-f", "-", stdin=pod("web"))
    assert "pods have no scale here" in k("scale", "pod/web", "--replicas=2", code=1)
    told = k("debug", "web", "--image=i", "--", "sh", code=1)
    assert "ephemeral containers are disabled for this cluster" in told


def test_a_pod_is_scheduled(k: Stock) -> None:
    name = f"{k.namespace}-ready"
    k("create", "-f", "-", stdin=node(name))
    found = pod("web")
    del found["spec"]["schedulerName"]
    k("create", "-f", "-", stdin=found)
    k("wait", f"--for=jsonpath={{.spec.nodeName}}={name}", "pod/web", "--timeout=10s")
    assert f"Successfully assigned {k.namespace}/web to {name}" in k("describe", "pod", "web")
    assert name in k("get", "pod", "web", "-o", "wide")
    assert "no node runs pods here" in k("logs", "web", code=1)
    k("delete", "pod", "web", "--grace-period=0", "--force")
    k("delete", "node", name)


def test_nodes_are_cordoned_and_drained(k: Stock) -> None:
    name = f"{k.namespace}-node"
    k("create", "-f", "-", stdin=node(name))
    k("create", "-f", "-", stdin=pod("web", nodeName=name))
    assert "cordoned" in k("cordon", name)
    assert "SchedulingDisabled" in k("get", "node", name)
    k("taint", "node", name, "key=value:NoSchedule")
    assert "NoSchedule" in k("describe", "node", name)
    k("delete", "pod", "web", "--grace-period=0", "--force")
    assert "drained" in k("drain", name, "--ignore-daemonsets", "--force", "--timeout=10s")
    assert "uncordoned" in k("uncordon", name)
    k("delete", "node", name)


def test_a_namespace_goes_with_what_is_in_it(k: Stock) -> None:
    name = f"{k.namespace}-more"
    k("create", "namespace", name)
    k("create", "configmap", "x", "--namespace", name)
    assert "Active" in k("get", "namespace", name)
    assert f'namespace "{name}" deleted' in k("delete", "namespace", name, "--timeout=20s")
    assert "NotFound" in k("get", "namespace", name, code=1)
    told = k("create", "configmap", "y", "--namespace", name, code=1)
    assert f'namespaces "{name}" not found' in told


def test_tokens_of_service_accounts_are_told_to_be_missing(k: Stock) -> None:
    assert "this server issues no tokens of service accounts" in k("create", "token", "default", code=1)
    assert 'serviceaccounts "none" not found' in k("create", "token", "none", code=1)
    assert "serviceaccounts/token" not in k("get", "--raw", "/api/v1")
