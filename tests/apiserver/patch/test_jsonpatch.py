"""JSON patch: the cases of RFC 6902 and laws."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.patch.jsonpatch import BadPatch, PatchFailed, apply, equal
from tests.apiserver.patch.values import objects, trees


def op(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"op": name, "path": path, **more}


# RFC 6902, appendix A, by its numbers.
CASES: list[tuple[str, Any, list[Any], Any]] = [
    ("A.1", {"foo": "bar"}, [op("add", "/baz", value="qux")], {"baz": "qux", "foo": "bar"}),
    ("A.2", {"foo": ["bar", "baz"]}, [op("add", "/foo/1", value="qux")], {"foo": ["bar", "qux", "baz"]}),
    ("A.3", {"baz": "qux", "foo": "bar"}, [op("remove", "/baz")], {"foo": "bar"}),
    ("A.4", {"foo": ["bar", "qux", "baz"]}, [op("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
    ("A.5", {"baz": "q", "foo": "b"}, [op("replace", "/baz", value="boo")], {"baz": "boo", "foo": "b"}),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7",
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [op("test", "/baz", value="qux"), op("test", "/foo/1", value=2)],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ("A.10", {"foo": "b"}, [op("add", "/c", value={"g": {}})], {"foo": "b", "c": {"g": {}}}),
    ("A.11", {"foo": "b"}, [op("add", "/baz", value="qux", xyz=123)], {"foo": "b", "baz": "qux"}),
    ("A.14", {"/": 9, "~1": 10}, [op("test", "/~01", value=10)], {"/": 9, "~1": 10}),
    ("A.16", {"foo": ["bar"]}, [op("add", "/foo/-", value=["abc"])], {"foo": ["bar", ["abc"]]}),
    ("whole", {"foo": 1}, [op("replace", "", value={"a": 2})], {"a": 2}),
    ("copy", {"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    ("from the end", {"a": [1, 2]}, [op("remove", "/a/-1")], {"a": [1]}),
    ("null", {"a": 1}, [op("add", "/b", value=None)], {"a": 1, "b": None}),
]

FAILING: list[tuple[str, Any, list[Any]]] = [
    ("A.9", {"baz": "qux"}, [op("test", "/baz", value="bar")]),
    ("A.12", {"foo": "bar"}, [op("add", "/baz/bat", value="qux")]),
    ("A.15", {"~1": 10}, [op("test", "/~01", value="10")]),
    ("no such member", {"a": 1}, [op("remove", "/b")]),
    ("nothing to replace", {"a": 1}, [op("replace", "/b", value=1)]),
    ("beyond the end", {"a": [1]}, [op("add", "/a/2", value=1)]),
    ("no index", {"a": [1]}, [op("add", "/a/01", value=1)]),
    ("minus in the middle", {"a": [1]}, [op("remove", "/a/-")]),
    ("into itself", {"a": {"b": 1}}, [{"op": "move", "from": "/a", "path": "/a/b"}]),
    ("below a scalar", {"a": 1}, [op("test", "/a/b", value=1)]),
    ("true is not one", {"a": True}, [op("test", "/a", value=1)]),
    ("no value", {"a": 1}, [op("add", "/a")]),
    ("unknown operation", {"a": 1}, [op("spam", "/a")]),
    ("no slash", {"a": 1}, [op("remove", "a")]),
]


@pytest.mark.parametrize(("document", "patch", "result"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cases(document: Any, patch: list[Any], result: Any) -> None:
    kept = copy.deepcopy(document)
    assert apply(document, patch) == result
    assert document == kept


@pytest.mark.parametrize(("document", "patch"), [c[1:] for c in FAILING], ids=[c[0] for c in FAILING])
def test_what_does_not_fit(document: Any, patch: list[Any]) -> None:
    with pytest.raises(PatchFailed):
        apply(document, patch)


@pytest.mark.parametrize("patch", [{}, "x", None, [1], [None]])
def test_what_is_no_patch(patch: Any) -> None:
    with pytest.raises(BadPatch):
        apply({}, patch)


def test_one_failure_undoes_all() -> None:
    document = {"a": 1}
    with pytest.raises(PatchFailed):
        apply(document, [op("add", "/b", value=1), op("test", "/a", value=2)])
    assert document == {"a": 1}


@settings(deadline=None)
@given(objects(), trees(), st.sampled_from(["x", "y"]))
def test_added_then_removed_is_as_before(document: dict[str, Any], value: Any, name: str) -> None:
    patch = [
        op("add", f"/{name}", value=value),
        op("test", f"/{name}", value=value),
        op("remove", f"/{name}"),
    ]
    assert equal(apply(document, patch), document)


@settings(deadline=None)
@given(objects(), objects())
def test_moved_and_back_is_as_before(inner: dict[str, Any], other: dict[str, Any]) -> None:
    document = {"in": inner, "other": other}
    there = {"op": "move", "from": "/in", "path": "/out"}
    back = {"op": "move", "from": "/out", "path": "/in"}
    assert apply(document, [there, back]) == document
