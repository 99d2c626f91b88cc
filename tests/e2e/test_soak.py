"""A short run of the soak, always with the same dice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.helpers import SOURCE

pytestmark = pytest.mark.kernel


def test_three_rounds_of_kills_and_changes_leave_everything_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.soak", "--seed", "11", "--rounds", "3"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{SOURCE.parent}"},
        timeout=200,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "3 rounds, nothing wrong" in done.stdout
