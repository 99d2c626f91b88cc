"""Batches, answers and dumps: with a scripted kernel at the other end, and with the real one."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import links
from podwire.kernel.attributes import STRING, U32
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import NetlinkSocket, RouteSocket, split
from tests.kernel import helpers

ERROR, DONE, DUMP_INTR, CAPPED, TLVS = 2, 3, 0x10, 0x100, 0x200
ASK = Message(100, 0, b"body", "try", "it")


class Scripted(NetlinkSocket):
    PROTOCOL = 0


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    raw = struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body
    return raw + bytes(-len(raw) % 4)


def answer(sequence: int, code: int, text: str = "", *, whole: int = 0) -> bytes:
    """An NLMSG_ERROR; ``whole`` is the length of the request that is echoed, 0 when it is capped."""
    flags = (TLVS if text else 0) | (0 if whole else CAPPED)
    echoed = struct.pack("=IHHII", whole or 20, 100, 5, sequence, 0) + bytes(max(0, -(-whole // 4) * 4 - 16))
    return message(
        ERROR, flags, sequence, struct.pack("=i", code) + echoed + (STRING.pack(1, text) if text else b"")
    )


@pytest.fixture
def script() -> Iterator[Callable[..., Scripted]]:
    """A socket whose kernel sends the given datagrams."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))

    def play(*datagrams: bytes) -> Scripted:
        for datagram in datagrams:
            theirs.send(datagram)
        return Scripted(ours)

    yield play
    ours.close()
    theirs.close()


def test_a_question_behind_messages_is_answered_after_them(script: Callable[..., Scripted]) -> None:
    sock = script(message(16, 0, 3, b"told"))
    assert sock.request_after([ASK, ASK], ASK) == (16, b"told")


def test_of_messages_before_a_question_the_first_refusal_is_raised(script: Callable[..., Scripted]) -> None:
    first, second = Message(1, 0, b"", "do", "first"), Message(2, 0, b"", "do", "second")
    sock = script(
        answer(1, -errno.EEXIST, "it is there"), answer(2, -errno.EPERM), message(16, 0, 3, b"told")
    )
    with pytest.raises(KernelError) as caught:
        sock.request_after([first, second], ASK)
    assert (caught.value.errno, caught.value.subject) == (errno.EEXIST, "first")
    sock = script(answer(1, -errno.ENODEV))
    with pytest.raises(KernelError) as caught:
        sock.request_after([], ASK)
    assert (caught.value.errno, caught.value.subject) == (errno.ENODEV, "it")


def test_every_answer_is_awaited_and_the_first_failure_raised(script: Callable[..., Scripted]) -> None:
    sock = script(answer(2, -errno.EEXIST, "second"), answer(1, -errno.EPERM, "first") + answer(3, 0))
    with pytest.raises(KernelError) as caught:
        sock.send(*(Message(100, 0, b"", "do", str(number)) for number in (1, 2, 3)))
    # Answers come in order from a real kernel; the first that is read is the first that failed.
    assert (caught.value.errno, caught.value.subject, caught.value.detail) == (errno.EEXIST, "2", "second")
    with pytest.raises(KernelError) as silence:
        sock.send(ASK)
    assert silence.value.errno == errno.ETIMEDOUT


def test_stale_answers_are_passed_over(script: Callable[..., Scripted]) -> None:
    sock = script(answer(900, -errno.EPERM), answer(1, 0))
    sock.send(ASK)
    with pytest.raises(KernelError) as caught:
        sock.send(ASK)
    assert caught.value.errno == errno.ETIMEDOUT


@pytest.mark.parametrize("whole", [0, 20, 33])
def test_the_extended_text_is_found_behind_a_capped_and_a_whole_request(
    script: Callable[..., Scripted], whole: int
) -> None:
    sock = script(answer(1, -errno.EINVAL, "Device can not be enslaved", whole=whole))
    with pytest.raises(KernelError) as caught:
        sock.send(ASK)
    assert caught.value.detail == "Device can not be enslaved"
    assert str(caught.value) == "try it: Invalid argument (EINVAL): Device can not be enslaved"


def test_a_missing_attribute_is_told(script: Callable[..., Scripted]) -> None:
    body = struct.pack("=iIHHII", -errno.EINVAL, 20, 100, 5, 1, 0) + U32.pack(5, 3)
    sock = script(message(ERROR, TLVS | CAPPED, 1, body))
    with pytest.raises(KernelError, match="attribute 3 is missing"):
        sock.send(ASK)


def test_an_interrupted_dump_is_read_again(script: Callable[..., Scripted]) -> None:
    sock = script(
        message(16, 2, 1, b"old!"),
        message(16, 2 | DUMP_INTR, 1, b"torn"),
        message(DONE, 2, 1, struct.pack("=i", 0)),
        message(16, 2, 2, b"new!"),
        message(DONE, 2, 2, struct.pack("=i", 0)),
    )
    assert sock.dump(ASK) == [(16, b"new!")]


