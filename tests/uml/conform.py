"""In the guest: all checks of the conformance tester for one plugin or chain of Podwire's.

``python -m tests.uml.conform PLUGIN[,PLUGIN...] standalone|hosted``; prints a line a check, and leaves the
outcomes in /mnt/outcomes.json. The exit status is 1 if there was a finding.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from podwire.conformance import report, subject, tester
from podwire.conformance.findings import Outcome, Status
from podwire.conformance.services import HOME, Daemon

BIN = Path("/tmp/bin")
OUTCOMES = "outcomes.json"
RESULTS = Path("/mnt")
CALL_SECONDS = 180.0
"""A call's deadline. Sixteen start at once in one check, each takes seconds of the guest's one processor."""
_ROOT = HOME / "podwire"
_SOCKET = _ROOT / "run/agent.sock"
_PODWIRE = (sys.executable, "-m", "podwire")
_UNMASKED = Path(__file__).with_name("unmasked.conflist")
"""Bridge without the masquerading that it has by default: the guest's kernel has no tables for it."""
HOWS = {
    "standalone": (("--no-agent",), None),
    "hosted": (
        ("--socket", str(_SOCKET), "--no-standalone"),
        Daemon((*_PODWIRE, "agent", "--root", str(_ROOT)), _SOCKET),
    ),
}
"""How the programs are: what installs them, and what they hand their work to."""


def main() -> int:
    plugins, how = sys.argv[1:]
    installation, daemon = HOWS[how]
    subprocess.run(
        [*_PODWIRE, "install", "--bin-dir", str(BIN), "--no-conflist", *installation],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    conf = _UNMASKED if plugins.startswith("bridge,") else None
    tested = tester.prepare(subject.resolve(plugins, [str(BIN)], conf, CALL_SECONDS, daemon))
    outcomes = tester.run(tested, done=_tell)
    (RESULTS / OUTCOMES).write_bytes(report.as_json(outcomes))
    return 1 if any(one.status is Status.FAILED for one in outcomes) else 0


def _tell(outcome: Outcome) -> None:
    print(f"{outcome.status} {outcome.check}, {outcome.seconds:.1f} s {outcome.reason}".rstrip(), flush=True)
    for one in outcome.problems:
        print(f"    {one.severity or outcome.severity}: {one.did}: {one.observed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
