"""How values are put together: which lists are maps by a key, which are sets, what counts as one piece.

A strategic merge patch and a server-side apply ask different questions of the same fields, and Kubernetes
answers them by two sets of tags (``patchStrategy``, ``patchMergeKey``; ``listType``, ``listMapKey``,
``mapType``, ``structType``), which do not always agree: so a shape holds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The shape of a value. A plain ``Shape()``: mappings are merged by field, lists are one piece.

    ``fields`` are the shapes of members that have something of note; ``values`` is that of all others.
    ``entries``: the members are entries of a map, not fields of a type (``labels``). ``atomic``: one piece
    for server-side apply.
    Of lists: ``items`` is the shape of an item; ``keys`` name an item for server-side apply, with the values
    in ``key_defaults`` where they are left out; ``unique``: a set of plain values. ``merged``: a strategic
    merge patch merges it, items by ``merge_key``, plain values as a set.
    """

    fields: Mapping[str, Shape] = field(default_factory=dict)
    values: Shape | None = None
    entries: bool = False
    atomic: bool = False
    items: Shape | None = None
    keys: tuple[str, ...] = ()
    key_defaults: Mapping[str, Any] = field(default_factory=dict)
    unique: bool = False
    merged: bool = False
    merge_key: str = ""

    def member(self, name: str) -> Shape:
        """The shape of a field or entry of a mapping."""
        return self.fields.get(name) or self.values or PLAIN

    @property
    def item(self) -> Shape:
        """The shape of an item of a list."""
        return self.items or PLAIN

    @property
    def whole(self) -> bool:
        """Whether, as a list, it is one piece for server-side apply."""
        return not self.keys and not self.unique


PLAIN = Shape()
WHOLE = Shape(atomic=True)
"""A mapping or list that server-side apply takes as one piece; a strategic merge patch merges a mapping."""
ENTRIES = Shape(entries=True)
"""A map of names to values."""
SET = Shape(unique=True, merged=True)
"""A list of plain values, each at most once, for both."""


def record(**fields: Shape) -> Shape:
    """A mapping of which some fields have a shape worth telling."""
    return Shape(fields=fields)


def keyed(
    key: str,
    item: Shape = PLAIN,
    *,
    keys: tuple[str, ...] | None = None,
    defaults: Mapping[str, Any] | None = None,
    merged: bool = True,
) -> Shape:
    """A list of items with a name: ``key`` for strategic merge, ``keys`` (None: the same) for apply."""
    return Shape(
        items=item,
        keys=(key,) if keys is None else keys,
        key_defaults=defaults or {},
        merged=merged,
        merge_key=key if merged else "",
    )
