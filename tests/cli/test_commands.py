"""Command lines that make no sense, and failures: one clear error, a status that is not 0, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from podwire.cli.__main__ import main


class Outcome:
    """What a command said, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"{self.status}\n{self.out}\n{self.err}"


Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command run in this process, in an empty directory, with no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for variable in (
        "PODWIRE_ROOT",
        "PODWIRE_DEBUG",
        "CNI_PATH",
        "CNI_ARGS",
        "CAP_ARGS",
        "CNI_IFNAME",
        "NETCONFPATH",
    ):
        monkeypatch.delenv(variable, raising=False)

    def command(*arguments: str) -> Outcome:
        status = main(arguments)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(status, captured.out, captured.err)

    return command


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("nonsense", "'nonsense'"),
        ("up --no-such-flag", "--no-such-flag"),
        ("up --no-apiserver", "no PATH given"),
        ("up ftp://example.com/pod.yaml", "ftp://example.com/pod.yaml"),
        ("up . --pod-cidr 10.0.0.0/8,10.0.0.0/8", "--pod-cidr 10.0.0.0/8,10.0.0.0/8"),
        ("up . --pod-cidr nowhere", "'nowhere'"),
        ("up . --node-name Upper", "'Upper'"),
        ("up . --bridge a/b", "'a/b'"),
        ("up . --once --detach", "--once and --detach"),
        ("up . --timeout soon", "'soon'"),
        ("up . --timeout 0", "'0'"),
        ("down --timeout=-1", "'-1'"),
        ("down now", "now"),
        ("get", "KIND"),
        ("get deployments", "'deployments'"),
        ("get pods -o xml", "'xml'"),
        ("get pods -l a=b=c", "'a=b=c'"),
        ("get pod/web other", "pod/web other"),
        ("get pods web -A", "--all-namespaces"),
        ("describe pod", "describe pod"),
        ("describe events x", "describe"),
        ("logs", "which pod"),
        ("logs web --tail many", "'many'"),
        ("logs web --tail=-2", "'-2'"),
        ("exec web", "CMD"),
        ("exec web ls -l", "-l"),
        ("cni", "Usage"),
        ("cni add", "NETWORK"),
        ("cni add net", "NETNS"),
        ("cni add net /x -o yaml", "'yaml'"),
        ("install --bin-dir", "--bin-dir"),
    ],
)
def test_a_senseless_line_is_a_usage_error(run: Run, line: str, word: str) -> None:
    outcome = run(*line.split())
    assert outcome.status == 2, outcome
    assert word in outcome.err
    assert not outcome.out


@pytest.mark.parametrize(
    "line", ["get pods", "get nodes", "get events", "describe pod web", "logs web", "exec web -- true"]
)
def test_without_a_node_the_error_says_how_to_start_one(run: Run, tmp_path: Path, line: str) -> None:
    command, *rest = line.split()
    outcome = run(command, "--root", str(tmp_path / "r"), *rest)
    assert outcome.status == 1, outcome
    assert f"{tmp_path}/r/run/node.sock" in outcome.err
    assert f"podwire up --root {tmp_path}/r" in outcome.err


def test_down_where_nothing_was_up_is_fine(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        outcome = run("down", "--root", str(tmp_path / "r"))
        assert (outcome.status, outcome.err) == (0, "")
        assert "Nothing to do" in outcome.out
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("line", ["up .", "down"])
def test_without_root_it_says_so(run: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    outcome = run(*line.split())
    assert outcome.status == 1
    assert "root" in outcome.err


def test_a_path_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    outcome = run("up", "missing", "--root", str(tmp_path / "r"))
    assert (outcome.status, outcome.err) == (1, "error: missing: No such file or directory\n")
    assert not (tmp_path / "r").exists()


def test_version(run: Run) -> None:
    assert run("version").out == run("--version").out == "podwire 0.1.0\n"


def test_the_traceback_is_there_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fault() -> bool:
        raise ValueError("oops")

    monkeypatch.setattr("podwire.cli.checks.root", fault)
    assert main(["down"]) == 1
    said = capfd.readouterr().err
    assert "a fault in podwire: ValueError: oops" in said
    assert "PODWIRE_DEBUG=1" in said
    assert "Traceback" not in said
    monkeypatch.setenv("PODWIRE_DEBUG", "1")
    assert main(["down"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_a_reader_that_has_enough_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": "src", "PYTHONUNBUFFERED": "1"}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "podwire", "version"],
            stdout=closed,
            stderr=subprocess.PIPE,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_help_is_quick_and_light() -> None:
    program = (
        "import sys; from podwire.cli.__main__ import main; main(['--help'])\n"
        "heavy = {'rich', 'asyncio', 'aiohttp', 'yaml', 'ctypes'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert "podwire" in done.stdout
    assert done.stderr == "[]\n"
