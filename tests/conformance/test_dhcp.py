"""dhcp under the conformance tester, with its own daemon: what needs no waiting of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from podwire.conformance import subject, tester
from podwire.conformance.findings import Status

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
CHECKS = ["address-twice", "del-netns-gone", "gc", "key-missing"]


def test_no_finding(tmp_path: Path) -> None:
    script = tmp_path / "dhcp"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -m podwire.plugins dhcp "$@"\n'
    )
    script.chmod(0o755)
    prepared = tester.prepare(subject.resolve(str(script), []))
    outcomes = tester.run(prepared, CHECKS)
    assert {
        one.check: (one.problems, one.reason) for one in outcomes if one.status is not Status.PASSED
    } == {}
    assert {one.check for one in outcomes} == set(CHECKS)
