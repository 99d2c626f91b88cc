"""`make test-kernel`: the tests marked ``other_kernel``, for real, in user-mode Linux.

Arguments go to pytest.
"""

from __future__ import annotations

import os
import re
import sys
import time

from tests.uml import guests, kinds
from tests.uml.guests import Job, Outcome
from tests.uml.machine import MachineError

TIMEOUT = float(os.environ.get("TEST_KERNEL_SECONDS", "290"))
"""Seconds for all of it: CI gives it five minutes."""
_MARK = "other_kernel"
_NO_TESTS = 5
"""pytest's exit status when it has collected none."""


def main() -> int:
    begin = time.monotonic()
    try:
        kernel = guests.kernel()
    except MachineError as error:
        print(f"test-kernel: FAILED: {error}", file=sys.stderr)
        return 1
    outcomes = guests.run(kernel, map(_job, range(guests.MACHINES)), timeout=TIMEOUT)
    for outcome in outcomes:
        print(outcome.log, end="")
    faults = [fault for outcome in outcomes if (fault := _fault(outcome))]
    count = sum(_passed(outcome) for outcome in outcomes)
    if not count and not faults:
        faults = ["no test was run"]
    verdict = f"FAILED ({'; '.join(faults)})" if faults else "passed"
    print(
        f"test-kernel: {verdict}: {count} tests passed on Linux {guests.release(kernel)} (user-mode) in"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if faults else 0


def _job(number: int) -> Job:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _MARK]
    environment = {
        kinds.SHARE: f"{number}/{guests.MACHINES}",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    return Job(f"tests{number}", [*pytest, *(sys.argv[1:] or _files())], environment)


def _files() -> list[str]:
    """Return the files that have the mark: collecting all takes a guest longer than their tests."""
    files = sorted((guests.ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(guests.ROOT)) for path in files if f"mark.{_MARK}" in path.read_text()]


def _fault(outcome: Outcome) -> str:
    """Tell what is wrong; empty if its tests passed, or none were its share."""
    if outcome.status in {0, _NO_TESTS, None}:
        return outcome.fault
    return f"pytest's exit status {outcome.status}"


def _passed(outcome: Outcome) -> int:
    found = re.search(r"(\d+) passed", outcome.log)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
