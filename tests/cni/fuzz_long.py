"""The long fuzz: ``python -m tests.cni.fuzz_long [N] [SEED]`` judges N cases (10,000) and tells the seed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.cni.fuzz import Fuzz


async def run(cases: int, seed: int, directory: Path) -> Fuzz:
    """Judge ``cases`` cases of a seed; AssertionError, or what escaped, for the first that fails."""
    fuzz = Fuzz(seed, directory)
    for _ in range(cases):
        await fuzz.one()
    return fuzz


def main(argv: Sequence[str]) -> int:
    """Run and print a line; 1 where a case failed."""
    cases = int(argv[0]) if argv else 10_000
    seed = int(argv[1]) if len(argv) > 1 else random.SystemRandom().randrange(1 << 32)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        try:
            fuzz = asyncio.run(run(cases, seed, Path(directory)))
        except Exception:  # noqa: BLE001 - whatever escapes is the finding
            traceback.print_exc()
            print(f"failed: seed {seed}: python -m tests.cni.fuzz_long {cases} {seed}")
            return 1
    left = len(os.listdir("/proc/self/fd")) - before  # noqa: PTH208
    seconds = time.monotonic() - began
    print(
        f"{cases} cases of seed {seed} in {seconds:.1f} s: {fuzz.successes} successes,"
        f" {fuzz.refusals} refusals, {left} descriptors left"
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
