"""Guests side by side, one command each, and what they are at while they run."""

from __future__ import annotations

import compileall
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.uml import kinds, machine
from tests.uml.machine import MachineError

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".kernel"
MACHINES = min(2, os.cpu_count() or 1)
"""How many run at a time; a machine has one processor."""
BEAT_SECONDS = 30.0


class Job(NamedTuple):
    """One guest's work; ``name`` is also that of its directory of results."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = {}


class Outcome(NamedTuple):
    """What became of a job. ``status`` is the command's; None, with a ``fault``, if there is none."""

    job: Job
    results: Path
    seconds: float
    status: int | None = None
    fault: str = ""

    @property
    def log(self) -> str:
        """What the command printed."""
        path = self.results / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def kernel() -> Path:
    """Return the guests' kernel, fetched at need. Raises MachineError, also where one cannot be started."""
    if os.geteuid() != 0:
        raise MachineError("needs root, to make a mount namespace")
    # The guests can write nothing here, and compiling at every start of a program takes them minutes.
    compileall.compile_dir(ROOT / "src" / "podwire", quiet=1)
    return machine.fetch(CACHE)


def release(kernel: Path) -> str:
    """Return the version of the guests' Linux."""
    return next((kernel / "lib/modules").iterdir()).name


def _say(line: str) -> None:
    print(line, flush=True)


def run(
    kernel: Path,
    jobs: Iterable[Job],
    *,
    timeout: float,
    tell: Callable[[str], None] = _say,
    done: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Run the jobs, each for ``timeout`` seconds at most; ``done`` hears of each as it ends.

    ``tell`` gets a line a running job from time to time.
    """
    with ThreadPoolExecutor(MACHINES) as pool:

        def one(job: Job) -> Outcome:
            outcome = _run(kernel, job, timeout, tell)
            done(outcome)
            return outcome

        return list(pool.map(one, jobs))


def _run(kernel: Path, job: Job, timeout: float, tell: Callable[[str], None]) -> Outcome:
    results = CACHE / "results" / job.name
    environment = {
        kinds.IN_MACHINE: "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        **job.environment,
    }
    begin = time.monotonic()
    status, fault = None, ""
    with _beat(lambda: tell(f"    {job.name}: {time.monotonic() - begin:.0f} s, at {machine.at(results)}")):
        try:
            status = machine.run(
                kernel, job.command, results, directory=ROOT, environment=environment, timeout=timeout
            )
        except MachineError as error:
            fault = f"the machine: {error}"
    return Outcome(job, results, time.monotonic() - begin, status, fault)


@contextmanager
def _beat(call: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def body() -> None:
        while not ended.wait(BEAT_SECONDS):
            call()

    thread = threading.Thread(target=body, name="beat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
