"""The examples of docs/kube.md run as they stand there, in order, and print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "kube.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    found: list[tuple[str, str]] = []
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            found.append((text, ""))
        else:
            found[-1] = found[-1][0], text
    assert len(found) == 5
    program = "".join(f"{text}\nprint({_MARK!r})\n" for text, _ in found)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)},
    )
    assert done.stderr == ""
    printed = done.stdout.split(f"{_MARK}\n")
    assert printed.pop() == ""
    assert printed == [text for _, text in found]
