"""`make test-kernel`: the tests marked ``other_kernel``, for real, in user-mode Linux.

Arguments go to pytest.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from tests.uml import kinds, machine

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".kernel"
TIMEOUT = 290.0
"""Seconds for all of it: CI gives it five minutes."""


def main() -> int:
    if os.geteuid() != 0:
        print("test-kernel: needs root, to make a mount namespace", file=sys.stderr)
        return 1
    begin = time.monotonic()
    results = CACHE / "results"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "other_kernel"]
    environment = {
        kinds.IN_MACHINE: "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    try:
        kernel = machine.fetch(CACHE)
        status = machine.run(
            kernel,
            [*pytest, *sys.argv[1:]],
            results,
            directory=ROOT,
            environment=environment,
            timeout=TIMEOUT,
        )
    except machine.MachineError as error:
        log = results / "log"
        if log.exists():
            print(log.read_text(errors="replace"))
        print(f"test-kernel: FAILED: the machine: {error}", file=sys.stderr)
        return 1
    log_text = (results / "log").read_text(errors="replace")
    print(log_text, end="")
    passed = re.search(r"(\d+) passed", log_text)
    if status == 0 and not passed:
        print("test-kernel: FAILED: no test was run", file=sys.stderr)
        return 1
    release = next((kernel / "lib/modules").iterdir()).name
    verdict = "passed" if status == 0 else f"FAILED (pytest's exit status {status})"
    count = passed[1] if passed else "0"
    print(
        f"test-kernel: {verdict}: {count} tests passed on Linux {release} (user-mode) in"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
