"""The shim without an agent: a bounded wait, then the plugin that needs none, or an error."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from podwire.plugins import launchers
from tests.shim.helpers import PATIENCE, Agent, Shim, answer
from tests.shim.test_exchange import RESULT, error

HINT = (
    "tried for a second, and no podwire-standalone is installed beside this program; start the agent:"
    " `systemctl start podwire-agent`, or `podwire agent`"
)
NOBODY = 65534
STANDALONE = """\
#!/bin/sh
printf '%s %s %s ' "$#" "$1" "$CNI_COMMAND"
cat
exit 3
"""


@pytest.fixture(params=["no socket", "no directory", "nobody listens"])
def gone(request: pytest.FixtureRequest, agent: Agent, shim: Shim) -> str:
    """How the agent is absent; the reason that the kernel gives."""
    if request.param == "nobody listens":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(agent.path))
        return "Connection refused"
    if request.param == "no directory":
        shim.socket = agent.path.parent / "none" / "agent.sock"
    return "No such file or directory"


def standalone(shim: Shim, text: str = STANDALONE, mode: int = 0o755) -> Path:
    shim.bin.mkdir(exist_ok=True)
    path = shim.bin / "podwire-standalone"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_e12_f16_without_agent_and_fallback_a_retryable_error_says_how_to_start_it(
    shim: Shim, gone: str
) -> None:
    """E12: DEL with the daemon gone; F16: a pod that starts before the daemon, after a reboot."""
    began = time.monotonic()
    found = error(shim.run(environ=shim.environ("DEL")))
    assert 1.0 <= time.monotonic() - began < 5
    assert found == {
        "code": 11,
        "msg": f"podwire agent on {shim.socket}: not running: {gone}",
        "details": HINT,
    }


def test_f16_status_says_not_ready(shim: Shim) -> None:
    found = error(shim.run(environ=shim.environ("STATUS")))
    assert (found["code"], found["details"]) == (50, HINT)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_e12_without_agent_the_standalone_plugin_does_it_with_the_same_stdin(
    shim: Shim, command: str
) -> None:
    standalone(shim)
    began = time.monotonic()
    done = shim.run("host-local", b'{"a":\0}', shim.environ(command))
    assert (done.returncode, done.stdout, done.stderr) == (
        3,
        f"1 host-local {command} ".encode() + b'{"a":\0}',
        b"",
    )
    assert time.monotonic() - began >= 1.0


def test_the_fallback_is_found_through_a_symbolic_link_and_a_path(shim: Shim, tmp_path: Path) -> None:
    standalone(shim)
    other = tmp_path / "other"
    other.mkdir()
    (other / "ptp").symlink_to(shim.named("podwire-shim"))
    done = subprocess.run(
        ["ptp"], env=shim.environ("DEL") | {"PATH": f"{other}:/usr/bin:/bin"}, input=b"x", capture_output=True
    )
    assert (done.returncode, done.stdout) == (3, b"1 ptp DEL x")


def test_a_fallback_that_cannot_be_run_is_told(shim: Shim) -> None:
    path = standalone(shim, mode=0o644)
    assert error(shim.run()) == {"code": 5, "msg": f"{path}: Permission denied"}


def test_a_deadline_shorter_than_the_wait_wins(shim: Shim) -> None:
    began = time.monotonic()
    found = error(shim.run(environ=shim.environ(PODWIRE_TIMEOUT="0.1")))
    assert time.monotonic() - began < 1.0
    assert found["code"] == 11


@pytest.mark.parametrize("left", [True, False])
def test_an_agent_that_is_restarting_is_waited_for(agent: Agent, shim: Shim, left: bool) -> None:
    """Its socket may have stayed behind, as after kill -9."""
    standalone(shim)
    if left:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(agent.path))
    process = shim.start()
    assert process.stdin is not None
    process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    agent.path.unlink(missing_ok=True)
    with agent.serve(agent.answering(answer(RESULT))), process:
        assert process.wait(PATIENCE) == 0
        assert process.stdout is not None
        assert process.stdout.read() == RESULT


def test_a_full_queue_is_waited_for_to_the_deadline_without_fallback(agent: Agent, shim: Shim) -> None:
    """An agent that is there, and only busy, must not be worked around."""
    standalone(shim)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(agent.path))
        listener.listen(0)
        first.connect(str(agent.path))
        began = time.monotonic()
        found = error(shim.run(environ=shim.environ(PODWIRE_TIMEOUT="1.3")))
        assert time.monotonic() - began >= 1.3
    assert found["code"] == 11
    assert ": too busy to take the call before the deadline" in found["msg"]


def test_a_full_queue_that_moves_on_is_no_failure(agent: Agent, shim: Shim) -> None:
    listener = socket.socket(socket.AF_UNIX)
    with listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(agent.path))
        listener.listen(0)
        first.connect(str(agent.path))
        process = shim.start()
        assert process.stdin is not None
        process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        listener.accept()[0].close()
        connection, _ = listener.accept()
        with connection, process:
            agent.answering(answer(RESULT))(connection)
            assert process.wait(PATIENCE) == 0


def test_what_cannot_be_connected_to_is_told(shim: Shim, tmp_path: Path) -> None:
    shim.socket = tmp_path / "file" / "agent.sock"
    shim.socket.parent.write_text("")
    assert error(shim.run()) == {
        "code": 11,
        "msg": f"podwire agent on {shim.socket}: cannot connect: Not a directory",
    }


@pytest.mark.kernel
def test_only_root_may_be_the_agent(agent: Agent, shim: Shim) -> None:
    """Somebody who could make the socket would decide about the pods' networks."""
    seen: list[bytes] = []
    with agent.serve(lambda connection: seen.append(connection.recv(1)), uid=NOBODY):
        found = error(shim.run())
    assert found["msg"] == f"podwire agent on {shim.socket}: it is not root who listens, but user {NOBODY}"
    assert seen == [b""]


