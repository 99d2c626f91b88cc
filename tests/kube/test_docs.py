"""The examples of docs/kube.md run as they stand there, in order, and print what stands below them."""

from __future__ import annotations

from pathlib import Path

from tests import pages


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    assert pages.run_examples(pages.DOCS / "kube.md", tmp_path) == 5
