"""`make test-kernel`: the tests marked ``other_kernel``, for real, in user-mode Linux.

Arguments go to pytest.
"""

from __future__ import annotations

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.uml import kinds, machine

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".kernel"
TIMEOUT = float(os.environ.get("TEST_KERNEL_SECONDS", "290"))
"""Seconds for all of it: CI gives it five minutes."""
MACHINES = 2
_NO_TESTS = 5
"""pytest's exit status when it has collected none."""


def main() -> int:
    if os.geteuid() != 0:
        print("test-kernel: needs root, to make a mount namespace", file=sys.stderr)
        return 1
    begin = time.monotonic()
    try:
        kernel = machine.fetch(CACHE)
    except machine.MachineError as error:
        print(f"test-kernel: FAILED: {error}", file=sys.stderr)
        return 1
    # A machine has one processor.
    shares = min(MACHINES, os.cpu_count() or 1)
    with ThreadPoolExecutor(shares) as pool:
        outcomes = list(pool.map(lambda number: _run(kernel, number, shares), range(shares)))
    for outcome in outcomes:
        print(outcome.log, end="")
    faults = [outcome.fault for outcome in outcomes if outcome.fault]
    count = sum(outcome.passed for outcome in outcomes)
    if not count and not faults:
        faults = ["no test was run"]
    release = next((kernel / "lib/modules").iterdir()).name
    verdict = f"FAILED ({'; '.join(faults)})" if faults else "passed"
    print(
        f"test-kernel: {verdict}: {count} tests passed on Linux {release} (user-mode) in"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if faults else 0


class Outcome(NamedTuple):
    """What one machine's pytest said; ``fault`` is empty if its tests passed, or none were its share."""

    log: str
    passed: int = 0
    fault: str = ""


def _run(kernel: Path, number: int, shares: int) -> Outcome:
    results = CACHE / f"results{number}"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "other_kernel"]
    environment = {
        kinds.IN_MACHINE: "1",
        kinds.SHARE: f"{number}/{shares}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    fault = ""
    try:
        status = machine.run(
            kernel,
            [*pytest, *sys.argv[1:]],
            results,
            directory=ROOT,
            environment=environment,
            timeout=TIMEOUT,
        )
        if status not in {0, _NO_TESTS}:
            fault = f"pytest's exit status {status}"
    except machine.MachineError as error:
        fault = f"the machine: {error}"
    log = results / "log"
    text = log.read_text(errors="replace") if log.exists() else ""
    passed = re.search(r"(\d+) passed", text)
    return Outcome(text, int(passed[1]) if passed else 0, fault)


if __name__ == "__main__":
    sys.exit(main())
