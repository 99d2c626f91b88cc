"""The rules that a Pod keeps beyond the types of its fields, as the API server checks them.

Source: k8s.io/kubernetes pkg/apis/core/validation/validation.go, pkg/kubelet/config/common.go.
"""

from __future__ import annotations

from msgspec import UNSET

from podwire.kube import names
from podwire.kube.objects import Pod, PodSecurityContext, PodSpec, Toleration, Volume
from podwire.kube.ports import host_ports
from podwire.kube.quantity import QuantityError, parse_quantity
from podwire.kube.references import all_containers, volume_sources
from podwire.kube.rules import Invalid, Rules
from podwire.kube.validation_container import check_container

BANDWIDTH = ("kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth")
NAMESERVERS = 3
SEARCHES = 32
SEARCH_CHARACTERS = 2048
_ANNOTATION_BYTES = 256 << 10
_HOST_PATH_TYPES = (
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_pod(pod: Pod) -> list[Invalid]:
    """Everything that is wrong with a pod, in the order of its fields."""
    rules = Rules()
    _check_metadata(rules, pod)
    _check_spec(rules, pod.spec)
    _check_containers(rules, pod.spec)
    _check_host_ports(rules, pod)
    return rules.invalid


def ambiguities(pod: Pod) -> list[Invalid]:
    """What is allowed and perhaps not meant: a host port on all addresses and again on one of them.

    The port on the one address wins there.
    """
    rules = Rules()
    ports = host_ports(pod)
    for index, port in enumerate(ports):
        for other in ports[:index]:
            if port.overlaps(other) and not port.same(other):
                message = f"overlaps {other} in {other.field}: the more specific hostIP wins"
                rules.add(port.field, port.port, message)
    return rules.invalid


def _check_metadata(rules: Rules, pod: Pod) -> None:
    metadata = pod.metadata
    if not metadata.name:
        rules.add("metadata.name", None, "invalid pod: name is needed for the pod")
    else:
        rules.syntax("metadata.name", metadata.name, names.dns_subdomain)
    if metadata.namespace:
        rules.syntax("metadata.namespace", metadata.namespace, names.dns_label)
    if metadata.uid:
        rules.syntax("metadata.uid", metadata.uid, names.uid)
    _check_labels(rules, "metadata.labels", metadata.labels)
    for key in metadata.annotations:
        if wrong := names.qualified_name(key.lower()):
            rules.add(f"metadata.annotations[{key}]", None, f"the key: {wrong}")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.annotations.items())
    if size > _ANNOTATION_BYTES:
        rules.add("metadata.annotations", None, f"{size} bytes: 262144 at most")
    for key in BANDWIDTH:
        if key in metadata.annotations:
            _check_bandwidth(rules, f"metadata.annotations[{key}]", metadata.annotations[key])


def _check_bandwidth(rules: Rules, field: str, text: str) -> None:
    try:
        bits = parse_quantity(text)
    except QuantityError:
        rules.add(field, text, "a quantity of bits per second, such as 10M, is expected")
        return
    if not 1000 <= bits <= 10**15:
        rules.add(field, text, "1k to 1P bits per second are possible")


