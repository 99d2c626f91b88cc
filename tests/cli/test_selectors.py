"""Label selectors."""

from __future__ import annotations

import pytest

from podwire.cli import selectors
from podwire.cli.errors import CommandError

LABELS = {"app": "web", "tier": "front", "example.com/canary": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app=db", False),
        ("app!=web", False),
        ("app!=db", True),
        ("missing!=x", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("example.com/canary=", True),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db),tier=front", True),
        ("app notin (web)", False),
        ("app=web,tier=back", False),
    ],
)
def test_matching(text: str, matches: bool) -> None:
    assert selectors.parse(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["=web", "app=a b", "app in web", "app=web,", "-x", "a=b=c", "app in (a b)"])
def test_what_is_none_is_shown(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        selectors.parse(text)
    assert caught.value.exit_code == 2
    assert repr(text) in caught.value.message
