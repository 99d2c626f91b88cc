"""Reading requests: what is well-formed comes through as it is, all else is refused, nothing else happens."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podwire.agent import http, protocol
from podwire.agent.http import Asked, Head, Refused

TOKENS = st.text("abcXYZ019-_", min_size=1, max_size=12)
VALUES = st.text([chr(code) for code in range(32, 127)], max_size=30).map(str.strip)
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine that is busy draws slowly."""
RESERVED = {"host", "content-length", "transfer-encoding", "expect"}


def received(*parts: bytes) -> Asked | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> None:
            for part in parts:
                theirs.sendall(part)
            theirs.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            return http.receive(ours)
        finally:
            sender.join()


@UNHURRIED
@given(
    headers=st.dictionaries(TOKENS.filter(lambda name: name.lower() not in RESERVED), VALUES, max_size=8),
    body=st.binary(max_size=300),
    cut=st.integers(0, 400),
)
def test_a_request_comes_through_whatever_its_parts(headers: dict[str, str], body: bytes, cut: int) -> None:
    headers = {name.lower(): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    data = f"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body
    asked = received(data[:cut], data[cut:])
    assert asked == Asked(
        Head("POST", "/x", {"host": "a", "content-length": str(len(body)), **headers}), body
    )


@UNHURRIED
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        http.parse_head(data)
    except Refused as error:
        assert (error.status in http.REASONS, error.text != "") == (True, True)


@UNHURRIED
@given(
    st.lists(
        st.sampled_from(
            [b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"GET", b"/", b"HTTP/1.1", b"a", b"\0", b"Host"]
        )
    )
)
def test_any_order_of_the_usual_bytes_is_read_or_refused(words: list[bytes]) -> None:
    try:
        head = http.parse_head(b"".join(words))
    except Refused:
        return
    assert "host" in head.headers


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1", 400),
        ("GET  / HTTP/1.1\r\nHost: a", 400),
        ("GET / HTTP/1.1 \r\nHost: a", 400),
        ("get / HTTP/1.1\r\nHost: a", 400),
        ("GET x HTTP/1.1\r\nHost: a", 400),
        ("GET http://a/ HTTP/1.1\r\nHost: a", 400),
        ("GET / HTTP/2\r\nHost: a", 505),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a", 400),
        ("GET / HTTP/1.1\r\nHost : a", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n b", 400),
        ("GET / HTTP/1.1\r\nHost: a\nX: b", 400),
        ("GET / HTTP/1.1\r\nHost: a\0", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue", 417),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", 501),
    ],
)
def test_what_is_ambiguous_is_refused(head: str, status: int) -> None:
    with pytest.raises(Refused) as caught:
        http.parse_head(head.encode())
    assert caught.value.status == status


@pytest.mark.parametrize("length", ["-1", "+1", "1e3", " ", "0x1", "1" * 16, "²"])
def test_a_length_is_digits(length: str) -> None:
    with pytest.raises(Refused):
        received(
            f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode("latin-1") + b"x" * 10
        )


def test_bytes_after_the_body_are_refused() -> None:
    with pytest.raises(Refused, match="1 bytes after the body"):
        received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nxy")


def test_silence_is_no_request() -> None:
    assert received() is None


def test_an_end_in_the_middle_is_refused() -> None:
    for part in (b"GET", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"):
        with pytest.raises(Refused, match="ends in the middle"):
            received(part)


def test_a_caller_that_stops_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        http.set_timeouts(ours, 0.05)
        theirs.sendall(b"GET / HT")
        with pytest.raises(Refused) as caught:
            http.receive(ours)
    assert caught.value.status == 408


NAMES = st.sampled_from(["CNI_ARGS", "CNI_", "CNI_NETNS", "PODWIRE_X", "TRACEPARENT", "BAGGAGE"])
ANYTHING = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)


@UNHURRIED
@given(st.dictionaries(NAMES, ANYTHING))
def test_an_environment_comes_through(environ: dict[str, str]) -> None:
    assert protocol.parse_environment(protocol.format_environment(environ)) == environ


def test_an_environment_may_hold_bytes_that_are_no_text() -> None:
    text = b"CNI_NETNS=/run/\xff\0"
    assert protocol.format_environment(protocol.parse_environment(text)) == text


def test_variables_that_no_plugin_asks_for_are_left_out() -> None:
    assert protocol.parse_environment(b"PATH=/bin\0LD_PRELOAD=x\0CNI_ARGS=a\0") == {"CNI_ARGS": "a"}


@UNHURRIED
@given(st.binary(max_size=60))
def test_any_environment_is_read_or_refused(text: bytes) -> None:
    try:
        found = protocol.parse_environment(text)
    except Refused:
        return
    assert all(name and "=" not in name for name in found)


@pytest.mark.parametrize(
    "text", [b"CNI_ARGS", b"CNI_ARGS=a", b"CNI_ARGS\0", b"=a\0", b"\0", b"CNI_A=1\0CNI_A=2\0"]
)
def test_a_broken_environment_is_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        protocol.parse_environment(text)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"podwire-environment": "5"}, 400),
        ({"podwire-environment": "x"}, 400),
        ({"podwire-timeout": "0"}, 400),
        ({"podwire-timeout": "99999999999"}, 400),
        ({"content-type": "text/plain"}, 415),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(headers: dict[str, str], status: int) -> None:
    head = Head("POST", "/cni/v1/bridge", {"content-type": protocol.CONTENT_TYPE, **headers})
    with pytest.raises(Refused) as caught:
        protocol.read(Asked(head, b"{}"))
    assert caught.value.status == status
