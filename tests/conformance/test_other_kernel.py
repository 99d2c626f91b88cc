"""vlan, ipvlan, dummy and vrf before the tester: it needs a kernel that has such links."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from podwire.conformance import subject, tester
from tests.conformance import helpers
from tests.uml import conform

ROOT = Path(__file__).parents[2]
# All checks, in chains and before the agent too, are `make test-kernel-all`: they take minutes where Python
# starts slowly. Those left out here are about the SDK, which is the same for every plugin.
CHECKS = {
    "vlan": "check-damage failed-add-late failed-add-exhausted delegate-missing del-netns-gone status-master",
    "ipvlan": "check-damage failed-add-config ifname-taken del-late gc-keeps status-exhausted",
    "dummy": "add check-damage failed-add-late del-one-of-two del-netns-empty gc",
    "vrf": "add check-damage prev-result-passed side-by-side del-late del gc",
}


def executable(directory: Path, type: str) -> Path:
    path = directory / type
    command = [sys.executable, "-m", "podwire.plugins", type]
    path.write_text(f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT / 'src'))} exec {shlex.join(command)}\n")
    path.chmod(0o755)
    return path


@pytest.mark.kernel
@pytest.mark.parametrize("plugin", [pytest.param(one, marks=pytest.mark.other_kernel(one)) for one in CHECKS])
def test_there_is_no_finding(tmp_path: Path, plugin: str) -> None:
    executable(tmp_path, "host-local")
    place = executable(tmp_path, plugin)
    found = tester.prepare(subject.resolve(str(place), [str(tmp_path)], timeout=conform.CALL_SECONDS))
    outcomes = tester.run(found, CHECKS[plugin].split())
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) >= 5
