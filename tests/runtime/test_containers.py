"""Programs in sandboxes: how they are started, what they see, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from podwire.runtime.api import ContainerState, ContainerUser, Mount, PidMode
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import Code, RuntimeFault
from tests.runtime import helpers
from tests.runtime.helpers import Places, container, ended, ran, shell, started, until

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "Completed"),
        ("exit 3", 3, "Error"),
        ("exit 137", 137, "Error"),
    ],
)
async def test_exit_codes(
    runtime: EmbeddedRuntime, places: Places, script: str, code: int, reason: str
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    before = time.time_ns()
    status = await ran(runtime, sandbox, shell(script))
    assert (status.exit_code, status.signal, status.reason) == (code, 0, reason)
    assert before < status.created_at < status.started_at < status.finished_at < time.time_ns()
    assert status.pid == 0


async def test_a_program_killed_by_a_signal(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(runtime, sandbox, container("/bin/sleep", "60"))
    pid = (await runtime.container_status(container_id)).pid
    os.kill(pid, signal.SIGKILL)
    status = await ended(runtime, container_id)
    assert (status.exit_code, status.signal, status.reason) == (137, 9, "Error")


async def test_term_is_caught_and_its_exit_code_kept(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    script = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.02; done"
    container_id = await started(runtime, sandbox, shell(script))
    await until("it is up", lambda: b"up\n" in places.log())
    await runtime.stop_container(container_id, 20)
    status = await runtime.container_status(container_id)
    assert (status.state, status.exit_code, status.signal) == (ContainerState.EXITED, 7, 0)
    assert places.log() == b"up\nbye\n"


async def test_a_program_without_a_handler_ends_at_once_by_term(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(runtime, sandbox, container("/bin/sleep", "60"))
    began = time.monotonic()
    await runtime.stop_container(container_id, 20)
    assert time.monotonic() - began < 5
    status = await runtime.container_status(container_id)
    assert (status.exit_code, status.signal) == (143, 15)


async def test_a_program_that_ignores_term_is_killed_after_the_grace(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(
        runtime, sandbox, shell("trap '' TERM; echo up; while :; do sleep 0.02; done")
    )
    await until("it is up", lambda: b"up\n" in places.log())
    began = time.monotonic()
    await runtime.stop_container(container_id, 0.4)
    assert 0.4 <= time.monotonic() - began < 5
    status = await runtime.container_status(container_id)
    assert (status.exit_code, status.signal) == (137, 9)


async def test_a_program_that_waits_for_term_with_the_signal_blocked_gets_it(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    script = (
        "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
        "os.write(1, b'up\\n'); signal.sigwait([signal.SIGTERM]); os._exit(5)"
    )
    container_id = await started(runtime, sandbox, container("/usr/bin/python3", "-c", script))
    await until("it is up", lambda: b"up\n" in places.log())
    await runtime.stop_container(container_id, 20)
    assert (await runtime.container_status(container_id)).exit_code == 5


async def test_a_shorter_grace_overtakes_a_longer_one(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(
        runtime, sandbox, shell("trap '' TERM; echo up; while :; do sleep 0.02; done")
    )
    await until("it is up", lambda: b"up\n" in places.log())
    began = time.monotonic()
    await asyncio.gather(runtime.stop_container(container_id, 60), runtime.stop_container(container_id, 0.2))
    assert time.monotonic() - began < 10
    await runtime.stop_container(container_id, 60)
    await runtime.stop_container("unknown", 60)


async def test_its_descendants_end_with_it(runtime: EmbeddedRuntime, places: Places) -> None:
    for mode in PidMode:
        sandbox = await runtime.run_pod_sandbox(places.sandbox(f"pod{int(mode)}", pid=mode))
        name = f"main{int(mode)}"
        script = "setsid sleep 61 & (setsid sh -c 'sleep 62; :' &) ; echo up; sleep 63"
        container_id = await started(runtime, sandbox, shell(script, name))
        await until("all are there", lambda box=sandbox: len(sleeps(box)) == 3)  # type: ignore[misc]
        await runtime.stop_container(container_id, 5)
        assert places.log(name) == b"up\n"
        await until("none is left", lambda box=sandbox: not sleeps(box))  # type: ignore[misc]


def sleeps(sandbox: str) -> list[int]:
    return [pid for pid, name in helpers.processes_of([sandbox]).items() if name == "sleep"]


async def test_the_log_has_both_streams(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    status = await ran(runtime, sandbox, shell("echo out; echo err >&2; printf rest"))
    assert status.log_path == str(places.logs / "main.log")
    entries = places.entries()
    assert sorted(entries) == [
        (b"stderr", b"F", b"err"),
        (b"stdout", b"F", b"out"),
        (b"stdout", b"P", b"rest"),
    ]


async def test_huge_and_binary_output_is_whole(runtime: EmbeddedRuntime, places: Places) -> None:
    data = os.urandom(300_000) + b"\0" * 100_000 + b"\xff\n\r\n"
    source = places.base / "data"
    source.write_bytes(data)
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    status = await ran(runtime, sandbox, container("/bin/cat", str(source)))
    assert status.exit_code == 0
    assert places.log() == data
    assert max(len(text) for _, _, text in places.entries()) == 16384


async def test_the_log_is_rotated(places: Places) -> None:
    runtime = places.runtime(log_limit=100_000, log_files=3)
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    await ran(runtime, sandbox, shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"))
    files = [places.logs / "main.log.2", places.logs / "main.log.1", places.logs / "main.log"]
    assert sorted(places.logs.iterdir()) == sorted(files)
    lines = [text for file in files for _, _, text in helpers.parse(file.read_bytes())]
    assert lines == [b"line %d" % number for number in range(20000 - len(lines), 20000)]
    await runtime.remove_pod_sandbox(sandbox)
    await runtime.close()


async def test_the_environment_is_exactly_what_was_given(
    runtime: EmbeddedRuntime, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_NODE", "1")
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    await ran(runtime, sandbox, container("/usr/bin/env", envs=(("A", "x y\n=z"), ("ü", "ö"))))
    host = os.uname().nodename
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    expected = f"PATH={path}\nHOSTNAME={host}\nHOME=/root\nA=x y\n=z\nü=ö\n"
    assert sorted(places.log().decode().splitlines()) == sorted(expected.splitlines())


async def test_user_directory_and_a_clean_process(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    script = (
        "id -u; id -g; id -G; pwd; umask; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status"
    )
    user = ContainerUser(uid=65534, gid=12345, supplemental_groups=(777,))
    await ran(runtime, sandbox, shell(script, user=user, working_dir="/usr/lib"))
    lines = places.log().decode().split("\n")
    # ls has the three streams and the directory open.
    assert lines[:6] == ["65534", "12345", "12345 777", "/usr/lib", "0022", "4"]
    blocked, ignored = (int(line.split()[1], 16) for line in lines[6:8])
    # 32 and 33 are glibc's own: no program can set them, and those that posix_spawn(3) starts ignore them.
    assert (blocked, ignored & ~0x1_8000_0000) == (0, 0)


async def test_stdin_is_empty_unless_asked_for(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    assert (await ran(runtime, sandbox, container("/bin/cat"))).exit_code == 0
    kept = await started(runtime, sandbox, container("/bin/cat", name="kept", stdin=True))
    with pytest.raises(TimeoutError):
        await ended(runtime, kept, 0.2)


async def test_a_terminal(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    status = await ran(
        runtime, sandbox, shell("test -t 0 && test -t 2 && echo $TERM && ps -o tty= -p $$", tty=True)
    )
    assert status.exit_code == 0
    assert places.log().startswith(b"xterm\r\npts/")


@pytest.mark.parametrize(
    ("command", "code", "reason", "message"),
    [
        ("nope", 127, "ContainerCannotRun", 'exec: "nope": executable file not found in $PATH'),
        ("/no/such", 127, "ContainerCannotRun", 'exec: "/no/such": no such file or directory'),
        ("/etc/passwd", 126, "ContainerCannotRun", 'exec: "/etc/passwd": permission denied'),
        ("/usr", 126, "ContainerCannotRun", 'exec: "/usr": permission denied'),
    ],
)
async def test_a_command_that_cannot_be_run(
    runtime: EmbeddedRuntime, places: Places, command: str, code: int, reason: str, message: str
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await runtime.create_container(sandbox, container(command))
    with pytest.raises(RuntimeFault) as caught:
        await runtime.start_container(container_id)
    assert (caught.value.code, caught.value.message) == (Code.FAILED_PRECONDITION, message)
    status = await runtime.container_status(container_id)
    assert (status.state, status.exit_code, status.reason, status.message) == (
        ContainerState.EXITED,
        code,
        reason,
        message,
    )
    assert status.started_at == 0 < status.finished_at


async def test_a_script_without_its_interpreter_and_a_file_of_another_format(
    runtime: EmbeddedRuntime, places: Places
) -> None:
    (places.base / "script").write_text("#!/no/such/shell\n")
    (places.base / "junk").write_bytes(b"\0junk")
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    for name, code, words in (
        ("script", 127, "interpreter does not exist"),
        ("junk", 126, "exec format error"),
    ):
        (places.base / name).chmod(0o755)
        with pytest.raises(RuntimeFault, match=words):
            await started(runtime, sandbox, container(str(places.base / name), name=name))
        assert (await runtime.list_containers())[-1].exit_code == code


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"working_dir": "/no/such/dir"}, "working directory /no/such/dir: No such file"),
        ({"user": ContainerUser(username="nobody-like-this")}, "nobody-like-this"),
        ({"mounts": (Mount("/no/target", "/tmp"),)}, "mount /no/target: /no/target: No such file"),
        ({"mounts": (Mount("/mnt", "/no/source"),)}, "mount /mnt: /no/source: No such file"),
        ({"mounts": (Mount("/etc/passwd", "/tmp"),)}, "/tmp is a directory and /etc/passwd is a file"),
    ],
)
async def test_what_cannot_be_started_names_what_is_in_the_way(
    runtime: EmbeddedRuntime, places: Places, changes: dict[str, Any], words: str
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    with pytest.raises(RuntimeFault, match=words):
        await started(runtime, sandbox, container("/bin/true", **changes))
    status = (await runtime.list_containers())[0]
    assert (status.exit_code, status.reason) == (128, "StartError")


async def test_mounts_are_seen_inside_only(runtime: EmbeddedRuntime, places: Places) -> None:
    before = sorted(Path("/mnt").iterdir())
    data = places.base / "data"
    data.mkdir()
    (data / "file").write_text("content\n")
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    mounts = (Mount("/mnt", str(data)), Mount("/media", str(data), readonly=True))
    script = "cat /mnt/file; echo new > /mnt/new; touch /media/x 2>/dev/null || echo read-only"
    await ran(runtime, sandbox, shell(script, mounts=mounts))
    assert places.log() == b"content\nread-only\n"
    assert sorted(path.name for path in data.iterdir()) == ["file", "new"]
    assert sorted(Path("/mnt").iterdir()) == before


async def test_each_container_has_its_own_processes(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    await started(runtime, sandbox, container("/bin/sleep", "60", name="other"))
    await ran(runtime, sandbox, shell("echo $$; ls -d /proc/[0-9]* | wc -l; true"))
    # The shell, ls and wc; one of them may be seen before it is there.
    pid, count = places.log().split()
    assert pid == b"1" and int(count) <= 3


async def test_a_shared_pid_namespace(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox(pid=PidMode.POD))
    await started(runtime, sandbox, container("/bin/sleep", "60", name="other"))
    await ran(runtime, sandbox, shell("(sh -c 'sleep 0.05' &); cat /proc/1/comm /proc/[0-9]*/comm"))
    words = places.log().split()
    assert words[0] == b"podwire-pause" and b"sleep" in words
    (pause,) = (pid for pid, name in helpers.processes_of([sandbox]).items() if name == "podwire-pause")
    await until("the orphan is reaped", lambda: not helpers.zombies_under(pause))


async def test_the_hosts_pid_namespace(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox(pid=PidMode.NODE))
    container_id = await started(runtime, sandbox, shell("echo $$; exec sleep 60"))
    await until("it says so", places.log)
    assert int(places.log()) == (await runtime.container_status(container_id)).pid
    await runtime.stop_container(container_id, 5)
    assert (await runtime.container_status(container_id)).exit_code == 143


async def test_containers_share_ipc_and_shm_but_pods_do_not(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    other = await runtime.run_pod_sandbox(places.sandbox("other"))
    await ran(
        runtime, sandbox, shell("echo shared > /dev/shm/note; ipcmk -Q >/dev/null; ipcs -q | grep -c 0x")
    )
    assert places.log() == b"1\n"
    script = "cat /dev/shm/note; ipcs -q | grep -c 0x"
    await ran(runtime, sandbox, shell(script, "same"))
    await ran(runtime, other, shell(script + "; ls /dev/shm | wc -l", "foreign"))
    assert places.log("same") == b"shared\n1\n"
    assert [text for _, _, text in places.entries("foreign")][1:] == [b"0", b"0"]
    assert not Path("/dev/shm/note").exists()


async def test_remove_container_kills_it_and_keeps_its_log(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(runtime, sandbox, shell("echo up; sleep 60"))
    await until("it is up", places.log)
    pid = (await runtime.container_status(container_id)).pid
    await runtime.remove_container(container_id)
    await runtime.remove_container(container_id)
    assert not helpers.alive(pid)
    assert await runtime.list_containers() == []
    assert places.log() == b"up\n"
    with pytest.raises(RuntimeFault) as caught:
        await runtime.container_status(container_id)
    assert caught.value.code is Code.NOT_FOUND


async def test_a_container_starts_once(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.sandbox())
    container_id = await started(runtime, sandbox, shell("exit 0"))
    await ended(runtime, container_id)
    with pytest.raises(RuntimeFault) as caught:
        await runtime.start_container(container_id)
    assert caught.value.code is Code.FAILED_PRECONDITION


async def test_supervisors_keep_nothing_of_ended_containers(runtime: EmbeddedRuntime, places: Places) -> None:
    sandbox = await runtime.run_pod_sandbox(places.own_network())
    supervisor = helpers.supervisor_of(sandbox)
    await ran(runtime, sandbox, shell("exit 0", "first"))
    before = helpers.fds(supervisor)
    for number in range(5):
        await ran(runtime, sandbox, shell("(sleep 0.01 &); echo x", f"c{number}"))
        with pytest.raises(RuntimeFault):
            await started(runtime, sandbox, container("/no/such", name=f"n{number}"))
        with pytest.raises(RuntimeFault):
            await started(
                runtime, sandbox, container("/bin/true", name=f"u{number}", user=ContainerUser(username="?"))
            )
    assert helpers.fds(supervisor) == before
    assert helpers.zombies_under(supervisor) == []
