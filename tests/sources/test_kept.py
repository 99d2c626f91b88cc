"""What a run of the file source knows of the one before: the last good text of each file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from podwire.sources.file import FileSource
from podwire.sources.problems import Reason
from podwire.sources.updates import Snapshot
from tests.sources.helpers import manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


def run(directory: Path, *paths: Path) -> Snapshot:
    """What a node that starts now reads."""
    return FileSource(paths or (directory,), "node", keep=directory.parent / "kept").read()


def names(snapshot: Snapshot) -> list[str]:
    return [pod.metadata.name for pod in snapshot.pods]


def kept(directory: Path) -> int:
    return len(list((directory.parent / "kept").iterdir()))


@pytest.mark.parametrize("text", ["half: [", "apiVersion: v1\nkind: Pod\nmetadata: {name: Bad_Name}\n"])
def test_a_file_that_turned_bad_between_two_runs_keeps_its_pod(directory: Path, text: str) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a"))
    before = run(directory)
    path.write_text(text)
    for _ in range(2):
        after = run(directory)
        assert after.pods == before.pods
        assert all(problem.kept and problem.pod == "default/a-node" for problem in after.problems)
        assert after.problems
    path.write_text(manifest("a", 5))
    cured = run(directory)
    assert names(cured) == ["a-node"]
    assert cured.pods != before.pods
    assert cured.problems == ()
    path.write_text(text)
    assert run(directory).pods == cured.pods


def test_a_file_or_directory_that_cannot_be_read_keeps_its_pods(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a"))
    run(directory)
    path.unlink()
    path.symlink_to("nowhere")
    snapshot = run(directory)
    assert names(snapshot) == ["a-node"]
    assert [problem.reason for problem in snapshot.problems] == [Reason.FAILED_READ]
    directory.rename(directory.parent / "elsewhere")
    directory.symlink_to(directory)  # a loop of symbolic links, which root cannot read either
    snapshot = run(directory)
    assert names(snapshot) == ["a-node"]
    assert [problem.reason for problem in snapshot.problems] == [Reason.FAILED_READ]


def test_what_was_removed_emptied_or_is_not_asked_for_any_more_is_forgotten(directory: Path) -> None:
    for name in ("a", "b", "c"):
        (directory / f"{name}.yaml").write_text(manifest(name))
    run(directory)
    assert kept(directory) == 3
    (directory / "a.yaml").unlink()
    (directory / "b.yaml").write_text("# nothing\n")
    assert names(run(directory)) == ["c-node"]
    assert kept(directory) == 1
    (directory / "a.yaml").write_text("half: [")
    (directory / "b.yaml").write_text("half: [")
    assert names(run(directory)) == ["c-node"]
    other = directory.parent / "other.yaml"
    other.write_text(manifest("d"))
    assert names(run(directory, other)) == ["d-node"]
    (directory / "c.yaml").write_text("half: [")
    assert names(run(directory)) == []


def test_a_single_file_and_a_name_that_is_no_utf8(directory: Path) -> None:
    odd = directory / os.fsdecode(b"\xff.yaml")
    odd.write_text(manifest("a"))
    for paths in ((odd,), (directory,)):
        odd.write_text(manifest("a"))
        run(directory, *paths)
        odd.write_text("half: [")
        assert names(run(directory, *paths)) == ["a-node"]


def test_a_damaged_store_is_left_out_and_a_full_one_is_no_obstacle(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    run(directory)
    (entry,) = (directory.parent / "kept").iterdir()
    entry.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert names(run(directory)) == ["a-node"]
    assert str(entry) in caplog.text
    entry.unlink()
    entry.parent.rmdir()
    entry.parent.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert names(run(directory)) == ["a-node"]
    assert "is not kept" in caplog.text
