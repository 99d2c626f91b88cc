"""What a reflector fills: objects by key, with indexes; and a store that hands out complete lists."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from podwire.kube.sealed import Sealed

T = TypeVar("T")

Indexer = Callable[[T], Iterable[str]]
"""The values under which an object is found; none for an object that is not in the index."""

OPENED = 512
"""How many objects stay decoded after somebody looked at them."""


class Sink(Protocol[T]):
    """Where a reflector puts what it hears. Each method does all of its work before it returns."""

    def get(self, key: str) -> Sealed[T] | None:
        """The state that was put last."""

    def put(self, item: Sealed[T]) -> None:
        """The object is there, in this state."""

    def delete(self, item: Sealed[T]) -> None:
        """The object is gone; this was its last state."""

    def replace(self, items: list[Sealed[T]]) -> None:
        """Exactly these are there."""

    async def ready(self) -> None:
        """Return when more may be put."""


class Store(Generic[T]):
    """Objects by ``namespace/name``: kept packed, decoded when asked for.

    What it gives is shared with all others who ask: treat it as frozen.
    """

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self._items: dict[str, Sealed[T]] = {}
        self._opened: OrderedDict[str, T] = OrderedDict()
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, set[str]]] = {name: {} for name in self._indexers}
        self._values: dict[str, tuple[tuple[str, ...], ...]] = {}
        """For each key its values in each index; empty without indexers."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> T | None:
        """One object."""
        found = self._opened.get(key)
        if found is not None:
            self._opened.move_to_end(key)
            return found
        sealed = self._items.get(key)
        if sealed is None:
            return None
        found = self._opened[key] = sealed.open()
        if len(self._opened) > OPENED:
            self._opened.popitem(last=False)
        return found

    def sealed(self, key: str) -> Sealed[T] | None:
        """One object as it is kept: its UID and version, without decoding it."""
        return self._items.get(key)

    def keys(self) -> list[str]:
        """All keys, as of now."""
        return list(self._items)

    def values(self) -> Iterator[T]:
        """All objects, as of now, each decoded when its turn comes."""
        for key, sealed in list(self._items.items()):
            known = self._opened.get(key) if self._items.get(key) is sealed else None
            yield known if known is not None else sealed.open()

    def all_sealed(self) -> list[Sealed[T]]:
        """All objects as they are kept, as of now."""
        return list(self._items.values())

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects that the indexer ``name`` gives ``value``, in the order of their keys."""
        found = (self.get(key) for key in sorted(self._indexes[name].get(value, ())))
        return [each for each in found if each is not None]

    def index_values(self, name: str) -> list[str]:
        """All values that the indexer ``name`` gives."""
        return list(self._indexes[name])

    def put(self, item: Sealed[T]) -> Sealed[T] | None:
        """Put an object in the place of the one with its key, which is returned."""
        key = item.key
        if self._indexers:
            # Indexers are others' code: when one fails nothing has changed yet.
            found = item.open()
            values = tuple(tuple(map(sys.intern, indexer(found))) for indexer in self._indexers.values())
            self._unlink(key)
            self._values[key] = values
            for name, each in zip(self._indexers, values, strict=True):
                for value in each:
                    self._indexes[name].setdefault(value, set()).add(key)
        self._opened.pop(key, None)
        before = self._items.get(key)
        self._items[key] = item
        return before

    def remove(self, key: str) -> Sealed[T] | None:
        """Remove an object and return it."""
        self._opened.pop(key, None)
        self._unlink(key)
        return self._items.pop(key, None)

    def _unlink(self, key: str) -> None:
        for name, values in zip(self._indexers, self._values.pop(key, ()), strict=False):
            index = self._indexes[name]
            for value in values:
                index[value].discard(key)
                if not index[value]:
                    del index[value]


class UndeltaStore(Generic[T]):
    """A sink that hands the complete list to ``push`` after every change (client-go UndeltaStore).

    It is for lists that are short, such as one node's pods: all objects stay decoded.
    """

    def __init__(self, push: Callable[[list[T]], None]) -> None:
        self._push = push
        self._items: dict[str, tuple[Sealed[T], T]] = {}

    def values(self) -> list[T]:
        """All objects, as of now."""
        return [found for _, found in self._items.values()]

    def get(self, key: str) -> Sealed[T] | None:
        """See :class:`Sink`."""
        known = self._items.get(key)
        return known[0] if known is not None else None

    def put(self, item: Sealed[T]) -> None:
        """See :class:`Sink`."""
        self._items[item.key] = item, item.open()
        self._push(self.values())

    def delete(self, item: Sealed[T]) -> None:
        """See :class:`Sink`."""
        self._items.pop(item.key, None)
        self._push(self.values())

    def replace(self, items: list[Sealed[T]]) -> None:
        """See :class:`Sink`."""
        before = self._items
        self._items = {}
        for item in items:
            known = before.get(item.key)
            self._items[item.key] = known if known is not None and known[0] is item else (item, item.open())
        self._push(self.values())

    async def ready(self) -> None:
        """See :class:`Sink`: always at once."""
