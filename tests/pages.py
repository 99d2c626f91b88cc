"""The examples of a page of the documentation, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"


def examples(page: Path) -> list[tuple[str, str]]:
    """Each Python block of a page with the text that it is to print: the text block behind it."""
    found: list[tuple[str, str]] = []
    for kind, text in _BLOCK.findall(page.read_text()):
        if kind == "python":
            found.append((text, ""))
        elif kind == "text":
            found[-1] = (found[-1][0], text)
    return found


def run_examples(page: Path, directory: Path) -> int:
    """Run a page's blocks in order, as one program; each prints what the page says. How many there are."""
    blocks = examples(page)
    program = "".join(f"{text}\nprint({_MARK!r})\n" for text, _ in blocks)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)},
    )
    assert done.stderr == ""
    printed = done.stdout.split(f"{_MARK}\n")
    assert printed.pop() == ""
    assert printed == [text for _, text in blocks]
    return len(blocks)
