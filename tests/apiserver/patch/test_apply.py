"""What an apply does with fields that nobody manages."""

from __future__ import annotations

from typing import Any

from podwire.apiserver.patch.apply import apply
from podwire.apiserver.patch.fieldset import Fields
from podwire.apiserver.patch.managers import APPLY, UPDATE, Managed, Manager
from podwire.apiserver.patch.shape import ENTRIES, Shape, record

ME, OTHER = Manager("me", APPLY, "v1", ""), Manager("other", UPDATE, "v1", "")


def applied(live: Any, config: Any, shape: Shape, mine: Fields, others: Fields) -> Any:
    managed = Managed()
    managed.put(ME, mine, "t")
    managed.put(OTHER, others, "t")
    return apply(live, config, shape, managed, manager=ME, time="t", force=False)


def test_a_field_of_nobody_stays_beside_one_that_goes() -> None:
    live = {"spec": {"mine": 1, "nobodys": 2, "others": 3}}
    mine, others = frozenset({("f:spec", "f:mine")}), frozenset({("f:spec", "f:others")})
    assert applied(live, {}, Shape(), mine, others) == {"spec": {"nobodys": 2, "others": 3}}


def test_an_entry_of_a_map_keeps_what_is_nobodys() -> None:
    live = {"map": {"k": {"mine": 1, "nobodys": 2}, "z": {"others": 3}}}
    shape = record(map=Shape(entries=True, values=Shape()))
    mine = frozenset({("f:map", "f:k", "f:mine")})
    others = frozenset({("f:map", "f:z"), ("f:map", "f:z", "f:others")})
    assert applied(live, {}, shape, mine, others) == {"map": {"k": {"nobodys": 2}, "z": {"others": 3}}}


def test_a_map_of_which_all_goes_goes_too() -> None:
    live = {"labels": {"a": "1"}, "others": 3}
    mine, others = frozenset({("f:labels", "f:a")}), frozenset({("f:others",)})
    assert applied(live, {}, record(labels=ENTRIES), mine, others) == {"others": 3}
