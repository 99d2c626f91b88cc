"""Labels and annotations on sandboxes and containers by which a later run of the node knows them again.

The names are the kubelet's (pkg/kubelet/kuberuntime/labels.go, pkg/kubelet/types/labels.go), so that crictl
and log collectors find what they expect; the sandbox hash is ours.
"""

from __future__ import annotations

import hashlib

import msgspec

from podwire.kube.objects import Container, Pod

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"
CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"
PRE_STOP = "io.kubernetes.container.preStopHandler"
SANDBOX_HASH = "podwire/sandbox-hash"


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def container_hash(container: Container) -> str:
    """16 hex digits that change when anything of the container's definition does."""
    return _digest(container)


def sandbox_hash(pod: Pod) -> str:
    """16 hex digits that change when what the sandbox is made from does (host name, DNS, ports)."""
    spec = pod.spec
    return _digest(
        [
            spec.hostname,
            spec.hostname_override,
            spec.subdomain,
            spec.set_hostname_as_fqdn,
            spec.dns_policy,
            spec.dns_config,
            spec.host_aliases,
            spec.host_network,
            spec.host_pid,
            spec.share_process_namespace,
            spec.security_context.sysctls if spec.security_context else [],
            [[c.ports for c in spec.containers], [c.ports for c in spec.init_containers]],
        ]
    )
