"""The informers of a process: one per resource and selection, however many want it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeVar, cast

from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resource import Resource

T = TypeVar("T")


class _Key(NamedTuple):
    api_version: str
    plural: str
    namespace: str
    labels: str
    fields: str


class Informers:
    """Shares informers, so that there is one stream for each path. ``run`` runs those that are wanted."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: dict[_Key, Informer[Any]] = {}
        self._new: asyncio.Queue[Informer[Any]] = asyncio.Queue()

    def get(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Informer[T]:
        """The informer of that resource and selection; made at the first call, also while others run."""
        key = _Key(resource.api_version, resource.plural, namespace, labels, fields)
        found = self._made.get(key)
        if found is None:
            found = Informer(self._client, resource, namespace=namespace, labels=labels, fields=fields)
            self._made[key] = found
            self._new.put_nowait(found)
        return cast("Informer[T]", found)

    @property
    def failing_for(self) -> float:
        """Seconds for which the one that is worst off has been failing; 0 while all is well."""
        return max((each.reflector.failing_for for each in self._made.values()), default=0.0)

    async def wait_synced(self) -> None:
        """Return once the stores of all that were asked for are filled."""
        for each in list(self._made.values()):
            await each.wait_synced()

    async def run(self) -> None:
        """Run all informers, those asked for later too, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task((await self._new.get()).run())
