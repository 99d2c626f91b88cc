"""Plugins that hand their work to a daemon: ours before the agent, under the conformance tester."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podwire.conformance import subject, tester
from podwire.conformance.findings import NotTestable, Status
from podwire.conformance.services import HOME, Daemon

pytestmark = pytest.mark.kernel

ROOT = HOME / "podwire"
SOCKET = ROOT / "run/agent.sock"
PODWIRE = (sys.executable, "-m", "podwire")
AGENT = Daemon((*PODWIRE, "agent", "--root", str(ROOT)), SOCKET)
CHECKS = ["add", "check", "check-tampered", "del", "del-netns-gone", "gc", "address-twice", "status"]


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    install = (*PODWIRE, "install", "--bin-dir", str(tmp_path), "--socket", str(SOCKET))
    subprocess.run([*install, "--no-conflist", "--no-standalone"], check=True, capture_output=True)
    return tmp_path


@pytest.mark.parametrize("type", ["bridge", "portmap", "dhcp"])
def test_hosted_plugins_have_no_finding(bin_dir: Path, type: str) -> None:
    prepared = tester.prepare(subject.resolve(str(bin_dir / type), [], daemon=AGENT))
    outcomes = tester.run(prepared, CHECKS)
    assert {one.check: one.problems for one in outcomes if one.status is Status.FAILED} == {}
    assert sum(one.status is Status.PASSED for one in outcomes) >= 5


def test_without_its_daemon_a_plugin_has_findings(bin_dir: Path) -> None:
    outcomes = tester.run(subject.resolve(str(bin_dir / "loopback"), []), ["add"])
    assert "podwire agent" in outcomes[0].problems[0].observed


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/nonexistent",), "^/nonexistent: No such file"),
        (("true",), r"^true: made no /run/conformance/\S+ and ended; it said: nothing$"),
        (("sh", "-c", "echo one >&2; echo two >&2"), r" and ended; it said: two$"),
        (("sh", "-c", "echo slow >&2; exec sleep 4321"), r" within 4 s; it said: slow$"),
    ],
)
def test_a_daemon_that_does_not_come_up_is_told(bin_dir: Path, command: tuple[str, ...], said: str) -> None:
    given = subject.resolve(str(bin_dir / "loopback"), [], timeout=4, daemon=Daemon(command, SOCKET))
    with pytest.raises(NotTestable, match=said):
        tester.prepare(given)
