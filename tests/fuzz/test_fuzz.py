"""The fuzzer itself: every target runs, and a fault is found, made small, kept, and runs again."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzzer
from tests.fuzz.targets import Target


@pytest.mark.parametrize("name", sorted(fuzzer.ALL))
def test_a_short_run_finds_nothing(name: str) -> None:
    tried, data, failure = fuzzer.fuzz(fuzzer.ALL[name], 0.15, random.Random(7))
    assert failure is None, f"{failure} for {data!r}"
    assert tried > 0


def fragile(data: bytes) -> None:
    if b"\xff" in data:
        raise ZeroDivisionError
    if data:
        raise ValueError


def test_a_fault_is_found_made_small_kept_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fuzzer.ALL, "fragile", Target(fragile, (ValueError,), [b"some text that is long"]))
    monkeypatch.setenv("FUZZ_SECONDS", "30")
    monkeypatch.setenv("FUZZ_SEED", "1")
    assert fuzzer.main(["fragile"]) == 1
    said = capsys.readouterr().out
    assert "FUZZ_SEED=1" in said
    assert "ZeroDivisionError" in said
    (kept,) = Path(".fuzz").iterdir()
    assert kept.read_bytes() == b"\xff"
    assert f"again: python -m tests.fuzz fragile {kept}" in said
    assert fuzzer.main(["fragile", str(kept)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_input_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzer, "SLOW", 0.05)
    failure = fuzzer.attempt(Target(lambda _: time.sleep(5), (), [b""]), b"x")
    assert failure is not None
    assert isinstance(failure.error, fuzzer.Hung)
