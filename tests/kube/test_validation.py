# ruff: noqa: E501 (tables of cases)

from __future__ import annotations

import pytest

from podwire.kube.manifest import load_pod
from tests.kube.helpers import WEB, errors, pod, spec

C = "spec.containers[0]"
PORTS = "ports: [%s]"
FIELD_REF = "env: [{name: A, valueFrom: {fieldRef: {fieldPath: %s}}}]"


def metadata(text: str) -> str:
    return f"{{apiVersion: v1, kind: Pod, metadata: {{{text}}}, spec: {{containers: [{{name: a}}]}}}}"


def container(text: str) -> str:
    return spec(text)


def in_spec(text: str) -> str:
    return spec("", text)


def init(text: str) -> str:
    return spec("", f"initContainers: [{{name: i, {text}}}]")


BAD = [
    # metadata
    (metadata(""), "metadata.name", "invalid pod: name is needed for the pod"),
    (metadata("name: Web"), "metadata.name", "lower case"),
    (metadata("name: web_1"), "metadata.name", "lower case"),
    (metadata("name: ../x"), "metadata.name", "lower case"),
    (metadata(f"name: {'a' * 254}"), "metadata.name", "253 characters"),
    (metadata("name: a, namespace: a.b"), "metadata.namespace", "lower case"),
    (metadata(f"name: a, namespace: {'n' * 64}"), "metadata.namespace", "63 characters"),
    (metadata("name: a, uid: ../../etc"), "metadata.uid", "letters"),
    (metadata("name: a, labels: {a/b/c: d}"), "metadata.labels[a/b/c]", "DNS name"),
    (metadata('name: a, labels: {"": d}'), "metadata.labels[]", "the name is empty"),
    (metadata(f"name: a, labels: {{{'k' * 64}: d}}"), f"metadata.labels[{'k' * 64}]", "63 characters"),
    (metadata(f"name: a, labels: {{k: {'v' * 64}}}"), "metadata.labels[k]", "63 characters"),
    (metadata("name: a, labels: {k: 'a b'}"), "metadata.labels[k]", "letters, digits"),
    (metadata("name: a, annotations: {'a b': c}"), "metadata.annotations[a b]", "the key"),
    (metadata(f"name: a, annotations: {{a: {'x' * 262144}}}"), "metadata.annotations", "262144 at most"),
    (metadata("name: a, annotations: {kubernetes.io/ingress-bandwidth: fast}"),
     "metadata.annotations[kubernetes.io/ingress-bandwidth]", "bits per second"),
    (metadata("name: a, annotations: {kubernetes.io/egress-bandwidth: '999'}"),
     "metadata.annotations[kubernetes.io/egress-bandwidth]", "1k to 1P"),
    (metadata("name: a, annotations: {kubernetes.io/egress-bandwidth: 2P}"),
     "metadata.annotations[kubernetes.io/egress-bandwidth]", "1k to 1P"),
    # containers
    ("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "spec.containers", "required"),
    ("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: []}}", "spec.containers", "required"),
    (spec("", "initContainers: [{name: a}]"), f"{C}.name", "twice, first in spec.initContainers[0].name"),
    ("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{image: x}]}}", f"{C}.name", "required"),
    ("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: A_b}]}}", f"{C}.name", "lower case"),
    (container("image: ' x'"), f"{C}.image", "white space"),
    (container("imagePullPolicy: always"), f"{C}.imagePullPolicy", 'did you mean "Always"'),
    (container("terminationMessagePolicy: Log"), f"{C}.terminationMessagePolicy", "FallbackToLogsOnError"),
    (container("restartPolicy: Always"), f"{C}.restartPolicy", "only an init container"),
    (init("restartPolicy: Never"), "spec.initContainers[0].restartPolicy", "Always is expected"),
    (init("readinessProbe: {tcpSocket: {port: 80}}"), "spec.initContainers[0].readinessProbe", "no probes"),
    (init("lifecycle: {preStop: {sleep: {seconds: 1}}}"), "spec.initContainers[0].lifecycle", "no handlers"),
    # ports
    (container(PORTS % "{containerPort: 0}"), f"{C}.ports[0].containerPort", "1 to 65535"),
    (container(PORTS % "{containerPort: 65536}"), f"{C}.ports[0].containerPort", "1 to 65535"),
    (container(PORTS % "{containerPort: 80, hostPort: -1}"), f"{C}.ports[0].hostPort", "0 to 65535"),
    (container(PORTS % "{containerPort: 80, protocol: tcp}"), f"{C}.ports[0].protocol", 'did you mean "TCP"'),
    (container(PORTS % "{containerPort: 80, protocol: ICMP}"), f"{C}.ports[0].protocol", "TCP, UDP, SCTP"),
    (container(PORTS % "{containerPort: 80, name: a-name-of-16-chr}"), f"{C}.ports[0].name", "15 characters"),
    (container(PORTS % "{containerPort: 80, name: '80'}"), f"{C}.ports[0].name", "one letter"),
    (container(PORTS % "{containerPort: 80, name: a--b}"), f"{C}.ports[0].name", "single"),
    (container(PORTS % "{containerPort: 80, name: a}, {containerPort: 81, name: a}"), f"{C}.ports[1].name", "twice"),
    (container(PORTS % "{containerPort: 80, hostPort: 80, hostIP: 1.2.3}"), f"{C}.ports[0].hostIP", "IPv4 or IPv6"),
    (container(PORTS % "{containerPort: 80, hostPort: 80, hostIP: 'fe80::1%eth0'}"), f"{C}.ports[0].hostIP", "zone"),
    (spec(PORTS % "{containerPort: 80, hostPort: 81}", "hostNetwork: true"), f"{C}.ports[0].hostPort",
     "equal to containerPort, 80"),
    (spec(PORTS % "{containerPort: 80}, {containerPort: 80}", "hostNetwork: true"), f"{C}.ports[1].hostPort", "twice"),
    # environment
    (container("env: [{name: 'A=B'}]"), f"{C}.env[0].name", 'without "="'),
    (container("env: [{name: ''}]"), f"{C}.env[0].name", "printable"),
    (container("env: [{name: A, valueFrom: {}}]"), f"{C}.env[0].valueFrom", "one of fieldRef"),
    (container("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {}}}]"),
     f"{C}.env[0].valueFrom", "only one is allowed, and here are fieldRef and resourceFieldRef"),
    (container("env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"),
     f"{C}.env[0].valueFrom", "beside value"),
    (container(FIELD_REF % "status.phase"), f"{C}.env[0].valueFrom.fieldRef.fieldPath", "status.podIP"),
    (container(FIELD_REF % '"metadata.labels[app]"'), f"{C}.env[0].valueFrom.fieldRef.fieldPath", "metadata.labels['"),
    (container(FIELD_REF % '"metadata.labels[\'a b\']"'), f"{C}.env[0].valueFrom.fieldRef.fieldPath", "letters"),
    # probes and handlers
    (container("livenessProbe: {}"), f"{C}.livenessProbe", "one of exec, httpGet, tcpSocket, grpc is required"),
    (container("livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 1}}"), f"{C}.livenessProbe", "only one"),
    (container("livenessProbe: {exec: {}}"), f"{C}.livenessProbe.exec.command", "required"),
    (container("livenessProbe: {httpGet: {port: 0}}"), f"{C}.livenessProbe.httpGet.port", "1 to 65535"),
    (container("livenessProbe: {httpGet: {port: http_port}}"), f"{C}.livenessProbe.httpGet.port", "lower case"),
    (container("livenessProbe: {httpGet: {port: 1, scheme: http}}"), f"{C}.livenessProbe.httpGet.scheme", "HTTPS"),
    (container("livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: 'a b', value: c}]}}"),
     f"{C}.livenessProbe.httpGet.httpHeaders[0].name", "HTTP header"),
    (container("livenessProbe: {grpc: {}}"), f"{C}.livenessProbe.grpc.port", "required"),
    (container("readinessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}"), f"{C}.readinessProbe.periodSeconds",
     "0 or more"),
    (container("livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}"), f"{C}.livenessProbe.successThreshold",
     "has 1"),
    (container("readinessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 5}"),
     f"{C}.readinessProbe.terminationGracePeriodSeconds", "ends nothing"),
    (container("lifecycle: {preStop: {}}"), f"{C}.lifecycle.preStop", "one of exec"),
    (container("lifecycle: {postStart: {sleep: {seconds: -1}}}"), f"{C}.lifecycle.postStart.sleep.seconds", "0 or more"),
    # mounts and volumes
    (container("volumeMounts: [{name: data, mountPath: /data}]"), f"{C}.volumeMounts[0].name", "no volume of that name"),
    (spec("volumeMounts: [{name: v, mountPath: ''}]", "volumes: [{name: v, emptyDir: {}}]"),
     f"{C}.volumeMounts[0].mountPath", "required"),
    (spec("volumeMounts: [{name: v, mountPath: 'a:b'}]", "volumes: [{name: v, emptyDir: {}}]"),
     f"{C}.volumeMounts[0].mountPath", "not allowed"),
    (spec("volumeMounts: [{name: v, mountPath: /a, subPath: ../b}]", "volumes: [{name: v, emptyDir: {}}]"),
     f"{C}.volumeMounts[0].subPath", "relative path"),
    (spec("volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /a}]", "volumes: [{name: v, emptyDir: {}}]"),
     f"{C}.volumeMounts[1].mountPath", "twice"),
    (in_spec("volumes: [{name: v}]"), "spec.volumes[0]", "is required"),
    (in_spec("volumes: [{name: v, emptyDir: {}, hostPath: {path: /a}}]"), "spec.volumes[0]", "only one is allowed"),
    (in_spec("volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]"), "spec.volumes[1].name", "twice"),
    (in_spec("volumes: [{name: V, emptyDir: {}}]"), "spec.volumes[0].name", "lower case"),
    (in_spec("volumes: [{name: v, hostPath: {path: /a/../b}}]"), "spec.volumes[0].hostPath.path", '".."'),
    (in_spec("volumes: [{name: v, hostPath: {path: /a, type: Dir}}]"), "spec.volumes[0].hostPath.type", "Directory"),
    (in_spec("volumes: [{name: v, emptyDir: {medium: memory}}]"), "spec.volumes[0].emptyDir.medium", "Memory"),
    (in_spec("volumes: [{name: v, emptyDir: {sizeLimit: big}}]"), "spec.volumes[0].emptyDir.sizeLimit", "quantity"),
    # resources
    (container("resources: {limits: {cpu: fast}}"), f"{C}.resources.limits.cpu", "quantity"),
    (container("resources: {limits: {cpu: -1}}"), f"{C}.resources.limits.cpu", "0 or more"),
    (container("resources: {limits: {memory: 1Gi}, requests: {memory: 2Gi}}"), f"{C}.resources.requests.memory",
     "more than the limit, 1Gi"),
    (container("resources: {limits: [cpu]}"), f"{C}.resources.limits", "mapping"),
    # spec
    (in_spec("restartPolicy: never"), "spec.restartPolicy", 'did you mean "Never"'),
    (in_spec("terminationGracePeriodSeconds: -1"), "spec.terminationGracePeriodSeconds", "0 or more"),
    (in_spec("activeDeadlineSeconds: 0"), "spec.activeDeadlineSeconds", "1 or more"),
    (in_spec("hostname: a.b"), "spec.hostname", "lower case"),
    (in_spec("subdomain: A"), "spec.subdomain", "lower case"),
    (in_spec("shareProcessNamespace: true, hostPID: true"), "spec.shareProcessNamespace", "hostPID"),
    (in_spec("os: {name: windows}"), "spec.os.name", "linux"),
    (in_spec("ephemeralContainers: [{name: e}]"), "spec.ephemeralContainers", "not allowed"),
    (in_spec("dnsPolicy: clusterfirst"), "spec.dnsPolicy", 'did you mean "ClusterFirst"'),
    (in_spec("dnsPolicy: None"), "spec.dnsConfig.nameservers", "at least one"),
    (in_spec("dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}"), "spec.dnsConfig.nameservers", "3 at"),
    (in_spec("dnsConfig: {nameservers: [dns.example]}"), "spec.dnsConfig.nameservers[0]", "IPv4 or IPv6"),
    (in_spec(f"dnsConfig: {{searches: [{', '.join(f's{i}' for i in range(33))}]}}"), "spec.dnsConfig.searches", "32 at"),
    (in_spec(f"dnsConfig: {{searches: [{', '.join(c * 60 + '.' + c * 60 + '.' + c * 60 for c in 'abcdefghijkl')}]}}"),
     "spec.dnsConfig.searches", "2048 characters"),
    (in_spec("dnsConfig: {searches: ['a b']}"), "spec.dnsConfig.searches[0]", "lower case"),
    (in_spec("dnsConfig: {options: [{value: '5'}]}"), "spec.dnsConfig.options[0].name", "required"),
    (in_spec("hostAliases: [{ip: localhost}]"), "spec.hostAliases[0].ip", "IPv4 or IPv6"),
    (in_spec("hostAliases: [{ip: 1.2.3.4, hostnames: ['a b']}]"), "spec.hostAliases[0].hostnames[0]", "lower case"),
    (in_spec("securityContext: {sysctls: [{name: 'a b', value: '1'}]}"), "spec.securityContext.sysctls[0].name",
     "name of a sysctl"),
    (in_spec("securityContext: {sysctls: [{name: a.b, value: '1'}, {name: a/b, value: '2'}]}"),
     "spec.securityContext.sysctls[1].name", "twice"),
    (in_spec("hostNetwork: true, securityContext: {sysctls: [{name: net.ipv4.ip_forward, value: '1'}]}"),
     "spec.securityContext.sysctls[0].name", "would change the host"),
    (in_spec("securityContext: {runAsUser: -1}"), "spec.securityContext.runAsUser", "0 or more"),
    (in_spec("securityContext: {fsGroup: 2147483648}"), "spec.securityContext.fsGroup", "0 to 2147483647"),
    (in_spec("securityContext: {supplementalGroups: [1, -2]}"), "spec.securityContext.supplementalGroups[1]", "0 or"),
    (container("securityContext: {runAsGroup: -1}"), f"{C}.securityContext.runAsGroup", "0 or more"),
    (container("securityContext: {privileged: true, allowPrivilegeEscalation: false}"),
     f"{C}.securityContext.allowPrivilegeEscalation", "privileged"),
    (in_spec("tolerations: [{operator: Equal}]"), "spec.tolerations[0].operator", "it is Exists"),
    (in_spec("tolerations: [{key: a, operator: Exists, value: b}]"), "spec.tolerations[0].value", "no value"),
    (in_spec("tolerations: [{key: a, effect: noexecute}]"), "spec.tolerations[0].effect", 'did you mean "NoExecute"'),
    (in_spec("tolerations: [{key: a, tolerationSeconds: 5}]"), "spec.tolerations[0].effect", "it is NoExecute"),
    (in_spec("nodeSelector: {a: 'b c'}"), "spec.nodeSelector[a]", "letters"),
    (in_spec("runtimeClassName: A"), "spec.runtimeClassName", "lower case"),
    # what only the API could look up
    (in_spec("serviceAccountName: web"), "spec.serviceAccountName", "static pods may not reference serviceaccounts"),
    (in_spec("serviceAccount: web"), "spec.serviceAccount", "static pods may not reference serviceaccounts"),
    (in_spec("imagePullSecrets: [{name: a}]"), "spec.imagePullSecrets", "static pods may not reference secrets"),
    (container("env: [{name: A, valueFrom: {secretKeyRef: {name: a, key: b}}}]"),
     f"{C}.env[0].valueFrom.secretKeyRef", "static pods may not reference secrets"),
    (container("env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: b}}}]"),
     f"{C}.env[0].valueFrom.configMapKeyRef", "static pods may not reference configmaps"),
    (container("envFrom: [{configMapRef: {name: a}}]"), f"{C}.envFrom[0].configMapRef",
     "static pods may not reference configmaps"),
    (container("envFrom: [{prefix: x, secretRef: {name: a}}]"), f"{C}.envFrom[0].secretRef",
     "static pods may not reference secrets"),
    (in_spec("volumes: [{name: v, secret: {secretName: a}}]"), "spec.volumes[0].secret",
     "static pods may not reference secrets"),
    (in_spec("volumes: [{name: v, configMap: {name: a}}]"), "spec.volumes[0].configMap",
     "static pods may not reference configmaps"),
    (in_spec("volumes: [{name: v, persistentVolumeClaim: {claimName: a}}]"), "spec.volumes[0].persistentVolumeClaim",
     "static pods may not reference persistentvolumeclaims"),
    (in_spec("volumes: [{name: v, cephfs: {monitors: [], secretRef: {name: a}}}]"), "spec.volumes[0].cephfs.secretRef",
     "static pods may not reference secrets"),
    (in_spec("volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]"),
     "spec.volumes[0].projected.sources[0].serviceAccountToken", "static pods may not reference serviceaccounts"),
    (in_spec("resourceClaims: [{name: a}]"), "spec.resourceClaims", "static pods may not reference resourceclaims"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field", "message"), BAD, ids=[f"{n}-{row[1][:40]}" for n, row in enumerate(BAD)]
)
def test_each_broken_rule_is_one_error_with_its_field(text: str, field: str, message: str) -> None:
    (error,) = errors(text)
    assert error.field == field
    assert message in error.message
    assert error.line == 1


GOOD = [
    metadata("name: 1.a-b.c, namespace: kube-system, uid: 0123-abc"),
    metadata(
        "name: a, labels: {example.com/My_Key.1: ''}, annotations: {Example.com/Any: 'any text \\ here'}"
    ),
    metadata(
        "name: a, annotations: {kubernetes.io/ingress-bandwidth: 10M, kubernetes.io/egress-bandwidth: 1k}"
    ),
    container("image: 'registry.example:5000/a/b@sha256:0'"),
    init(
        "restartPolicy: Always, readinessProbe: {tcpSocket: {port: 80}}, lifecycle: {preStop: {sleep: {seconds: 0}}}"
    ),
    container(PORTS % "{containerPort: 65535, hostPort: 65535, protocol: SCTP, hostIP: '::1', name: a-b}"),
    spec(PORTS % "{containerPort: 80, hostPort: 80}", "hostNetwork: true"),
    container(
        "env: [{name: 'a.b-c d', value: ''}, {name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]"
    ),
    container(FIELD_REF % "status.podIPs"),
    container(FIELD_REF % "\"metadata.annotations['example.com/a']\""),
    container("startupProbe: {grpc: {port: 80}, failureThreshold: 30}"),
    container("readinessProbe: {httpGet: {port: http}, successThreshold: 2, timeoutSeconds: 0}"),
    spec(
        "volumeMounts: [{name: v, mountPath: /a, subPath: b/c}]",
        "volumes: [{name: v, emptyDir: {medium: Memory}}]",
    ),
    in_spec("volumes: [{name: v, hostPath: {path: /a, type: ''}}, {name: w, nfs: {server: a, path: /b}}]"),
    container("resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m, memory: 1e6}}"),
    in_spec(
        "dnsPolicy: None, dnsConfig: {nameservers: ['fd00::1'], searches: [., a_b.example.], options: [{name: ndots, value: '2'}]}"
    ),
    in_spec("hostAliases: [{ip: '::1', hostnames: [a.b]}], hostNetwork: true"),
    in_spec(
        "securityContext: {sysctls: [{name: net/ipv4/conf/eth0.100/forwarding, value: '1'}], fsGroup: 2147483647}"
    ),
    in_spec(
        "tolerations: [{operator: Exists}, {key: a, value: b}, {key: a, effect: NoExecute, tolerationSeconds: 5}]"
    ),
    in_spec("terminationGracePeriodSeconds: 0, os: {name: linux}, hostname: a, subdomain: b"),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_api_server_takes_is_taken(text: str) -> None:
    assert load_pod(text, "web.yaml") is not None


def test_references_are_allowed_where_an_api_server_looks_them_up() -> None:
    text = in_spec("serviceAccountName: web, volumes: [{name: v, secret: {secretName: a}}]")
    assert load_pod(text, static=False) is not None


@pytest.mark.parametrize(
    "ports",
    [
        "{containerPort: 1, hostPort: 8077}, {containerPort: 2, hostPort: 8077}",
        "{containerPort: 1, hostPort: 8077}, {containerPort: 2, hostPort: 8077, hostIP: 0.0.0.0}",
        "{containerPort: 1, hostPort: 8077, hostIP: '::'}, {containerPort: 2, hostPort: 8077}",
        "{containerPort: 1, hostPort: 8077, hostIP: '::1'}, {containerPort: 2, hostPort: 8077, hostIP: '0:0::1'}",
    ],
)
def test_G12_the_same_host_port_twice_is_refused(ports: str) -> None:
    (error,) = errors(container(PORTS % ports))
    assert error.field == f"{C}.ports[1].hostPort"
    assert f"twice, first in {C}.ports[0].hostPort" in error.message
    assert error.value == "8077"


def test_G12_also_across_containers_and_sidecars() -> None:
    port = "ports: [{containerPort: 8077, hostPort: 8077}]"
    text = spec(port, f"initContainers: [{{name: i, restartPolicy: Always, {port}}}]")
    (error,) = errors(text)
    assert "spec.initContainers[0].ports[0].hostPort" in error.message


@pytest.mark.parametrize(
    "ports",
    [
        "{containerPort: 1, hostPort: 8080, hostIP: 10.1.1.1}, {containerPort: 1, hostPort: 8080, hostIP: 10.1.1.2}",
        "{containerPort: 2049, hostPort: 2049}, {containerPort: 2049, hostPort: 2049, protocol: UDP}",
        "{containerPort: 1, hostPort: 80, hostIP: 0.0.0.0}, {containerPort: 1, hostPort: 80, hostIP: '::'}",
    ],
)
def test_G10_different_addresses_or_protocols_do_not_conflict(ports: str) -> None:
    assert load_pod(container(PORTS % ports)) is not None


def test_G08_two_host_ports_to_one_container_port_are_kept() -> None:
    text = container(PORTS % "{containerPort: 4443, hostPort: 443}, {containerPort: 4443, hostPort: 4443}")
    assert [port.host_port for port in pod(text).spec.containers[0].ports] == [443, 4443]


def test_G09_overlapping_host_ports_are_allowed() -> None:
    text = container(
        PORTS % "{containerPort: 123, hostPort: 987}, {containerPort: 456, hostPort: 987, hostIP: 1.2.3.4}"
    )
    assert load_pod(text) is not None


def test_several_broken_rules_are_all_told() -> None:
    text = (
        WEB.replace("name: web\n", "name: '-'\n").replace("80\n", "0\n", 1) + "  restartPolicy: Sometimes\n"
    )
    assert [e.field for e in errors(text)] == [
        "metadata.name",
        "spec.containers[0].name",
        "spec.containers[0].ports[0].containerPort",
        "spec.restartPolicy",
    ]
