"""The examples of docs/cni.md run as they stand there, in order, and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

from tests import pages

PAGE = pages.DOCS / "cni.md"


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    assert pages.run_examples(PAGE, tmp_path) > 7


def test_the_pages_tables_name_what_is_there() -> None:
    import podwire.cni
    from podwire.cni import errors, plugin, runtime

    text = PAGE.read_text()
    for name in re.findall(r"^\| [\d, andup]+ \| (.*?) \|", text, re.MULTILINE):
        for each in re.findall(r"`(\w+)`", name):
            assert hasattr(errors, each), each
    table = text[text.index("| libcni | here |") :]
    for row in re.findall(r"^\| .* \| (.*?) \|$", table, re.MULTILINE)[2:]:
        for each in re.findall(r"`([\w.]+)`", row):
            owner, _, name = each.rpartition(".")
            if owner:
                assert hasattr(getattr(podwire.cni, owner), name), each
            else:
                assert any(
                    hasattr(where, each) for where in (podwire.cni, runtime.Runtime, plugin)
                ) or hasattr(plugin.Request, each), each
