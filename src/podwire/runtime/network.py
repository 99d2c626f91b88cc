"""A sandbox's network: what is asked of CNI, and the arguments that Kubernetes gives to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from podwire.cni.cache import Record
from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.runtime import Attachment
from podwire.cni.types import Result
from podwire.kube.quantity import QuantityError, parse_quantity
from podwire.plugins.repair import Attached, Mended, Repairer
from podwire.runtime.api import RuntimeCondition, SandboxConfig
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.records import SandboxRecord

IFNAME: Final = "eth0"
BURST: Final = (1 << 32) - 1
"""Burst of a bandwidth limit, in bits: none but what the field can hold, as containerd asks for it."""
_RATES: Final = {
    "kubernetes.io/ingress-bandwidth": ("ingressRate", "ingressBurst"),
    "kubernetes.io/egress-bandwidth": ("egressRate", "egressBurst"),
}
_LOWEST, _HIGHEST = 1_000, 10**15


class CniRuntime(Protocol):
    """What is needed of :class:`podwire.cni.runtime.Runtime`. Both raise CNIError."""

    async def add(self, network: NetworkConfigList, attachment: Attachment) -> Result:
        """ADD over the list. A call that is cancelled returns when the ADD has ended or is undone."""

    async def delete(self, network: NetworkConfigList, attachment: Attachment) -> None:
        """DEL over the list, which must succeed on what is gone."""

    def attachments(self, container_id: str | None = None, *, network: str | None = None) -> list[Record]:
        """The records of what ADD has answered."""


class PodNetwork:
    """Attaches sandboxes to one network configuration list, or to none if there is none."""

    def __init__(
        self, cni: CniRuntime | None, network: NetworkConfigList | None, repairer: Repairer | None = None
    ) -> None:
        """``repairer`` looks after what is attached; None: nobody does."""
        self._cni = cni
        self._network = network
        self._repairer = repairer

    def condition(self) -> RuntimeCondition:
        """NetworkReady."""
        if self._cni is None or self._network is None:
            return RuntimeCondition(
                "NetworkReady",
                False,
                "NetworkPluginNotReady",
                "no network configuration: pods get loopback only",
            )
        return RuntimeCondition("NetworkReady", True)

    def configuration(self) -> str:
        """The list as JSON, to be kept with the sandbox for its DEL. Empty: no network."""
        return self._network.raw.decode() if self._cni and self._network else ""

    async def attach(self, record: SandboxRecord) -> tuple[str, ...]:
        """ADD; returns the sandbox's addresses, the primary one first. Raises CNIError or RuntimeFault."""
        if self._cni is None or self._network is None:
            return ()
        result = await self._cni.add(self._network, attachment(record))
        return addresses(result)

    async def detach(self, record: SandboxRecord) -> None:
        """DEL, over the list that the sandbox was attached with. Raises CNIError."""
        if not record.network:
            return
        if self._cni is None:
            raise RuntimeFault(
                Code.UNAVAILABLE,
                record.subject,
                "its network cannot be taken down: this runtime was given no CNI",
            )
        await self._cni.delete(parse_list(record.network), attachment(record))

    @property
    def repairs(self) -> bool:
        """Whether there is somebody to look after what is attached."""
        return self._repairer is not None

    def suspects(self, records: Iterable[SandboxRecord]) -> set[str]:
        """IDs of those sandboxes of whose network something seems to be missing. Blocks; KernelError."""
        if self._repairer is None:
            return set()
        attached = [
            Attached(record.network, record.id, IFNAME, record.ips, _has_host_ports(record.config))
            for record in records
            if record.network
        ]
        return {one.container_id for one in self._repairer.suspects(attached)}

    def mend(self, record: SandboxRecord) -> Mended:
        """Look closely at one, and put back what is missing. Blocks; CNIError."""
        found = self._cni.attachments(record.id) if self._cni is not None else []
        if self._repairer is None or not found:
            return Mended()
        return self._repairer.mend(found[0])


def _has_host_ports(config: SandboxConfig) -> bool:
    return any(port.host_port for port in config.port_mappings)


def attachment(record: SandboxRecord) -> Attachment:
    """The CNI side of a sandbox, the same for ADD and DEL. Raises RuntimeFault for a bad annotation."""
    metadata = record.config.metadata
    return Attachment(
        container_id=record.id,
        netns=record.netns,
        ifname=IFNAME,
        args={
            "IgnoreUnknown": "1",
            "K8S_POD_NAMESPACE": metadata.namespace,
            "K8S_POD_NAME": metadata.name,
            "K8S_POD_INFRA_CONTAINER_ID": record.id,
            "K8S_POD_UID": metadata.uid,
        },
        capability_args=capability_args(record.config),
    )


def capability_args(config: SandboxConfig) -> Mapping[str, Any]:
    """Port mappings and bandwidth by CNI's conventions (CONVENTIONS.md); plugins get those that they declare.

    Raises RuntimeFault INVALID_ARGUMENT naming a bandwidth annotation that is no rate of 1k to 1P bits a
    second.
    """
    result: dict[str, Any] = {}
    ports = [
        {
            "hostPort": port.host_port,
            "containerPort": port.container_port,
            "protocol": port.protocol.name.lower(),
            **({"hostIP": port.host_ip} if port.host_ip else {}),
        }
        for port in config.port_mappings
        if port.host_port
    ]
    if ports:
        result["portMappings"] = ports
    bandwidth: dict[str, int] = {}
    for annotation, (rate, burst) in _RATES.items():
        text = config.annotations.get(annotation)
        if text is None:
            continue
        try:
            value = parse_quantity(text)
        except QuantityError as error:
            raise RuntimeFault(Code.INVALID_ARGUMENT, f"annotation {annotation}", str(error)) from error
        if not _LOWEST <= value <= _HIGHEST:
            raise RuntimeFault(
                Code.INVALID_ARGUMENT,
                f"annotation {annotation}",
                f'"{text}" is not between 1k and 1P bits a second',
            )
        bandwidth[rate] = int(value)
        bandwidth[burst] = BURST
    if bandwidth:
        result["bandwidth"] = bandwidth
    return result


def addresses(result: Result) -> tuple[str, ...]:
    """The addresses of the sandbox's own interfaces, in the result's order."""
    found = []
    for ip in result.ips:
        outside = ip.interface is not None and not result.interfaces[ip.interface].sandbox
        if not outside:
            found.append(str(ipaddress.ip_interface(ip.address).ip))
    return tuple(dict.fromkeys(found))