@pytest.mark.kernel
@pytest.mark.parametrize("uid", [0, NOBODY])
def test_root_and_the_caller_itself_are_trusted_as_the_agent(program: Path, uid: int) -> None:
    """The latter without root, e.g. in a test: who listens is who calls."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o777)
        agent = Agent(home / "agent.sock")
        shim = Shim(Path(shutil.copy(program, home / "podwire-shim")), home, agent.path)
        with agent.serve(agent.answering(answer(RESULT)), uid=uid):
            agent.path.chmod(0o777)
            done = shim.run(user=NOBODY)
    assert (done.returncode, done.stdout) == (0, RESULT), done.stderr


def test_a_socket_path_that_is_too_long_is_refused(shim: Shim) -> None:
    shim.socket = Path("/") / ("x" * 108)
    found = error(shim.run())
    assert found == {"code": 4, "msg": f"PODWIRE_SOCKET {shim.socket}: too long for a socket's path"}


def test_the_standard_socket_is_built_in(shim: Shim) -> None:
    environ = shim.environ(PODWIRE_TIMEOUT="0.05")
    del environ["PODWIRE_SOCKET"]
    assert error(shim.run(environ=environ))["msg"].startswith("podwire agent on /run/podwire/agent.sock: ")


def test_the_real_fallback_answers_for_every_plugin(shim: Shim) -> None:
    standalone(shim, launchers.script().decode())
    done = shim.run("loopback", b'{"cniVersion": "1.0.0"}', shim.environ("VERSION"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]


@pytest.mark.parametrize("count", [1, 2, 32, 40])
def test_arguments_are_for_the_standalone_program(shim: Shim, agent: Agent, count: int) -> None:
    """`dhcp daemon`, as units of the reference plugin start it: no call of a plugin, agent or not."""
    standalone(shim, '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    shim.socket = agent.path
    arguments = [f"word {number}" for number in range(count)]
    done = subprocess.run(
        [shim.named("dhcp"), *arguments], env=shim.environ(""), capture_output=True, check=False
    )
    assert done.stdout.decode().splitlines() == ["dhcp", *arguments[:32]]
    assert not agent.asked


def test_arguments_without_the_standalone_program_are_refused(shim: Shim) -> None:
    done = subprocess.run(
        [shim.named("dhcp"), "daemon"], env=shim.environ(""), capture_output=True, check=False
    )
    assert error(done)["msg"] == "dhcp takes arguments only where podwire-standalone is beside it"
