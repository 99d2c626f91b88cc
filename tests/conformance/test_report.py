"""The outcomes as JSON and as JUnit XML, and how much they weigh."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import msgspec
import pytest

from podwire.conformance import report
from podwire.conformance.findings import Outcome, Problem, Severity, Status

PASSED = Outcome(
    plugin="bridge",
    check="add",
    title="An ADD",
    section="2 ADD",
    severity=Severity.VIOLATION,
    expected="a result",
    status=Status.PASSED,
    seconds=0.25,
)
SKIPPED = msgspec.structs.replace(PASSED, check="gc", status=Status.SKIPPED, reason="no <GC>")
VIOLATED = msgspec.structs.replace(
    PASSED,
    check="del",
    status=Status.FAILED,
    problems=(Problem("DEL", "exit status 1\x1b"), Problem("DEL again", "exit status 2", Severity.NOTE)),
)
WEAK = msgspec.structs.replace(
    PASSED, check="error", severity=Severity.WEAKNESS, status=Status.FAILED, problems=(Problem("ADD", "odd"),)
)
ALL = (PASSED, SKIPPED, VIOLATED, WEAK)


@pytest.mark.parametrize(
    ("severities", "weight"),
    [
        ((None,), Severity.VIOLATION),
        ((Severity.NOTE, None), Severity.VIOLATION),
        ((Severity.NOTE, Severity.WEAKNESS), Severity.WEAKNESS),
        ((Severity.NOTE,), Severity.NOTE),
    ],
)
def test_a_check_weighs_as_its_worst_problem(
    severities: tuple[Severity | None, ...], weight: Severity
) -> None:
    problems = tuple(Problem("x", "y", one) for one in severities)
    outcome = msgspec.structs.replace(VIOLATED, problems=problems)
    assert outcome.weight is weight
    assert outcome.violated is (weight is Severity.VIOLATION)


def test_only_violations_violate() -> None:
    assert [one.violated for one in ALL] == [False, False, True, False]


def test_json_has_an_object_a_check() -> None:
    said = json.loads(report.as_json(ALL))
    assert [one["check"] for one in said] == ["add", "gc", "del", "error"]
    assert said[0]["section"] == "2 ADD"
    assert said[2]["problems"][1] == {"did": "DEL again", "observed": "exit status 2", "severity": "note"}
    assert said[1]["reason"] == "no <GC>"


def test_junit_has_a_suite_a_plugin_and_fails_for_violations_only() -> None:
    other = msgspec.structs.replace(PASSED, plugin="ptp")
    root = ElementTree.fromstring(report.as_junit((*ALL, other)))
    assert [suite.get("name") for suite in root] == ["bridge", "ptp"]
    bridge = root[0]
    assert [bridge.get(key) for key in ("tests", "failures", "skipped", "time")] == ["4", "1", "1", "1.000"]
    add, gc, deleted, error = bridge
    assert list(add) == []
    assert gc[0].tag == "skipped"
    assert gc[0].get("message") == "no <GC>"
    assert deleted[0].tag == "failure"
    assert deleted[0].get("message") == "DEL: exit status 1\ufffd"
    text = deleted[0].text or ""
    assert "section 2 ADD" in text
    assert "note: DEL again: exit status 2" in text
    assert error[0].tag == "system-out"
    assert "weakness: ADD: odd" in (error[0].text or "")
