"""Host ports: who holds which, and who may not start because of it.

What excludes what is :mod:`podwire.kube.ports`. The kubelet rejects a static pod for good; here it waits and
is tried again when the holder goes (kubernetes/kubernetes#116484).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from podwire.kube.objects import Pod
from podwire.kube.ports import NO_FREE_PORTS, HostPort, host_ports
from podwire.node.errors import PodRefused


@dataclass(frozen=True, slots=True)
class Conflict:
    """A host port that a pod cannot have because ``holder`` (namespace/name) has it."""

    port: HostPort
    holder: str

    @property
    def message(self) -> str:
        """The scheduler's words, and who is in the way."""
        return f"{NO_FREE_PORTS}: {self.port.field}: {self.port} is held by pod {self.holder}"


def claims(pod: Pod) -> list[HostPort]:
    """The host ports that the pod asks for. Raises :class:`PodRefused` if it asks for one twice."""
    found: list[HostPort] = []
    for port in host_ports(pod):
        twice = next((other for other in found if other.same(port)), None)
        if twice is not None:
            raise PodRefused(
                "FailedValidation", f"{port.field}: {port} is already asked for by {twice.field}"
            )
        found.append(port)
    return found


class HostPorts:
    """The host ports of one node; ``freed`` is called with the UID of a pod that waited and may try again."""

    def __init__(self, freed: Callable[[str], None]) -> None:
        self._freed = freed
        self._held: dict[tuple[str, int], dict[str, list[HostPort]]] = {}
        self._pods: dict[str, str] = {}
        self._claims: dict[str, list[HostPort]] = {}
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
                    if holder != uid and any(claim.overlaps(other) for other in theirs):
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
