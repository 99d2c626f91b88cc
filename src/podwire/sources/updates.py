"""What a source says and what the mux passes on.

Source: k8s.io/kubernetes pkg/kubelet/types/pod_update.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from podwire.kube.objects import Pod
from podwire.sources.problems import SourceProblem

FILE = "file"
HTTP = "http"
API = "api"


class Op(StrEnum):
    """What an update asks for.

    SET: these are all pods there are. ADD, UPDATE, REMOVE: pods that came, changed, went. DELETE: pods that
    are to end gracefully (deletionTimestamp is set). RECONCILE: only the status differs from what was known.
    """

    SET = "SET"
    ADD = "ADD"
    UPDATE = "UPDATE"
    REMOVE = "REMOVE"
    DELETE = "DELETE"
    RECONCILE = "RECONCILE"


@dataclass(frozen=True, slots=True)
class PodUpdate:
    """One change; an ADD without pods says that the source was read and has none."""

    op: Op
    pods: tuple[Pod, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All pods that a source has now, and all that is wrong with it.

    ``complete`` is False while there may be more that the source could not read yet: the pods count, but the
    source does not count as seen.
    """

    source: str
    pods: tuple[Pod, ...]
    problems: tuple[SourceProblem, ...] = ()
    complete: bool = True


Emit = Callable[[Snapshot], object]


class Source(Protocol):
    """Where pods come from."""

    @property
    def name(self) -> str:
        """The source's name in the mux."""
        ...

    async def run(self, emit: Emit) -> None:
        """Give ``emit`` what there is whenever it changes, until cancelled."""
        ...
