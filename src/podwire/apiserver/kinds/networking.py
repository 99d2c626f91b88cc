"""networking.k8s.io, discovery.k8s.io and coordination.k8s.io.

Source: k8s.io/kubernetes/pkg/registry/{networking,discovery,coordination} and the printers of their kinds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from podwire.apiserver import metadata, naming
from podwire.apiserver.kind import STATUS, Column, Kind
from podwire.apiserver.kinds.columns import AGE, NAME, field, plain, selector
from podwire.kube import names
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

_ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")


def _policy_defaults(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress"] + (["Egress"] if spec.get("egress") else [])
    for rule in [*(spec.get("ingress") or []), *(spec.get("egress") or [])]:
        for port in rule.get("ports") or []:
            port.setdefault("protocol", "TCP")


def _check_policy(obj: Object) -> list[Cause]:
    causes = []
    for index, name in enumerate(obj["spec"]["policyTypes"]):
        if name not in ("Egress", "Ingress"):
            causes.append(status.not_supported(f"spec.policyTypes[{index}]", name, ("Egress", "Ingress")))
    for direction, way in (("ingress", "from"), ("egress", "to")):
        for at, rule in enumerate(obj["spec"].get(direction) or []):
            for number, peer in enumerate(rule.get(way) or []):
                path = f"spec.{direction}[{at}].{way}[{number}]"
                if not peer:
                    causes.append(status.required(path, "must specify a peer"))
                elif "ipBlock" in peer and len(peer) > 1:
                    detail = "may not specify both ipBlock and another peer"
                    causes.append(status.forbidden_field(path, detail))
    return causes


NETWORK_POLICIES = Kind(
    group="networking.k8s.io",
    version="v1",
    kind="NetworkPolicy",
    plural="networkpolicies",
    short_names=("netpol",),
    message="networking.NetworkPolicy",
    generation=True,
    defaults=_policy_defaults,
    validate=_check_policy,
    validate_update=lambda new, old: _check_policy(new),
    columns=(
        NAME,
        Column(
            "Pod-Selector",
            lambda obj, at: selector(field(obj, "spec.podSelector")),
            description="The pods that it applies to.",
        ),
        AGE,
    ),
)


def _hosts(obj: Object, at: datetime) -> str:
    hosts = [rule["host"] for rule in field(obj, "spec.rules", []) if rule.get("host")]
    if len(hosts) > 3:
        return ",".join(hosts[:3]) + f" + {len(hosts) - 3} more..."
    return ",".join(hosts) or "*"


def _ingress_address(obj: Object, at: datetime) -> str:
    found = field(obj, "status.loadBalancer.ingress", [])
    return ",".join(one.get("ip") or one.get("hostname") or "" for one in found)


def _check_ingress(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    if not spec.get("rules") and not spec.get("defaultBackend"):
        detail = "either `defaultBackend` or `rules` must be specified"
        return [status.invalid_value("spec", spec, detail)]
    return []


INGRESSES = Kind(
    group="networking.k8s.io",
    version="v1",
    kind="Ingress",
    plural="ingresses",
    short_names=("ing",),
    message="networking.Ingress",
    generation=True,
    prepare_create=lambda obj: obj.update(status={"loadBalancer": {}}),
    validate=_check_ingress,
    validate_update=lambda new, old: _check_ingress(new),
    columns=(
        NAME,
        plain("Class", "spec.ingressClassName", description="Whose it is."),
        Column("Hosts", _hosts, description="Names that it serves."),
        Column("Address", _ingress_address, description="Where it is reached."),
        Column(
            "Ports",
            lambda obj, at: "80, 443" if field(obj, "spec.tls") else "80",
            description="Its ports.",
        ),
        AGE,
    ),
    subresources={"status": STATUS},
)


def _slice_ports(obj: Object, at: datetime) -> str:
    ports = obj.get("ports") or []
    return _few(["*" if port.get("port") is None else str(port["port"]) for port in ports], unset="<unset>")


def _slice_endpoints(obj: Object, at: datetime) -> str:
    found = [address for one in obj.get("endpoints") or [] for address in one.get("addresses") or []]
    return _few(found, unset="<unset>")


def _few(texts: list[str], *, unset: str) -> str:
    if len(texts) > 3:
        return ",".join(texts[:3]) + f" + {len(texts) - 3} more..."
    return ",".join(texts) or unset


def _slice_defaults(obj: Object) -> None:
    for port in obj.get("ports") or []:
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _check_slice(obj: Object) -> list[Cause]:
    kind = obj.get("addressType") or ""
    causes = []
    if not kind:
        causes.append(status.required("addressType"))
    elif kind not in _ADDRESS_TYPES:
        causes.append(status.not_supported("addressType", kind, _ADDRESS_TYPES))
    for index, endpoint in enumerate(obj.get("endpoints") or []):
        addresses = endpoint.get("addresses") or []
        if not addresses:
            causes.append(status.required(f"endpoints[{index}].addresses", "must contain at least 1 address"))
        for at, address in enumerate(addresses):
            wrong = kind != "FQDN" and (names.ip_address(address) or (":" in address) != (kind == "IPv6"))
            if wrong:
                detail = f"must be an {kind} address"
                causes.append(status.invalid_value(f"endpoints[{index}].addresses[{at}]", address, detail))
    return causes


def _check_slice_update(new: Object, old: Object) -> list[Cause]:
    causes = _check_slice(new)
    if new.get("addressType") != old.get("addressType"):
        causes.append(status.invalid_value("addressType", new.get("addressType"), metadata.IMMUTABLE))
    return causes


ENDPOINT_SLICES = Kind(
    group="discovery.k8s.io",
    version="v1",
    kind="EndpointSlice",
    plural="endpointslices",
    message="discovery.EndpointSlice",
    generation=True,
    unconditional_update=True,
    defaults=_slice_defaults,
    validate=_check_slice,
    validate_update=_check_slice_update,
    columns=(
        NAME,
        plain("AddressType", "addressType", "", description="IPv4, IPv6 or FQDN."),
        Column("Ports", _slice_ports, description="Ports of the endpoints."),
        Column("Endpoints", _slice_endpoints, description="Addresses of the endpoints."),
        AGE,
    ),
)


def _check_lease(obj: Object) -> list[Cause]:
    causes = []
    spec = obj.get("spec") or {}
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and duration <= 0:
        causes.append(status.invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    transitions = spec.get("leaseTransitions")
    if transitions is not None and transitions < 0:
        detail = "must be greater than or equal to 0"
        causes.append(status.invalid_value("spec.leaseTransitions", transitions, detail))
    return causes


LEASES = Kind(
    group="coordination.k8s.io",
    version="v1",
    kind="Lease",
    plural="leases",
    message="coordination.Lease",
    check_name=naming.dns_subdomain,
    allow_create_on_update=True,
    unconditional_update=False,
    validate=_check_lease,
    validate_update=lambda new, old: _check_lease(new),
    columns=(NAME, plain("Holder", "spec.holderIdentity", "", description="Who holds it."), AGE),
)

KINDS = (NETWORK_POLICIES, INGRESSES, ENDPOINT_SLICES, LEASES)
