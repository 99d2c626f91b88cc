"""The run: every check on a host of its own, some side by side, and what all their calls say together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from podwire.cni import versions
from podwire.conformance import isolation, pods, profiles, services, subject
from podwire.conformance.case import Case
from podwire.conformance.catalogue import Check, checks
from podwire.conformance.findings import NotTestable, Outcome, Problem, Skip, Status
from podwire.conformance.invocation import Ran
from podwire.conformance.overall import OVERALL
from podwire.conformance.profiles import Kind
from podwire.conformance.subject import Subject
from podwire.kernel.errors import KernelError

HANGS_MAX = 3
"""So many calls may hang before the checks that are left are skipped."""


class Record:
    """All calls of a run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls: list[Ran] = []

    def add(self, ran: Ran) -> None:
        """Keep a call."""
        with self._lock:
            self.calls.append(ran)

    @property
    def hangs(self) -> int:
        """How many calls were killed at their deadline."""
        with self._lock:
            return sum(ran.hung for ran in self.calls)


def check_ids() -> tuple[str, ...]:
    """The ids of all checks."""
    return tuple(one.id for one in checks()) + tuple(one.row.id for one in OVERALL)


def prepare(given: Subject) -> Subject:
    """Ask the plugin what it speaks and try what it is; NotTestable says why no run is possible."""
    isolation.require_root()
    return isolation.on_new_host(lambda: _prepared(given), given.path)


def _prepared(given: Subject) -> Subject:
    for kind in {one.profile.link_kind for one in given.members} - {""}:
        if not pods.kernel_has(kind):
            raise NotTestable(f"this kernel has no links of the kind {kind}")
    beside = services.daemon(given.daemon, given.timeout)
    try:
        known = msgspec.structs.replace(given, versions=subject.spoken_versions(given))
    finally:
        services.stop(beside)
    if given.given is None:
        return known
    return _tried(known)


def _tried(given: Subject) -> Subject:
    """Find out by ADDs what a plugin of an unknown type is, and whether it takes two containers."""
    kinds = [given.profile.kind] if given.type in profiles.PROFILES else [Kind.MAIN, Kind.CHAINED]
    said = ""
    for kind in kinds:
        profile = given.profile if given.type in profiles.PROFILES else profiles.of_kind(kind)
        candidate = msgspec.structs.replace(given, profile=profile)

        def attempt(candidate: Subject = candidate) -> Subject | str:
            return _attempt(candidate)

        made = isolation.on_new_host(attempt, given.path)
        if isinstance(made, Subject):
            return made
        said = said or made
    raise NotTestable(f"no ADD succeeds with this configuration: {said}")


def _attempt(candidate: Subject) -> Subject | str:
    with Case(candidate) as case:
        return _attempted(candidate, case)


def _attempted(candidate: Subject, case: Case) -> Subject | str:
    pod = case.pod()
    ran = case.add(pod)
    if ran.status != 0:
        return ran.describe()
    interfaces = ran.said.get("interfaces") if isinstance(ran.said, dict) else None
    makes = versions.at_least(case.version, "0.3.0")
    if candidate.type not in profiles.PROFILES and candidate.kind is Kind.MAIN and makes and not interfaces:
        candidate = msgspec.structs.replace(candidate, profile=profiles.of_kind(Kind.IPAM))
    second = case.add(case.pod())
    if second.status != 0:
        return msgspec.structs.replace(candidate, single=second.describe())
    return candidate


def run(
    tested: Subject,
    wanted: Sequence[str] = (),
    *,
    jobs: int | None = None,
    done: Callable[[Outcome], None] = lambda _outcome: None,
) -> tuple[Outcome, ...]:
    """Run the checks (``wanted``: only those ids) on a prepared subject, ``jobs`` side by side.

    ``done`` hears of each outcome when it is there; it is called from several threads.
    """
    chosen = [one for one in checks() if not wanted or one.id in wanted]
    record = Record()

    def one(check: Check) -> Outcome:
        outcome = _checked(check, tested, record)
        done(outcome)
        return outcome

    with ThreadPoolExecutor(jobs or os.cpu_count() or 2) as threads:
        outcomes = list(threads.map(one, chosen))
    for check in OVERALL:
        if not wanted or check.row.id in wanted:
            outcome = _outcome(check.row, tested, check.judge(record.calls))
            done(outcome)
            outcomes.append(outcome)
    return tuple(outcomes)


def _checked(check: Check, tested: Subject, record: Record) -> Outcome:
    began = time.monotonic()
    problems: list[Problem] = []

    def perform() -> None:
        with Case(tested, record.add) as case:
            problems.extend(check.run(case))

    reason = check.not_for(tested.kind, chain=bool(tested.then))
    if not reason and record.hangs >= HANGS_MAX:
        reason = f"{record.hangs} calls hung before"
    if not reason:
        try:
            isolation.on_new_host(perform, tested.path)
        except Skip as error:
            reason = str(error)
        except (KernelError, OSError) as error:
            reason = f"the tester could not go on: {error}"
    seconds = time.monotonic() - began
    return _outcome(check, tested, problems, reason=reason, seconds=seconds)


def _outcome(
    check: Check, tested: Subject, problems: Sequence[Problem], *, reason: str = "", seconds: float = 0.0
) -> Outcome:
    status = Status.SKIPPED if reason else Status.PASSED
    return Outcome(
        plugin=tested.name,
        check=check.id,
        title=check.title,
        section=check.section,
        severity=check.severity,
        expected=check.expected,
        status=Status.FAILED if problems else status,
        problems=tuple(problems),
        reason=reason,
        seconds=round(seconds, 3),
    )
