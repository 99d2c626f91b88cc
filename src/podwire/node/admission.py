"""Host ports: who holds which, and who may not start because of it.

Rule: a port of one protocol can be held once on each address; no address, ``0.0.0.0`` and ``::`` stand for
all (of all families, of IPv4, of IPv6). The kubelet rejects a static pod for good; here it waits and is tried
again when the holder goes (kubernetes/kubernetes#116484).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from podwire.kube.objects import Pod
from podwire.node.errors import PodRefused


@dataclass(frozen=True, slots=True)
class Claim:
    """One host port that a pod asks for; ``field`` is where."""

    protocol: str
    port: int
    address: str
    field: str

    def clashes(self, other: Claim) -> bool:
        """Whether both cannot be held at once."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        if self.address == other.address or "" in (self.address, other.address):
            return True
        if (":" in self.address) != (":" in other.address):
            return False
        return bool({"0.0.0.0", "::"} & {self.address, other.address})

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}/{self.protocol}" if address else f"{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A claim that cannot be met because ``holder`` (namespace/name) has the port."""

    claim: Claim
    holder: str

    @property
    def message(self) -> str:
        """The scheduler's words, and who is in the way."""
        return (
            "node(s) didn't have free ports for the requested pod ports: "
            f"{self.claim.field} {self.claim} is held by pod {self.holder}"
        )


def claims(pod: Pod) -> list[Claim]:
    """The host ports that the pod asks for. Raises :class:`PodRefused` if it asks for one twice."""
    found: list[Claim] = []
    for kind, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
    ):
        for number, container in enumerate(containers):
            for index, port in enumerate(container.ports):
                host_port = port.host_port or (port.container_port if pod.spec.host_network else 0)
                if not host_port:
                    continue
                field = f"spec.{kind}[{number}].ports[{index}].hostPort"
                claim = Claim(port.protocol, host_port, port.host_ip, field)
                twice = next((other for other in found if other.clashes(claim)), None)
                if twice is not None:
                    raise PodRefused(
                        "FailedValidation", f"{field}: {claim} is already asked for by {twice.field}"
                    )
                found.append(claim)
    return found


class HostPorts:
    """The host ports of one node; ``freed`` is called with the UID of a pod that waited and may try again."""

    def __init__(self, freed: Callable[[str], None]) -> None:
        self._freed = freed
        self._held: dict[tuple[str, int], dict[str, list[Claim]]] = {}
        self._pods: dict[str, str] = {}
        self._claims: dict[str, list[Claim]] = {}
        self._waiting: dict[str, str] = {}

    def take(self, pod: Pod, *, running: bool = False) -> Conflict | None:
        """Take all ports of the pod, or none and say who is in the way.

        ``running``: the pod runs already and has its ports, whatever others say.
        """
        uid = pod.metadata.uid
        wanted = claims(pod)
        if self._claims.get(uid, []) == wanted:
            return None
        if not running:
            for claim in wanted:
                for holder, theirs in self._held.get((claim.protocol, claim.port), {}).items():
                    if holder != uid and any(claim.clashes(other) for other in theirs):
                        self._waiting[uid] = holder
                        return Conflict(claim, self._pods[holder])
        self.release(uid)
        self._waiting.pop(uid, None)
        for claim in wanted:
            self._held.setdefault((claim.protocol, claim.port), {}).setdefault(uid, []).append(claim)
        if wanted:
            self._claims[uid] = wanted
            self._pods[uid] = pod.full_name
        return None

    def release(self, uid: str) -> None:
        """Give the pod's ports back and tell those that waited for them."""
        self._waiting.pop(uid, None)
        if self._pods.pop(uid, None) is None:
            return
        for key in {(claim.protocol, claim.port) for claim in self._claims.pop(uid)}:
            del self._held[key][uid]
            if not self._held[key]:
                del self._held[key]
        for waiter, holder in tuple(self._waiting.items()):
            if holder == uid:
                self._freed(waiter)
