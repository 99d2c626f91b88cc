"""Foreign plugins as processes, also those that misbehave."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from podwire.cni import invoke
from podwire.cni.errors import CNIError, DecodeFailure, IOFailure, PluginMissing, TryLater
from podwire.cni.invoke import ProcessFailure
from tests.cni.helpers import script


def add(directory: Path, seconds: float = 20.0, cancel: threading.Event | None = None) -> invoke.Outcome:
    return invoke.execute(
        "p",
        (str(directory),),
        command="ADD",
        container_id="c1",
        netns="/run/netns/x",
        ifname="eth0",
        args="A=1",
        stdin=b'{"name":"n"}',
        deadline=time.monotonic() + seconds,
        cancel=cancel,
    )


def test_variables_and_stdin_reach_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CNI_STALE", "1")
    monkeypatch.setenv("TRACEPARENT", "00-aa-bb-01")
    script(
        tmp_path,
        "p",
        f"env | grep -E '^(CNI_|TRACE)' | sort > {tmp_path}/env\n"
        f"cat > {tmp_path}/in; echo '{{}}'; echo hm >&2",
    )
    outcome = add(tmp_path)
    assert (tmp_path / "in").read_text() == '{"name":"n"}'
    assert (tmp_path / "env").read_text().splitlines() == [
        "CNI_ARGS=A=1",
        "CNI_COMMAND=ADD",
        "CNI_CONTAINERID=c1",
        "CNI_IFNAME=eth0",
        "CNI_NETNS=/run/netns/x",
        f"CNI_PATH={tmp_path}",
        "TRACEPARENT=00-aa-bb-01",
    ]
    assert (outcome.stdout, outcome.stderr) == (b"{}\n", "hm")


def test_the_first_directory_with_such_a_file_is_taken(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "p").mkdir(parents=True)
    two.mkdir()
    script(two, "p", "echo '{}'")
    assert invoke.find("p", ("/none", str(one), str(two))) == str(two / "p")
    with pytest.raises(PluginMissing, match='"q"'):
        invoke.find("q", (str(one), str(two)))
    with pytest.raises(CNIError, match="without a path"):
        invoke.find("../two/p", (str(one),))


def test_a_plugins_own_error_is_raised_with_its_code(tmp_path: Path) -> None:
    said = json.dumps({"code": 11, "msg": "busy", "details": "soon"})
    script(tmp_path, "p", f"echo '{said}'; exit 1")
    with pytest.raises(TryLater) as caught:
        add(tmp_path)
    assert (caught.value.code, caught.value.msg, caught.value.details) == (11, "busy", "soon")


def test_b18_a_plugin_that_dies_is_told_with_status_and_stderr(tmp_path: Path) -> None:
    script(tmp_path, "p", "echo one >&2; echo panic: nil map >&2; exit 3")
    with pytest.raises(ProcessFailure, match=r"exit status 3.*stderr: one \| panic: nil map") as caught:
        add(tmp_path)
    assert caught.value.status == 3


def test_b18_a_killed_plugin_names_the_signal(tmp_path: Path) -> None:
    script(tmp_path, "p", "kill -SEGV $$")
    with pytest.raises(ProcessFailure, match="killed by SIGSEGV"):
        add(tmp_path)


@pytest.mark.parametrize("said", ["garbage", "", "[}"])
def test_output_that_is_no_json_is_a_decode_failure(tmp_path: Path, said: str) -> None:
    script(tmp_path, "p", f"echo why >&2; printf '%s' '{said}'")
    with pytest.raises(DecodeFailure, match=r"stdout is no JSON.*stderr: why"):
        add(tmp_path)


def test_garbage_with_a_failing_status_is_shown(tmp_path: Path) -> None:
    script(tmp_path, "p", "echo not json; exit 1")
    with pytest.raises(ProcessFailure, match="stdout: 'not json'"):
        add(tmp_path)


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that nobody reaps has."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def await_gone(pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        import select

        assert select.select([fd], [], [], 5)[0]
    finally:
        os.close(fd)


def test_a_hanging_plugin_is_killed_with_its_children_at_the_deadline(tmp_path: Path) -> None:
    script(tmp_path, "p", f"echo waiting >&2; sleep 600 & echo $! > {tmp_path}/child; wait")
    began = time.monotonic()
    with pytest.raises(TryLater, match=r"not done at its deadline.*waiting"):
        add(tmp_path, 0.5)
    assert time.monotonic() - began < 5
    child = int((tmp_path / "child").read_text())
    if not gone(child):
        await_gone(child)


def test_a_cancelled_plugin_is_killed(tmp_path: Path) -> None:
    script(tmp_path, "p", "sleep 600")
    cancel = threading.Event()
    timer = threading.Timer(0.2, cancel.set)
    timer.start()
    try:
        with pytest.raises(TryLater, match="cancelled"):
            add(tmp_path, 60, cancel)
    finally:
        timer.join()


def test_a_daemon_that_keeps_the_pipes_open_is_not_waited_for(tmp_path: Path) -> None:
    script(tmp_path, "p", f"sleep 30 & echo $! > {tmp_path}/child; echo '{{}}'")
    began = time.monotonic()
    assert add(tmp_path).stdout == b"{}\n"
    assert time.monotonic() - began < 10
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_huge_output_is_cut_off_and_huge_stderr_keeps_its_tail(tmp_path: Path) -> None:
    script(tmp_path, "p", "yes | head -c 20000000")
    with pytest.raises(TryLater, match="wrote more than"):
        add(tmp_path)
    script(tmp_path, "p", "yes noise | head -c 300000 >&2; echo last words >&2; exit 1")
    with pytest.raises(ProcessFailure, match="last words") as caught:
        add(tmp_path)
    assert len(caught.value.stderr) < 3 * invoke.STDERR_KEPT


def test_large_answers_and_stdin_left_unread_pass(tmp_path: Path) -> None:
    script(tmp_path, "p", 'printf \'{"x":"\'; head -c 500000 /dev/zero | tr "\\0" a; printf \'"}\'')
    outcome = invoke.execute(
        "p", (str(tmp_path),), command="ADD", stdin=b"x" * 500000, deadline=time.monotonic() + 20
    )
    assert len(outcome.stdout) == 500008


def test_text_file_busy_is_tried_again(tmp_path: Path) -> None:
    path = script(tmp_path, "p", "echo '{}'")
    writer = path.open("ab")
    timer = threading.Timer(0.25, writer.close)
    timer.start()
    try:
        assert add(tmp_path).stdout == b"{}\n"
    finally:
        timer.join()


def test_what_cannot_be_run_is_an_io_failure(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "p").chmod(0o755)
    with pytest.raises(IOFailure, match="Exec format error"):
        add(tmp_path)
    (tmp_path / "p").chmod(0o644)
    with pytest.raises(IOFailure, match="Permission denied"):
        add(tmp_path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    script(tmp_path, "p", "echo '{}'")
    add(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        add(tmp_path)
    script(tmp_path, "p", "exec sleep 60")
    with pytest.raises(TryLater):
        add(tmp_path, 0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
