"""``podwire apiserver`` as a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "podwire", "apiserver"]


def start(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--root", str(root), "--listen", "127.0.0.1:0", "-v"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def test_it_tells_where_it_is_and_ends_on_term(tmp_path: Path) -> None:
    """One at a time for a state directory; the kubeconfig is its owner's alone."""
    with start(tmp_path) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert "https://127.0.0.1:" in first
        kubeconfig = tmp_path / "lib/apiserver/kubeconfig"
        assert str(kubeconfig) in process.stdout.readline()
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        config = json.loads(kubeconfig.read_text())
        assert config["clusters"][0]["cluster"]["server"] in first
        assert config["users"][0]["user"]["token"]
        second = subprocess.run(
            [*COMMAND, "--root", str(tmp_path), "--listen", "127.0.0.1:0"], capture_output=True, text=True
        )
        assert second.returncode == 1
        assert f"an API server runs already, as process {process.pid}" in second.stderr
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_addresses_that_it_does_not_serve(tmp_path: Path) -> None:
    for address, why in (("0.0.0.0:6443", "loopback"), ("127.0.0.1", "HOST:PORT")):
        ended = subprocess.run(
            [*COMMAND, "--root", str(tmp_path), "--listen", address], capture_output=True, text=True
        )
        assert ended.returncode == 2
        assert why in ended.stderr
