"""The rules for containers: names, ports, environment, probes, handlers, mounts, resources.

Source: k8s.io/kubernetes pkg/apis/core/validation/validation.go.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from podwire.kube import names
from podwire.kube.objects import (
    Container,
    ContainerPort,
    EnvVar,
    HTTPGetAction,
    LifecycleHandler,
    PodSpec,
    Probe,
    SecurityContext,
    TCPSocketAction,
)
from podwire.kube.quantity import QuantityError, parse_quantity
from podwire.kube.rules import Reason, Rules

PROTOCOLS = ("TCP", "UDP", "SCTP")
FIELD_PATHS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
"""What an environment variable can take from its pod by ``fieldRef``, beside a label or an annotation."""
_MAP_PATH = re.compile(r"metadata\.(?:labels|annotations)\['([^']+)'\]")
_HANDLERS = "exec, httpGet, tcpSocket, grpc"


def check_container(rules: Rules, path: str, container: Container, spec: PodSpec, *, init: bool) -> None:
    """Every rule for one container that needs no other container."""
    if rules.required(f"{path}.name", container.name):
        rules.syntax(f"{path}.name", container.name, names.dns_label)
    if container.image != container.image.strip():
        rules.add(f"{path}.image", container.image, "no white space is allowed around the name")
    rules.one_of(f"{path}.imagePullPolicy", container.image_pull_policy, ("Always", "IfNotPresent", "Never"))
    rules.one_of(
        f"{path}.terminationMessagePolicy",
        container.termination_message_policy,
        ("File", "FallbackToLogsOnError"),
    )
    _check_restart(rules, path, container, init)
    for index, port in enumerate(container.ports):
        _check_port(rules, f"{path}.ports[{index}]", port, spec.host_network)
    named = ((f"{path}.ports[{i}].name", port.name) for i, port in enumerate(container.ports) if port.name)
    rules.unique(named, "the name")
    for index, env in enumerate(container.env):
        _check_env(rules, f"{path}.env[{index}]", env)
    _check_mounts(rules, path, container, spec)
    _check_resources(rules, f"{path}.resources", container.resources)
    if container.security_context is not None:
        check_security(rules, f"{path}.securityContext", container.security_context)


def _check_restart(rules: Rules, path: str, container: Container, init: bool) -> None:
    sidecar = init and container.restart_policy == "Always"
    if init:
        rules.one_of(f"{path}.restartPolicy", container.restart_policy, ("Always",))
    elif container.restart_policy:
        message = "only an init container can have a restartPolicy of its own: write it in spec"
        rules.add(f"{path}.restartPolicy", container.restart_policy, message)
    probes = {
        "livenessProbe": container.liveness_probe,
        "readinessProbe": container.readiness_probe,
        "startupProbe": container.startup_probe,
    }
    for name, probe in probes.items():
        if probe is None:
            continue
        if init and not sidecar:
            rules.add(f"{path}.{name}", None, "an init container without restartPolicy Always has no probes")
        _check_probe(rules, f"{path}.{name}", probe, name)
    lifecycle = container.lifecycle
    if lifecycle is None:
        return
    if init and not sidecar:
        rules.add(f"{path}.lifecycle", None, "an init container without restartPolicy Always has no handlers")
    for name, handler in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if handler is not None:
            _check_lifecycle(rules, f"{path}.lifecycle.{name}", handler)


def _check_port(rules: Rules, path: str, port: ContainerPort, host_network: bool) -> None:
    lacking = Reason.INVALID if port.container_port else Reason.REQUIRED
    rules.between(f"{path}.containerPort", port.container_port, 1, 65535, reason=lacking)
    rules.between(f"{path}.hostPort", port.host_port, 0, 65535)
    rules.one_of(f"{path}.protocol", port.protocol, PROTOCOLS)
    if port.name:
        rules.syntax(f"{path}.name", port.name, names.port_name)
    if port.host_ip:
        rules.syntax(f"{path}.hostIP", port.host_ip, names.ip_address)
    if host_network and port.host_port not in (0, port.container_port):
        message = f"with hostNetwork it is equal to containerPort, {port.container_port}, or left out"
        rules.add(f"{path}.hostPort", port.host_port, message)


def _check_env(rules: Rules, path: str, env: EnvVar) -> None:
    rules.syntax(
        f"{path}.name", env.name, names.environment_name, Reason.INVALID if env.name else Reason.REQUIRED
    )
    source = env.value_from
    if source is None:
        return
    if env.value:
        rules.add(f"{path}.valueFrom", None, "not allowed beside value")
    present = {
        "fieldRef": source.field_ref is not None,
        "resourceFieldRef": source.resource_field_ref is not UNSET,
        "configMapKeyRef": source.config_map_key_ref is not UNSET,
        "secretKeyRef": source.secret_key_ref is not UNSET,
        "fileKeyRef": source.file_key_ref is not UNSET,
    }
    rules.exactly_one(f"{path}.valueFrom", (n for n, there in present.items() if there), ", ".join(present))
    if source.field_ref is None:
        return
    rules.one_of(f"{path}.valueFrom.fieldRef.apiVersion", source.field_ref.api_version, ("v1",))
    wanted = source.field_ref.field_path
    key = _MAP_PATH.fullmatch(wanted)
    if key is None and wanted not in FIELD_PATHS:
        known = ", ".join((*FIELD_PATHS, "metadata.labels['<key>']", "metadata.annotations['<key>']"))
        rules.add(f"{path}.valueFrom.fieldRef.fieldPath", wanted, f"one of {known} is expected")
    elif key is not None:
        rules.syntax(f"{path}.valueFrom.fieldRef.fieldPath", key[1], names.qualified_name)


def _check_probe(rules: Rules, path: str, probe: Probe, kind: str) -> None:
    present = {
        "exec": probe.exec is not None,
        "httpGet": probe.http_get is not None,
        "tcpSocket": probe.tcp_socket is not None,
        "grpc": probe.grpc is not UNSET,
    }
    rules.exactly_one(path, (name for name, there in present.items() if there), _HANDLERS)
    _check_actions(rules, path, probe)
    if isinstance(probe.grpc, dict):
        _check_number(rules, f"{path}.grpc.port", probe.grpc.get("port"))
    rules.between(f"{path}.initialDelaySeconds", probe.initial_delay_seconds, 0)
    rules.between(f"{path}.timeoutSeconds", probe.timeout_seconds, 0)
    rules.between(f"{path}.periodSeconds", probe.period_seconds, 0)
    rules.between(f"{path}.successThreshold", probe.success_threshold, 0)
    rules.between(f"{path}.failureThreshold", probe.failure_threshold, 0)
    if kind != "readinessProbe" and probe.success_threshold > 1:
        rules.add(f"{path}.successThreshold", probe.success_threshold, f"a {kind} has 1")
    grace = probe.termination_grace_period_seconds
    rules.between(f"{path}.terminationGracePeriodSeconds", grace, 1)
    if kind == "readinessProbe" and grace is not None:
        rules.add(f"{path}.terminationGracePeriodSeconds", grace, "a readinessProbe ends nothing")


def _check_lifecycle(rules: Rules, path: str, handler: LifecycleHandler) -> None:
    present = {
        "exec": handler.exec is not None,
        "httpGet": handler.http_get is not None,
        "tcpSocket": handler.tcp_socket is not None,
        "sleep": handler.sleep is not None,
    }
    rules.exactly_one(path, (name for name, there in present.items() if there), ", ".join(present))
    _check_actions(rules, path, handler)
    if handler.sleep is not None:
        rules.between(f"{path}.sleep.seconds", handler.sleep.seconds, 0)


def _check_actions(rules: Rules, path: str, handler: Probe | LifecycleHandler) -> None:
    if handler.exec is not None:
        rules.required(f"{path}.exec.command", handler.exec.command)
    if handler.http_get is not None:
        _check_http(rules, f"{path}.httpGet", handler.http_get)
    if handler.tcp_socket is not None:
        _check_tcp(rules, f"{path}.tcpSocket", handler.tcp_socket)


def _check_http(rules: Rules, path: str, action: HTTPGetAction) -> None:
    _check_number(rules, f"{path}.port", action.port)
    rules.one_of(f"{path}.scheme", action.scheme, ("HTTP", "HTTPS"))
    for index, header in enumerate(action.http_headers):
        if not re.fullmatch(r"[-A-Za-z0-9!#$%&'*+.^_`|~]+", header.name):
            rules.add(f"{path}.httpHeaders[{index}].name", header.name, "not the name of an HTTP header")


def _check_tcp(rules: Rules, path: str, action: TCPSocketAction) -> None:
    _check_number(rules, f"{path}.port", action.port)


def _check_number(rules: Rules, path: str, port: object) -> None:
    if isinstance(port, str):
        rules.syntax(path, port, names.port_name)
    elif isinstance(port, int):
        rules.between(path, port, 1, 65535)
    else:
        rules.required(path, None)


def _check_mounts(rules: Rules, path: str, container: Container, spec: PodSpec) -> None:
    declared = {volume.name for volume in spec.volumes}
    for index, mount in enumerate(container.volume_mounts):
        place = f"{path}.volumeMounts[{index}]"
        if mount.name not in declared:
            known = f": there are {', '.join(sorted(declared))}" if declared else ""
            told = f"no volume of that name in spec.volumes{known}"
            rules.add(f"{place}.name", mount.name, told, Reason.NOT_FOUND)
        rules.required(f"{place}.mountPath", mount.mount_path)
        if ":" in mount.mount_path:
            rules.add(f"{place}.mountPath", mount.mount_path, '":" is not allowed')
        for name, sub in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
            if sub.startswith("/") or ".." in sub.split("/"):
                rules.add(f"{place}.{name}", sub, 'a relative path without ".." is expected')
        if mount.sub_path and mount.sub_path_expr:
            rules.add(f"{place}.subPathExpr", mount.sub_path_expr, "not allowed beside subPath")
    mounts = (
        (f"{path}.volumeMounts[{i}].mountPath", m.mount_path) for i, m in enumerate(container.volume_mounts)
    )
    rules.unique(mounts, "the path")


def _check_resources(rules: Rules, path: str, resources: Any) -> None:
    if resources is UNSET:
        return
    if not isinstance(resources, dict):
        rules.add(path, resources, "a mapping with limits and requests is expected")
        return
    amounts: dict[str, dict[str, Any]] = {}
    for kind in ("limits", "requests"):
        given = resources.get(kind)
        amounts[kind] = given if isinstance(given, dict) else {}
        if given is not None and not isinstance(given, dict):
            rules.add(f"{path}.{kind}", given, "a mapping of resource names to quantities is expected")
    parsed = {kind: _quantities(rules, f"{path}.{kind}", given) for kind, given in amounts.items()}
    for name, request in parsed["requests"].items():
        limit = parsed["limits"].get(name)
        if limit is not None and request > limit:
            message = f"more than the limit, {amounts['limits'][name]}"
            rules.add(f"{path}.requests.{name}", amounts["requests"][name], message)


def _quantities(rules: Rules, path: str, given: dict[str, Any]) -> dict[str, Any]:
    parsed = {}
    for name, amount in given.items():
        if isinstance(amount, bool) or not isinstance(amount, str | int | float):
            rules.add(f"{path}.{name}", amount, "a quantity such as 500m or 1Gi is expected")
            continue
        try:
            parsed[name] = parse_quantity(str(amount))
        except QuantityError:
            rules.add(f"{path}.{name}", amount, "a quantity such as 500m or 1Gi is expected")
            continue
        if parsed[name] < 0:
            rules.add(f"{path}.{name}", amount, "0 or more is expected")
    return parsed


def check_security(rules: Rules, path: str, context: SecurityContext) -> None:
    """The ranges of user and group, and privileges that contradict each other."""
    rules.between(f"{path}.runAsUser", context.run_as_user, 0)
    rules.between(f"{path}.runAsGroup", context.run_as_group, 0)
    if context.privileged and context.allow_privilege_escalation is False:
        rules.add(f"{path}.allowPrivilegeEscalation", False, "not possible with privileged")
