"""What a reflector fills: objects by key, with indexes; and a store that hands out complete lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from podwire.kube.decode import identity

T = TypeVar("T")

Indexer = Callable[[T], Iterable[str]]
"""The values under which an object is found; none for an object that is not in the index."""


class Sink(Protocol[T]):
    """Where a reflector puts what it hears. Each method does all of its work before it returns."""

    def get(self, key: str) -> T | None:
        """The object as it was put last."""

    def put(self, item: T) -> None:
        """The object is there, in this state."""

    def delete(self, item: T) -> None:
        """The object is gone; this was its last state."""

    def replace(self, items: list[T]) -> None:
        """Exactly these are there."""

    async def ready(self) -> None:
        """Return when more may be put."""


class Store(Generic[T]):
    """Objects by ``namespace/name``. Objects are shared, never copied: treat them as frozen."""

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self._items: dict[str, T] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, set[str]]] = {name: {} for name in self._indexers}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> T | None:
        """One object."""
        return self._items.get(key)

    def keys(self) -> list[str]:
        """All keys, as of now."""
        return list(self._items)

    def values(self) -> list[T]:
        """All objects, as of now."""
        return list(self._items.values())

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects that the indexer ``name`` gives ``value``, in the order of their keys."""
        return [self._items[key] for key in sorted(self._indexes[name].get(value, ()))]

    def index_values(self, name: str) -> list[str]:
        """All values that the indexer ``name`` gives."""
        return list(self._indexes[name])

    def put(self, item: T) -> T | None:
        """Put an object in the place of the one with its key, which is returned."""
        key = identity(item).key
        before = self._items.get(key)
        # Indexers are others' code: when one fails nothing has changed yet.
        wanted = {name: set(indexer(item)) for name, indexer in self._indexers.items()}
        self._items[key] = item
        for name, values in wanted.items():
            self._unlink(
                name, key, set(self._indexers[name](before)) - values if before is not None else set()
            )
            for value in values:
                self._indexes[name].setdefault(value, set()).add(key)
        return before

    def remove(self, key: str) -> T | None:
        """Remove an object and return it."""
        before = self._items.pop(key, None)
        if before is not None:
            for name, indexer in self._indexers.items():
                self._unlink(name, key, indexer(before))
        return before

    def _unlink(self, name: str, key: str, values: Iterable[str]) -> None:
        index = self._indexes[name]
        for value in values:
            keys = index.get(value)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del index[value]


class UndeltaStore(Generic[T]):
    """A sink that hands the complete list to ``push`` after every change (client-go UndeltaStore)."""

    def __init__(self, push: Callable[[list[T]], None]) -> None:
        self._push = push
        self.store: Store[T] = Store()

    def get(self, key: str) -> T | None:
        """See :class:`Sink`."""
        return self.store.get(key)

    def put(self, item: T) -> None:
        """See :class:`Sink`."""
        self.store.put(item)
        self._push(self.store.values())

    def delete(self, item: T) -> None:
        """See :class:`Sink`."""
        self.store.remove(identity(item).key)
        self._push(self.store.values())

    def replace(self, items: list[T]) -> None:
        """See :class:`Sink`."""
        self.store = Store()
        for item in items:
            self.store.put(item)
        self._push(self.store.values())

    async def ready(self) -> None:
        """See :class:`Sink`: always at once."""
