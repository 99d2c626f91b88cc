"""The agent's socket, with plugins that tests hold by the hand."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podwire.agent.settings import Settings
from tests.agent import plugins
from tests.agent.conftest import Start
from tests.agent.helpers import (
    ROOT,
    Forked,
    Running,
    ask,
    cni,
    connect,
    exchange,
    read_answer,
    request,
    variables,
)
from tests.agent.plugins import WATCHED, config, wait_for
from tests.waiting import until

pytestmark = pytest.mark.kernel


@pytest.fixture
def agent(start: Start) -> Forked:
    return start(plugins=[WATCHED])


def made(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("made-*"))


def begin(
    agent: Running, command: str, conf: dict[str, object], container: str, timeout: float = 30
) -> socket.socket:
    """Send a request and leave the answer unread."""
    sock = connect(agent.socket)
    data = request(
        str(conf["type"]), variables(command, container, "/run/x"), json.dumps(conf).encode(), timeout
    )
    sock.sendall(data)
    return sock


def test_the_socket_is_roots_alone(agent: Forked, root: Path) -> None:
    assert stat.S_IMODE(agent.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(agent.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "lib" / "agent.db").stat().st_mode) == 0o600


def test_another_user_is_refused_even_where_the_file_system_lets_it_in(agent: Forked, root: Path) -> None:
    for path in (root.parent, root, root / "run"):
        path.chmod(0o755)
    agent.socket.chmod(0o666)
    code = (
        "import os; from pathlib import Path; from tests.agent.helpers import ask\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"answer = ask(Path({str(agent.socket)!r}), '/v1/attachments')\n"
        "print(answer.status, answer.body.decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "403 user 65534 may not ask: only root may"
    assert ask(agent.socket, "/healthz").status == 200


def test_an_add_is_recorded_and_a_del_forgets_it(agent: Forked, tmp_path: Path) -> None:
    conf = config(tmp_path)
    answer = agent.add(conf, "one", "/run/x")
    assert (answer.exit, answer.json["ips"][0]["address"]) == (0, "192.0.2.1/24")
    (record,) = agent.attachments()
    assert record["result"] == answer.json
    assert [record[key] for key in ("network", "containerID", "ifname", "plugin", "netns", "made")] == [
        *("net", "one", "eth0", "watched", "/run/x"),
        True,
    ]
    answer = agent.delete(conf, "one")
    assert (answer.exit, answer.stdout, answer.stderr) == (0, b"", b"")
    assert agent.attachments() == []


def test_a_failed_add_leaves_no_record(agent: Forked, tmp_path: Path) -> None:
    answer = agent.add(config(tmp_path, fail="ADD"), "one", "/run/x")
    assert (answer.exit, answer.json["code"], answer.json["msg"]) == (1, 123, "told to fail")
    assert agent.attachments() == []


def test_a_failed_del_keeps_the_record(agent: Forked, tmp_path: Path) -> None:
    agent.add(config(tmp_path), "one", "/run/x")
    assert agent.delete(config(tmp_path, fail="DEL"), "one").json["code"] == 123
    assert len(agent.attachments()) == 1


def test_requests_for_one_container_run_in_order(agent: Forked, tmp_path: Path) -> None:
    conf = config(tmp_path, wait="go")
    first = begin(agent, "ADD", conf, "one")
    wait_for(tmp_path, "ADD one begin")
    second = begin(agent, "DEL", conf, "one")
    agent.until(lambda found: len(found["running"]) == 2)
    assert plugins.log(tmp_path) == ["ADD one begin"]
    (tmp_path / "go").touch()
    for sock in (first, second):
        answer = read_answer(sock)
        assert answer is not None
        assert answer.exit == 0
        sock.close()
    assert plugins.log(tmp_path) == ["ADD one begin", "ADD one end", "DEL one begin", "DEL one end"]


def test_a_slow_container_delays_no_other(agent: Forked, tmp_path: Path) -> None:
    slow = [begin(agent, "ADD", config(tmp_path, wait="go"), f"slow{number}") for number in range(40)]
    agent.until(lambda found: len(found["running"]) == 40)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: agent.add(config(tmp_path), f"quick{n}", "/run/x"), range(40)))
    assert [answer.exit for answer in answers] == [0] * 40
    assert not any(name.startswith("made-slow") for name in made(tmp_path))
    (tmp_path / "go").touch()
    for sock in slow:
        assert read_answer(sock) is not None
        sock.close()


def test_a_plugin_is_cancelled_when_its_caller_goes_away(agent: Forked, tmp_path: Path) -> None:
    sock = begin(agent, "ADD", config(tmp_path, wait="never"), "one")
    wait_for(tmp_path, "ADD one begin")
    sock.close()
    wait_for(tmp_path, "ADD one cancelled", seconds=5)
    agent.until(lambda found: not found["running"])
    assert agent.attachments() == []


def test_what_succeeds_although_nobody_listens_is_undone(agent: Forked, tmp_path: Path) -> None:
    sock = begin(agent, "ADD", config(tmp_path, wait="go", stubborn=True), "one")
    wait_for(tmp_path, "ADD one begin")
    sock.close()
    (tmp_path / "go").touch()
    agent.until(lambda found: found["requests"]["undone"] == 1 and not found["running"])
    assert plugins.log(tmp_path)[-1] == "DEL one end"
    assert (made(tmp_path), agent.attachments()) == ([], [])


def test_an_answer_that_its_caller_dies_without_reading_is_undone(agent: Forked, tmp_path: Path) -> None:
    sock = begin(agent, "ADD", config(tmp_path), "one")
    wait_for(tmp_path, "ADD one end")
    assert sock.recv(1, socket.MSG_PEEK)  # it is here, and nobody reads it
    sock.close()
    agent.until(lambda found: found["requests"]["undone"] == 1 and not found["running"])
    assert (made(tmp_path), agent.attachments()) == ([], [])


def test_the_undoing_is_over_before_the_next_request_of_the_container(agent: Forked, tmp_path: Path) -> None:
    sock = begin(agent, "ADD", config(tmp_path, wait="go", stubborn=True), "one")
    wait_for(tmp_path, "ADD one begin")
    sock.close()
    again = begin(agent, "ADD", config(tmp_path), "one")
    agent.until(lambda found: len(found["running"]) == 2)
    (tmp_path / "go").touch()
    answer = read_answer(again)
    again.close()
    assert answer is not None
    assert answer.exit == 0
    assert plugins.log(tmp_path)[2:] == ["DEL one begin", "DEL one end", "ADD one begin", "ADD one end"]
    assert len(agent.attachments()) == 1


def test_a_caller_that_leaves_the_queue_runs_nothing(agent: Forked, tmp_path: Path) -> None:
    first = begin(agent, "ADD", config(tmp_path, wait="go"), "one")
    wait_for(tmp_path, "ADD one begin")
    begin(agent, "DEL", config(tmp_path), "one").close()
    agent.until(lambda found: found["requests"]["abandoned"] == 1)
    (tmp_path / "go").touch()
    assert read_answer(first) is not None
    first.close()
    assert made(tmp_path) == ["made-one"]


def test_a_plugin_learns_its_deadline(agent: Forked, tmp_path: Path) -> None:
    began = time.monotonic()
    answer = agent.add(config(tmp_path, wait="never"), "one", "/run/x", timeout=3)
    assert (answer.json["code"], answer.json["msg"]) == (11, "gave up")
    assert time.monotonic() - began < 3


def test_a_plugin_that_hangs_is_given_up_and_its_container_waits(agent: Forked, tmp_path: Path) -> None:
    hanging = config(tmp_path, wait="go", stubborn=True)
    began = time.monotonic()
    answer = agent.add(hanging, "one", "/run/x", timeout=0.4)
    assert answer.json["code"] == 11
    assert answer.json["msg"] == "ADD watched network net container one ifname eth0: not done in time"
    assert time.monotonic() - began < 0.4 + 1.0
    found = agent.until(lambda found: found["requests"]["givenUp"] == 1)
    assert [each["late"] for each in found["running"]] == [True]
    assert found["problems"][0]["what"] == "a request hangs; its container waits"
    assert ask(agent.socket, "/readyz").status == 200  # all others are served
    waiting = agent.delete(config(tmp_path), "one", timeout=0.4)
    assert waiting.json["code"] == 11
    assert waiting.json["details"].startswith("behind ADD watched")
    assert agent.add(config(tmp_path), "two", "/run/x").exit == 0
    (tmp_path / "go").touch()
    agent.until(lambda found: not found["running"])
    assert made(tmp_path) == ["made-two"]  # its caller was told that it failed
    assert agent.delete(config(tmp_path), "one").exit == 0


def test_gc_waits_for_adds_of_its_network_and_they_for_it(agent: Forked, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = begin(agent, "ADD", config(tmp_path, wait="go"), "one")
    wait_for(tmp_path, "ADD one begin")
    collect = config(tmp_path, wait="done") | {"cni.dev/valid-attachments": []}
    gc = begin(agent, "GC", collect, "")
    agent.until(lambda found: len(found["running"]) == 2)
    assert agent.add(config(other, name="elsewhere"), "two", "/run/x").exit == 0
    (tmp_path / "go").touch()
    wait_for(tmp_path, "GC  begin")
    late = begin(agent, "ADD", config(tmp_path), "three")
    agent.until(lambda found: len(found["running"]) == 2)
    assert "ADD three begin" not in plugins.log(tmp_path)
    (tmp_path / "done").touch()
    for sock in (first, gc, late):
        assert read_answer(sock) is not None
        sock.close()
    assert plugins.log(tmp_path)[-4:] == ["GC  begin", "GC  end", "ADD three begin", "ADD three end"]


def test_version_and_about_need_no_turn(agent: Forked, tmp_path: Path) -> None:
    version = cni(agent.socket, "VERSION", config(tmp_path), "")
    assert (version.exit, version.json["cniVersion"]) == (0, "1.1.0")
    about = exchange(agent.socket, request("watched", {}, b""))
    assert about is not None
    assert (about.exit, about.stdout) == (0, b"")
    assert about.stderr.startswith(b"a test's\nCNI protocol versions supported: ")


def test_an_unknown_plugin_is_refused_as_one_that_is_not_installed(agent: Forked, tmp_path: Path) -> None:
    answer = cni(agent.socket, "ADD", {**config(tmp_path), "type": "none"}, "one", "/run/x")
    assert answer.json["code"] == 7
    assert answer.json["msg"] == 'cannot find plugin "none" in /opt/cni/bin'


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET /cni/v1/watched HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"POST /cni/v1/watched HTTP/1.1\r\nHost: a\r\n\r\n", 415),
        (b"POST /cni/v1/../x HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
    ],
)
def test_a_malformed_request_is_refused_and_told(agent: Forked, data: bytes, status: int) -> None:
    answer = exchange(agent.socket, data)
    assert answer is not None
    assert (answer.status, answer.body.strip() != b"") == (status, True)
    assert agent.status()["requests"]["refused"] == 1


def test_half_a_request_costs_nothing(agent: Forked, tmp_path: Path) -> None:
    whole = request("watched", variables("ADD", "one", "/run/x"), json.dumps(config(tmp_path)).encode())
    for length in range(0, len(whole), 37):
        with connect(agent.socket) as sock:
            sock.sendall(whole[:length])
    agent.until(lambda found: not found["running"])
    assert (plugins.log(tmp_path), agent.attachments()) == ([], [])
    assert "Traceback" not in agent.log.read_text()


def test_a_request_in_crumbs_is_read(agent: Forked, tmp_path: Path) -> None:
    whole = request("watched", variables("ADD", "one", "/run/x"), json.dumps(config(tmp_path)).encode())
    with connect(agent.socket) as sock:
        for at in range(0, len(whole), 41):
            sock.sendall(whole[at : at + 41])
        answer = read_answer(sock)
    assert answer is not None
    assert answer.exit == 0


def test_callers_that_come_and_go_leave_no_descriptor_and_no_crowd_of_threads(
    agent: Forked, tmp_path: Path
) -> None:
    def held() -> tuple[int, int]:
        home = Path(f"/proc/{agent.pid}")
        return len(list((home / "fd").iterdir())), len(list((home / "task").iterdir()))

    assert agent.add(config(tmp_path), "warm", "/run/x").exit == 0
    before, _ = held()
    crowd = [begin(agent, "ADD", config(tmp_path, wait="go"), f"c{number}") for number in range(50)]
    agent.until(lambda found: len(found["running"]) == 50)
    for sock in crowd[::2]:
        sock.close()
    (tmp_path / "go").touch()
    for sock in crowd[1::2]:
        assert read_answer(sock) is not None
        sock.close()
    agent.until(lambda found: not found["running"])
    # At most 16 idle threads stay; each may keep its socket to the kernel.
    until(lambda: held()[0] <= before + 20 and held()[1] <= 30, lambda: (before, held()))


def test_sigterm_lets_what_runs_end(agent: Forked, tmp_path: Path) -> None:
    sock = begin(agent, "ADD", config(tmp_path, wait="go"), "one")
    wait_for(tmp_path, "ADD one begin")
    os.kill(agent.pid, 15)
    until(lambda: not agent.socket.exists())
    threading.Timer(0.1, (tmp_path / "go").touch).start()
    answer = read_answer(sock)
    sock.close()
    assert answer is not None
    assert answer.exit == 0
    assert agent.wait() == 0


def test_sigterm_waits_for_a_hanging_plugin_only_so_long_and_the_next_agent_undoes_it(
    start: Start, tmp_path: Path
) -> None:
    agent = start(plugins=[WATCHED], settings=Settings(drain_seconds=0.3))
    sock = begin(agent, "ADD", config(tmp_path, wait="never", stubborn=True), "one")
    wait_for(tmp_path, "ADD one begin")
    assert agent.end() == 1
    assert read_answer(sock) is None
    sock.close()
    agent = start(plugins=[WATCHED])
    assert plugins.log(tmp_path)[-1] == "DEL one end"
    assert agent.attachments() == []


def test_the_second_entry_of_a_type_is_undone_beside_the_first(start: Start, tmp_path: Path) -> None:
    agent = start(plugins=[WATCHED])
    assert agent.add(config(tmp_path), "one", "/run/x").exit == 0
    sock = begin(agent, "ADD", config(tmp_path, wait="never"), "one")
    agent.until(lambda found: len(found["running"]) == 1)
    agent.kill()
    sock.close()
    (tmp_path / "never").touch()
    agent = start(plugins=[WATCHED])
    assert plugins.log(tmp_path)[-1] == "DEL one end"
    assert [one["plugin"] for one in agent.attachments()] == ["watched"]
    assert agent.delete(config(tmp_path), "one", "/run/x").exit == 0
    assert agent.attachments() == []


def test_a_dead_agents_socket_is_replaced(start: Start, tmp_path: Path) -> None:
    start(plugins=[WATCHED]).kill()
    agent = start(plugins=[WATCHED])
    assert agent.add(config(tmp_path), "one", "/run/x").exit == 0


def test_a_file_in_the_socket_s_place_is_left_alone(root: Path) -> None:
    (root / "run").mkdir(parents=True)
    (root / "run" / "agent.sock").write_text("precious")
    agent = Forked(root)
    assert agent.wait() != 0
    assert "is there and is not a socket" in agent.log.read_text()
    assert (root / "run" / "agent.sock").read_text() == "precious"
