"""From a pod to what the runtime is asked to make: sandbox and container configurations.

Rules: k8s.io/kubernetes pkg/kubelet/kuberuntime/kuberuntime_sandbox.go and kuberuntime_container.go,
pkg/kubelet/kubelet_pods.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from podwire.kube.objects import Container, Pod, SecurityContext
from podwire.node import hashes
from podwire.node.environment import Place, environment, expand
from podwire.node.errors import ContainerConfigError, PodRefused
from podwire.node.volumes import mounts
from podwire.runtime.api import (
    ContainerConfig,
    ContainerMetadata,
    ContainerUser,
    DNSConfig,
    HostAlias,
    NetworkMode,
    PidMode,
    PortMapping,
    PortProtocol,
    SandboxConfig,
    SandboxMetadata,
)

HOSTNAME_MAX = 63
FQDN_MAX = 64


def log_directory(root: Path, pod: Pod) -> Path:
    """Where the pod's logs are: ``<root>/logs/<namespace>_<name>_<uid>``."""
    metadata = pod.metadata
    return root / "logs" / f"{metadata.namespace}_{metadata.name}_{metadata.uid}"


def log_path(name: str, attempt: int) -> str:
    """A container's log below its pod's log directory."""
    return f"{name}/{attempt}.log"


def host_name(pod: Pod, cluster_domain: str) -> tuple[str, str]:
    """The pod's host name and domain; both empty with the host's network.

    The pod's name is cut to 63 characters; with a subdomain the domain is
    ``<subdomain>.<namespace>.svc.<cluster domain>``.
    """
    spec = pod.spec
    if spec.host_network:
        return "", ""
    if spec.hostname_override:
        return spec.hostname_override, ""
    name = spec.hostname or pod.metadata.name[:HOSTNAME_MAX].rstrip("-.")
    domain = f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}" if spec.subdomain else ""
    if spec.set_hostname_as_fqdn and domain:
        full = f"{name}.{domain}"
        if len(full) > FQDN_MAX:
            raise PodRefused(
                "FailedValidation",
                f"spec.setHostnameAsFQDN: {full!r} is longer than the {FQDN_MAX} characters of a host name",
            )
        return full, domain
    return name, domain


def port_mappings(pod: Pod) -> tuple[PortMapping, ...]:
    """The host ports that the pod asks for; none with the host's network, where ports are the host's own."""
    if pod.spec.host_network:
        return ()
    return tuple(
        PortMapping(PortProtocol[port.protocol], port.container_port, port.host_port, port.host_ip)
        for container in [*pod.spec.init_containers, *pod.spec.containers]
        for port in container.ports
        if port.host_port
    )


def sandbox_config(
    pod: Pod, attempt: int, *, root: Path, dns: DNSConfig | None, cluster_domain: str
) -> SandboxConfig:
    """The pod's sandbox; ``attempt`` counts those that it had before."""
    metadata, spec = pod.metadata, pod.spec
    hostname, domain = host_name(pod, cluster_domain)
    if spec.host_pid:
        pid = PidMode.NODE
    else:
        pid = PidMode.POD if spec.share_process_namespace else PidMode.CONTAINER
    security = spec.security_context
    return SandboxConfig(
        metadata=SandboxMetadata(metadata.name, metadata.uid, metadata.namespace, attempt),
        hostname=hostname,
        domain=domain,
        log_directory=str(log_directory(root, pod)),
        dns=dns,
        port_mappings=port_mappings(pod),
        labels={
            **metadata.labels,
            hashes.POD_NAME: metadata.name,
            hashes.POD_NAMESPACE: metadata.namespace,
            hashes.POD_UID: metadata.uid,
        },
        annotations={
            **metadata.annotations,
            hashes.SANDBOX_HASH: hashes.sandbox_hash(pod),
            hashes.GRACE_PERIOD: str(spec.termination_grace_period_seconds),
        },
        network=NetworkMode.NODE if spec.host_network else NetworkMode.POD,
        pid=pid,
        host_aliases=tuple(HostAlias(alias.ip, tuple(alias.hostnames)) for alias in spec.host_aliases),
        sysctls={s.name: s.value for s in security.sysctls} if security is not None else {},
    )


def user(pod: Pod, container: Container) -> ContainerUser:
    """Who the container's program runs as; the container's own settings win over the pod's."""
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context
    uid, gid, non_root = own.run_as_user, own.run_as_group, own.run_as_non_root
    groups: tuple[int, ...] = ()
    if shared is not None:
        uid = shared.run_as_user if uid is None else uid
        gid = shared.run_as_group if gid is None else gid
        non_root = shared.run_as_non_root if non_root is None else non_root
        groups = tuple(shared.supplemental_groups)
        if shared.fs_group is not None:
            groups += (shared.fs_group,)
    if non_root and not uid:
        raise ContainerConfigError(
            container.name,
            "securityContext.runAsNonRoot is true and the program would run as root; set runAsUser",
        )
    return ContainerUser(uid=uid, gid=gid, supplemental_groups=groups)


def container_config(
    pod: Pod, container: Container, attempt: int, *, place: Place, volumes: Mapping[str, Path]
) -> ContainerConfig:
    """One container of the pod; raises :class:`ContainerConfigError` for what cannot be had here."""
    variables = environment(pod, container, place)
    annotations = {
        hashes.CONTAINER_HASH: hashes.container_hash(container),
        hashes.RESTART_COUNT: str(attempt),
        hashes.GRACE_PERIOD: str(pod.spec.termination_grace_period_seconds),
    }
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        annotations[hashes.PRE_STOP] = msgspec.json.encode(container.lifecycle.pre_stop).decode()
    return ContainerConfig(
        metadata=ContainerMetadata(container.name, attempt),
        command=tuple(expand(word, variables) for word in container.command),
        args=tuple(expand(word, variables) for word in container.args),
        image=container.image,
        working_dir=container.working_dir,
        envs=tuple(variables.items()),
        mounts=mounts(container, volumes, variables),
        user=user(pod, container),
        labels={
            hashes.CONTAINER_NAME: container.name,
            hashes.POD_NAME: pod.metadata.name,
            hashes.POD_NAMESPACE: pod.metadata.namespace,
            hashes.POD_UID: pod.metadata.uid,
        },
        annotations=annotations,
        log_path=log_path(container.name, attempt),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
    )
