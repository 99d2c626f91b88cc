"""The shim beside an agent that answers by a script: what it sends, what it makes of each answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.shim.helpers import PATIENCE, Agent, Shim, answer, closed, hung_up, receive, reset

STDIN_MAX = (8 << 20) - (256 << 10)
RESULT = b'{"cniVersion": "1.0.0", "ips": []}'


def error(done: subprocess.CompletedProcess[bytes], status: int = 1) -> dict[str, Any]:
    assert (done.returncode, done.stderr) == (status, b"")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("cniVersion") == "1.1.0"
    return found


def test_the_request_is_as_agreed(agent: Agent, shim: Shim) -> None:
    environ = shim.environ(
        CNI_CONTAINERID="c1",
        CNI_ARGS="K=\xe4;IgnoreUnknown=1",
        CNI_NETNS="",
        TRACEPARENT="00-a-b-01",
        TRACESTATE="x=y",
        BAGGAGE="k=v",
        PODWIRE_TIMEOUT="20",
        TRACEPARENTAGE="no",
        SECRET="no",
        XCNI_A="no",
    )
    with agent.serve(agent.answering(answer(RESULT))):
        done = shim.run("host-local", b"\0\xff\r\n\r\n{}", environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, b"")
    (asked,) = agent.asked
    assert asked.line == "POST /cni/v1/host-local HTTP/1.1"
    assert asked.stdin == b"\0\xff\r\n\r\n{}"
    wanted = {key: environ[key] for key in environ if key not in {"PATH", "ASAN_OPTIONS", "SECRET", "XCNI_A"}}
    del wanted["TRACEPARENTAGE"]
    assert asked.variables == wanted
    milliseconds = int(asked.headers.pop("Podwire-Timeout"))
    assert 15_000 < milliseconds <= 20_000
    assert asked.headers.pop("Podwire-Environment").isdigit()
    assert asked.headers.pop("Content-Length").isdigit()
    assert asked.headers == {
        "Host": "podwire",
        "Content-Type": "application/vnd.podwire.cni",
        "Connection": "close",
    }


@pytest.mark.parametrize("status", [0, 1])
def test_both_streams_and_the_status_are_passed_on(agent: Agent, shim: Shim, status: int) -> None:
    with agent.serve(agent.answering(answer(b"out\0\xff", b"a warning\n", status))):
        done = shim.run()
    assert (done.returncode, done.stdout, done.stderr) == (status, b"out\0\xff", b"a warning\n")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65536, 1 << 20, STDIN_MAX])
def test_configurations_and_answers_of_any_size_pass(agent: Agent, shim: Shim, size: int) -> None:
    data = os.urandom(size)
    with agent.serve(agent.answering(answer(data, data[: 1 << 16]))):
        done = shim.run(stdin=data)
    assert agent.asked[0].stdin == data
    assert done.stdout == data
    assert done.returncode == 0


def test_an_answer_may_have_16_mib(agent: Agent, shim: Shim) -> None:
    data = os.urandom(1 << 24)
    with agent.serve(agent.answering(answer(data))):
        done = shim.run()
    assert (done.returncode, done.stdout == data) == (0, True)


def test_more_than_7_75_mib_on_stdin_is_refused(agent: Agent, shim: Shim) -> None:
    with agent.serve(lambda connection: None):
        done = shim.run(stdin=b" " * (STDIN_MAX + 1))
    assert error(done) == {"code": 6, "msg": "the configuration on stdin: more than 7.75 MiB"}


def test_an_environment_of_more_than_256_kib_is_refused(shim: Shim) -> None:
    huge = {f"CNI_{n}": "x" * 100_000 for n in range(3)}
    found = error(shim.run(environ=shim.environ(**huge)))
    assert found == {"code": 4, "msg": "CNI_*, PODWIRE_* and trace variables: more than 256 KiB"}


@pytest.mark.parametrize("pause", ["head", "body"])
def test_an_answer_may_come_byte_by_byte(agent: Agent, shim: Shim, pause: str) -> None:
    data = answer(RESULT, b"said")
    split = data.index(b"\r\n\r\n") + 4
    bytewise = data[:split] if pause == "head" else data[split:]
    pieces = [bytes([each]) for each in bytewise]
    with agent.serve(
        agent.answering(*([*pieces, data[split:]] if pause == "head" else [data[:split], *pieces]))
    ):
        done = shim.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, b"said")


def test_header_names_have_no_case_and_others_are_ignored(agent: Agent, shim: Shim) -> None:
    head = (
        b"HTTP/1.1 200\r\nSERVER: x: y\r\ncontent-length:2\r\nPODWIRE-EXIT:\t1\r\npodwire-stderr: 1\r\n\r\n"
    )
    with agent.serve(agent.answering(head + b"ab")):
        done = shim.run()
    assert (done.returncode, done.stdout, done.stderr) == (1, b"a", b"b")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 2000 OK\r\n\r\n", id="status"),
        pytest.param(b"HTTP/1.1 2\r\n\r\n", id="short status"),
        pytest.param(b"HTTP/1.1 2x0 OK\r\n\r\n", id="letters"),
        pytest.param(b"\r\n\r\n", id="nothing"),
        pytest.param(b"hello\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="no headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nPodwire-Exit: 0\r\n\r\n", id="no stderr"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nPodwire-Stderr: 0\r\n\r\n", id="no exit"),
        pytest.param(b"HTTP/1.1 200 OK\r\nPodwire-Exit: 0\r\nPodwire-Stderr: 0\r\n\r\n", id="no length"),
        pytest.param(answer(b"", b"", 2), id="exit 2"),
        pytest.param(answer(b"", b"", 0, "Podwire-Exit: 0"), id="two exits"),
        pytest.param(answer(b"", b"", 0, "Content-Length: 0"), id="two lengths"),
        pytest.param(answer(b"", b"", 0, "Podwire-Stderr: 0"), id="two stderrs"),
        pytest.param(answer(b"", b"", 0, "Transfer-Encoding: chunked"), id="chunked"),
        pytest.param(answer(b"", b"", 0, "no colon"), id="no colon"),
        pytest.param(answer(b"ab").replace(b"Stderr: 0", b"Stderr: 3"), id="stderr over the end"),
        pytest.param(answer(b"ab").replace(b"Length: 2", b"Length: -2"), id="negative"),
        pytest.param(answer(b"ab").replace(b"Length: 2", b"Length: 2 "), id="space"),
        pytest.param(
            answer(b"ab").replace(b"Length: 2", b"Length: 9999999999999999999"), id="too many digits"
        ),
        pytest.param(answer(b"ab").replace(b"Length: 2", b"Length: 16777217"), id="too long"),
        pytest.param(answer(b"ab").replace(b"Length: 2", b"Length: "), id="empty length"),
    ],
)
def test_what_is_no_answer_is_refused(agent: Agent, shim: Shim, data: bytes) -> None:
    with agent.serve(agent.answering(data)):
        found = error(shim.run())
    assert found == {"code": 11, "msg": f"podwire agent on {agent.path}: its answer is not understood"}


def test_an_answer_that_is_longer_than_it_says_is_refused(agent: Agent, shim: Shim) -> None:
    with agent.serve(agent.answering(answer(b"ab") + b"c")):
        found = error(shim.run())
    assert found["msg"].endswith(": its answer is longer than it said")


def test_headers_without_end_are_refused(agent: Agent, shim: Shim) -> None:
    def endless(connection: socket.socket) -> None:
        receive(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2000)
        closed(connection)

    with agent.serve(endless):
        found = error(shim.run())
    assert found["msg"].endswith(": its answer is too long")


def test_hung_up_at_any_byte_of_the_answer_is_told_and_nothing_else_is_written(
    agent: Agent, shim: Shim
) -> None:
    whole = answer(b"ab", b"c")
    cut = iter(range(len(whole)))

    def hang_up(connection: socket.socket) -> None:
        agent.answering(whole[: next(cut)])(connection)

    with agent.serve(hang_up):
        for _ in whole:
            found = error(shim.run())
            assert found["code"] == 11
            assert found["msg"].endswith(": it hung up before it had answered")


@pytest.mark.parametrize("how", ["unread", "half read"])
def test_an_agent_that_dies_in_the_middle_is_code_11(agent: Agent, shim: Shim, how: str) -> None:
    def die(connection: socket.socket) -> None:
        if how == "half read":
            connection.recv(100)
        reset(connection)

    with agent.serve(die):
        found = error(shim.run(stdin=b"x" * (4 << 20)))
    assert found["code"] == 11
    assert found["msg"].endswith(": it hung up before it had answered")


def test_an_answer_that_comes_before_the_request_is_sent_counts(agent: Agent, shim: Shim) -> None:
    def early(connection: socket.socket) -> None:
        connection.sendall(answer(b"early", b"", 1))
        connection.shutdown(socket.SHUT_RDWR)

    with agent.serve(early):
        done = shim.run(stdin=b"x" * (4 << 20))
    assert (done.returncode, done.stdout) == (1, b"early")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"the agent is starting\n", "the agent is starting"),
        (b'a "quote" \\ and \x01 \x7f\ttab\r\n', 'a "quote" \\ and \x01 \x7f\ttab'),
        ("für \u2026 \U0001f600".encode(), "für \u2026 \U0001f600"),
        (b"\xff \xc0\xaf \xe2\x82 \xed\xa0\x80 \xf4\x90\x80\x80.", None),
        (b"\xe2\x82", "\ufffd\ufffd"),
        (b"x" * 100_000, "x" * 8192),
    ],
)
@pytest.mark.parametrize("length", [True, False])
def test_another_status_is_code_11_with_its_text(
    agent: Agent, shim: Shim, body: bytes, said: str | None, length: bool
) -> None:
    head = b"HTTP/1.1 503 Service Unavailable\r\n" + (
        b"Content-Length: %d\r\n" % len(body) if length else b""
    )
    with agent.serve(agent.answering(head + b"\r\n" + body)):
        found = error(shim.run())
    assert found["code"] == 11
    if said is None:
        assert re.fullmatch(r"[\ufffd ]*\.", found["msg"])
    else:
        assert found["msg"] == said


def test_another_status_without_text_is_told_by_its_number(agent: Agent, shim: Shim) -> None:
    with agent.serve(agent.answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")):
        found = error(shim.run())
    assert found == {"code": 11, "msg": f"podwire agent on {agent.path}: it refused the call with status 404"}


def test_status_has_a_code_of_its_own_for_an_agent_that_cannot_serve(agent: Agent, shim: Shim) -> None:
    with agent.serve(agent.answering(b"HTTP/1.1 503 x\r\n\r\nstarting")):
        found = error(shim.run(environ=shim.environ("STATUS")))
    assert found == {"code": 50, "msg": "starting"}


@pytest.mark.parametrize("where", ["before", "head", "body"])
def test_the_deadline_bounds_the_wait_for_an_answer(agent: Agent, shim: Shim, where: str) -> None:
    whole = answer(RESULT)
    sent = {"before": b"", "head": whole[:20], "body": whole[:-1]}[where]

    def slow(connection: socket.socket) -> None:
        receive(connection)
        connection.sendall(sent)
        assert closed(connection)

    began = time.monotonic()
    with agent.serve(slow):
        found = error(shim.run(environ=shim.environ(PODWIRE_TIMEOUT="0.3")))
    assert 0.3 <= time.monotonic() - began < 5
    assert found["code"] == 11
    assert ": no answer before the deadline (PODWIRE_TIMEOUT" in found["msg"]


def test_the_deadline_bounds_an_agent_that_does_not_read(agent: Agent, shim: Shim) -> None:
    with agent.serve(hung_up):
        found = error(shim.run(stdin=b"x" * (4 << 20), environ=shim.environ(PODWIRE_TIMEOUT="300ms")))
    assert ": no answer before the deadline" in found["msg"]


def test_the_deadline_bounds_stdin(agent: Agent, shim: Shim) -> None:
    with agent.serve(lambda connection: None):
        process = shim.start(environ=shim.environ(PODWIRE_TIMEOUT="0.2"))
        with process:
            assert process.wait(PATIENCE) == 1
            assert process.stdout is not None
            found = json.loads(process.stdout.read())
    assert found["code"] == 5
    assert found["msg"] == "error reading from stdin: no end of it before the deadline"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *(("7", 7000), ("1.5", 1500), ("12.0015", 12_001), ("90s", 90_000), ("1m30s", 90_000)),
        *(("250ms", 250), ("1h", 3_600_000), ("0.5h2ms", 1_800_002), ("", 60_000), ("59m60s", 3_600_000)),
        *(("2.", None), (".5", None), ("1x", None), ("-1", None), ("0", None), ("1m30", None)),
        *(("1h1ms", None), ("1 s", None), ("9999999999", None), ("s", None)),
    ],
)
def test_durations(agent: Agent, shim: Shim, text: str, milliseconds: int | None) -> None:
    with agent.serve(agent.answering(answer())):
        done = shim.run(environ=shim.environ(PODWIRE_TIMEOUT=text))
    if milliseconds is None:
        assert error(done) == {
            "code": 4,
            "msg": f"PODWIRE_TIMEOUT {text}: not a duration up to 1h, as 30, 1.5, 1m30s",
        }
    else:
        assert milliseconds - 5000 < int(agent.asked[0].headers["Podwire-Timeout"]) <= milliseconds


def _heeding(number: signal.Signals) -> Callable[[], None]:
    """What has a new process not ignore a signal, as a background job of a shell ignores SIGINT."""

    def heed() -> None:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)

    return heed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_the_agent_sees_that_its_caller_is_gone(
    agent: Agent, shim: Shim, number: signal.Signals
) -> None:
    there, gone = threading.Event(), threading.Event()

    def wait(connection: socket.socket) -> None:
        receive(connection)
        there.set()
        if closed(connection):
            gone.set()

    with agent.serve(wait):
        process = shim.start(preexec_fn=_heeding(number))
        assert process.stdin is not None
        process.stdin.close()
        assert there.wait(PATIENCE)
        process.send_signal(number)
        with process:
            assert process.wait(PATIENCE) == -number
        assert gone.wait(PATIENCE)


def test_its_side_stays_open_until_the_answer_is_there(agent: Agent, shim: Shim) -> None:
    def look(connection: socket.socket) -> None:
        receive(connection)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.sendall(answer(RESULT))

    with agent.serve(look):
        assert shim.run().stdout == RESULT


def test_without_a_command_stdin_is_left_alone_and_the_about_text_comes_from_the_agent(
    agent: Agent, shim: Shim
) -> None:
    with agent.serve(agent.answering(answer(b"", b"Podwire bridge\n"))):
        process = shim.start(environ=shim.environ(""))
        with process:
            assert process.wait(PATIENCE) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b"Podwire bridge\n"
    assert agent.asked[0].stdin == b""
    assert "CNI_COMMAND" not in agent.asked[0].variables


@pytest.mark.parametrize("closes", [True, False])
def test_version_takes_what_is_on_stdin_and_does_not_wait_for_its_end(
    agent: Agent, shim: Shim, closes: bool
) -> None:
    with agent.serve(agent.answering(answer(b"{}"))):
        process = shim.start(environ=shim.environ("VERSION"))
        with process:
            assert process.stdin is not None
            process.stdin.write(b'{"cniVersion": "0.4.0"}')
            process.stdin.flush()
            if closes:
                process.stdin.close()
            assert process.wait(PATIENCE) == 0
    assert agent.asked[0].stdin == b'{"cniVersion": "0.4.0"}'


def test_an_unknown_command_is_for_the_agent_to_refuse_without_stdin(agent: Agent, shim: Shim) -> None:
    with agent.serve(agent.answering(answer(b"{}", b"", 1))):
        process = shim.start(environ=shim.environ("ADDS"))
        with process:
            assert process.wait(PATIENCE) == 1
    assert agent.asked[0].variables["CNI_COMMAND"] == "ADDS"


def _closing(*numbers: int) -> Any:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


def test_a_closed_stdin_is_told(agent: Agent, shim: Shim) -> None:
    with agent.serve(lambda connection: None):
        done = shim.run(preexec_fn=_closing(0))
    assert error(done) == {"code": 5, "msg": "error reading from stdin: Bad file descriptor"}


def test_stdin_that_cannot_be_read_is_told(agent: Agent, shim: Shim) -> None:
    directory = os.open("/", os.O_RDONLY)
    try:
        with agent.serve(lambda connection: None):
            done = shim.run(stdin=directory)
    finally:
        os.close(directory)
    assert error(done) == {"code": 5, "msg": "error reading from stdin: Is a directory"}


@pytest.mark.parametrize("how", ["closed", "broken", "full"])
def test_an_answer_that_cannot_be_written_is_a_failure(agent: Agent, shim: Shim, how: str) -> None:
    with agent.serve(agent.answering(answer(RESULT))):
        if how == "closed":
            done = shim.run(preexec_fn=_closing(1))
        elif how == "full":
            with open("/dev/full", "wb") as full:  # noqa: PTH123
                done = shim.run(stdout=full)
        else:
            reader, writer = os.pipe()
            os.close(reader)
            try:
                done = shim.run(stdout=writer)
            finally:
                os.close(writer)
    reason = {"closed": "Bad file descriptor", "broken": "Broken pipe", "full": "No space left on device"}[
        how
    ]
    assert done.returncode == 1
    assert reason in done.stderr.decode()


def test_a_reader_that_does_not_read_is_not_waited_for_beyond_the_deadline(agent: Agent, shim: Shim) -> None:
    with agent.serve(agent.answering(answer(b"x" * (1 << 20)))):
        process = shim.start(environ=shim.environ(PODWIRE_TIMEOUT="0.5"))
        with process:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE) == 1
            assert process.stderr is not None
            assert b"cannot write to stdout" in process.stderr.read()


def test_a_closed_stderr_does_no_harm(agent: Agent, shim: Shim) -> None:
    with agent.serve(agent.answering(answer(RESULT, b"lost"))):
        done = shim.run(preexec_fn=_closing(2))
    assert (done.returncode, done.stdout) == (0, RESULT)


@pytest.mark.parametrize("name", ["a b", "ä", ".hidden", "..", "x" * 65, "a%2e", "", "a\r\nb"])
def test_a_name_that_no_plugin_has_is_refused(shim: Shim, name: str) -> None:
    done = subprocess.run(
        [f"/x/{name}"],
        executable=shim.program,
        env=shim.environ(),
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert error(done)["code"] == 4


def test_a_hundred_callers_at_once_get_each_their_own_answer(agent: Agent, shim: Shim) -> None:
    def echo(connection: socket.socket) -> None:
        asked = receive(connection)
        connection.sendall(answer(asked.stdin, asked.variables["CNI_CONTAINERID"].encode()))

    def call(number: int) -> tuple[bytes, bytes]:
        done = shim.run("bridge", b"%d" % number * 1000, shim.environ(CNI_CONTAINERID=f"c{number}"))
        return done.stdout, done.stderr

    shim.named("bridge")
    with agent.serve(echo), ThreadPoolExecutor(100) as pool:
        found = list(pool.map(call, range(100)))
    assert found == [(b"%d" % n * 1000, b"c%d" % n) for n in range(100)]
