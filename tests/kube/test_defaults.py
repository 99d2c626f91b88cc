from __future__ import annotations

import re
from typing import Any

import pytest

from podwire.kube.defaults import content_hash, default_pod, qos_class, static_pod
from podwire.kube.objects import Pod
from tests.kube.helpers import WEB, pod, spec


def static(text: str = WEB, node: str = "Node-1", path: str = "/etc/pods/web.yaml") -> Pod:
    return static_pod(pod(text), node_name=node, source="file", path=path)


def test_a_static_pod_gets_name_namespace_node_phase_and_toleration() -> None:
    result = static()
    assert (result.metadata.name, result.metadata.namespace) == ("web-node-1", "default")
    assert result.spec.node_name == "Node-1"
    assert result.status.phase == "Pending"
    assert [(t.operator, t.effect) for t in result.spec.tolerations] == [("Exists", "NoExecute")]
    assert result.metadata.annotations["kubernetes.io/config.source"] == "file"


def test_a_namespace_and_a_toleration_that_are_there_stay() -> None:
    text = WEB.replace("  labels:", "  namespace: shop\n  labels:") + (
        "  tolerations:\n  - operator: Exists\n    effect: NoExecute\n"
    )
    result = static(text)
    assert result.metadata.namespace == "shop"
    assert len(result.spec.tolerations) == 1


def test_pods_from_a_url_get_no_toleration() -> None:
    result = static_pod(pod(), node_name="n", source="http", path="http://x/", tolerate=False)
    assert result.spec.tolerations == []
    assert result.metadata.annotations["kubernetes.io/config.source"] == "http"


def test_the_uid_is_a_hash_and_the_annotation_is_the_uid() -> None:
    result = static()
    assert re.fullmatch("[0-9a-f]{32}", result.metadata.uid)
    assert result.metadata.annotations["kubernetes.io/config.hash"] == result.metadata.uid


def test_comments_white_space_and_order_keep_the_uid() -> None:
    lines = "# a comment\n" + WEB.replace("  - name: web\n", "\n  - name:  'web'   # here\n")
    reordered = WEB.replace("apiVersion: v1\nkind: Pod\n", "kind: Pod\napiVersion: v1\n")
    spelled_out = WEB + "  restartPolicy: Always\n  dnsPolicy: ClusterFirst\n"
    assert {static(text).metadata.uid for text in (WEB, lines, reordered, spelled_out)} == {
        static().metadata.uid
    }


def test_content_path_and_node_change_the_uid() -> None:
    uids = {
        static().metadata.uid,
        static(WEB.replace("8080", "8081")).metadata.uid,
        static(WEB.replace("app: web", "app: web2")).metadata.uid,
        static(path="/etc/pods/other.yaml").metadata.uid,
        static(node="node-2").metadata.uid,
    }
    assert len(uids) == 5


def test_the_uid_does_not_change_between_versions_unseen() -> None:
    assert static().metadata.uid == "8da41a44d4e7987edc01b0c316a80265"


def test_a_uid_in_the_manifest_stays_whatever_else_changes() -> None:
    fixed = WEB.replace("  labels:", "  uid: my-uid\n  labels:")
    for text in (fixed, fixed.replace("8080", "8081")):
        result = static(text)
        assert result.metadata.uid == "my-uid"
        assert result.metadata.annotations["kubernetes.io/config.hash"] == "my-uid"


def test_a_pod_that_was_printed_and_given_again_keeps_its_hash() -> None:
    copied = WEB.replace(
        "  labels:",
        "  annotations: {kubernetes.io/config.hash: x, kubernetes.io/config.seen: then, "
        "kubernetes.io/config.source: z}\n  labels:",
    )
    assert static(copied).metadata.uid == static().metadata.uid
    assert "kubernetes.io/config.seen" not in static(copied).metadata.annotations


def test_the_hash_takes_in_all_three_parts() -> None:
    assert content_hash(pod(), "ab", "c") != content_hash(pod(), "a", "bc")


def test_container_defaults_are_those_that_kubectl_shows() -> None:
    text = spec(
        "readinessProbe: {httpGet: {port: 80}, timeoutSeconds: 0},"
        "lifecycle: {preStop: {httpGet: {port: 1}}},"
        "env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"
    )
    defaulted = default_pod(pod(text))
    (container,) = defaulted.spec.containers
    assert container.termination_message_path == "/dev/termination-log"
    assert container.termination_message_policy == "File"
    assert container.resources == {}
    probe = container.readiness_probe
    assert probe is not None and probe.http_get is not None
    assert (probe.http_get.path, probe.http_get.scheme) == ("/", "HTTP")
    assert (
        probe.timeout_seconds,
        probe.period_seconds,
        probe.success_threshold,
        probe.failure_threshold,
    ) == (
        1,
        10,
        1,
        3,
    )
    assert container.lifecycle is not None and container.lifecycle.pre_stop is not None
    assert container.lifecycle.pre_stop.http_get is not None
    assert container.lifecycle.pre_stop.http_get.path == "/"
    source = container.env[0].value_from
    assert source is not None and source.field_ref is not None
    assert source.field_ref.api_version == "v1"
    assert (defaulted.spec.scheduler_name, defaulted.spec.enable_service_links) == ("default-scheduler", True)


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("host:5000/nginx", "Always"),
        ("nginx:1.27", "IfNotPresent"),
        ("host:5000/nginx:1.27", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    assert default_pod(pod(spec(f"image: '{image}'"))).spec.containers[0].image_pull_policy == policy


def test_with_host_network_the_host_port_is_the_container_port() -> None:
    ports = "ports: [{containerPort: 80}]"
    sidecar = f"initContainers: [{{name: i, restartPolicy: Always, {ports.replace('80', '81')}}}]"
    result = default_pod(pod(spec(ports, f"hostNetwork: true, {sidecar}")))
    assert result.spec.containers[0].ports[0].host_port == 80
    assert result.spec.init_containers[0].ports[0].host_port == 81
    assert default_pod(pod(spec("ports: [{containerPort: 80}]"))).spec.containers[0].ports[0].host_port == 0


def test_requests_that_are_not_given_are_the_limits() -> None:
    result = default_pod(pod(spec("resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}")))
    resources: Any = result.spec.containers[0].resources
    assert resources["requests"] == {"cpu": "500m", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ("", "BestEffort"),
        ("resources: {}", "BestEffort"),
        ("resources: {limits: {example.com/gpu: 1}}", "BestEffort"),
        ("resources: {requests: {cpu: 1}}", "Burstable"),
        ("resources: {limits: {cpu: 1}}", "Burstable"),
        ("resources: {limits: {cpu: 1, memory: 1Gi}}", "Guaranteed"),
        ("resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1000m, memory: 1024Mi}}", "Guaranteed"),
        ("resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}", "Burstable"),
    ],
)
def test_the_qos_class_follows_cpu_and_memory(container: str, expected: str) -> None:
    assert qos_class(pod(spec(container))) == expected


def test_one_container_without_limits_makes_the_pod_burstable() -> None:
    text = spec("resources: {limits: {cpu: 1, memory: 1Gi}}", "initContainers: [{name: i}]")
    assert qos_class(pod(text)) == "Burstable"
