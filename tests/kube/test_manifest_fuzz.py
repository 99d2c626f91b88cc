"""Whatever the bytes are, the reader gives a Pod, nothing, or a ManifestError that names a place."""

# ruff: noqa: E501 (tables of cases)

from __future__ import annotations

import json

import msgspec
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from podwire.kube.defaults import static_pod
from podwire.kube.errors import ManifestError
from podwire.kube.manifest import load_pod
from podwire.kube.objects import Pod
from podwire.kube.printing import to_builtins, to_json, to_yaml

CORPUS = [
    """\
apiVersion: v1
kind: Pod
metadata:
  name: full
  namespace: shop
  labels: {app: web, "on": "1"}
  annotations:
    kubernetes.io/ingress-bandwidth: 10M
spec:
  hostNetwork: false
  dnsConfig: {nameservers: [1.1.1.1], searches: [a.b], options: [{name: ndots, value: "2"}]}
  hostAliases: [{ip: "::1", hostnames: [me]}]
  securityContext: {sysctls: [{name: net.core.somaxconn, value: "100"}], runAsUser: 0}
  initContainers:
  - {name: i, command: [a], restartPolicy: Always}
  containers:
  - &c
    name: a
    command: ["/bin/sh", "-c", "echo $X"]
    env: [{name: X, value: "1"}, {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1, protocol: UDP, name: dns}]
    readinessProbe: {httpGet: {port: dns, path: /x}, periodSeconds: 5}
    resources: {limits: {cpu: 500m, memory: 1Gi}}
    volumeMounts: [{name: v, mountPath: /v}]
  - <<: *c
    name: b
    ports: []
  volumes: [{name: v, emptyDir: {}}]
""",
    json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "j"},
            "spec": {"containers": [{"name": "a"}]},
        }
    ),
    "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n",
]
TOKENS = [
    "on", "~", "0x1F", "010", "1e999", ".nan", "- ", ": ", "? ", "{", "}", "[", "]", "*c", "&c ", "<<: *c\n", "!!str ",
    "!x ", '"', "'", "|\n", ">\n", "---\n", "...\n", "%YAML 1.1\n", "\t", "\n", "#", "\0", "\x85", "\u2028", "\ufeff",
    "\\ud83d", "99999999999999999999", "name", "containers", "null", "[" * 80, "-1", "é", "\U0001f600",
]  # fmt: skip


def check(data: bytes) -> Pod | None:
    try:
        pod = load_pod(data, "f.yaml")
    except ManifestError as error:
        assert error.errors
        for fault in error.errors:
            assert fault.line is not None
            assert (
                1
                <= fault.line
                <= data.count(b"\n")
                + data.count(b"\r")
                + data.count(b"\xc2\x85")
                + 2
                + (data.count("\u2028".encode()) + data.count("\u2029".encode()))
            )
            assert fault.message
            assert str(fault).isprintable()
            str(fault).encode()
        return None
    if pod is None:
        return None
    assert pod.metadata.name
    made = static_pod(pod, node_name="n", source="file", path="/f.yaml")
    msgspec.json.encode(made)
    assert msgspec.convert(to_builtins(made), Pod) == made
    assert yaml.safe_load(to_yaml(made)) == json.loads(to_json(made))
    return pod


@given(st.binary(max_size=400))
@example(b"\xff\xfe")
@example(b"{}")
@example(b"[" * 3000)
@settings(max_examples=300, deadline=None)
def test_random_bytes(data: bytes) -> None:
    check(data)


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_text(text: str) -> None:
    check(text.encode("utf-8", "surrogatepass"))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    text = draw(st.sampled_from(CORPUS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        middle = draw(st.one_of(st.sampled_from(TOKENS), st.just(""), st.text(max_size=3)))
        text = text[:start] + middle + text[end:]
    return text.encode("utf-8", "surrogatepass")


@given(mutated())
@settings(max_examples=700, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_manifests(data: bytes) -> None:
    check(data)


@given(st.sampled_from(CORPUS), st.integers(0, 2000))
@settings(max_examples=200, deadline=None)
def test_half_written_manifests(text: str, length: int) -> None:
    check(text.encode()[:length])


def test_the_corpus_itself_is_valid() -> None:
    assert [check(text.encode()) is not None for text in CORPUS] == [True, True, True]