def _check_labels(rules: Rules, field: str, labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if wrong := names.qualified_name(key):
            rules.add(f"{field}[{key}]", None, f"the key: {wrong}")
        rules.syntax(f"{field}[{key}]", value, names.label_value)


def _check_spec(rules: Rules, spec: PodSpec) -> None:
    rules.one_of("spec.restartPolicy", spec.restart_policy, ("Always", "OnFailure", "Never"))
    rules.between("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0)
    rules.between("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1)
    _check_dns(rules, spec)
    _check_labels(rules, "spec.nodeSelector", spec.node_selector)
    for field, text in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if text:
            rules.syntax(f"spec.{field}", text, names.dns_label)
    if spec.runtime_class_name:
        rules.syntax("spec.runtimeClassName", spec.runtime_class_name, names.dns_subdomain)
    if spec.share_process_namespace and spec.host_pid:
        rules.add("spec.shareProcessNamespace", True, "not possible with hostPID")
    if isinstance(spec.os, dict) and spec.os.get("name") not in ("linux", None):
        rules.add("spec.os.name", spec.os.get("name"), "this node runs linux")
    if spec.ephemeral_containers is not UNSET and spec.ephemeral_containers:
        rules.add(
            "spec.ephemeralContainers", None, "not allowed in a manifest: they are added to a running pod"
        )
    if spec.security_context is not None:
        _check_pod_security(rules, spec, spec.security_context)
    for index, alias in enumerate(spec.host_aliases):
        rules.syntax(f"spec.hostAliases[{index}].ip", alias.ip, names.ip_address)
        for at, hostname in enumerate(alias.hostnames):
            rules.syntax(f"spec.hostAliases[{index}].hostnames[{at}]", hostname, names.dns_subdomain)
    for index, toleration in enumerate(spec.tolerations):
        _check_toleration(rules, f"spec.tolerations[{index}]", toleration)
    for index, volume in enumerate(spec.volumes):
        _check_volume(rules, f"spec.volumes[{index}]", volume)
    named = ((f"spec.volumes[{i}].name", volume.name) for i, volume in enumerate(spec.volumes))
    rules.unique(named, "the name")


def _check_dns(rules: Rules, spec: PodSpec) -> None:
    policies = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
    rules.one_of("spec.dnsPolicy", spec.dns_policy, policies)
    config = spec.dns_config
    if spec.dns_policy == "None" and (config is None or not config.nameservers):
        rules.add("spec.dnsConfig.nameservers", None, "with dnsPolicy None at least one is required")
    if config is None:
        return
    if len(config.nameservers) > NAMESERVERS:
        rules.add("spec.dnsConfig.nameservers", config.nameservers, f"{NAMESERVERS} at most")
    for index, server in enumerate(config.nameservers):
        rules.syntax(f"spec.dnsConfig.nameservers[{index}]", server, names.ip_address)
    if len(config.searches) > SEARCHES:
        rules.add("spec.dnsConfig.searches", None, f"{SEARCHES} at most, and here are {len(config.searches)}")
    if len(" ".join(config.searches)) > SEARCH_CHARACTERS:
        rules.add("spec.dnsConfig.searches", None, f"{SEARCH_CHARACTERS} characters at most in all")
    for index, domain in enumerate(config.searches):
        rules.syntax(f"spec.dnsConfig.searches[{index}]", domain, names.search_domain)
    for index, option in enumerate(config.options):
        rules.required(f"spec.dnsConfig.options[{index}].name", option.name)


def _check_pod_security(rules: Rules, spec: PodSpec, context: PodSecurityContext) -> None:
    path = "spec.securityContext"
    rules.between(f"{path}.runAsUser", context.run_as_user, 0)
    rules.between(f"{path}.runAsGroup", context.run_as_group, 0)
    rules.between(f"{path}.fsGroup", context.fs_group, 0)
    for index, group in enumerate(context.supplemental_groups):
        rules.between(f"{path}.supplementalGroups[{index}]", group, 0)
    for index, sysctl in enumerate(context.sysctls):
        field = f"{path}.sysctls[{index}].name"
        name = sysctl.name.replace("/", ".")
        rules.syntax(field, sysctl.name, names.sysctl_name)
        if spec.host_network and name.startswith("net."):
            rules.add(field, sysctl.name, "not allowed with hostNetwork: it would change the host")
        if spec.host_ipc and name.startswith(("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")):
            rules.add(field, sysctl.name, "not allowed with hostIPC: it would change the host")
    named = ((f"{path}.sysctls[{i}].name", s.name.replace("/", ".")) for i, s in enumerate(context.sysctls))
    rules.unique(named, "the sysctl")


def _check_toleration(rules: Rules, path: str, toleration: Toleration) -> None:
    if toleration.key:
        rules.syntax(f"{path}.key", toleration.key, names.qualified_name)
    elif toleration.operator not in ("Exists",):
        rules.add(f"{path}.operator", toleration.operator, "without a key it is Exists")
    rules.one_of(f"{path}.operator", toleration.operator, ("Exists", "Equal", "Lt", "Gt"))
    if toleration.operator == "Exists" and toleration.value:
        rules.add(f"{path}.value", toleration.value, "with operator Exists there is no value")
    rules.one_of(f"{path}.effect", toleration.effect, _EFFECTS)
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        rules.add(f"{path}.effect", toleration.effect, "with tolerationSeconds it is NoExecute")


def _check_volume(rules: Rules, path: str, volume: Volume) -> None:
    rules.syntax(f"{path}.name", volume.name, names.dns_label)
    rules.exactly_one(path, volume_sources(volume), "hostPath, emptyDir and the other sources")
    if volume.host_path is not None:
        host = volume.host_path
        rules.required(f"{path}.hostPath.path", host.path)
        if ".." in host.path.split("/"):
            rules.add(f"{path}.hostPath.path", host.path, '".." is not allowed')
        rules.one_of(f"{path}.hostPath.type", host.type, _HOST_PATH_TYPES)
    if volume.empty_dir is not None:
        medium = volume.empty_dir.medium
        if not medium.startswith("HugePages"):
            rules.one_of(f"{path}.emptyDir.medium", medium, ("Memory",))
        limit = volume.empty_dir.size_limit
        if limit is not UNSET:
            try:
                parse_quantity(str(limit))
            except QuantityError:
                rules.add(f"{path}.emptyDir.sizeLimit", limit, "a quantity such as 1Gi is expected")


def _check_containers(rules: Rules, spec: PodSpec) -> None:
    rules.required("spec.containers", spec.containers)
    for path, container, init in all_containers(spec):
        check_container(rules, path, container, spec, init=init)
    named = ((f"{path}.name", c.name) for path, c, _ in all_containers(spec) if c.name)
    rules.unique(named, "the name")


def _check_host_ports(rules: Rules, pod: Pod) -> None:
    bad_ips = {invalid.field for invalid in rules.invalid if invalid.field.endswith(".hostIP")}
    ports = [p for p in host_ports(pod) if p.field.removesuffix("hostPort") + "hostIP" not in bad_ips]
    for index, port in enumerate(ports):
        first = next((other for other in ports[:index] if port.same(other)), None)
        if first is not None:
            rules.add(port.field, port.port, f"{port} is here twice, first in {first.field}")
