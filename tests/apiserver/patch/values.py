"""Strategies for JSON values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

names = st.sampled_from(["a", "b", "c", "d", "a/b", "m~n", ""])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "y", "1"])


def trees(leaves: st.SearchStrategy[Any] = scalars) -> st.SearchStrategy[Any]:
    """Any JSON value of a few levels."""
    return st.recursive(
        leaves,
        lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=3),
        max_leaves=8,
    )


def objects(leaves: st.SearchStrategy[Any] = scalars) -> st.SearchStrategy[dict[str, Any]]:
    """Any JSON object of a few levels."""
    return st.dictionaries(names, trees(leaves), max_size=4)
