"""The command lines of ``podwire agent`` and ``podwire gc`` where they cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from podwire.cli.__main__ import main


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("agent status -o xml", 2, "error: --output 'xml' is not json"),
        ("gc -o xml", 2, "error: --output 'xml' is not json"),
        ("agent status", 1, "/run/agent.sock: No such file or directory"),
        ("gc --dry-run", 1, "/run/agent.sock: No such file or directory"),
        ("agent nothing", 2, "No such command 'nothing'."),
    ],
)
def test_it_says_why(
    line: str,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PODWIRE_ROOT", "/tmp/pw-none")
    assert main(line.split()) == status
    assert said in capsys.readouterr().err


@pytest.mark.kernel
def test_a_settings_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.yaml"
    assert main(["agent", "--root", "/tmp/pw-none", "--config", str(missing)]) == 1
    assert capsys.readouterr().err == f"error: {missing}: No such file or directory\n"
