"""JSON merge patch: the cases of RFC 7386 and laws."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.patch.merge import diff, merge
from tests.apiserver.patch.values import objects, trees

without_null = st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x"])

# RFC 7386, appendix A: target, patch, result.
CASES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), CASES)
def test_cases_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@settings(deadline=None)
@given(objects(), objects())
def test_twice_is_once(target: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge(target, patch)
    assert merge(once, patch) == once


@settings(deadline=None)
@given(objects())
def test_an_empty_patch_changes_nothing(target: dict[str, Any]) -> None:
    assert merge(target, {}) == target


@settings(deadline=None)
@given(objects(without_null), objects(without_null))
def test_the_difference_leads_there(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merge(before, diff(before, after)) == after


@settings(deadline=None)
@given(objects(), trees())
def test_arguments_stay_as_they_are(target: dict[str, Any], patch: Any) -> None:
    kept = copy.deepcopy((target, patch))
    merge(target, patch)
    assert (target, patch) == kept
