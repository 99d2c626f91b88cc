"""A program that uses the official Python client as its users do, and prints what came of it as JSON.

Run by test_clients.py with the kubeconfig in KUBECONFIG.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

import yaml

kubernetes: Any = importlib.import_module("kubernetes")
dynamic: Any = importlib.import_module("kubernetes.dynamic")

GROUP, VERSION, PLURAL = "example.com", "v1", "fleets"
found: dict[str, Any] = {}


def failed(call: Any, *arguments: Any, **more: Any) -> list[Any]:
    """How a call fails: code and reason."""
    try:
        call(*arguments, **more)
    except kubernetes.client.ApiException as error:
        return [error.status, json.loads(error.body)["reason"]]
    return []


def objects(core: Any) -> None:
    """Create, read, change and delete, with models."""
    client = kubernetes.client
    meta = client.V1ObjectMeta(name="c", labels={"a": "b"})
    made = core.create_namespaced_config_map("default", client.V1ConfigMap(metadata=meta, data={"k": "1"}))
    found["created"] = [made.kind, made.metadata.name, made.metadata.creation_timestamp.tzinfo is not None]
    found["again"] = failed(core.create_namespaced_config_map, "default", client.V1ConfigMap(metadata=meta))
    found["missing"] = failed(core.read_namespaced_config_map, "nothing", "default")
    stale = core.read_namespaced_config_map("c", "default")
    found["merged"] = core.patch_namespaced_config_map("c", "default", {"data": {"x": "y"}}).data
    stale.data = {}
    found["stale"] = failed(core.replace_namespaced_config_map, "c", "default", stale)
    patch = [{"op": "remove", "path": "/data/x"}]
    found["json patch"] = core.patch_namespaced_config_map("c", "default", patch).data
    for number in range(5):
        name = client.V1ObjectMeta(generate_name="page-")
        core.create_namespaced_config_map(
            "default", client.V1ConfigMap(metadata=name, data={"n": str(number)})
        )
    pages, token = [], None
    while token != "":
        page = core.list_namespaced_config_map("default", limit=4, _continue=token)
        pages.append(len(page.items))
        token = page.metadata._continue or ""
    found["pages"] = sum(pages), max(pages)
    selected = core.list_config_map_for_all_namespaces(
        label_selector="a in (b,c)", field_selector="metadata.name=c"
    )
    found["selected"] = [item.metadata.name for item in selected.items]
    container = client.V1Container(name="main", image="busybox")
    spec = client.V1PodSpec(containers=[container])
    core.create_namespaced_pod("default", client.V1Pod(metadata=client.V1ObjectMeta(name="p"), spec=spec))
    bad = {"metadata": {"name": "q"}, "spec": {"containers": []}}
    found["invalid"] = failed(core.create_namespaced_pod, "default", bad)
    status = {"status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.9"}]}}
    found["status"] = core.patch_namespaced_pod_status("p", "default", status).status.phase
    core.delete_namespaced_pod("p", "default", grace_period_seconds=0)


def watched(core: Any) -> None:
    """A watch that sees what another thread does."""
    events = []
    watch = kubernetes.watch.Watch()
    listed = core.list_namespaced_secret("default")

    def act() -> None:
        secret = kubernetes.client.V1Secret(
            metadata=kubernetes.client.V1ObjectMeta(name="s"), string_data={"a": "b"}
        )
        core.create_namespaced_secret("default", secret)
        core.patch_namespaced_secret("s", "default", {"metadata": {"labels": {"x": "y"}}})
        core.delete_namespaced_secret("s", "default")

    thread = threading.Thread(target=act)
    thread.start()
    since = listed.metadata.resource_version
    for event in watch.stream(
        core.list_namespaced_secret, "default", resource_version=since, timeout_seconds=10
    ):
        events.append([event["type"], event["object"].metadata.name])
        if event["type"] == "DELETED":
            watch.stop()
    thread.join()
    found["events"] = events


def custom(definition: str) -> None:
    """A definition, its objects, and the dynamic client."""
    client = kubernetes.client
    extensions, fleets = client.ApiextensionsV1Api(), client.CustomObjectsApi()
    extensions.create_custom_resource_definition(yaml.safe_load(Path(definition).read_text()))
    read = extensions.read_custom_resource_definition("fleets.example.com")
    found["conditions"] = sorted(one.type for one in read.status.conditions if one.status == "True")
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Fleet",
        "metadata": {"name": "f"},
        "spec": {"image": "busybox"},
    }
    where = (GROUP, VERSION, "default", PLURAL)
    found["custom"] = fleets.create_namespaced_custom_object(*where, body)["spec"]
    wrong = {"spec": {"size": 100}}
    found["custom invalid"] = failed(fleets.patch_namespaced_custom_object, *where, "f", wrong)
    status = {"status": {"size": 2, "selector": "a=b"}}
    found["custom status"] = fleets.patch_namespaced_custom_object_status(*where, "f", status)["status"]
    scale = fleets.get_namespaced_custom_object_scale(*where, "f")
    found["scale"] = [scale["spec"]["replicas"], scale["status"]["replicas"], scale["status"]["selector"]]
    resources = dynamic.DynamicClient(client.ApiClient()).resources
    api = resources.get(api_version=f"{GROUP}/{VERSION}", kind="Fleet")
    body["spec"] = {"image": "other", "size": 3}
    applied = api.server_side_apply(body=body, namespace="default", field_manager="me", force_conflicts=True)
    found["applied"] = [applied.spec.image, applied.spec.size]
    found["managers"] = [f"{one.manager} {one.operation}" for one in applied.metadata.managedFields]
    found["listed"] = [one.metadata.name for one in api.get(namespace="default").items]
    extensions.delete_custom_resource_definition("fleets.example.com")


def main() -> None:
    """Do all of it."""
    kubernetes.config.load_kube_config()
    core = kubernetes.client.CoreV1Api()
    objects(core)
    watched(core)
    custom(sys.argv[1])
    found["version"] = kubernetes.client.VersionApi().get_code().major
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
