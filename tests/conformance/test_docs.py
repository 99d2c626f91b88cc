"""docs/conformance.md lists every check as the code has it."""

from __future__ import annotations

from pathlib import Path

from podwire.conformance.catalogue import checks
from podwire.conformance.overall import OVERALL
from podwire.conformance.profiles import PROFILES

PAGE = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()


def test_the_table_of_checks_is_that_of_the_code() -> None:
    rows = [*checks(), *(one.row for one in OVERALL)]
    wanted = [
        f"| `{one.id}` | {one.section} | {one.severity} | {one.title} | {one.expected} |" for one in rows
    ]
    table = PAGE.partition("## What is checked")[2].partition("\nThe weight")[0]
    assert [line for line in table.splitlines() if line.startswith("| `")] == wanted


def test_known_types_are_named() -> None:
    told = PAGE.partition("Known types have a configuration of their own: ")[2].partition(". Main")[0]
    assert set(told.replace("\n", " ").split(", ")) == set(PROFILES)
