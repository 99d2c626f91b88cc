"""Netlink sockets: batches in one system call with every answer collected, and consistent dumps.

Wire format: linux/netlink.h. Extended acknowledgements: struct nlmsgerr and its NLMSGERR_ATTR_* tail.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from podwire.kernel import message as nl
from podwire.kernel.attributes import S32, STRING, U32, Table
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.message import Message

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

SOL_NETLINK = 270
NETLINK_ROUTE = 0
ADD_MEMBERSHIP = 1
_CAP_ACK = 10
_EXT_ACK = 11
_GET_STRICT_CHK = 12
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_BINDTOIFINDEX = 62
_MSG_TRUNC = 0x20

ERROR = 2
"""NLMSG_ERROR: a refusal, or an acknowledgement when its number is 0."""
_DONE = 3
_OVERRUN = 4
_CAPPED = 0x100
_ACK_TLVS = 0x200

_HEADER = struct.Struct("=IHHII")
_ACK = struct.Struct("=IHHIIi16s")
_EXTENDED = Table("extended ack", text=(1, STRING), offset=(2, U32), missing=(5, U32))

_BUFFER = 64 * 1024
_RECEIVE_BYTES = 4 * 1024 * 1024
_SPARE_MAX = 16
# Of sockets that were closed: a new buffer is 64 KiB to be cleared, for a few short answers in a pod.
_spare: list[bytearray] = []
_WAIT = struct.pack("@ll", 30, 0)
# Bounds of one sendmsg: the acks of so many messages fit the receive buffer, and the text the send buffer.
_BATCH_MESSAGES = 1000
_BATCH_BYTES = 128 * 1024
_DUMP_TRIES = 32


class NetlinkSocket:
    """A request socket of one netlink family. One thread at a time; a context manager that closes it."""

    PROTOCOL: ClassVar[int]

    __slots__ = ("_buffer", "_sequence", "_socket", "_view")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        try:
            self._buffer = _spare.pop()
        except IndexError:
            self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._sequence = 0

    @classmethod
    def open(cls, netns: Netns | None = None) -> Self:
        """Open a socket in ``netns``, or in the calling thread's namespace."""
        return cls(open_socket(cls.PROTOCOL, netns))

    def send(self, *messages: Message) -> None:
        """Send all messages in one system call (per 1,000 messages) and wait for every answer.

        All are tried, whichever fail. Raises :class:`KernelError` of the first in order that failed.
        """
        first: KernelError | None = None
        for batch in _batches(messages):
            failed = self._send(batch)
            first = first or failed
        if first is not None:
            raise first

    def request(self, message: Message) -> tuple[int, bytes]:
        """Send a question that has one answer; return its message type and body.

        Raises :class:`KernelError`.
        """
        return self._request_after((), message)

    def request_after(self, messages: Sequence[Message], question: Message) -> tuple[int, bytes]:
        """Send messages as `send` does and, in the same system call, a question as `request` does.

        The kernel answers in order, so the answer says that the messages were worked through. Raises
        :class:`KernelError` of the first message that failed, else of the question.
        """
        return self._request_after(messages, question)

    def ask(self, questions: Sequence[Message]) -> list[tuple[int, bytes] | KernelError]:
        """Send questions that have one answer each in one system call; the answer or the refusal of each."""
        if not questions:
            return []
        first = self._next(len(questions))
        self._write(
            questions[0],
            [
                part
                for number, message in enumerate(questions, first)
                for part in (header(message, nl.REQUEST, number), message.body)
            ],
        )
        answers: dict[int, tuple[int, bytes] | KernelError] = {}
        while len(answers) < len(questions):
            for kind, flags, number, body in split(self._read(questions[0])):
                if first <= number < first + len(questions):
                    refused = kind == ERROR
                    question = questions[number - first]
                    answers[number] = failure(question, flags, body) if refused else (kind, body)
        return [answers[number] for number in range(first, first + len(questions))]

    def dump(self, message: Message) -> list[tuple[int, bytes]]:
        """Send a listing request; return the type and body of each entry of a consistent table.

        A table that changed while it was read (NLM_F_DUMP_INTR) is read again, up to 32 times; then
        :class:`KernelError` with EAGAIN.
        """
        for _ in range(_DUMP_TRIES):
            entries = self._dump(message)
            if entries is not None:
                return entries
        raise KernelError(
            errno.EAGAIN,
            message.operation,
            message.subject,
            f"the table changed during {_DUMP_TRIES} readings",
        )

    def close(self) -> None:
        """Close the socket; more than once does nothing."""
        self._socket.close()

    def fileno(self) -> int:
        """The file descriptor, -1 once closed."""
        return self._socket.fileno()

    def device_index(self, name: bytes) -> int:
        """The index of the namespace's device of this name, of 1 to 15 bytes. Raises OSError, ENODEV without.

        By binding this socket to it (socket(7), SO_BINDTODEVICE), which means nothing to netlink.
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
        return self._socket.getsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Only here: whoever ends a block is the thread that used the socket.
        if self._socket.fileno() >= 0 and len(self._buffer) == _BUFFER and len(_spare) < _SPARE_MAX:
            _spare.append(self._buffer)
        self.close()

    def _next(self, count: int) -> int:
        if self._sequence > 0xFFFF0000:
            self._sequence = 0
        first = self._sequence + 1
        self._sequence += count
        return first

    def _write(self, message: Message, parts: list[bytes]) -> None:
        data = b"".join(parts)
        try:
            if len(data) > _BATCH_BYTES:
                # A transaction cannot be divided; twice its size, since the kernel's own overhead counts too.
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * len(data))
            self._socket.send(data)
        except OSError as error:
            raise KernelError(
                error.errno or errno.EIO, message.operation, message.subject, "sending the request"
            ) from error

    def _receive(self, message: Message) -> int:
        try:
            size = self._socket.recv_into(self._view, 0, _MSG_TRUNC)
        except BlockingIOError as error:
            raise KernelError(
                errno.ETIMEDOUT, message.operation, message.subject, "no answer from the kernel within 30 s"
            ) from error
        except OSError as error:
            raise KernelError(
                error.errno or errno.EIO, message.operation, message.subject, "reading the answer"
            ) from error
        return size

    def _read(self, message: Message) -> bytes:
        size = self._receive(message)
        if size > len(self._buffer):
            self._buffer = bytearray(1 << size.bit_length())
            self._view = memoryview(self._buffer)
            return b""
        return bytes(self._view[:size])

    def _request_after(self, messages: Sequence[Message], question: Message) -> tuple[int, bytes]:
        first = self._next(len(messages) + 1)
        last = first + len(messages)
        parts = [
            part
            for number, message in enumerate((*messages, question), first)
            for part in (header(message, nl.REQUEST, number), message.body)
        ]
        self._write(messages[0] if messages else question, parts)
        refusal: KernelError | None = None
        while True:
            for kind, flags, number, body in split(self._answer(question)):
                if not first <= number <= last:
                    continue
                if kind == ERROR and refusal is None:
                    refusal = failure(question if number == last else messages[number - first], flags, body)
                if number == last:
                    if refusal is not None:
                        raise refusal
                    return kind, body

    def _answer(self, question: Message) -> bytes:
        data = self._read(question)
        if not data:
            raise KernelError(errno.EMSGSIZE, question.operation, question.subject, "the answer did not fit")
        return data

    def _send(self, messages: tuple[Message, ...]) -> KernelError | None:
        """Send one batch; only its last message asks for an acknowledgement.

        The kernel works through a batch in the order of its messages before the system call returns
        (netlink_rcv_skb), and a refusal needs no asking: the answer to the last one comes behind all others.
        """
        first = self._next(len(messages))
        last = first + len(messages) - 1
        parts: list[bytes] = []
        for sequence, message in enumerate(messages, first):
            parts.append(header(message, nl.REQUEST | nl.ACK if sequence == last else nl.REQUEST, sequence))
            parts.append(message.body)
        self._write(messages[0], parts)
        refusal: KernelError | None = None
        while True:
            size = self._receive(messages[0])
            if size == _ACK.size:
                _, kind, _, number, _, code, _ = _ACK.unpack_from(self._buffer)
                if kind == ERROR and code == 0 and number == last:
                    return refusal
            for kind, flags, number, body in split(bytes(self._view[:size])):
                if kind != ERROR or not first <= number <= last:
                    continue
                if refusal is None and S32.unpack(body):
                    refusal = failure(messages[number - first], flags, body)
                if number == last:
                    return refusal

    def _discard(self) -> None:
        """Drop the answers that have come and nobody waits for."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1, socket.MSG_DONTWAIT)

    def _dump(self, message: Message) -> list[tuple[int, bytes]] | None:
        """Read one listing to its end; None if it must be read again."""
        sequence = self._next(1)
        self._write(message, [header(message, nl.REQUEST | nl.DUMP, sequence), message.body])
        entries: list[tuple[int, bytes]] = []
        complete = True
        while True:
            data = self._read(message)
            complete = complete and data != b""
            for kind, flags, number, body in split(data):
                if number != sequence:
                    continue
                if flags & nl.DUMP_INTR or kind == _OVERRUN:
                    complete = False
                if kind == _DONE:
                    if len(body) >= 4 and S32.unpack(body) < 0:
                        raise failure(message, flags, body, done=True)
                    return entries if complete else None
                if kind == ERROR:
                    raise failure(message, flags, body)
                entries.append((kind, body))


