from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podwire.kube.defaults import static_pod
from podwire.kube.manifest import load_pod
from podwire.sources import manifests
from podwire.sources.file import FileSource
from podwire.sources.mux import Mux
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import Op, Snapshot
from podwire.sources.watch import HOLD
from tests.sources.helpers import Watched, manifest, running


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


def read(*paths: Path) -> Watched:
    watched = Watched()
    watched.emit(FileSource(paths, "Node").read())
    return watched


def only(problems: list[SourceProblem]) -> SourceProblem:
    (problem,) = problems
    return problem


# One look at the files


def test_a_directory_is_read_in_the_order_of_names_without_dot_files_and_subdirectories(
    directory: Path,
) -> None:
    for name in ("b.yaml", "a.json", "Z", "ü.txt"):
        (directory / name).write_text(manifest(f"pod-{name[0].lower() if name[0] != 'ü' else 'u'}"))
    (directory / ".hidden.yaml").write_text(manifest("hidden"))
    (directory / "sub").mkdir()
    (directory / "sub" / "c.yaml").write_text(manifest("sub"))
    seen = read(directory)
    assert seen.names() == ["pod-z-node", "pod-a-node", "pod-b-node", "pod-u-node"]
    problem = only(seen.problems())
    assert (problem.subject, problem.reason, problem.type) == (
        str(directory / "sub"),
        Reason.IGNORED_FILE,
        "Normal",
    )


def test_a_pod_is_defaulted_with_node_and_path(directory: Path) -> None:
    path = directory / "web.yaml"
    path.write_text(manifest("web"))
    written = load_pod(manifest("web"))
    assert written is not None
    assert read(directory).last.pods == (
        static_pod(written, node_name="Node", source="file", path=str(path)),
    )


def test_a_single_file_and_a_directory_are_one_source(directory: Path, tmp_path: Path) -> None:
    single = tmp_path / "single.yaml"
    single.write_text(manifest("single"))
    (directory / "a.yaml").write_text(manifest("a"))
    assert read(single, directory).names() == ["single-node", "a-node"]
    assert read(directory, single, directory).names() == ["a-node", "single-node"]