def test_a_table_that_never_keeps_still_is_an_error(script: Callable[..., Scripted]) -> None:
    done = struct.pack("=i", 0)
    parts = [
        message(16, 2, number, b"part") + message(DONE, 2 | DUMP_INTR, number, done)
        for number in range(1, 33)
    ]

    class Feeding(Scripted):
        def _write(self, message: Message, parts_: list[bytes]) -> None:
            script(parts.pop(0))

    sock = Feeding(script()._socket)
    with pytest.raises(KernelError) as caught:
        sock.dump(ASK)
    assert caught.value.errno == errno.EAGAIN
    assert "changed during 32 readings" in str(caught.value)
    assert not parts


def test_an_entry_larger_than_the_buffer_is_read_again_with_more_room(
    script: Callable[..., Scripted],
) -> None:
    large = b"x" * 70_000
    done = struct.pack("=i", 0)
    sock = script(
        message(16, 2, 1, large),
        message(DONE, 2, 1, done),
        message(16, 2, 2, large),
        message(DONE, 2, 2, done),
    )
    assert sock.dump(ASK) == [(16, large)]


def test_the_error_of_a_dump_keeps_its_text(script: Callable[..., Scripted]) -> None:
    body = struct.pack("=i", -errno.EINVAL) + STRING.pack(1, "Unknown attribute")
    sock = script(message(DONE, 2 | TLVS, 1, body))
    with pytest.raises(KernelError, match="Unknown attribute"):
        sock.dump(ASK)


def test_a_lost_answer_is_an_error_and_not_a_hang(script: Callable[..., Scripted]) -> None:
    sock = script()
    with pytest.raises(KernelError) as caught:
        sock.dump(ASK)
    assert caught.value.errno == errno.ETIMEDOUT


@given(st.binary(max_size=120))
def test_random_datagrams_split_or_raise_the_typed_error(data: bytes) -> None:
    try:
        parts = list(split(data))
    except MalformedReply:
        return
    assert sum(16 + len(body) for _, _, _, body in parts) <= len(data)


@pytest.mark.kernel
def test_all_messages_of_a_batch_are_tried(sock: RouteSocket) -> None:
    with pytest.raises(KernelError) as caught:
        sock.send(
            links.veth("a0", "a1"),
            links.veth("a0", "b1"),
            links.configure("none", up=True),
            links.veth("c0", "c1"),
        )
    assert caught.value.errno == errno.EEXIST
    assert (caught.value.operation, caught.value.subject) == ("create veth", "a0")
    assert helpers.link_names() == {"lo", "a0", "a1", "c0", "c1"}
    sock.send(links.configure("c0", up=True))
    assert "UP" in helpers.link("c0")["flags"]


@pytest.mark.kernel
def test_the_kernels_own_words_are_in_the_error(sock: RouteSocket) -> None:
    sock.send(links.bridge("br0"), links.bridge("br1"))
    inner = links.get(sock, "br1")
    assert inner is not None
    with pytest.raises(KernelError) as caught:
        sock.send(links.configure("br0", master=inner.index))
    assert caught.value.errno == errno.ELOOP
    assert "Can not enslave a bridge to a bridge" in caught.value.detail
    assert str(caught.value).startswith("change link br0: ")


@pytest.mark.kernel
def test_a_batch_of_thousands_loses_no_answer(sock: RouteSocket) -> None:
    up = [links.configure("lo", mtu=60_000 + number % 2) for number in range(8_000)]
    sock.send(*up)
    with pytest.raises(KernelError) as caught:
        sock.send(*up[:7_500], links.configure("none", up=True))
    assert caught.value.errno == errno.ENODEV
    assert helpers.link("lo")["mtu"] == 60_001


@pytest.mark.kernel
def test_a_listing_is_whole_while_links_come_and_go(sock: RouteSocket) -> None:
    steady = {f"s{number}" for number in range(60)} | {f"t{number}" for number in range(60)}
    sock.send(*(links.veth(f"s{number}", f"t{number}") for number in range(60)))
    stop = threading.Event()

    def churn() -> None:
        with RouteSocket.open() as other:
            while not stop.is_set():
                other.send(links.veth("x0", "x1"))
                other.send(links.delete("x0"))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            names = [link.name for link in links.list_links(sock)]
            assert len(names) == len(set(names))
            assert steady <= set(names)
    finally:
        stop.set()
        thread.join()


@pytest.mark.kernel
def test_a_closed_socket_says_so(sock: RouteSocket) -> None:
    sock.close()
    sock.close()
    with pytest.raises(KernelError) as caught:
        sock.send(links.configure("lo", up=True))
    assert caught.value.errno == errno.EBADF