class RouteSocket(NetlinkSocket):
    """NETLINK_ROUTE: links, addresses, routes, rules, neighbours of one network namespace."""

    PROTOCOL = NETLINK_ROUTE

    __slots__ = ()


def open_socket(protocol: int, netns: Netns | None = None) -> socket.socket:
    """Open a netlink socket with extended acks, strict filters and 4 MiB to receive in."""

    def make() -> socket.socket:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)

    try:
        sock = make() if netns is None else netns.run(make)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "open", f"netlink socket {protocol}") from error
    try:
        for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
            sock.setsockopt(SOL_NETLINK, option, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)
        sock.bind((0, 0))
    except OSError as error:
        sock.close()
        raise KernelError(error.errno or errno.EIO, "prepare", f"netlink socket {protocol}") from error
    return sock


def split(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The messages of one datagram as (type, flags, sequence, body). Raises :class:`MalformedReply`."""
    end = len(data)
    offset = 0
    while end - offset >= 16:
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < 16 or offset + length > end:
            raise MalformedReply("netlink header", f"message of {length} bytes at {offset} of {end}")
        yield kind, flags, sequence, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3
    if offset < end:
        raise MalformedReply("netlink header", f"{end - offset} bytes left over")


def header(message: Message, flags: int, sequence: int) -> bytes:
    """The struct nlmsghdr of one message."""
    return _HEADER.pack(16 + len(message.body), message.type, message.flags | flags, sequence, 0)


def _batches(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    start = size = 0
    for index, message in enumerate(messages):
        size += 16 + len(message.body)
        if size > _BATCH_BYTES or index - start >= _BATCH_MESSAGES:
            if index > start:
                yield messages[start:index]
            start = index
            size = 16 + len(message.body)
    if start < len(messages):
        yield messages[start:]


def failure(message: Message, flags: int, body: bytes, *, done: bool = False) -> KernelError:
    """Turn NLMSG_ERROR, or the error of an NLMSG_DONE, into the error of ``message``.

    Raises :class:`MalformedReply`.
    """
    if len(body) < (4 if done else 20):
        raise MalformedReply("netlink error", f"{len(body)} bytes")
    number = -S32.unpack(body)
    detail = ""
    if flags & _ACK_TLVS:
        start = 4
        if not done:
            # The request comes back whole, unless it was capped to its header.
            start += 16 if flags & _CAPPED else (U32.unpack(body[4:8]) + 3) & ~3
        extended = _EXTENDED.decode(body, start)
        detail = extended.get("text", "")
        if not detail and "missing" in extended:
            detail = f"attribute {extended['missing']} is missing"
    return KernelError(number, message.operation, message.subject, detail)
