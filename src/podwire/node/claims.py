"""Which pod of which source runs under a UID, when several sources name the same one.

The source that named a UID first has it, however the others change or go; when it gives the UID up, the next
one's pod takes its place once the first is gone. Mirror pods claim nothing: they are pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from podwire.kube.defaults import CONFIG_SOURCE
from podwire.kube.objects import Pod
from podwire.sources.mux import is_mirror
from podwire.sources.updates import Op, PodUpdate


@dataclass(slots=True)
class Decisions:
    """What an update comes to: UIDs to take down, pods to run as they are now, pods that only changed status.

    To be followed in this order: a pod that replaces another under its UID is in both of the first.
    """

    remove: list[str] = field(default_factory=list)
    want: list[Pod] = field(default_factory=list)
    poke: list[str] = field(default_factory=list)


class Claims:
    """The pods that each UID is claimed for, by source, in the order of the claims."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, Pod]] = {}

    def winner(self, uid: str) -> Pod | None:
        """The pod that is to run under that UID."""
        return next(iter(self._claims.get(uid, {}).values()), None)

    def apply(self, update: PodUpdate) -> Decisions:
        """Take in an update of the mux."""
        decisions = Decisions()
        match update.op:
            case Op.SET:
                self._set(update.pods, decisions)
            case Op.REMOVE:
                for pod in update.pods:
                    self._give_up(pod.metadata.uid, update.source, decisions)
            case Op.ADD | Op.UPDATE | Op.DELETE | Op.RECONCILE:
                for pod in update.pods:
                    self._claim(pod, update.source, decisions, status_only=update.op is Op.RECONCILE)
        return decisions

    def _claim(self, pod: Pod, source: str, decisions: Decisions, *, status_only: bool) -> None:
        uid = pod.metadata.uid
        if is_mirror(pod):
            self._give_up(uid, source, decisions)
            return
        claims = self._claims.setdefault(uid, {})
        claims[source] = pod
        if next(iter(claims)) != source:
            return
        if status_only:
            decisions.poke.append(uid)
        else:
            decisions.want.append(pod)

    def _give_up(self, uid: str, source: str, decisions: Decisions) -> None:
        claims = self._claims.get(uid, {})
        had = next(iter(claims), None) == source
        claims.pop(source, None)
        if not claims:
            self._claims.pop(uid, None)
        if had:
            decisions.remove.append(uid)
            decisions.want.extend(list(claims.values())[:1])

    def _set(self, pods: Iterable[Pod], decisions: Decisions) -> None:
        listed = [(pod, pod.metadata.annotations.get(CONFIG_SOURCE, "")) for pod in pods]
        there = {(pod.metadata.uid, source) for pod, source in listed}
        claimed = [(uid, source) for uid, claims in self._claims.items() for source in claims]
        for uid, source in claimed:
            if (uid, source) not in there:
                self._give_up(uid, source, decisions)
        for pod, source in listed:
            self._claim(pod, source, decisions, status_only=False)
