"""The API source: the pods that an API server has for this node.

Source: k8s.io/kubernetes pkg/kubelet/config/apiserver.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from podwire.kube.client import Client
from podwire.kube.defaults import default_pod
from podwire.kube.errors import ApiError, KubeError
from podwire.kube.objects import Pod
from podwire.kube.reflector import Reflector
from podwire.kube.resource import PODS
from podwire.kube.store import UndeltaStore
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import API, Emit, Snapshot

_log = logging.getLogger(__name__)


class APISource:
    """The pods of all namespaces that are bound to ``node_name``, from the moment that ``known`` is set.

    ``known`` says that the server has the Node object: before that it may have lost all of the node's pods
    with it. ``tell`` hears each list as the server has it, mirror pods among them, before the mux does.
    """

    name = API

    def __init__(
        self,
        client: Client,
        node_name: str,
        known: asyncio.Event,
        tell: Callable[[list[Pod]], object] = lambda pods: None,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._known = known
        self._tell = tell
        self._made: dict[str, tuple[Pod, Pod]] = {}
        """By UID: a pod as it came, and with the defaults that its server may not know of."""
        self._last: Snapshot | None = None

    async def run(self, emit: Emit) -> None:
        """Give ``emit`` all pods after each change, until cancelled. Problems are told while they last."""

        def push(pods: list[Pod]) -> None:
            complete = self._completed(pods)
            self._tell(complete)
            self._give(emit, Snapshot(API, tuple(complete)))

        def well() -> None:
            if self._last is not None and self._last.problems:
                self._give(emit, Snapshot(API, self._last.pods))

        def trouble(error: KubeError) -> None:
            words = f"{error.reason}: {error}" if isinstance(error, ApiError) and error.reason else str(error)
            _log.warning("pods of this node: %s", words)
            problem = SourceProblem(
                API, self._client.config.server, None, Reason.FAILED_READ, words, kept=self._last is not None
            )
            pods = self._last.pods if self._last is not None else ()
            self._give(emit, Snapshot(API, pods, (problem,), complete=reflector.synced))

        reflector = Reflector(
            self._client,
            PODS,
            UndeltaStore(push),
            fields=f"spec.nodeName={self._node_name}",
            problem=trouble,
            well=well,
        )
        await self._known.wait()
        await reflector.run()

    def _completed(self, pods: list[Pod]) -> list[Pod]:
        """The pods with their defaults; one that did not change is the same object as before."""
        made: dict[str, tuple[Pod, Pod]] = {}
        for pod in pods:
            came, known = self._made.get(pod.metadata.uid, (None, pod))
            made[pod.metadata.uid] = (pod, known if came is pod else default_pod(pod))
        self._made = made
        return [complete for _, complete in made.values()]

    def _give(self, emit: Emit, snapshot: Snapshot) -> None:
        self._last = snapshot
        emit(snapshot)
