"""The exemplar as a subject of the tester: without a fault, or with one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from podwire.conformance import profiles, tester
from podwire.conformance.findings import Outcome, Status
from podwire.conformance.profiles import Kind
from podwire.conformance.subject import Subject

GO = "/usr/lib/cni"
EXEMPLAR = Path(__file__).with_name("exemplar.py")


def write_exemplar(directory: Path, fault: str = "") -> Path:
    text = EXEMPLAR.read_text()
    assert text.count('FAULT = ""') == 1
    assert f'"{fault}"' in text or f'"{fault.rsplit(" ", 1)[0]} {{' in text
    path = directory / "exemplar"
    first, rest = text.split("\n", 1)
    assert first.startswith("#!/usr/bin/python3 ")
    shebang = first.replace("/usr/bin/python3", sys.executable)
    faulty = rest.replace('FAULT = ""', f'FAULT = "{fault}"')
    path.write_text(f"{shebang}\n{faulty}")
    path.chmod(0o755)
    return path


def configuration(role: str) -> dict[str, Any]:
    if role == "chained":
        return {"type": "exemplar", "role": role}
    return {"type": "exemplar", "role": role, "ipam": profiles.host_local()}


def exemplar(directory: Path, role: str, fault: str = "", timeout: float = 10.0) -> Subject:
    return Subject(
        type="exemplar",
        executable=str(write_exemplar(directory, fault)),
        path=(str(directory), GO),
        profile=profiles.of_kind(Kind(role)),
        given=configuration(role),
        timeout=timeout,
    )


def failed(outcomes: tuple[Outcome, ...]) -> set[str]:
    return {one.check for one in outcomes if one.status is Status.FAILED}


def told(outcomes: tuple[Outcome, ...]) -> str:
    return "\n".join(
        f"{one.check}: {problem.did}: {problem.observed}" for one in outcomes for problem in one.problems
    )


def run(subject: Subject, *wanted: str) -> tuple[Outcome, ...]:
    return tester.run(subject, wanted)


def speaking(subject: Subject, versions: tuple[str, ...]) -> Subject:
    return msgspec.structs.replace(subject, versions=versions)


def passed(outcomes: tuple[Outcome, ...]) -> set[str]:
    return {one.check for one in outcomes if one.status is Status.PASSED}
