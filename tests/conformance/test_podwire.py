"""The plugin `podwire` before the tester, in both modes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podwire.conformance import subject, tester
from tests.conformance import helpers
from tests.conformance.test_chained import executable

pytestmark = pytest.mark.kernel
CHECKS = {
    "routed": "field-type side-by-side check-damage del-netns-gone gc",
    "bridge": "check-damage del-late gc",
}


@pytest.mark.parametrize("mode", ["routed", "bridge"])
def test_podwire_has_no_finding(tmp_path: Path, mode: str) -> None:
    place = executable(tmp_path, "podwire")
    conf = tmp_path / "net.conf"
    config = {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "podwire",
        "mode": mode,
        "subnets": ["10.89.0.0/24"],
    }
    conf.write_text(json.dumps(config))
    found = tester.prepare(subject.resolve(str(place), [str(tmp_path)], conf if mode == "bridge" else None))
    outcomes = tester.run(found, CHECKS[mode].split())
    assert helpers.told(outcomes) == ""
    assert helpers.passed(outcomes) == set(CHECKS[mode].split())
