"""The shim as it is built: small, static, the same bytes each time, and inside of the wheel."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from podwire.plugins import shims
from tests.shim import wheel as wheels
from tests.shim.helpers import ROOT, build, builder
from tests.shim.test_absent import HINT

ARCH = platform.machine()


def test_the_same_source_gives_the_same_bytes_and_no_path_is_inside(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    program = build(tmp_path / "a").read_bytes()
    assert program == build(tmp_path / "b").read_bytes()
    wheels.check_program(program, ARCH)
    assert program.count(shims.MARK) == 1
    assert shims.socket_of(program) == Path("/run/podwire/agent.sock")


def test_a_source_that_warns_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = builder()
    source = tmp_path / "podwire.c"
    source.write_text("int main(void) { int unused; return 0; }\n")
    monkeypatch.setattr(shim, "HERE", tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        shim.compile(tmp_path / "out", shim.system())
    assert [path.name for path in tmp_path.iterdir()] == ["podwire.c"]


def test_without_any_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = builder()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(shim.NoCompiler, match="musl-tools"):
        shim.system()
    monkeypatch.setenv("CC", "some-cc --flag")
    assert shim.system() == ["some-cc", "--flag"]


def test_the_wheel_has_it_inside_and_it_runs_where_the_wheel_is_installed(tmp_path: Path) -> None:
    """Without ziglang, as here, for this machine only; the tag says so. ``make wheel`` checks the other."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)]
    subprocess.run([*pip, *command], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-py3-none-linux_{ARCH}.whl")
    found = wheels.shims(wheel)
    assert list(found) == [ARCH]
    wheels.check_program(found[ARCH], ARCH)

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    install = ["install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, "--python", str(venv / "bin" / "python"), *install], check=True)
    code = (
        "import sys; from pathlib import Path; from podwire.plugins import installing\n"
        "home = Path(sys.argv[1]); files = installing.programs(home, home / 's', standalone=False)\n"
        "installing.install(home, files, installing.is_our_program)"
    )
    home = tmp_path / "bin"
    subprocess.run([str(venv / "bin" / "python"), "-I", "-c", code, str(home)], check=True)
    assert wheels.call([str(home / "bridge")], {}) == {
        "cniVersion": "1.1.0",
        "code": 11,
        "msg": f"podwire agent on {home}/s: not running: No such file or directory",
        "details": HINT,
    }
