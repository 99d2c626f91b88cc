"""core/v1 Service, with its cluster addresses and node ports.

Source: k8s.io/kubernetes/pkg/registry/core/service (strategy.go, storage/alloc.go) and
pkg/apis/core/v1/defaults.go.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from podwire.apiserver import naming
from podwire.apiserver.kind import STATUS, Column, Kind
from podwire.apiserver.kinds.columns import AGE, NAME, NONE, field, labels, plain
from podwire.kube import names
from podwire.serving import status
from podwire.serving.status import Cause

if TYPE_CHECKING:
    from podwire.apiserver.registry import Registry

Object = dict[str, Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CLUSTER_RANGES = ("10.203.0.0/16", "fd5a:203::/112")
NODE_PORTS = range(30000, 32768)
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_JUST_GIVEN = 60.0


class ClusterAddresses:
    """Gives services their addresses and node ports, from ranges of IPv4, IPv6 or both."""

    def __init__(self, ranges: Sequence[str] = CLUSTER_RANGES) -> None:
        self._networks: dict[str, Network] = {}
        for text in ranges:
            network = ipaddress.ip_network(text)
            self._networks[f"IPv{network.version}"] = network
        self._given: dict[str, float] = {}

    def admit(self, registry: Registry, service: Object, old: Object | None) -> None:
        """Complete a service; what it had it keeps. Raise Failure 422, 500."""
        spec = service["spec"]
        before = (old or {}).get("spec") or {}
        if spec.get("type") == "ExternalName":
            for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
                spec.pop(name, None)
            return
        if before.get("clusterIP") and not spec.get("clusterIP"):
            for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                if name in before:
                    spec.setdefault(name, before[name])
        self._families(spec)
        held = self._held(registry, service)
        taken = held | self._given.keys()
        if not spec.get("clusterIP") and not spec.get("clusterIPs"):
            spec["clusterIPs"] = [self._free(family, taken) for family in spec["ipFamilies"]]
        else:
            spec["clusterIPs"] = spec.get("clusterIPs") or [spec["clusterIP"]]
            self._claim(service, held, before)
        spec["clusterIP"] = spec["clusterIPs"][0]
        self._ports(service, before, held)

    def _families(self, spec: Object) -> None:
        served = list(self._networks)
        given = [ip for ip in (spec.get("clusterIPs") or [spec.get("clusterIP")]) if ip and ip != "None"]
        found = [f"IPv{ipaddress.ip_address(ip).version}" for ip in given if not names.ip_address(ip)]
        families = spec.get("ipFamilies") or found or served[:1]
        policy = spec.get("ipFamilyPolicy") or ("SingleStack" if len(families) == 1 else "RequireDualStack")
        if policy != "SingleStack" and len(families) == 1:
            families = families + [family for family in served if family not in families]
        spec["ipFamilies"] = families[: 1 if policy == "SingleStack" else 2]
        spec["ipFamilyPolicy"] = policy

    def _held(self, registry: Registry, service: Object) -> set[str]:
        """Addresses and node ports of other services."""
        now = time.monotonic()
        self._given = {text: until for text, until in self._given.items() if until > now}
        held: set[str] = set()
        uid = service["metadata"].get("uid")
        for stored in registry.storage.list("", "services").items:
            if stored.object["metadata"].get("uid") == uid:
                continue
            spec = stored.object.get("spec") or {}
            held.update(ip for ip in spec.get("clusterIPs") or [] if ip != "None")
            held.update(str(port["nodePort"]) for port in spec.get("ports") or [] if port.get("nodePort"))
        return held

    def _free(self, family: str, taken: set[str]) -> str:
        network = self._networks.get(family)
        if network is None:
            cause = status.not_supported("spec.ipFamilies[0]", family, list(self._networks))
            raise status.invalid("", "Service", "", [cause])
        size = min(network.num_addresses, 1 << 16)
        start = secrets.randbelow(size)
        for step in range(size):
            number = (start + step) % size
            address = str(network[number])
            if number not in (0, size - 1) and address not in taken:
                return self._give(address)
        raise status.internal_error(f"failed to allocate a serviceIP: range {network} is full")

    def _give(self, text: str) -> str:
        self._given[text] = time.monotonic() + _JUST_GIVEN
        return text

    def _claim(self, service: Object, held: set[str], before: Object) -> None:
        addresses = service["spec"]["clusterIPs"]
        for ip in addresses:
            if ip in held and ip not in (before.get("clusterIPs") or []):
                detail = f"failed to allocate IP {ip}: provided IP is already allocated"
                cause = status.invalid_value("spec.clusterIPs", addresses, detail)
                raise status.invalid("", "Service", service["metadata"].get("name", ""), [cause])

    def _ports(self, service: Object, before: Object, held: set[str]) -> None:
        spec = service["spec"]
        if spec.get("type") not in ("NodePort", "LoadBalancer"):
            return
        had = {(p.get("port"), p.get("protocol")): p.get("nodePort") for p in before.get("ports") or []}
        for index, port in enumerate(spec.get("ports") or []):
            kept = had.get((port.get("port"), port.get("protocol")))
            if not port.get("nodePort"):
                port["nodePort"] = kept or self._free_port(held | self._given.keys())
            elif port["nodePort"] != kept and str(port["nodePort"]) in held:
                detail = "provided port is already allocated"
                cause = status.invalid_value(f"spec.ports[{index}].nodePort", port["nodePort"], detail)
                raise status.invalid("", "Service", service["metadata"].get("name", ""), [cause])

    def _free_port(self, taken: set[str]) -> int:
        start = secrets.randbelow(len(NODE_PORTS))
        for step in range(len(NODE_PORTS)):
            port = NODE_PORTS[(start + step) % len(NODE_PORTS)]
            if str(port) not in taken:
                self._give(str(port))
                return port
        raise status.internal_error("failed to allocate a nodePort: range is full")


def _defaults(service: Object) -> None:
    spec = service.setdefault("spec", {})
    spec["type"] = spec.get("type") or "ClusterIP"
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    if spec["sessionAffinity"] == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        client.setdefault("timeoutSeconds", 10800)
    for port in spec.get("ports") or []:
        port["protocol"] = port.get("protocol") or "TCP"
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _new(service: Object) -> None:
    service["status"] = {"loadBalancer": {}}


def _check(service: Object) -> list[Cause]:
    spec = service["spec"]
    causes: list[Cause] = []
    if spec["type"] not in _TYPES:
        causes.append(status.not_supported("spec.type", spec["type"], _TYPES))
    if spec["sessionAffinity"] not in ("ClientIP", "None"):
        causes.append(
            status.not_supported("spec.sessionAffinity", spec["sessionAffinity"], ("ClientIP", "None"))
        )
    causes += naming.check_labels("spec.selector", spec.get("selector") or {})
    if spec["type"] == "ExternalName":
        if not spec.get("externalName"):
            causes.append(status.required("spec.externalName"))
    elif not spec.get("ports") and spec.get("clusterIP") != "None":
        causes.append(status.required("spec.ports"))
    ports = spec.get("ports") or []
    seen: set[str] = set()
    claimed: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        name = port.get("name") or ""
        if not name and len(ports) > 1:
            causes.append(status.required(f"{path}.name"))
        elif name and (wrong := naming.dns_label(name)):
            causes.append(status.invalid_value(f"{path}.name", name, wrong))
        elif name in seen:
            causes.append(status.duplicate(f"{path}.name", name))
        seen.add(name)
        causes += _port(f"{path}.port", port.get("port", 0))
        if port["protocol"] not in ("SCTP", "TCP", "UDP"):
            causes.append(status.not_supported(f"{path}.protocol", port["protocol"], ("SCTP", "TCP", "UDP")))
        target = port.get("targetPort")
        if isinstance(target, int):
            causes += _port(f"{path}.targetPort", target)
        elif target and names.port_name(target):
            causes.append(status.invalid_value(f"{path}.targetPort", target, names.port_name(target)))
        key = (port["protocol"], port.get("port"))
        if key in claimed:
            shown = {"protocol": port["protocol"], "port": port.get("port")}
            causes.append(status.duplicate(path, shown))
        claimed.add(key)
    for index, ip in enumerate(spec.get("clusterIPs") or []):
        if ip != "None" and names.ip_address(ip):
            detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(status.invalid_value(f"spec.clusterIPs[{index}]", ip, detail))
    return causes


def _port(path: str, number: int) -> list[Cause]:
    if 1 <= number <= 65535:
        return []
    return [status.invalid_value(path, number, "must be between 1 and 65535, inclusive")]


def _check_update(new: Object, old: Object) -> list[Cause]:
    causes = _check(new)
    before, after = old["spec"], new["spec"]
    held = before.get("clusterIP")
    if (
        "ExternalName" not in (before.get("type"), after.get("type"))
        and held
        and after.get("clusterIP") != held
    ):
        causes.append(
            status.invalid_value("spec.clusterIPs[0]", after.get("clusterIPs"), "may not change once set")
        )
    return causes


def _external(service: Object, at: datetime) -> str:
    spec = service.get("spec") or {}
    given = list(spec.get("externalIPs") or [])
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName") or NONE)
    if spec.get("type") == "LoadBalancer":
        ingress = field(service, "status.loadBalancer.ingress", [])
        found = [one.get("ip") or one.get("hostname") or "" for one in ingress]
        return ",".join([*found, *given]) or "<pending>"
    return ",".join(given) or NONE


def _shown_ports(service: Object, at: datetime) -> str:
    parts = []
    for port in field(service, "spec.ports", []):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        parts.append(f"{port.get('port')}{node}/{port.get('protocol')}")
    return ",".join(parts) or NONE


def _kept(new: Object, old: Object) -> None:
    spec = new.setdefault("spec", {})
    if not spec.get("type"):
        spec["type"] = old["spec"].get("type", "ClusterIP")


def kind(admit: Callable[[Registry, Object, Object | None], None]) -> Kind:
    """The kind, with where its addresses come from."""
    return Kind(
        group="",
        version="v1",
        kind="Service",
        plural="services",
        allow_create_on_update=True,
        short_names=("svc",),
        categories=("all",),
        message="core.Service",
        returns_deleted=True,
        check_name=naming.dns_1035_label,
        prepare_create=_new,
        prepare_update=_kept,
        defaults=_defaults,
        admit=admit,
        validate=_check,
        validate_update=_check_update,
        fields={
            "spec.clusterIP": lambda obj: str(field(obj, "spec.clusterIP", "")),
            "spec.type": lambda obj: str(field(obj, "spec.type", "")),
        },
        columns=(
            NAME,
            plain("Type", "spec.type", description="How it is reached."),
            plain("Cluster-IP", "spec.clusterIP", description="Its address inside."),
            Column("External-IP", _external, description="Its addresses outside."),
            Column("Port(s)", _shown_ports, description="Its ports, and the node's."),
            AGE,
            Column(
                "Selector",
                lambda obj, at: labels(field(obj, "spec.selector")),
                priority=1,
                description="Labels of its pods.",
            ),
        ),
        subresources={"status": STATUS},
    )


def addresses(ranges: Sequence[str] = CLUSTER_RANGES) -> Kind:
    """The kind with addresses from these ranges."""
    return kind(ClusterAddresses(ranges).admit)