def test_a_relative_path_gives_the_same_pod(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    monkeypatch.chdir(directory.parent)
    assert read(Path("manifests")).last == read(directory).last


def test_a_missing_path_is_an_empty_snapshot(tmp_path: Path) -> None:
    seen = read(tmp_path / "nowhere")
    assert seen.names() == []
    assert only(seen.problems()).reason is Reason.MISSING_PATH


def test_H08_empty_files_are_no_pods_and_no_problems(directory: Path) -> None:
    (directory / "a.yaml").write_text("")
    (directory / "b.yaml").write_text("# later\n---\n")
    assert read(directory).last.problems == ()
    assert read(directory).names() == []


def test_H10_another_kind_is_one_short_problem(directory: Path) -> None:
    (directory / "kustomization.yaml").write_text(
        "kind: Kustomization\napiVersion: x/v1\nresources: [a, b]\n"
    )
    problem = only(read(directory).problems())
    assert problem.reason is Reason.FAILED_PARSE
    assert problem.message == "kind Kustomization is not supported here: only Pod"
    assert problem.line == 1


def test_a_bad_file_does_not_keep_the_others_from_being_seen(directory: Path) -> None:
    (directory / "a.yaml").write_text("kind: Pod\nbad: [\n")
    (directory / "b.yaml").write_text(manifest("b"))
    seen = read(directory)
    assert seen.names() == ["b-node"]
    problem = only(seen.problems())
    assert (problem.subject, problem.line, problem.kept) == (str(directory / "a.yaml"), 3, False)


def test_every_fault_of_a_file_is_told_with_its_line_and_pod(directory: Path) -> None:
    (directory / "a.yaml").write_text(
        manifest("a").replace("command", "comand").replace("name: main", "nam: main")
    )
    problems = read(directory).problems()
    assert [(p.line, p.pod) for p in problems] == [(7, "default/a-node"), (8, "default/a-node")]
    assert str(problems[1]) == (
        f'{directory}/a.yaml:8: spec.containers[0].comand: unknown field: did you mean "command"?'
    )


def test_H05_the_first_file_wins_and_the_other_is_told(directory: Path) -> None:
    (directory / "kube.yaml").write_text(manifest("same", 1))
    (directory / "kube.yaml.bak").write_text(manifest("same", 2))
    seen = read(directory)
    (pod,) = seen.last.pods
    assert pod.spec.containers[0].command == ["sleep", "1"]
    problem = only(seen.problems())
    assert (problem.reason, problem.type, problem.pod) == (
        Reason.DUPLICATE_NAME,
        "Warning",
        "default/same-node",
    )
    assert problem.subject == str(directory / "kube.yaml.bak")
    assert f"already in {directory}/kube.yaml" in problem.message


def test_two_files_with_one_fixed_uid_are_told(directory: Path) -> None:
    for name in ("a", "b"):
        text = manifest(name).replace("metadata:\n", "metadata:\n  uid: fixed\n")
        (directory / f"{name}.yaml").write_text(text)
    seen = read(directory)
    assert seen.names() == ["a-node"]
    assert 'UID "fixed" is already in' in only(seen.problems()).message


def test_a_name_that_is_too_long_with_the_nodes_is_a_problem(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a" * 250))
    seen = read(directory)
    assert seen.names() == []
    assert "longer than 253 characters" in only(seen.problems()).message


def test_overlapping_host_ports_are_a_warning_of_a_pod_that_runs(directory: Path) -> None:
    ports = "    ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9, hostIP: 1.2.3.4}]\n"
    (directory / "a.yaml").write_text(manifest("a") + ports)
    seen = read(directory)
    assert seen.names() == ["a-node"]
    problem = only(seen.problems())
    assert (problem.reason, problem.line, problem.kept) == (Reason.AMBIGUOUS_PORT, 9, False)


@pytest.mark.parametrize("name", ["a.yaml~", "a.yaml.swp", "a.yaml.tmp", "#a.yaml#", "a.yaml.dpkg-new"])
def test_temporary_files_are_not_read_and_told_only_if_they_stay(directory: Path, name: str) -> None:
    path = directory / name
    path.write_text(manifest("a"))
    assert read(directory).last.pods == ()
    assert read(directory).problems() == []
    old = time.time() - 60
    os.utime(path, (old, old))
    problem = only(read(directory).problems())
    assert (problem.subject, problem.reason) == (str(path), Reason.IGNORED_FILE)
    path.write_text("binary rubbish {")
    os.utime(path, (old, old))
    assert read(directory).problems() == []


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_link_to_null(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Path.mkdir, "a directory"),
        (make_pipe, "a named pipe"),
        (make_socket, "a socket"),
        (make_link_to_null, "a device"),
    ],
)
def test_what_is_no_regular_file_is_skipped_with_a_note(
    directory: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(directory / "a.yaml")
    (directory / "b.yaml").write_text(manifest("b"))
    seen = read(directory)
    assert seen.names() == ["b-node"]
    problem = only(seen.problems())
    assert (problem.reason, problem.message) == (Reason.IGNORED_FILE, f"{kind}: it is not read")


def test_links_that_lead_nowhere_or_around_are_problems(directory: Path) -> None:
    (directory / "a.yaml").symlink_to("gone.yaml")
    (directory / "b.yaml").symlink_to("b.yaml")
    nowhere, around = read(directory).problems()
    assert (nowhere.reason, around.reason) == (Reason.FAILED_READ, Reason.FAILED_READ)
    assert "leads to gone.yaml: No such file" in nowhere.message
    assert "Too many levels of symbolic links" in around.message


def test_a_file_that_cannot_be_read_is_a_problem(directory: Path) -> None:
    (directory / "a.yaml").symlink_to("/proc/self/mem")
    problem = only(read(directory).problems())
    assert (problem.reason, problem.message) == (Reason.FAILED_READ, "Input/output error")


def test_a_path_of_a_strange_kind_or_below_a_file_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    problems = {
        Path(p.subject).name: p.reason
        for p in read(tmp_path / "pipe", tmp_path / "file" / "below").problems()
    }
    assert problems == {"pipe": Reason.IGNORED_FILE, "below": Reason.FAILED_READ}


def test_a_pipe_that_takes_the_place_of_a_file_blocks_nobody(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "file").write_text("x")
    os.mkfifo(directory / "pipe")
    regular = (directory / "file").stat()
    monkeypatch.setattr("podwire.sources.manifests.os.stat", lambda _: regular)
    raised: list[str] = []

    def read_pipe() -> None:
        try:
            manifests.read(str(directory / "pipe"))
        except manifests.NotRegular as error:
            raised.append(str(error))

    reader = threading.Thread(target=read_pipe, daemon=True)
    reader.start()
    reader.join(5)
    assert raised == ["a named pipe"]


def test_a_file_so_young_that_a_change_might_not_show_is_read_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory / "a.yaml"
    path.write_text("x")
    assert manifests.read(str(path)) == (b"x", None)
    later = time.time_ns() + 10**9
    monkeypatch.setattr("podwire.sources.manifests.time.time_ns", lambda: later)
    assert manifests.read(str(path)) == (b"x", manifests.signature(path.stat()))


def test_names_that_are_not_utf_8_can_be_told(directory: Path) -> None:
    (Path(os.fsdecode(bytes(directory) + b"/a\xff\n.yaml"))).write_text("x")
    problem = only(read(directory).problems())
    assert problem.subject.endswith(r"a\\xff\n.yaml")
    str(problem).encode()


# While it runs


async def test_a_new_file_is_there_at_once(directory: Path) -> None:
    async with running(directory) as seen:
        assert seen.names() == []
        (directory / "a.yaml").write_text(manifest("a"))
        await seen.until_names("a-node")


async def test_a_changed_file_makes_another_pod(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a", 1))
    async with running(directory) as seen:
        before = seen.last.pods[0].metadata.uid
        (directory / "a.yaml").write_text(manifest("a", 2))
        after = await seen.until(lambda s: s.pods[0].metadata.uid != before)
        assert after.pods[0].spec.containers[0].command == ["sleep", "2"]


async def test_a_file_of_the_same_size_and_time_is_read_again(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a", 1))
    os.utime(path, (1, 1))
    async with running(directory) as seen:
        path.write_text(manifest("a", 2))
        os.utime(path, (1, 1))
        await seen.until(lambda s: s.pods[0].spec.containers[0].command == ["sleep", "2"])


async def test_a_removed_file_takes_its_pod_along(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    async with running(directory) as seen:
        (directory / "a.yaml").unlink()
        await seen.until_names()


async def test_a_renamed_file_is_another_pod(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    async with running(directory) as seen:
        before = seen.last.pods[0].metadata.uid
        (directory / "a.yaml").rename(directory / "b.yaml")
        after = await seen.until(lambda s: bool(s.pods) and s.pods[0].metadata.uid != before)
        assert after.pods[0].metadata.name == "a-node"


async def test_H01_a_file_taken_away_and_put_back_is_the_same_pod(directory: Path, tmp_path: Path) -> None:
    path, kept = directory / "a.yaml", tmp_path / "kept.yaml"
    path.write_text(manifest("a"))
    shutil.copy(path, kept)
    async with running(directory) as seen:
        (before,) = seen.last.pods
        path.unlink()
        await seen.until_names()
        shutil.copy(kept, path)
        after = await seen.until_names("a-node")
        assert after.pods == (before,)


async def test_H01_at_once_the_pod_is_never_without_its_file(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a"))
    async with running(directory) as seen:
        path.unlink()
        path.write_text(manifest("a"))
        (directory / "b.yaml").write_text(manifest("b"))
        await seen.until_names("a-node", "b-node")
        assert all("a-node" in [p.metadata.name for p in s.pods] for s in seen.snapshots)


async def test_an_editor_that_renames_and_writes_anew_removes_nothing_in_between(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a", 1))
    async with running(directory) as seen:
        path.rename(directory / "a.yaml~")
        await asyncio.sleep(0.05)
        with path.open("w") as file:
            await asyncio.sleep(0.05)
            file.write(manifest("a", 2))
        (directory / "a.yaml~").unlink()
        await seen.until(lambda s: s.pods[0].spec.containers[0].command == ["sleep", "2"])
        assert all(len(s.pods) == 1 for s in seen.snapshots)


async def test_H07_a_file_that_turns_bad_keeps_its_last_good_pod_until_it_is_cured(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a", 1))
    async with running(directory) as seen:
        good = seen.last.pods
        path.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a\n")
        bad = await seen.until(lambda s: bool(s.problems))
        assert bad.pods == good
        problem = only(list(bad.problems))
        assert (problem.line, problem.kept, problem.pod) == (4, True, "default/a-node")
        assert str(problem).endswith("(the last good pod is kept)")
        path.write_text(manifest("a", 1))
        cured = await seen.until(lambda s: not s.problems)
        assert cured.pods == good


async def test_H07_a_slow_writer_is_waited_for(directory: Path) -> None:
    async with running(directory) as seen:
        with (directory / "a.yaml").open("w") as file:
            for line in (manifest("a") + "  - name: second\n").splitlines(keepends=True):
                file.write(line)
                file.flush()
                await asyncio.sleep(0.02)
        last = await seen.until_names("a-node")
        assert len(last.pods[0].spec.containers) == 2
        assert all(not s.problems for s in seen.snapshots)
        assert len(seen.snapshots) == 2


async def test_H07_a_half_written_file_is_told_when_its_writer_stops(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a"))
    async with running(directory) as seen:
        good = seen.last.pods
        started = time.monotonic()
        with path.open("w") as file:
            file.write("apiVersion: v1\nkind: Po")
            file.flush()
            bad = await seen.until(lambda s: bool(s.problems))
            assert time.monotonic() - started >= HOLD * 0.9
            assert bad.pods == good
            file.write("d\n" + manifest("a").partition("kind: Pod\n")[2])
        await seen.until(lambda s: not s.problems)
        assert seen.last.pods == good


async def test_a_file_that_becomes_empty_takes_its_pod_along(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(manifest("a"))
    async with running(directory) as seen:
        path.write_text("# nothing\n")
        await seen.until_names()
        assert seen.problems() == []


async def test_H05_the_other_file_takes_over_when_the_first_goes(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("same", 1))
    (directory / "b.yaml").write_text(manifest("same", 2))
    async with running(directory) as seen:
        assert len(seen.problems()) == 1
        (directory / "a.yaml").unlink()
        last = await seen.until(lambda s: s.pods[0].spec.containers[0].command == ["sleep", "2"])
        assert last.problems == ()


async def test_H05_a_first_file_that_turns_bad_still_wins(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("same", 1))
    (directory / "b.yaml").write_text(manifest("same", 2))
    async with running(directory) as seen:
        (directory / "a.yaml").write_text("{")
        last = await seen.until(lambda s: len(s.problems) == 2)
        assert last.pods[0].spec.containers[0].command == ["sleep", "1"]


async def test_a_directory_removed_and_made_again_is_picked_up(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    async with running(directory) as seen:
        shutil.rmtree(directory)
        await seen.until_names()
        directory.mkdir()
        (directory / "b.yaml").write_text(manifest("b"))
        await seen.until_names("b-node")
        (directory / "c.yaml").write_text(manifest("c"))
        await seen.until_names("b-node", "c-node")


async def test_a_missing_path_is_picked_up_when_it_appears_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "web.yaml"
    async with running(path) as seen:
        assert only(seen.problems()).reason is Reason.MISSING_PATH
        path.parent.mkdir(parents=True)
        path.write_text(manifest("web"))
        await seen.until_names("web-node")
        assert seen.problems() == []
        path.write_text(manifest("web", 2))
        await seen.until(lambda s: s.pods[0].spec.containers[0].command == ["sleep", "2"])


async def test_a_link_to_a_directory_that_is_switched_is_followed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(manifest(name))
    link = tmp_path / "current"
    link.symlink_to("one")
    async with running(link) as seen:
        assert seen.names() == ["one-node"]
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(link)
        await seen.until_names("two-node")
        (tmp_path / "two" / "b.yaml").write_text(manifest("b"))
        await seen.until_names("two-node", "b-node")


@pytest.mark.parametrize("single", [False, True], ids=["directory", "file"])
async def test_the_links_of_a_config_map_volume_are_followed(directory: Path, single: bool) -> None:
    for name in ("..1", "..2"):
        (directory / name).mkdir()
        (directory / name / "web.yaml").write_text(manifest(f"web{name[2:]}"))
    (directory / "..data").symlink_to("..1")
    (directory / "web.yaml").symlink_to("..data/web.yaml")
    async with running(directory / "web.yaml" if single else directory) as seen:
        assert seen.names() == ["web1-node"]
        (directory / "..data_tmp").symlink_to("..2")
        (directory / "..data_tmp").rename(directory / "..data")
        await seen.until_names("web2-node")
        assert all(not s.problems for s in seen.snapshots)


async def test_a_link_to_a_file_elsewhere_is_watched(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(manifest("a", 1))
    (directory / "a.yaml").symlink_to(elsewhere)
    async with running(directory) as seen:
        elsewhere.write_text(manifest("a", 2))
        await seen.until(lambda s: s.pods[0].spec.containers[0].command == ["sleep", "2"])


async def test_other_files_beside_a_single_file_make_no_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(manifest("web"))
    async with running(path) as seen:
        (tmp_path / "other.yaml").write_text(manifest("other"))
        path.write_text(manifest("web", 2))
        await seen.until(lambda s: s.pods[0].spec.containers[0].command == ["sleep", "2"])
        assert len(seen.snapshots) == 2


def test_by_itself_it_looks_each_20_s(directory: Path) -> None:
    assert FileSource(directory, "n").poll_interval == 20.0


async def test_polling_sees_what_nobody_tells(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_inotify(**_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("podwire.sources.watch.Inotify", no_inotify)
    async with running(directory, poll_interval=0.05) as seen:
        problem = only(seen.problems())
        assert problem.reason is Reason.FAILED_WATCH
        assert "fs.inotify.max_user_instances" in problem.message
        (directory / "a.yaml").write_text(manifest("a"))
        await seen.until_names("a-node")
        (directory / "a.yaml").unlink()
        await seen.until_names()


async def test_nothing_is_emitted_while_nothing_changes(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    (directory / "bad.yaml").write_text("kind: List\n")
    async with running(directory, poll_interval=0.01) as seen:
        await asyncio.sleep(0.2)
        assert len(seen.snapshots) == 1


async def test_a_single_file_is_told_within_50_ms(directory: Path) -> None:
    took = []

    def told(number: int) -> Callable[[Snapshot], bool]:
        return lambda s: bool(s.pods) and s.pods[0].spec.containers[0].command[1] == str(number)

    async with running(directory) as seen:
        for number in range(9):
            started = time.monotonic()
            (directory / "a.yaml").write_text(manifest("a", number))
            await seen.until(told(number))
            took.append(time.monotonic() - started)
            await asyncio.sleep(0.03)
    assert min(took) < 0.05


async def test_200_files_at_once_make_few_snapshots(directory: Path) -> None:
    async with running(directory) as seen:

        def write() -> None:
            for number in range(200):
                with (directory / f"{number:03}.yaml").open("w") as file:
                    text = manifest(f"p{number}")
                    file.write(text[:60])
                    file.flush()
                    file.write(text[60:])

        await asyncio.to_thread(write)
        last = await seen.until(lambda s: len(s.pods) == 200)
        assert last.problems == ()
        assert all(not s.problems for s in seen.snapshots)
        assert len(seen.snapshots) <= 25


async def test_cancelling_ends_threads_and_watches(directory: Path) -> None:
    before = {entry.name for entry in Path("/proc/self/fd").iterdir()}
    async with running(directory) as seen:
        assert seen.snapshots
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} <= before


async def test_the_source_feeds_the_mux(directory: Path) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    (directory / "bad.yaml").write_text("kind: List\n")
    mux = Mux(FileSource.name)
    task = asyncio.create_task(FileSource(directory, "node").run(mux.merge))
    updates = mux.updates()
    try:
        first = await asyncio.wait_for(anext(updates), 5)
        assert (first.op, [p.metadata.name for p in first.pods]) == (Op.ADD, ["a-node"])
        assert [p.reason for p in mux.problems.current()] == [Reason.FAILED_PARSE]
        (directory / "bad.yaml").unlink()
        (directory / "a.yaml").unlink()
        second = await asyncio.wait_for(anext(updates), 5)
        assert (second.op, second.pods) == (Op.REMOVE, first.pods)
        assert mux.seen_all()
        assert mux.problems.current() == ()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_directory_that_cannot_be_listed_keeps_its_pods(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "a.yaml").write_text(manifest("a"))
    async with running(directory, poll_interval=0.02) as seen:
        listed = os.scandir

        def denied(path: str) -> object:
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr("podwire.sources.file.os.scandir", denied)
        last = await seen.until(lambda s: bool(s.problems))
        assert [p.metadata.name for p in last.pods] == ["a-node"]
        assert only(list(last.problems)).message == "Permission denied"
        monkeypatch.setattr("podwire.sources.file.os.scandir", listed)
        await seen.until(lambda s: not s.problems)
