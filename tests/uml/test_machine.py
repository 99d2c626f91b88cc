"""The machine of make test-kernel: only a written exit status counts. A script stands in for the kernel."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.uml import machine
from tests.uml.machine import MachineError

pytestmark = pytest.mark.kernel
HANG_SECONDS = 5.0
"""boot.sh alone takes more than one on a machine with much to do."""


def boot(directory: Path, script: str, timeout: float = 20, boot_timeout: float = 20) -> int:
    """Run the machine with a script in place of the kernel; $results is where it may write."""
    kernel = directory / "kernel"
    (kernel / "usr/bin").mkdir(parents=True)
    program = kernel / "usr/bin/linux.uml"
    program.write_text(
        "#!/bin/sh\nfor word; do case $word in podwire_results=*) results=${word#*=} ;; esac; done\n"
        f"{script}\n"
    )
    program.chmod(0o755)
    return machine.run(
        kernel,
        ["true"],
        directory / "results",
        directory=directory,
        environment={"ONE": "a b"},
        timeout=timeout,
        boot_timeout=boot_timeout,
    )


def test_the_exit_status_is_what_the_file_says(tmp_path: Path) -> None:
    assert boot(tmp_path, "echo 3 >$results/status; exit 0") == 3
    assert (tmp_path / "results/command").read_text().splitlines()[1:] == ["export ONE='a b'", "exec true"]


@pytest.mark.parametrize("script", ["exit 0", "echo >$results/status", "echo oops >$results/log; exit 1"])
def test_no_status_is_a_failure(tmp_path: Path, script: str) -> None:
    with pytest.raises(MachineError, match="without an exit status"):
        boot(tmp_path, script)


def test_a_kernel_that_dies_under_its_command_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as raised:
        boot(tmp_path, "echo command >$results/stages; echo one; echo Kernel panic; exit 134")
    assert str(raised.value) == (
        "it ended without an exit status, at: command; its log is empty; console: one | Kernel panic"
    )


def test_a_machine_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(MachineError, match=r"did not end within 5 s, it is at: command; log: testing"):
        boot(
            tmp_path,
            "echo command >$results/stages; echo testing >$results/log; sleep 4321 & sleep 4321",
            timeout=HANG_SECONDS,
        )
    assert time.monotonic() - begin < 3 * HANG_SECONDS
    assert subprocess.run(["pgrep", "-f", "sleep 4321"], capture_output=True).returncode != 0


@pytest.mark.parametrize(
    ("script", "place"), [("", "the boot"), ("echo the module ipv6 >$results/stages;", "the module ipv6")]
)
def test_a_boot_that_hangs_is_told_early_with_all_that_the_kernel_said(
    tmp_path: Path, script: str, place: str
) -> None:
    with pytest.raises(MachineError) as raised:
        boot(tmp_path, f"echo Linux 1; echo Calibrating; {script} exec sleep 4321", boot_timeout=HANG_SECONDS)
    told = str(raised.value)
    assert told.startswith("it did not boot within 5 s, it is at: ")
    assert f"it is at: {place}; its console:\nLinux 1\nCalibrating\n" in told
    assert re.search(r"its processes: .*\b\d+ S \w*nanosleep", told), told


def test_a_download_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text("#!/bin/sh\nexec sleep 4321\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "FETCH_SECONDS", 0.2)
    with pytest.raises(MachineError, match=r"^apt-get update -qq: did not end within 0\.2 s$"):
        machine.fetch(tmp_path / "cache")


def test_it_can_write_its_results_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    places = (tmp_path / "outside", Path("/etc"), Path("/tmp"), Path("/root"), Path("/var/lib"))
    tries = "".join(
        f'touch {place}/podwire-test 2>/dev/null && echo {place} >>"$results/log"; ' for place in places
    )
    assert boot(tmp_path, f'{tries}: >>"$results/log"; echo 0 >"$results/status"') == 0
    assert (tmp_path / "results/log").read_text() == ""
