"""bandwidth and firewall before the tester, also with a policy for the bridge's pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podwire.conformance import subject, tester
from tests.conformance import helpers
from tests.conformance.test_chained import executable

pytestmark = pytest.mark.kernel
CHECKS = "check-damage del-no-prev-result del-late del-one-of-two gc"


@pytest.mark.parametrize("plugin", ["bandwidth", "firewall"])
def test_each_alone_has_no_finding(tmp_path: Path, plugin: str) -> None:
    place = executable(tmp_path, plugin)
    found = tester.prepare(subject.resolve(str(place), [str(tmp_path)]))
    outcomes = tester.run(found, CHECKS.split())
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) == len(CHECKS.split())


@pytest.mark.parametrize("plugin", ["bandwidth", "firewall"])
def test_with_options_beyond_the_plain_ones(tmp_path: Path, plugin: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "shapedSubnets": ["fd00::/8"]},
        "firewall": {"ingressPolicy": "isolated"},
    }
    given = tmp_path / "given.conf"
    given.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "type": plugin, **options[plugin]}))
    found = tester.prepare(subject.resolve(str(executable(tmp_path, plugin)), [str(tmp_path)], given))
    checks = "check del-netns-empty"
    outcomes = tester.run(found, checks.split())
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) == len(checks.split())
