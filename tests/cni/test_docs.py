"""The examples of docs/cni.md run as they stand there, in order, and print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cni.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"


def blocks() -> list[tuple[str, str]]:
    """Each Python block of the page with the text that it is to print."""
    found: list[tuple[str, str]] = []
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            found.append((text, ""))
        elif kind == "text":
            found[-1] = (found[-1][0], text)
    return found


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    page = blocks()
    assert len(page) > 7
    program = "".join(f"{text}\nprint({_MARK!r})\n" for text, _ in page)
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
    assert printed == [text for _, text in page]


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
