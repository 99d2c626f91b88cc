"""`make test-kernel-all`: all conformance checks, in user-mode Linux, of the plugins that need its links.

Each plugin alone, and chains with it, as programs of their own and before the agent. Arguments are the runs
that are wanted, by a part of their names; none: all. It takes long: see docs/conformance.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from podwire.conformance.findings import Outcome as Checked
from podwire.conformance.findings import Status
from tests.uml import conform, guests
from tests.uml.guests import Job, Outcome
from tests.uml.machine import MachineError

TIMEOUT = float(os.environ.get("TEST_KERNEL_SECONDS", "3600"))
"""Seconds for one run."""
SUBJECTS = (
    "vlan",
    "ipvlan",
    "dummy",
    "vrf",
    "vlan,vrf",
    "vlan,tuning,sbr",
    "ipvlan,sbr",
    "ipvlan,tuning,vrf",
    "dummy,tuning",
    "bridge,bandwidth,vrf",
)
"""Plugins, and chains that have one which only another kernel can run.

None has rules: the guests' kernel has no nftables tables of the family inet.
"""
_SEPARATOR = "-"


def main() -> int:
    begin = time.monotonic()
    jobs = _jobs(sys.argv[1:])
    try:
        if not jobs:
            raise MachineError(f"no run has {' or '.join(sys.argv[1:])} in its name")
        kernel = guests.kernel()
    except MachineError as error:
        print(f"test-kernel-all: FAILED: {error}", file=sys.stderr)
        return 1
    print(f"test-kernel-all: {len(jobs)} runs, {guests.MACHINES} at a time", flush=True)
    outcomes = guests.run(kernel, jobs, timeout=TIMEOUT, done=_tell)
    failed = [one.job.name for one in outcomes if one.status != 0]
    counts = sum((_counts(one) for one in outcomes), Counter[Status]())
    for outcome in outcomes:
        print(_line(outcome))
    verdict = f"FAILED ({', '.join(failed)})" if failed else "passed"
    print(
        f"test-kernel-all: {verdict}: {len(outcomes)} runs, {counts[Status.PASSED]} checks passed,"
        f" {counts[Status.FAILED]} with findings, on Linux {guests.release(kernel)} (user-mode) in"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if failed else 0


def _jobs(wanted: Sequence[str]) -> list[Job]:
    # Those that take longest first.
    names = [(how, one) for how in conform.HOWS for one in sorted(SUBJECTS, key=lambda one: -one.count(","))]
    return [
        Job(name, [sys.executable, "-m", "tests.uml.conform", subject, how])
        for how, subject in names
        if (name := f"{subject}{_SEPARATOR}{how}") and (not wanted or any(part in name for part in wanted))
    ]


def _tell(outcome: Outcome) -> None:
    """Print a run that has ended: its findings, or how far it came where it did not end well."""
    print(_line(outcome), flush=True)
    checked = _checked(outcome)
    if not checked:
        print(f"{outcome.log}{outcome.fault}", flush=True)
    for one in checked:
        for problem in one.problems:
            print(f"    {one.check}: {problem.severity or one.severity}: {problem.did}: {problem.observed}")


def _line(outcome: Outcome) -> str:
    counts = _counts(outcome)
    said = (
        f"{counts[Status.PASSED]} passed, {counts[Status.SKIPPED]} do not apply,"
        f" {counts[Status.FAILED]} with findings"
    )
    how = said if counts else f"no outcome, exit status {outcome.status}"
    return f"{outcome.job.name:40} {how}, {outcome.seconds:.0f} s"


def _counts(outcome: Outcome) -> Counter[Status]:
    return Counter(one.status for one in _checked(outcome))


def _checked(outcome: Outcome) -> list[Checked]:
    path = outcome.results / conform.OUTCOMES
    return msgspec.json.decode(path.read_bytes(), type=list[Checked]) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
