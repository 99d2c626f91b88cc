"""Patterns as Go reads them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.crd.expressions import compiled


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^a$", "a", True),
        ("^a$", "a\n", False),
        (r"^a\z", "a\n", False),
        (r"^\$a$", "$a", True),
        ("b", "abc", True),
        (r"^\d$", "٣", False),
        (r"^\w$", "é", False),
        ("^[[:alpha:]]+$", "abc", True),
        ("^[[:alpha:]]+$", "a1", False),
        ("^[^[:space:]$]+$", "a$", False),
        ("^[$]$", "$", True),
        ("^[]a]$", "]", True),
        ("^[^]a]$", "b", True),
        ("^[[]$", "[", True),
        (r"^[\]x]+$", "]x", True),
        ("^[a&&b]$", "&", True),
        (r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$", "* * * * */5", True),
        (r"^(?i)x", "X", None),
        (r"^\pL$", "a", None),
        ("[a", "a", None),
        ("(", "", None),
    ],
)
def test_patterns(pattern: str, text: str, matches: bool | None) -> None:
    if matches is None:
        with pytest.raises(re.error):
            compiled(pattern)
        return
    assert bool(compiled(pattern).search(text)) is matches


@settings(deadline=None)
@given(st.text(alphabet="ab[]^$\\:&-|~()*+dzalph", max_size=15))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        pattern = compiled(text)
    except (re.error, OverflowError, RecursionError):
        return
    assert isinstance(pattern, re.Pattern)
