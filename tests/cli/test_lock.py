"""One node for each place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podwire.cli import lock


def test_the_second_holder_learns_the_first_ones_pid(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    assert lock.holder(path) is None
    with lock.hold(path):
        assert lock.holder(path) == os.getpid()
        with pytest.raises(lock.NodeRunning) as caught, lock.hold(path):
            pass
        assert (caught.value.pid, caught.value.path) == (os.getpid(), path)
    assert lock.holder(path) is None
    with lock.hold(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    program = (
        "import sys; from pathlib import Path; from podwire.cli import lock\n"
        "with lock.hold(Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": "src"}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert lock.holder(path) == process.pid
        process.kill()
    assert lock.holder(path) is None
