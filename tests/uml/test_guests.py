"""Guests side by side: what becomes of each job is told. A script stands in for the kernel."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from podwire.conformance.findings import Outcome as Checked
from podwire.conformance.findings import Problem, Severity, Status
from tests.uml import __main__ as tests_of_mark
from tests.uml import conform, everything, guests
from tests.uml.guests import Job, Outcome

KERNEL = """#!/bin/sh
for word; do case $word in podwire_results=*) results=${word#*=} ;; esac; done
echo command >$results/stages
sh -e $results/command >$results/log 2>&1
echo $? >$results/status
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guests, "CACHE", tmp_path)
    program = tmp_path / "uml/usr/bin/linux.uml"
    program.parent.mkdir(parents=True)
    program.write_text(KERNEL)
    program.chmod(0o755)
    return tmp_path / "uml"


@pytest.mark.kernel
def test_each_job_has_its_status_and_its_log_in_the_order_of_the_jobs(kernel: Path) -> None:
    jobs = [
        Job(name, ["sh", "-c", f"echo {name} $ONE; exit {name[1:]}"], {"ONE": "1"}) for name in ("a3", "b0")
    ]
    heard: list[str] = []
    outcomes = guests.run(kernel, jobs, timeout=20, done=lambda outcome: heard.append(outcome.job.name))
    assert [(one.job.name, one.status, one.fault, one.log) for one in outcomes] == [
        ("a3", 3, "", "a3 1\n"),
        ("b0", 0, "", "b0 1\n"),
    ]
    assert sorted(heard) == ["a3", "b0"]


@pytest.mark.kernel
def test_while_a_job_runs_it_is_told_what_it_is_at_and_its_end_is_a_fault(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "BEAT_SECONDS", 0.2)
    told: list[str] = []
    [outcome] = guests.run(
        kernel,
        [Job("slow", ["sh", "-c", "echo one; echo two; exec sleep 4321"])],
        timeout=5,
        tell=told.append,
    )
    assert outcome.status is None
    assert outcome.fault.startswith(
        "the machine: it did not end within 5 s, it is at: command; log: one | two"
    )
    assert told[-1].endswith(" s, at command; log: two")


def checked(check: str, status: Status, *problems: Problem) -> Checked:
    return Checked("vlan", check, "", "2 DEL", Severity.VIOLATION, "", status, problems)


def test_a_run_is_told_with_its_counts_and_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        checked("add", Status.PASSED),
        checked("gc", Status.SKIPPED),
        checked("del", Status.FAILED, Problem("DEL", "left behind"), Problem("x", "y", Severity.NOTE)),
    ]
    (tmp_path / conform.OUTCOMES).write_bytes(msgspec.json.encode(found))
    everything._tell(Outcome(Job("vlan-hosted", []), tmp_path, 12.3, 1))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("vlan-hosted ")
    assert lines[0].endswith(" 1 passed, 1 do not apply, 1 with findings, 12 s")
    assert lines[1:] == ["    del: violation: DEL: left behind", "    del: note: x: y"]


def test_a_run_without_outcomes_shows_all_that_it_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("Traceback\n")
    everything._tell(Outcome(Job("vlan-hosted", []), tmp_path, 1, None, "the machine: gone"))
    out = capsys.readouterr().out
    assert "no outcome, exit status None" in out
    assert out.endswith("Traceback\nthe machine: gone\n")


def test_runs_are_chosen_by_a_part_of_their_names() -> None:
    assert len(everything._jobs([])) == 2 * len(everything.SUBJECTS)
    [job] = everything._jobs(["ipvlan-hosted"])
    assert (job.name, list(job.command[-2:])) == ("ipvlan-hosted", ["ipvlan", "hosted"])
    assert everything._jobs(["nosuch"]) == []


def test_the_files_of_the_mark_are_those_that_name_it() -> None:
    files = tests_of_mark._files()
    named = [
        str(path.relative_to(guests.ROOT))
        for path in (guests.ROOT / "tests").rglob("test_*.py")
        if "other_kernel(" in path.read_text() and path.parent.name != "uml"
    ]
    assert named
    assert set(named) <= set(files)
