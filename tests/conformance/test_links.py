"""ptp, macvlan, host-device and tap before the tester, as executables."""

from __future__ import annotations

from pathlib import Path

import pytest

from podwire.conformance import subject, tester
from tests.conformance import helpers
from tests.conformance.test_chained import executable

pytestmark = pytest.mark.kernel
CHECKS = "add failed-add-late delegate-fails del-one-of-two del-late del-netns-is-none gc status field-type"


@pytest.mark.parametrize("plugin", ["ptp", "macvlan", "host-device", "tap"])
def test_each_has_no_finding(tmp_path: Path, plugin: str) -> None:
    executable(tmp_path, "host-local")
    place = executable(tmp_path, plugin)
    found = tester.prepare(subject.resolve(str(place), [str(tmp_path)]))
    outcomes = tester.run(found, CHECKS.split())
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) == len(CHECKS.split())
