"""What the differential tests declare is what docs/differences.md lists, under the right heading."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from tests.differential.harness import COMMON, Difference

ROOT = Path(__file__).parents[2]


def declared() -> set[str]:
    modules = [
        import_module(f"tests.differential.{path.stem}") for path in Path(__file__).parent.glob("test_*.py")
    ]
    found: list[Difference] = [one for module in modules for one in getattr(module, "DIFFERENCES", ())]
    return {one.id for one in (*found, *COMMON)}


def listed() -> dict[str, str]:
    """The identifiers in the document, each with its heading as identifiers begin with it."""
    found = {}
    heading = ""
    for line in (ROOT / "docs/differences.md").read_text().splitlines():
        if line.startswith("## "):
            heading = "all" if line == "## All plugins" else line.removeprefix("## ")
        elif match := re.match(r"- `([a-z0-9-]+)`: .+", line):
            assert match[1] not in found, f"{match[1]} is listed twice"
            found[match[1]] = heading
        else:
            assert not line.startswith("- "), f"no identifier: {line}"
    return found


def test_what_is_declared_is_listed_and_what_is_listed_is_declared() -> None:
    assert set(listed()) == declared()


def test_each_is_under_its_plugin() -> None:
    headings = set(listed().values())
    for name, heading in listed().items():
        longest = max((one for one in headings if name.startswith(f"{one}-")), key=len, default="")
        assert longest == heading, f"{name} is under {heading}"
