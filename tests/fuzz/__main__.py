"""The fuzzer: ``python -m tests.fuzz [TARGET [FILE]]``, or ``make fuzz``.

FUZZ_SECONDS (60) is shared out among the targets, FUZZ_SEED makes a run repeatable. An input that fails is
made smaller, kept in ``.fuzz/``, and told with the command that runs it again. Exit status 1 if any failed.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.mutate import mutated, smaller
from tests.fuzz.server import SERVER
from tests.fuzz.shim import SHIM_ANSWER, SHIM_CALL
from tests.fuzz.targets import TARGETS, Target

KEPT = Path(".fuzz")
SLOW = 5
"""Seconds after which an input counts as one that hangs."""
SHRINKING = 3.0
ALL: dict[str, Target] = {
    **TARGETS,
    "node-socket": SERVER,
    "shim-answer": SHIM_ANSWER,
    "shim-call": SHIM_CALL,
}


class Hung(BaseException):
    """An input took too long."""


@dataclass(frozen=True)
class Failure:
    """What an input did; ``where`` tells equal failures from others."""

    error: BaseException
    where: tuple[str, str, int]


def attempt(target: Target, data: bytes) -> Failure | None:
    """Give one input to a target; None if it is taken or refused as it should be."""
    try:
        with _limited():
            target.run(data)
    except target.refusals:
        return None
    except (Exception, Hung) as error:  # noqa: BLE001 - whatever it is, it is the finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Failure(error, (type(error).__name__, last.filename, last.lineno or 0))
    return None


def fuzz(target: Target, seconds: float, source: random.Random) -> tuple[int, bytes, Failure | None]:
    """Try the corpus, then mutations until the time is over or one fails: how many, and what failed."""
    target.prepare()
    tried = 0
    for data in target.corpus:
        if failure := attempt(target, data):
            return tried, data, failure
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutated(source, target.corpus)
        tried += 1
        if failure := attempt(target, data):
            return tried, *shrunk(target, data, failure)
    return tried, b"", None


def shrunk(target: Target, data: bytes, failure: Failure) -> tuple[bytes, Failure]:
    """The smallest input found in a while that fails in the same place."""
    end = time.monotonic() + SHRINKING
    again = True
    while again and time.monotonic() < end:
        again = False
        for candidate in smaller(data):
            found = attempt(target, candidate)
            if found is not None and found.where == failure.where:
                data, failure, again = candidate, found, True
                break
    return data, failure


def main(argv: Sequence[str]) -> int:
    """Fuzz all targets, or one, or run one input again."""
    if len(argv) == 2:
        ALL[argv[0]].prepare()
        failure = attempt(ALL[argv[0]], Path(argv[1]).read_bytes())
        if failure is not None:
            traceback.print_exception(failure.error)
        return 1 if failure else 0
    seconds = float(os.environ.get("FUZZ_SECONDS") or 60)
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    names = argv or sorted(ALL)
    print(f"fuzz: {seconds:g} s for {len(names)} targets; FUZZ_SEED={seed}", flush=True)
    failed = False
    for name in names:
        source = random.Random(f"{seed} {name}")
        tried, data, failure = fuzz(ALL[name], seconds / len(names), source)
        print(f"{name}: {tried} inputs{', FAILED' if failure else ''}", flush=True)
        if failure is not None:
            failed = True
            _tell(name, data, failure)
    return 1 if failed else 0


def _tell(name: str, data: bytes, failure: Failure) -> None:
    KEPT.mkdir(exist_ok=True)
    path = KEPT / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    traceback.print_exception(failure.error, file=sys.stdout)
    print(f"input ({len(data)} bytes): {data[:200]!r}")
    print(f"again: python -m tests.fuzz {name} {path}", flush=True)


@contextmanager
def _limited() -> Iterator[None]:
    def hung(_number: int, _frame: FrameType | None) -> None:
        raise Hung(f"no answer after {SLOW} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, SLOW)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
